"""The tensors that a snapshot's rows hold, each compared with its entry, its group's tables and its companions.

Spec: snapshot format, sections 2, 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hurray_arrow.arrow.rows import Row, Tables, refuse
from hurray_arrow.arrow.tensor_rows import aligned, tables_of, tensor_from_rows
from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.errors import InvalidDescriptorError, Problem, ProblemCode, SnapshotCorruptError
from hurray_arrow.snapshot.checksums import page_problems
from hurray_arrow.snapshot.entries import Entry, Layer, check_entry
from hurray_arrow.snapshot.groups import missing_components
from hurray_arrow.tensor import BlockPagedTensor


class RowProvider(Protocol):
    """Where a snapshot's rows come from: a file with an index, or what was left of one."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """One per tensor, in snapshot order."""

    def rows_of(self, tensor_index: int) -> list[Row]:
        """All rows of a tensor in page order, checked as far as the provider can."""

    def tables_row_of(self, tensor_index: int) -> Row:
        """Return the row that has a tensor's tables; its pages may be left out."""

    @property
    def checks_rows(self) -> bool:
        """Whether a row is hashed whenever it is read."""

    def damage_of(self, tensor_index: int) -> list[Problem]:
        """Say what the hashes find in the rows of a tensor, page values aside."""

    def close(self) -> None:
        """Close the file; what was given out stays valid."""


class CheckedTensors:
    """What an open snapshot reads whole tensors with; :class:`hurray_arrow.Snapshot` says what may be asked of it."""

    def __init__(self, url: str, metadata: Mapping[str, Any], rows: RowProvider) -> None:
        self.url = url
        self.metadata = dict(metadata)
        self._rows = rows
        self._tables: dict[int, Tables] = {}
        self._descriptors: dict[int, bytes | None] = {}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """One entry per tensor in snapshot order, pages untouched."""
        return self._rows.entries

    def _read_entry(self, entry: Entry, *, verify: bool) -> BlockPagedTensor:
        """Return an entry's tensor, complete with its companions, as :meth:`Snapshot.read` does."""
        self._check_companions(entry)
        tensor, checksums = self.checked_tensor(entry)
        if verify:
            problems = page_problems(tensor, checksums, tensor_index=entry.tensor_index)
            if problems:
                raise SnapshotCorruptError(problems, url=self.url)
        return tensor

    def checked_tensor(self, entry: Entry) -> tuple[BlockPagedTensor, npt.NDArray[np.uint64] | None]:
        """Return an entry's tensor and its stored page checksums, which nobody has compared yet."""
        rows = self._rows.rows_of(entry.tensor_index)
        tensor = tensor_from_rows(rows, self._tables_of(rows[0]), align_small_buffers=True)
        check_entry(entry, tensor)
        stored = [row.page_checksums for row in rows if row.page_checksums is not None]
        return tensor, np.concatenate(stored) if stored else None

    def _tables_of(self, row: Row) -> Tables:
        """Return a tensor's tables: its own tables and sequences, where it has some, have to be the group's."""
        group = self._tables_of_group(row.kv_group, row)
        return tables_of(row, group)

    def group_tables(self, kv_group: int) -> Tables:
        """Return block table, seq_ptr and sequences of a kv_group, pages untouched.

        As stored, but that a single sequence is as long as the first tensor's descriptor says.

        Raises
        ------
        LookupError
            No tensor is of this group.
        SnapshotCorruptError
            As :meth:`read`.
        """
        if kv_group not in self._first_of_group:
            raise LookupError(f"no tensor is of kv_group {kv_group}")
        tables = self._tables_of_group(kv_group)
        if tables.seq_ptr.size != 2 or tables.sequences.seq_lens is not None:
            return tables
        total_tokens = self._descriptor_of_group(kv_group).total_tokens
        return replace(tables, sequences=tables.sequences.with_seq_lens([total_tokens]))

    def _descriptor_of_group(self, kv_group: int) -> BlockPagedDescriptor:
        """Return the descriptor of the group's first tensor, whose row has been read for its tables."""
        try:
            return BlockPagedDescriptor.decode(self._descriptors[kv_group] or b"")
        except InvalidDescriptorError as error:
            raise SnapshotCorruptError(error.problems, url=self.url) from error

    def _tables_of_group(self, kv_group: int, row: Row | None = None) -> Tables:
        """Return the group's tables, read once from its first tensor and kept 64-byte aligned for all of them."""
        group = self._tables.get(kv_group)
        if group is None:
            first = self._first_of_group[kv_group].tensor_index
            own = row if row is not None and first == row.tensor_index else self._rows.tables_row_of(first)
            found = tables_of(own, None)
            group = Tables(aligned(found.seq_ptr), aligned(found.block_table), found.sequences)
            self._tables[kv_group] = group
            self._descriptors[kv_group] = own.descriptor
        return group

    @cached_property
    def _first_of_group(self) -> dict[int, Entry]:
        """The first tensor of each kv_group: it has the tables of all."""
        return {entry.kv_group: entry for entry in reversed(self.entries)}

    @cached_property
    def _components(self) -> dict[tuple[int, Layer], set[str]]:
        """The components that each layer of each kv_group has."""
        found: dict[tuple[int, Layer], set[str]] = {}
        for entry in self.entries:
            found.setdefault((entry.kv_group, entry.layer), set()).add(entry.component)
        return found

    def _check_companions(self, entry: Entry) -> None:
        """Refuse a tensor whose layer lacks a companion that the metadata lists.

        Raises
        ------
        SnapshotCorruptError
            ``companion_missing``.
        """
        groups = self.metadata.get("groups", [])
        if entry.kv_group >= len(groups):
            return
        missing = missing_components(groups[entry.kv_group], self._components[entry.kv_group, entry.layer])
        if missing:
            message = f"the metadata lists components {missing} for this layer, and the snapshot does not hold them"
            raise refuse(ProblemCode.COMPANION_MISSING, str(entry), message, url=self.url)
