"""``hurray-arrow inspect``: what is in a snapshot, without reading its pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from hurray_arrow.cli.options import as_json_option, options_of, storage_option
from hurray_arrow.cli.output import console, count, print_json, printable, size
from hurray_arrow.sharing import sequences_per_named_page
from hurray_arrow.snapshot import Snapshot, SnapshotSet, open_snapshot, open_snapshot_set
from hurray_arrow.snapshot.copy_plan import without_bytes
from hurray_arrow.snapshot.sets import is_glob
from hurray_arrow.snapshot.stores import shown
from hurray_arrow.texts import WITHHELD


@click.command()
@click.argument("url")
@storage_option
@as_json_option
def inspect(url: str, *, storage_options: dict[str, Any], as_json: bool) -> None:
    """Show what is in a snapshot; its pages stay unread.

    Tensors, groups, sharing and metadata of the snapshot at URL, or of the set where URL is a glob. Tenants, adapters,
    token ids and the free field `user` are never shown.
    """
    options = options_of(url, storage_options)
    opened: Snapshot | SnapshotSet = (
        open_snapshot_set(url, storage_options=options) if is_glob(url) else open_snapshot(url, storage_options=options)
    )
    with opened as snapshot:
        found = summary(snapshot)
    if as_json:
        print_json({"url": shown(url), **found})
    else:
        show(found, shown(url), to=console())


def summary(snapshot: Snapshot | SnapshotSet) -> dict[str, Any]:
    """Return what `inspect` shows as one JSON document.

    Parameters
    ----------
    snapshot
        An open snapshot or set; pages are not touched.

    Returns
    -------
    dict[str, Any]
        ``profile``, ``num_tensors``, ``stored_bytes``, ``entries`` (fields of :class:`Entry`), ``groups`` (see
        :func:`group_summary`), ``metadata`` without what is in ``withheld``; of a set ``set`` too, see
        :func:`set_summary`.
    """
    metadata = dict(snapshot.metadata)
    withheld = [key for key in WITHHELD if metadata.pop(key, None) is not None]
    entries = [entry._asdict() for entry in snapshot.entries]
    return {
        "profile": snapshot.profile,
        "num_tensors": len(entries),
        "stored_bytes": sum(entry["stored_bytes"] for entry in entries),
        "entries": entries,
        "groups": [group_summary(snapshot, kv_group) for kv_group in sorted({e.kv_group for e in snapshot.entries})],
        "metadata": metadata,
        "withheld": withheld,
        **({"set": set_summary(snapshot)} if isinstance(snapshot, SnapshotSet) else {}),
    }


def set_summary(snapshots: SnapshotSet) -> dict[str, Any]:
    """Return ``id`` and ``members`` of a set: per member ``url``, ``num_tensors``, ``stored_bytes``, ``topology``."""
    members = [
        {
            "url": snapshot.url,
            "num_tensors": len(snapshot.entries),
            "stored_bytes": sum(entry.stored_bytes for entry in snapshot.entries),
            "topology": snapshot.metadata.get("topology", {}),
        }
        for snapshot in snapshots.members
    ]
    return {"id": snapshots.id, "members": members}


def group_summary(snapshot: Snapshot | SnapshotSet, kv_group: int) -> dict[str, Any]:
    """Return pages, sharing, sequences and tokens of the tensors that have one block table in common.

    Parameters
    ----------
    snapshot
        An open snapshot or set.
    kv_group
        The group's number.

    Returns
    -------
    dict[str, Any]
        ``kv_group``, ``num_tensors``, ``page_size``, ``num_pages``, ``unreferenced_pages`` (a count), ``shared_pages``
        (a list of ``num_pages`` shared by ``num_seqs``), ``num_seqs``, ``total_tokens`` (``None`` where nobody recorded
        how long every sequence is), ``total_logical_pages``.
    """
    entries = [entry for entry in snapshot.entries if entry.kv_group == kv_group]
    tensor = without_bytes(entries[0], snapshot.group_tables(kv_group))
    sharers = sequences_per_named_page(tensor.block_table, tensor.seq_ptr)
    sequences, pages = np.unique(sharers[sharers > 1], return_counts=True)
    facts = tensor.sequences
    known = facts.seq_lens is not None and facts.seq_lens_known is None
    return {
        "kv_group": kv_group,
        "num_tensors": len(entries),
        "page_size": tensor.page_size,
        "num_pages": tensor.num_pages,
        "unreferenced_pages": tensor.num_pages - len(sharers),
        "shared_pages": [
            {"num_pages": int(num_pages), "num_seqs": int(num_seqs)}
            for num_seqs, num_pages in zip(sequences[::-1], pages[::-1], strict=True)
        ],
        "num_seqs": tensor.num_seqs,
        "total_tokens": tensor.total_tokens if known or not tensor.num_seqs else None,
        "total_logical_pages": tensor.descriptor.total_logical_pages,
    }


def show(found: dict[str, Any], title: str, *, to: Console) -> None:
    """Print a summary as text: facts, one line per group, one row per tensor.

    Parameters
    ----------
    found
        From :func:`summary`.
    title
        First line; the snapshot's URL.
    to
        Where to print.
    """
    to.print(printable(title))
    tensors = count(found["num_tensors"], "tensor")
    to.print(f"{tensors}, {size(found['stored_bytes'])}, profile {found['profile']}")
    for key, value in dotted(found["metadata"]):
        if key != "profile" and value != []:
            to.print(printable(f"  {key}: {value}"))
    if found["withheld"]:
        to.print(f"  not shown: {', '.join(found['withheld'])}")
    for member, facts in enumerate(found.get("set", {}).get("members", ())):
        to.print(printable(member_text(member, facts)))
    for group in found["groups"]:
        to.print(group_text(group))
    to.print(entries_table(found["entries"]), soft_wrap=False)


def dotted(metadata: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested metadata with dotted names such as ``model.name``."""
    for key, value in metadata.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def member_text(member: int, facts: Mapping[str, Any]) -> str:
    """Return the line on one member of a set."""
    heads = facts["topology"].get("head_range")
    which = f"heads [{heads[0]}, {heads[1]}), " if heads else ""
    sizes = f"{count(facts['num_tensors'], 'tensor')}, {size(facts['stored_bytes'])}"
    return f"member {member}: {sizes}, {which}{facts['url']}"


def group_text(group: dict[str, Any]) -> str:
    """Return the lines on one group."""
    shared = [
        f"{count(kind['num_pages'], 'page')} shared by {kind['num_seqs']} sequences" for kind in group["shared_pages"]
    ]
    total_tokens = group["total_tokens"]
    tokens = "lengths not recorded" if total_tokens is None else count(total_tokens, "token")
    pages = f"{count(group['num_pages'], 'page')} of {count(group['page_size'], 'token')}"
    return (
        f"group {group['kv_group']}: {count(group['num_tensors'], 'tensor')}, "
        f"{count(group['num_seqs'], 'sequence')}, {tokens}\n"
        f"  {pages}, {group['unreferenced_pages']:,} unreferenced; {'; '.join(shared) or 'no page is shared'}"
    )


def entries_table(entries: list[dict[str, Any]]) -> Table:
    """Return the table of tensors; what is seldom asked (index type, encoding, rows) is in the JSON."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    left = ("kv_role", "component", "element_type")
    for name in ("tensor", "layer_index", *left, "kv_group", "num_pages", "page_shape", "bytes"):
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for entry in entries:
        layer = [str(entry[name]) for name in ("layer_index", "layer_name") if entry[name] is not None]
        texts = [printable(text) for text in (" ".join(layer) or "–", *(entry[name] for name in left))]
        shape = " × ".join(str(length) for length in entry["page_shape"])
        numbers = (str(entry["kv_group"]), f"{entry['num_pages']:,}", shape, size(entry["stored_bytes"]))
        table.add_row(str(entry["tensor_index"]), *texts, *numbers)
    return table
