"""Whole files of both profiles: parts changed and the hashes made right, or bytes changed behind the hashes' back.

What nobody rehashed is refused or the same. What was rehashed is a file of its own: whatever is read of it has to be
valid and the same by every way of reading, and what ``verify()`` is content with has to be what the checksums say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import xxhash

from hurray_arrow import BlockPagedTensor, Snapshot, open_snapshot, ops
from hurray_arrow.arrow.convert import tensors_from_batches
from hurray_arrow.arrow.schema import page_class_of
from hurray_arrow.snapshot import archive_source, partial
from hurray_arrow.snapshot.checksums import checksum_piece_bytes
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.expectations import check_facts
from hurray_arrow.snapshot.row_source import IndexedRows
from tests.faults.forgery import Forgery
from tests.faults.outcome import Original, is_same, outcome_of
from tests.fuzz import column_edits, row_edits
from tests.fuzz.bases import SHARE, archives, file_path, share_files
from tests.fuzz.choices import Choices
from tests.fuzz.edits import CASE_NAMES, EDITS, archive_case
from tests.fuzz.limits import bounded, look_at_values, promise, refused
from tests.fuzz.scripts import Script, UnbuildableError

#: A script's first byte: odd for damage that nobody rehashes.
FORGED, DAMAGED = 0, 1


def seeds() -> Iterator[bytes]:
    """Yield scripts: nothing changed, each edit in a few ways, each hand-made case; damage all over the file."""
    for base in range(16):
        yield bytes([FORGED, base])
        for place in range(base % 7, 256, 37):
            yield bytes([DAMAGED, base, 0, place, place, 1, 0xFF])
    for place in range(0, 256, 3):
        yield bytes([DAMAGED, place % 2, place % 6, place, place % 40, place % 16, 0xFF])
    for edit in range(1, len(EDITS)):
        for way in range(16):
            yield bytes(
                [FORGED, way % 5, edit, way % 7, way * 37 % 256, way % 4, way % 5, way * 11 % 256, way % 3, way]
            )
    for case in range(len(CASE_NAMES)):
        yield bytes([FORGED, 1, 0]) + case.to_bytes(2, "little")
    fields, lengths = EDITS.index(column_edits.fields), EDITS.index(row_edits.buffer)
    yield from (bytes([FORGED, 0, fields, 0, 5, more]) for more in range(len(column_edits.MORE)))
    yield from (bytes([FORGED, 0, fields, place, 0]) for place in range(24))
    # The length of each buffer 0.
    yield from (bytes([FORGED, 0, lengths, 0, number, 1, 0, 0]) for number in range(0, 48, 2))
    yield from (bytes([DAMAGED, 0, 5, 0, 0, 0, 1, kept]) for kept in (0, 5, 17, 20))
    yield bytes([DAMAGED, 0, 1, 0, 0, 3, *b"XXXX", 5, 232, 3, 0, 0])
    footer_size = len(share_files()[0]) - 10
    yield bytes([DAMAGED, 0, 1]) + footer_size.to_bytes(2, "little") + b"\3\xff\xff\0\0"
    yield from (bytes([FORGED, 1, EDITS.index(archive_case), case]) for case in range(70))


def run_share(data: bytes) -> None:
    """Change a file of the share profile."""
    with mock.patch.object(partial, "_WINDOW_BYTES", 64):
        _run(data, share_files())


def run_archives(data: bytes) -> None:
    """Change an archive."""
    # So that small archives are read in several windows; nobody else in this process is.
    with mock.patch.object(archive_source, "_WINDOW_BYTES", 6000), mock.patch.object(partial, "_WINDOW_BYTES", 64):
        _run(data, archives())


def _run(data: bytes, bases: tuple[bytes, ...]) -> None:
    choices = Choices(data)
    is_damaged, base = choices.flag(), choices.pick(bases)
    if not choices.more:
        _look_at_intact(base)
    elif is_damaged:
        # A partial snapshot cannot be read as a whole even when it is intact; without checksums nobody finds damage.
        unfit = [share_files()[2 + SHARE.index(name)] for name in ("partial", "no_checksums")]
        base = bases[0] if base in unfit else base
        content = damaged(base, choices)
        _look_at_damage(content, base)
    else:
        try:
            content = Script(Forgery(base), choices, EDITS).content()
        except UnbuildableError:
            return
        _look_at_forgery(content)


def _look_at_intact(content: bytes) -> None:
    """Read what nobody changed with and without checks, and verify it."""
    file_path().write_bytes(content)
    with open_snapshot(file_path()) as snapshot, open_snapshot(file_path(), trusted=True) as trusted:
        found = [_tensors(each) for each in (snapshot, trusted)]
        promise(all(map(_alike, *found)) and snapshot.verify() == trusted.verify(), "checked and trusted differ")
    _look_at_forgery(content)


# -- damage ------------------------------------------------------------------------------------------------------------


def damaged(base: bytes, choices: Choices) -> bytes:
    """Return the base with pieces of it changed, left out, put in, moved or cut off."""
    content = bytearray(base)
    while choices.more:
        how, place = choices.below(6), choices.number(2) % (len(content) + 1)
        size = 1 + choices.below(16)
        match how:
            case 0:
                content[place : place + size] = bytes(b ^ choices.number() for b in content[place : place + size])
            case 1:
                content[place : place + size] = choices.chunk(size)[: max(len(content) - place, 0)]
            case 2:
                del content[place : place + size]
            case 3:
                content[place:place] = choices.chunk(size)
            case 4:
                other = choices.number(2) % (len(content) + 1)
                content[other : other + size] = content[place : place + size]
            case 5:
                # A file of a few bytes, or of all but a few.
                del content[choices.below(32) if choices.flag() else place :]
    return bytes(content)


@cache
def _original(base: bytes) -> Original:
    file_path().write_bytes(base)
    return Original.of(file_path())


def _look_at_damage(content: bytes, base: bytes) -> None:
    original = _original(base)
    path = file_path()
    path.write_bytes(content)
    with bounded(len(content) + _pages(original.entries)):
        found = [outcome_of(path, original, mapped=mapped) for mapped in (True, False)]
        promise(found[0] == found[1], f"mapped and read: {found}")
    look_at_recovered(path, len(content))


# -- forgeries ---------------------------------------------------------------------------------------------------------


def _look_at_forgery(content: bytes) -> None:
    path = file_path()
    path.write_bytes(content)
    with bounded(len(content)):
        snapshot = refused(lambda: open_snapshot(path))
    if snapshot is None:
        look_at_recovered(path, len(content))
        with bounded(len(content)):
            promise(refused(lambda: open_snapshot(path, mapped=False)) is None, "refused only where it is mapped")
        return
    with snapshot:
        # An archive's pages take what its index says, which callers see before they read.
        with bounded(len(content) + 3 * _pages(snapshot.entries)):
            tensors = _tensors(snapshot)
            _look_at_listing(snapshot)
            _look_at_parts(snapshot, tensors)
            is_verified = refused(snapshot.verify) is not None
            if is_verified:
                promise(all(tensors), "verify() is content with what cannot be read")
                _look_at_verified(snapshot, tensors, content)
        with bounded(len(content) + 3 * _pages(snapshot.entries)), open_snapshot(path, mapped=False) as other:
            promise(other.entries == snapshot.entries and other.metadata == snapshot.metadata, "another listing")
            again = _tensors(other)
            promise(len(again) == len(tensors) and all(map(_alike, tensors, again)), "mapped and read differ")
            promise((refused(other.verify) is not None) == is_verified, "verified only one way")
            if is_verified:
                _look_at_parts(other, again)


def _pages(entries: object) -> int:
    """Return what the pages of all tensors take in memory by their listing."""
    bits = 128
    return sum(entry.num_pages * int(np.prod(entry.page_shape, dtype=object)) * bits // 8 for entry in entries)


def _tensors(snapshot: Snapshot) -> list[BlockPagedTensor | None]:
    """Read each tensor by itself, and all in a row: as far as the first that is refused they are the same."""
    found = [refused(lambda entry=entry: snapshot.checked_tensor(entry)[0]) for entry in snapshot.entries]
    for tensor in found:
        if tensor is not None:
            promise(tensor.validate() == [], "a tensor that was read breaks rules")
            look_at_values(tensor)
    in_a_row: list[BlockPagedTensor] = []
    reading = snapshot.iter_tensors()
    while (tensor := refused(lambda: next(reading, None))) is not None:
        in_a_row.append(tensor)
    promise(all(map(_alike, in_a_row, found)), "one by one and in a row differ")
    return found


def _alike(one: BlockPagedTensor | None, other: BlockPagedTensor | None) -> bool:
    return one is other if one is None or other is None else is_same(one, other)


def _look_at_listing(snapshot: Snapshot) -> None:
    promise(repr(snapshot) and all(map(str, snapshot.entries)), "no text")
    for kv_group in {entry.kv_group for entry in snapshot.entries}:
        refused(lambda kv_group=kv_group: snapshot.group_tables(kv_group))
    refused(lambda: snapshot.match_prefix([7, 11, 13]))
    for entry in snapshot.entries:
        refused(lambda entry=entry: snapshot.plane_sizes(entry))
        refused(lambda entry=entry: snapshot.read(verify=True, **_selectors(entry)), LookupError)
    _look_at_facts(snapshot)


def _look_at_facts(snapshot: Snapshot) -> None:
    """Ask for what the tensors and sequences say of themselves: refused by name, or it is so."""
    agreed = {"element_type": "bfloat16", "page_size": 2, "num_heads": 1, "head_dim": 3}
    for name, value in {**agreed, "adapter": None, "tenant": "t"}.items():
        refused(lambda name=name, value=value: check_facts(snapshot, {name: value}))
    entries = [entry for entry in snapshot.entries if entry.component == "values"]
    for name in ("page_size", "num_heads", "head_dim"):
        place = ("page_size", "num_heads", "head_dim").index(name)
        sizes = {entry.page_shape[place] for entry in entries}
        if len(sizes) == 1:
            check_facts(snapshot, {name: sizes.pop()})


def _look_at_parts(snapshot: Snapshot, tensors: list[BlockPagedTensor | None]) -> None:
    """Read the sequences in part, and pages as views do: refused, or what the whole tensors have."""
    opened = refused(lambda: list(snapshot.open_tensors(snapshot.entries)))
    for pages, whole in zip(opened or (), tensors, strict=False):
        if whole is not None and whole.num_pages:
            last = whole.num_pages - 1
            found = refused(lambda pages=pages, last=last: pages.read(np.array([last])).values_of_pages([last]))
            promise(found is None or found.tobytes() == whole.values_of_pages([last]).tobytes(), "another page")
    for entry, whole in zip(snapshot.entries, tensors, strict=True):
        for gap_bytes in (None, 0):
            options = {"gap_bytes": gap_bytes, **_selectors(entry)}
            read = refused(lambda options=options: snapshot.read_sequences(None, **options), KeyError, IndexError)
            if read is None or whole is None:
                continue
            [part] = read.tensors
            promise(part.validate() == [], "a partial tensor breaks rules")
            promise(part.equals(ops.compact(whole)), "read in part and whole differ")


def _selectors(entry: Entry) -> dict[str, Any]:
    names = ("layer_index", "layer_name", "kv_role", "kv_group", "component")
    return {name: (getattr(entry, name),) for name in names}


def _look_at_verified(snapshot: Snapshot, tensors: list[BlockPagedTensor], content: bytes) -> None:
    """Compare with what the rows say to somebody who knows Arrow and no index, and hash the pages anew."""
    rows = snapshot._rows
    promise(isinstance(rows, IndexedRows), "no index")
    for entry, tensor in zip(snapshot.entries, tensors, strict=True):
        _, stored = snapshot.checked_tensor(entry)
        if stored is None:
            continue
        step, pool = checksum_piece_bytes(page_class_of(tensor.descriptor)), tensor.buffers[0].tobytes()
        hashes = [xxhash.xxh3_64_intdigest(pool[at : at + step]) for at in range(0, len(pool), step)]
        promise(stored.tolist() == hashes, "pages that do not have their checksums were verified")
    reader = pa.ipc.open_file(pa.BufferReader(content))
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches - 1)]
    _compare(refused(lambda: tensors_from_batches(batches)), tensors, "the rows by themselves")
    exported = list(pa.RecordBatchReader.from_stream(snapshot))
    _compare(refused(lambda: tensors_from_batches(exported)), tensors, "the exported rows")


def _compare(found: list[BlockPagedTensor] | None, tensors: list[BlockPagedTensor], what: str) -> None:
    promise(found is not None and len(found) == len(tensors), f"{what}: other tensors")
    promise(all(map(is_same, found or [], tensors)), f"{what} differ")


# -- recovery ----------------------------------------------------------------------------------------------------------


def look_at_recovered(path: Path, size_bytes: int) -> None:
    """Recover what is left: valid tensors, each listed, and a list of what is not known."""
    with bounded(2 * size_bytes):
        snapshot = refused(lambda: open_snapshot(path, recover=True))
        if snapshot is None:
            return
        with snapshot:
            found = refused(lambda: list(snapshot.iter_tensors()))
            refused(snapshot.verify)
            refused(lambda: check_facts(snapshot, {"tenant": None}))
            if isinstance(snapshot._rows, IndexedRows):
                return
            promise(snapshot.unverified, "recovery is sure of everything")
            promise(all(tensor.validate() == [] for tensor in found or ()), "a recovered tensor breaks rules")
            refused(lambda: list(pa.RecordBatchReader.from_stream(snapshot)))


#: What a harness calls.
Run = Callable[[bytes], None]
