"""``.hrry`` containers: bytes changed all over and the index' checksum made right, or the facts in one changed.

pyhurray reads the container; what it lets through has to be a valid tensor or an error of ours, and to come back.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hurray
import numpy as np

from hurray_arrow import BlockPagedTensor, _json
from hurray_arrow.engines.hurray import tensor_of, to_hurray
from hurray_arrow.engines.hurray_files import FACTS_KEY, Container, read_container, write_container
from tests.conformance import make_vectors
from tests.faults.outcome import is_same
from tests.faults.small import METADATA, small_tensors
from tests.fuzz.choices import Choices, json_text
from tests.fuzz.limits import bounded, promise, refused
from tests.sample import make_tensor, sample_facts

#: The end of a container: places and sizes of index and key-value section, CRC-32C of the index, magic.
_TRAILER = struct.Struct("<QQQIIII")
_DESCRIPTOR = b"HRRY\x01\x00"


@cache
def _bases() -> tuple[tuple[bytes, dict[str, Any], dict[str, Any]], ...]:
    """Return containers: their bytes, pyhurray's tensors, and the facts."""
    found = []
    facts = [
        make_tensor(**sample_facts()),
        make_tensor(layer_index=3, quantization="per_channel_dims", element_type="int8"),
    ]
    for tensors in (small_tensors(), facts, small_tensors()[:1]):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "base.hrry"
            write_container(path, tensors, metadata=METADATA, kv={"arch": "x"})
            kv = hurray.load_kv(str(path))
            found.append((path.read_bytes(), hurray.load(str(path)), json.loads(kv[FACTS_KEY])))
    kv = {"list": ["a", "b"], "numbers": [1, 2], "f": 0.5, "t": True, "i": -1, "bytes": b"x"}
    return (*found, _of_others(kv), _of_others({}))


def _of_others(kv: dict[str, Any]) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """Return a container of other layouts too, on a device, with some values and no facts."""
    tensors = {"paged": make_vectors.tensor(make_vectors.case(device="cuda")), "dense": dense_tensor()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.hrry"
        hurray.save(str(path), tensors, kv=kv)
        facts = {"version": 1, "metadata": {}, "sequences": [], "tensors": {}}
        return path.read_bytes(), hurray.load(str(path)), facts


def seeds() -> Iterator[bytes]:
    """Yield scripts: bytes of the descriptors, of the index, of its end; facts of every name."""
    for base in range(len(_bases())):
        yield bytes([0, base])
        for place in range(0, 256, 7):
            for part in range(5):
                yield bytes([0, base, part, place, place, 0, place % 5, 0xFF, place])
        if base == 1:
            for place in range(64):
                yield from (bytes([0, base, 0, 0, place, 0, 0, new]) for new in (0, 3, 0xFF))
            for place in range(0, 40, 4):
                yield from (bytes([0, base, 4, 0, place, 0, 7, *[new] * 8]) for new in (0, 0xFF))
            # Cut to a few bytes.
            yield from (bytes([0, base, 0, 0, 0, 0, 0, 0, 7, kept, 0]) for kept in (0, 9, 50))
            for place in range(64, 4096, 16):
                yield bytes([0, base, 5, 0, place % 256, place // 256, 0, 7])
            # The facts' version.
            yield bytes([1, base, 2, 0, 0, 3])
        for way in range(48):
            yield bytes([1, base, *[(way * step) % 256 for step in (1, 3, 7, 11, 13, 17)]])
    yield from (b"\2" + text for text in (b"", b"[]", b"{}", b'{"version":2}', b"[" * 99, b'{"version":1}', b"\xff"))


def run(data: bytes) -> None:
    """Read a container that a script changed."""
    with tempfile.TemporaryDirectory() as folder:
        _run(Choices(data), Path(folder) / "s.hrry")


def _run(choices: Choices, path: Path) -> None:
    how, (content, tensors, facts) = choices.below(3), choices.pick(_bases())
    if how == 0:
        path.write_bytes(_changed(content, choices))
    else:
        text = choices.rest().decode("latin-1") if how == 2 else json_text(_changed_facts(facts, choices))
        try:
            hurray.save(str(path), tensors, kv={FACTS_KEY: text})
        except (OSError, ValueError):
            return
    with bounded(path.stat().st_size):
        # pyhurray says of a container that it is none by an OSError of its own.
        container = refused(lambda: read_container(path, skip_other_layouts=bool(how & 1)), OSError)
        if container is not None:
            _look_at(container, path.with_name("again.hrry"))
        refused(
            lambda: BlockPagedTensor.from_hurray(choices.pick((dense_tensor(), *tensors.values(), None))), TypeError
        )


def dense_tensor() -> Any:
    """Return a tensor of pyhurray's that has no pages."""
    return hurray.Tensor(bytes(24), hurray.float32, [2, 3])


def _changed_facts(facts: dict[str, Any], choices: Choices) -> Any:
    changed: Any = json.loads(json.dumps(facts))
    while choices.more:
        tensors, sequences = changed["tensors"], changed["sequences"]
        match choices.below(4):
            case 0 if tensors:
                name = choices.pick(sorted(tensors))
                key = choices.pick(sorted(tensors[name]))
                tensors[name][key] = choices.value(tensors[name][key])
            case 1 if sequences:
                place = choices.below(len(sequences))
                known = choices.pick(
                    ("seq_lens", "ids", "token_ids", "page_positions", "adapter", "tenant", "media", "x")
                )
                sequences[place][known] = choices.value(sequences[place].get(known, [None, [1, 2], [0, 4]]))
            case 2:
                name = choices.pick(("version", "metadata", "tensors", "sequences"))
                return {**changed, name: choices.value(changed[name])}
            case _:
                changed["metadata"] = choices.value(changed["metadata"])
    return changed


def _changed(content: bytes, choices: Choices) -> bytes:
    changed = bytearray(content)
    index, index_bytes, kv, kv_bytes = _TRAILER.unpack_from(content, len(content) - _TRAILER.size)[:4]
    descriptors = [at for at in range(0, len(content), 16) if content[at : at + 6] == _DESCRIPTOR]
    while choices.more:
        part = choices.below(6)
        start, size = (
            (0, 64),
            (choices.pick(descriptors), 200),
            (kv, kv_bytes),
            (index, index_bytes),
            (len(content) - _TRAILER.size, _TRAILER.size),
            # Pools and tables.
            (0, len(content)),
        )[part]
        place, new = start + choices.number(2) % max(size, 1), choices.chunk(1 + choices.below(8))
        changed[place : place + len(new)] = new
        if choices.below(8) == 7:
            del changed[choices.number(2) % len(changed) :]
            return bytes(changed)
    end = index + index_bytes
    struct.pack_into("<I", changed, len(content) - 12, _crc32c(bytes(changed[index:end])))
    return bytes(changed[: len(content)])


@cache
def _crc_table() -> tuple[int, ...]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in table]
    return tuple(table)


def _crc32c(data: bytes) -> int:
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _unaligned(tensor: BlockPagedTensor) -> Any:
    room = np.empty(tensor.buffers[0].nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + 8
    room[start : start + tensor.buffers[0].nbytes] = tensor.buffers[0]
    return room[start : start + tensor.buffers[0].nbytes]


def _look_at(container: Container, path: Path) -> None:
    for name, tensor in container.tensors.items():
        promise(tensor.validate() == [], f"{name!r} breaks rules")
        apart = BlockPagedTensor.from_buffers(tensor.descriptor, [_unaligned(tensor), *tensor.buffers[1:]])
        in_place = refused(lambda apart=apart: to_hurray(apart, copy=False))
        promise(in_place is None or not tensor.buffers[0].nbytes, f"{name!r} is copied")
        promise(refused(lambda apart=apart: to_hurray(apart)) is not None, f"{name!r} is not copied")
        there = refused(lambda tensor=tensor: to_hurray(tensor))
        promise(there is not None, f"{name!r} does not go to pyhurray")
        promise(tensor_of(there, loaded=True).descriptor == _of_the_cpu(tensor), f"{name!r} comes back otherwise")
    try:
        write_container(path, container.tensors, metadata=container.metadata, kv=container.kv)
    except OSError:
        # A key that pyhurray reads and does not write.
        return
    promise(refused(lambda: write_container(path, container.tensors), FileExistsError) is None, "it was written over")
    unnamed = refused(lambda: _named_again(path, container))
    promise(unnamed is None or len(unnamed) == len(container.tensors), "other tensors after writing again")
    again = read_container(path)
    # Integers from 2^53 are written as text.
    written = [_json.loads(_json.dumps(each.metadata), max_bytes=1 << 20) for each in (again, container)]
    promise(written[0] == written[1] and list(again.tensors) == list(container.tensors), "other names")
    promise(all(map(is_same, again.tensors.values(), container.tensors.values())), "a container changes when written")


def _named_again(path: Path, container: Container) -> dict[str, BlockPagedTensor]:
    """Write the tensors under names made of their layers, which two of them may have in common."""
    write_container(path.with_name("named.hrry"), container.tensors.values(), overwrite=True)
    return read_container(path.with_name("named.hrry")).tensors


def _of_the_cpu(tensor: BlockPagedTensor) -> Any:
    return tensor.descriptor
