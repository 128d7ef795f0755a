"""Sets: what members say of themselves changed, members left out, repeated or of another set, one of them forged.

What is put together has to be valid, the same mapped and read, and where nothing was changed the cache that was split.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hurray_arrow as ha
from hurray_arrow import BlockPagedTensor, ops
from hurray_arrow.snapshot import SnapshotSet
from tests.faults.forgery import Forgery
from tests.faults.outcome import is_same
from tests.fuzz.choices import Choices, json_text
from tests.fuzz.edits import EDITS
from tests.fuzz.limits import bounded, promise, refused
from tests.fuzz.scripts import Script, UnbuildableError
from tests.sample import make_tensor, sample_facts

_SNAPSHOT = b"hurray_arrow.snapshot"
SET = {"id": "4f0c1a52-0b9e-4c53-9c43-3f6d5b1f8e11", "members": 3}
RANGES = [(0, 1), (1, 3), (3, 5)]
_GROUPS = [{"kind": "full", "layer_names": ["l.0"], "components": ["values", "scales"]}, {"kind": "full"}]
#: What the members of a set are compared by, and where it stands.
_OF_SETS = ("id", "member", "members")
_OF_RANKS = ("tp_rank", "tp_size", "pp_rank", "pp_size", "head_range", "head_replica", "more")
_OF_GROUPS = ("kind", "window_tokens", "page_size", "layer_names", "components")


def _tensors(layer: int, **overrides: Any) -> list[BlockPagedTensor]:
    facts: dict[str, Any] = {**sample_facts(), "num_heads": 5, "layer_index": layer, "layer_name": f"l.{layer}"}
    facts |= overrides
    scales = make_tensor(kv_role="key", component="scales", element_type="float32", head_dim=1, **facts)
    return [make_tensor(kv_role="key", **facts), scales, make_tensor(kv_role="value", seed=7, head_dim=3, **facts)]


def _member(tensors: list[BlockPagedTensor], number: int, topology: dict[str, Any], **options: Any) -> bytes:
    stated = {"set": {**SET, "member": number}, "topology": topology, "model": {"name": "m", "revision": "r"}}
    stated["groups"] = options.pop("groups", [])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.arrow"
        ha.write_snapshot(path, tensors, metadata=stated, **options)
        return path.read_bytes()


@cache
def _sets() -> tuple[tuple[tuple[bytes, ...], list[BlockPagedTensor]], ...]:
    """Return members and what they are together: heads shared out; layers; replicas; one head for all; no set."""
    whole = _tensors(0)
    ranks = _ranks(whole)
    head_ranges = [{"tp_rank": n, "tp_size": 3, "head_range": list(RANGES[n])} for n in range(3)]
    heads = [_member(ranks[n], n, head_ranges[n], groups=_GROUPS) for n in range(3)]
    layers = [
        _member(_tensors(n), n, {"pp_rank": n, "pp_size": 3}, groups=[{"kind": "full", "layer_names": [f"l.{n}"]}])
        for n in range(3)
    ]
    replicas = [_member(whole, n, {"head_range": [0, 5], "head_replica": n}) for n in range(3)]
    single = make_tensor(kv_role="fused", component="record.x", num_heads=1, layer_index=0)
    shared = [_member([ranks[n][0], single], n, head_ranges[n], partial=not n) for n in range(3)]
    known = sample_facts()
    unlike: list[dict[str, Any]] = [
        {},
        {**dict.fromkeys(known), "block_tables": [[0], [], [1], [2]], "seq_lens": [2, 0, 1, 3]},
        {
            **known,
            "adapter": ["x", None, "lora-7", "lora-3"],
            "ids": ["other", *known["ids"][1:]],
            "media": None,
            "token_ids": None,
            "page_positions": None,
        },
    ]
    others = [_member(_ranks(_tensors(0, **facts))[n], n, head_ranges[n]) for n, facts in enumerate(unlike)]
    wide = _member(_ranks(_tensors(0, page_size=7))[1], 1, head_ranges[1], groups=_GROUPS)
    return (
        (tuple(heads), whole),
        (tuple(layers), [tensor for n in range(3) for tensor in _tensors(n)]),
        (tuple(replicas), whole),
        (tuple(shared), [whole[0], single]),
        (tuple(others), []),
        ((heads[0], wide, heads[2]), []),
    )


def _ranks(tensors: list[BlockPagedTensor]) -> list[list[BlockPagedTensor]]:
    return [list(rank) for rank in zip(*(ops.split_heads(tensor, RANGES) for tensor in tensors), strict=True)]


def seeds() -> Iterator[bytes]:
    """Yield scripts: nothing changed, every fact in a few ways, members in every order."""
    for base in range(6):
        yield bytes([base])
        for how in range(6 if base < 4 else 2):
            for way in range(20):
                yield bytes([base, how, way % 3, way % 7, way * 11 % 256, way * 37 % 256, way % 5, way])
    for part in range(4):
        for name in range(7):
            # Left out; null; a text; one of four.
            for value in ([7], [0, 0, 0, 5], [0, 0, 7, 3], [0, 1, 3]):
                yield bytes([0, 0, 0, 0, part, name, *value])


def run(data: bytes) -> None:
    """Open and read the set that a script makes."""
    choices = Choices(data)
    bases, whole = choices.pick(_sets())
    members, is_changed = list(bases), choices.more
    try:
        while choices.more and members:
            _change(members, choices)
    except UnbuildableError:
        return
    if not members:
        return
    paths = [path for path, content in zip(_paths(), members, strict=False) if path.write_bytes(content)]
    with bounded(4 * sum(map(len, members))):
        found = [_read(paths, mapped=mapped) for mapped in (True, False)]
    promise((found[0] is None) == (found[1] is None), "refused only one way")
    if found[0] is not None and found[1] is not None:
        promise(len(found[0]) == len(found[1]) and all(map(_alike, *found)), "mapped and read differ")
    if not is_changed:
        promise(len(found[0] or ()) == len(whole), "an intact set is refused, or what is none is taken")
        promise(all(map(_holds, found[0] or (), whole)), "an intact set is another cache")


@cache
def _paths() -> tuple[Path, ...]:
    return tuple(Path(f"/proc/self/fd/{os.memfd_create('fuzz')}") for _ in range(5))


def _change(members: list[bytes], choices: Choices) -> None:
    how, number = choices.below(6), choices.below(len(members))
    match how:
        case 0:
            forgery = Forgery(members[number])
            document = json.loads(forgery.schema.metadata[_SNAPSHOT])
            _change_document(document, choices)
            pairs = {**forgery.schema.metadata, _SNAPSHOT: json_text(document).encode("utf-8", "surrogatepass")}
            forgery.set_schema(forgery.schema.with_metadata(pairs))
            members[number] = forgery.content()
        case 1:
            del members[number]
        case 2:
            others, _ = choices.pick(_sets())
            members[number] = choices.pick(others)
        case 3 if len(members) < len(_paths()):
            members.insert(number, members[choices.below(len(members))])
        case 4:
            members.append(members.pop(number))
        case _:
            # All that is left are edits of one member.
            members[number] = Script(Forgery(members[number]), choices, EDITS).content()


def _change_document(document: dict[str, Any], choices: Choices) -> None:
    """Change one fact of a member: near the old one, as often as not."""
    groups = document.get("groups")
    groups = groups if isinstance(groups, list) and groups else [{}]
    part, names = choices.pick(
        (
            (document.get("set"), _OF_SETS),
            (document.get("topology"), _OF_RANKS),
            (document.get("topology"), ("head_range", "pp_rank", "head_replica")),
            (groups[choices.below(len(groups))], _OF_GROUPS),
            (document, ("set", "topology", "groups", "model", "adapter", "tenant", "partial")),
        )
    )
    if not isinstance(part, dict):
        return
    name = choices.pick(names)
    if choices.below(8) == 7:
        part.pop(name, None)
    elif name == "head_range" and choices.flag():
        part[name] = [choices.below(7), choices.below(7)]
    elif choices.flag():
        part[name] = choices.below(4)
    else:
        part[name] = choices.value(part.get(name))


def _read(paths: list[Path], *, mapped: bool) -> list[BlockPagedTensor | None] | None:
    """Open the files as a set and read every tensor with all its heads."""
    opened = refused(lambda: ha.open_snapshot_set(paths, mapped=mapped))
    if opened is None:
        return None
    with opened:
        promise(repr(opened) and opened.url and opened.profile in ("share", "archive", None), "no text")
        promise(len({entry.key for entry in opened.entries}) == len(opened.entries), "a tensor twice")
        promise(refused(lambda: opened.group_tables(2**40), LookupError) is None, "a group of no tensor")
        in_a_row = refused(lambda: list(opened.iter_tensors()))
        found = [_tensor(opened, entry) for entry in opened.entries]
        promise(in_a_row is None or all(map(_alike, in_a_row, found)), "one by one and in a row differ")
        return found


def _tensor(opened: SnapshotSet, entry: Any) -> BlockPagedTensor | None:
    selectors = {name: (getattr(entry, name),) for name in ("layer_index", "layer_name", "kv_role", "component")}
    refused(lambda: opened.group_tables(entry.kv_group))
    parts = refused(lambda: opened.read(heads="members", verify=True, **selectors), LookupError)
    promise(all(part.validate() == [] for part in parts or ()), "a member's tensor breaks rules")
    tensor = refused(lambda: opened.read(**selectors), LookupError)
    if tensor is not None:
        promise(tensor.validate() == [] and tensor.num_heads == entry.page_shape[1], "a tensor of other heads")
        promise(refused(lambda: opened.first_holder(entry)) is not None, "nobody has a tensor that was read")
    return tensor


def _alike(one: BlockPagedTensor | None, other: BlockPagedTensor | None) -> bool:
    return one is other if one is None or other is None else is_same(one, other)


def _holds(found: BlockPagedTensor | None, expected: BlockPagedTensor) -> bool:
    return found is not None and bool((found.buffers[0] == expected.buffers[0]).all())
