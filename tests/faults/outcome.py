"""What opening, reading and verifying a damaged file ends in, and whether that is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hurray_arrow import BlockPagedTensor, HurrayArrowError, Snapshot, open_snapshot
from hurray_arrow.snapshot.row_source import IndexedRows

#: The outcome of damage that changes nothing.
SAME = "same"


class SilentDamageError(AssertionError):
    """Something else than what was written came back, and nobody said so."""


@dataclass(frozen=True)
class Original:
    """What was written."""

    metadata: dict[str, Any]
    entries: tuple[Any, ...]
    tensors: tuple[BlockPagedTensor, ...]
    schema: bytes
    places: dict[int, Any]

    @classmethod
    def of(cls, path: Path) -> Original:
        with open_snapshot(path) as snapshot:
            assert isinstance(snapshot._rows, IndexedRows)
            snapshot.verify()
            # The tensors must not change with the file: their buffers are copied.
            tensors = tuple(map(in_own_memory, snapshot.iter_tensors()))
            schema = snapshot._rows._schema.serialize().to_pybytes()
            return cls(snapshot.metadata, snapshot.entries, tensors, schema, snapshot._rows._places)

    def lists_the_same(self, snapshot: Snapshot) -> bool:
        """Say whether everything that reads rows (schema, places, hashes) and everything listed is as written."""
        rows = snapshot._rows
        assert isinstance(rows, IndexedRows)
        return (
            snapshot.metadata == self.metadata
            and snapshot.entries == self.entries
            and rows._places == self.places
            and rows._schema.serialize().to_pybytes() == self.schema
        )


def in_own_memory(tensor: BlockPagedTensor) -> BlockPagedTensor:
    """Return the same tensor on copies of its buffers."""
    return BlockPagedTensor.from_buffers(
        tensor.descriptor,
        [buffer.copy() for buffer in tensor.buffers],
        sequences=tensor.sequences,
        layer_name=tensor.layer_name,
        component=tensor.component,
        kv_group=tensor.kv_group,
        original_descriptor=tensor.original_descriptor,
    )


def is_same(one: BlockPagedTensor, other: BlockPagedTensor) -> bool:
    """Say whether nothing differs, names included."""
    return one.equals(other) and all(
        getattr(one, name) == getattr(other, name)
        for name in ("layer_name", "component", "kv_group", "original_descriptor")
    )


def code_of(error: HurrayArrowError) -> str:
    """Return the first problem's code, or the exception's name where it has no problems."""
    problems = getattr(error, "problems", ())
    return str(problems[0].code) if problems else type(error).__name__


def outcome_of(path: Path, original: Original, *, mapped: bool = True) -> str:
    """Open, read all and verify: return ``"stage: code"`` or ``SAME``.

    Raises
    ------
    SilentDamageError
        Something differs without an error.
    """
    try:
        snapshot = open_snapshot(path, mapped=mapped)
    except HurrayArrowError as error:
        return f"open: {code_of(error)}"
    with snapshot:
        return _outcome_of_reading(snapshot, original)


def _outcome_of_reading(snapshot: Snapshot, original: Original) -> str:
    # What a row takes in the file depends on how it was padded.
    listed, expected = ([entry._replace(stored_bytes=0) for entry in one.entries] for one in (snapshot, original))
    try:
        tensors = list(snapshot.iter_tensors())
    except HurrayArrowError as error:
        read = f"read: {code_of(error)}"
    else:
        read = SAME if all(map(is_same, tensors, original.tensors)) else "differs"
    if snapshot.metadata != original.metadata or listed != expected:
        read = read if read.startswith("read: ") else "lists something else"
    try:
        snapshot.verify()
    except HurrayArrowError as error:
        return read if read.startswith("read: ") else f"verify: {code_of(error)}"
    if read != SAME:
        raise SilentDamageError(f"verify() is content, reading says {read}")
    return SAME
