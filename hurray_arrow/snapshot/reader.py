"""An open snapshot: listed without touching a page, its tensors read as views of the mapping, verified as a whole.

Spec: snapshot format, sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import pyarrow as pa
from fsspec.callbacks import Callback, NoOpCallback

from hurray_arrow.errors import Problem, UnsupportedError
from hurray_arrow.prefixes import PrefixGroup, PrefixMatch, match_groups
from hurray_arrow.sequences import Integers, MediaSpan
from hurray_arrow.snapshot.checked_tensors import CheckedTensors, RowProvider
from hurray_arrow.snapshot.entries import Entry, Selectors, one_entry, select_entries
from hurray_arrow.snapshot.groups import window_tokens
from hurray_arrow.snapshot.row_source import IndexedRows
from hurray_arrow.snapshot.view_doors import ViewDoors
from hurray_arrow.tensor import BlockPagedTensor

if TYPE_CHECKING:
    from hurray_arrow.ops.select import Positions, Which
    from hurray_arrow.snapshot.partial import PartialRead, PartialReader, TensorPages
    from hurray_arrow.snapshot.plane_sizes import PlaneSizes
    from hurray_arrow.snapshot.verification import VerifyReport


class Snapshot(CheckedTensors, ViewDoors):
    """An open snapshot; see :func:`open_snapshot`.

    May be read from many threads at the same time, and by forked children, which get connections and threads of their
    own. Whoever writes over it meanwhile does not change what is read: of a local file the old one stays whole, and of
    an object in a store another version is refused by SnapshotChangedError. Closing it lets reads under way end; later
    ones raise SnapshotError, or go on where they need no more than the mapping.

    Attributes
    ----------
    url
        Where it lies.
    metadata
        The snapshot's metadata (format page section 3).
    unverified
        What recovery could not verify; empty for a complete snapshot.
    """

    def __init__(
        self, url: str, metadata: Mapping[str, Any], rows: RowProvider, *, unverified: Sequence[Problem] = ()
    ) -> None:
        super().__init__(url, metadata, rows)
        self.unverified = tuple(unverified)

    @property
    def profile(self) -> str | None:
        """``share`` or ``archive``; ``None`` where recovery found no metadata."""
        return self.metadata.get("profile")

    def read(
        self,
        *,
        verify: bool = False,
        **selectors: Unpack[Selectors],
    ) -> BlockPagedTensor:
        """Read the one tensor that the selectors name.

        Parameters
        ----------
        **selectors
            ``layer_index``, ``layer_name``, ``kv_role``, ``kv_group``, ``component``: one value or several each; what
            is not given admits all. What comes of selectors that admit nothing, or are wrong:
            :class:`~hurray_arrow.snapshot.entries.Selectors`.
        verify
            Check the page checksums too, which reads every page.

        Returns
        -------
        BlockPagedTensor
            Its page pool is a read-only view that keeps the mapping alive (new memory where the snapshot is not
            mapped); tables and quantization buffers lie at multiples of 64 bytes, copied where they have to be.

        Raises
        ------
        LookupError
            Not exactly one tensor matches; the message lists the matches, or what the snapshot has.
        SnapshotCorruptError
            ``row_checksum``, ``arrow_invalid``, ``arrow_null``, ``column_mismatch``, the tensor's own broken
            invariants, ``page_checksum`` with ``verify``; ``companion_missing``: the snapshot is partial and the
            tensor's layer lacks a companion that the metadata lists.
        UnsupportedError
            The pages have an encoding that this version does not know.

        Examples
        --------
        >>> snapshot.read(layer_index=0, kv_role="value").gather(1).shape
        (11, 2, 3)
        """
        matches = self.select(**selectors)
        return self._read_entry(one_entry(matches, self.entries), verify=verify)

    def iter_tensors(
        self,
        *,
        verify: bool = False,
        **selectors: Unpack[Selectors],
    ) -> Iterator[BlockPagedTensor]:
        """Read every tensor that the selectors admit, one after another in snapshot order; as :meth:`read`.

        From a store several are on their way at the same time, in at most 256 MiB or one tensor.

        Parameters
        ----------
        verify
            Check the page checksums too.
        **selectors
            As of :meth:`select`; what they do not admit is not read.

        Yields
        ------
        BlockPagedTensor
            As of :meth:`read`; none where nothing is admitted.

        Examples
        --------
        >>> [tensor.kv_role for tensor in snapshot.iter_tensors(layer_index=[0, 1])]
        ['key', 'value']
        """
        entries = self.select(**selectors)
        if not entries:
            return
        # The first by itself: it brings the tables that the others of its group have too.
        yield self._read_entry(entries[0], verify=verify)
        if isinstance(self._rows, IndexedRows) and not self._rows.source.is_mapped:
            from hurray_arrow.snapshot.read_ahead import read_ahead

            yield from read_ahead(entries[1:], lambda entry: self._read_entry(entry, verify=verify))
            return
        for entry in entries[1:]:
            yield self._read_entry(entry, verify=verify)

    def select(
        self,
        **selectors: Unpack[Selectors],
    ) -> list[Entry]:
        """Return the entries that the selectors admit, in snapshot order; nothing is read.

        Parameters
        ----------
        **selectors
            ``layer_index``, ``layer_name``, ``kv_role``, ``kv_group``, ``component``: one value or several each; what
            is not given admits all.

        Returns
        -------
        list of Entry
            What the index says of each tensor; empty where none is admitted.

        Raises
        ------
        TypeError, ValueError
            No such selector, no such role.
        """
        return select_entries(self.entries, **selectors)

    def match_prefix(
        self,
        token_ids: Integers,
        *,
        adapter: str | None = None,
        tenant: str | None = None,
        media: Iterable[MediaSpan] | None = None,
        page_aligned: bool = False,
    ) -> PrefixMatch:
        """Find the stored sequence that shares the longest prefix with a prompt; pages are not read.

        Parameters
        ----------
        token_ids
            The prompt's token ids, uint32 ``[tokens]``.
        adapter, tenant, media, page_aligned
            As of :func:`hurray_arrow.identity.match_prefix`. A sequence that names no adapter or tenant has the
            snapshot's. Where recovery found no metadata nothing matches, because it might have said whose all of it is.

        Returns
        -------
        PrefixMatch
            ``sequence``, ``num_tokens``, ``id``: what every kv_group can restore. Groups whose metadata says
            ``sliding_window`` need their last window only, all others every token from position 0.

        Raises
        ------
        InvariantError, SnapshotCorruptError
            As :func:`hurray_arrow.identity.match_prefix` and :meth:`read`.

        Examples
        --------
        >>> match = snapshot.match_prefix([1, 2, 3, 4, 8, 9, 99])
        >>> match.id, match.num_tokens
        ('b', 6)
        """
        groups = [] if self.profile is None else self.prefix_groups()
        return match_groups(groups, token_ids, adapter=adapter, tenant=tenant, media=media, page_aligned=page_aligned)

    def prefix_groups(self) -> list[PrefixGroup]:
        """Return what each kv_group stores of its sequences, for :mod:`hurray_arrow.prefixes`; pages are not read."""
        return [
            PrefixGroup(
                self.group_tables(kv_group).sequences,
                page_size=entry.page_shape[0],
                window_tokens=window_tokens(self.metadata, kv_group),
                adapter=self.metadata.get("adapter"),
                tenant=self.metadata.get("tenant"),
            )
            for kv_group, entry in sorted(self._first_of_group.items())
        ]

    def read_sequences(
        self,
        sequences: Which | Sequence[Which] | None,
        *,
        tokens: Positions = None,
        gap_bytes: int | None = None,
        **selectors: Unpack[Selectors],
    ) -> PartialRead:
        """Read some sequences of the tensors that the selectors admit; fetch what their pages need, and no more.

        Parameters
        ----------
        sequences
            Places from 0 or ids, one or several; ``None`` for all.
        tokens
            Half-open range of positions, one for all sequences or one for each; as of :func:`hurray_arrow.ops.select`.
        gap_bytes
            Pages this close in the file are fetched in one request. ``None`` takes the plan with the least modelled
            time. 0 fetches no page that is not wanted, and of share files no checksums but those of the pages and a few
            between them; other small columns come whole all the same, see
            :class:`~hurray_arrow.snapshot.partial.Fetched`.
        **selectors
            As of :meth:`select`.

        Returns
        -------
        PartialRead
            ``tensors``: one per tensor selected, maybe none, compact, in new memory, the table rewritten and sharing
            kept;
            ``fetched``: requests and bytes; ``unverified``: pages without checksums.

        Raises
        ------
        SnapshotCorruptError
            As :meth:`read`, and ``page_checksum``: every page fetched is compared.
        IndexError, KeyError, UnknownSequenceLengthError, InvariantError
            As :func:`hurray_arrow.ops.select`.
        UnsupportedError
            The snapshot was opened with ``recover``.

        Examples
        --------
        >>> found = snapshot.read_sequences("b", tokens=(0, 8), kv_role="key")
        >>> found.tensors[0].num_pages, found.tensors[0].gather(0).shape
        (2, (8, 2, 3))
        """
        entries = self.select(**selectors)
        for entry in entries:
            self._check_companions(entry)
        if not isinstance(self._rows, IndexedRows):
            raise UnsupportedError(
                f"{self.url}: without an index its rows cannot be read in part; read() whole tensors"
            )
        reader = self._partial_reader(self._rows, gap_bytes)
        return reader.read(entries, sequences, tokens)

    def open_tensors(self, entries: Iterable[Entry], *, at_once: int = 64) -> Iterator[TensorPages]:
        """Open tensors whose pages are then read in parts; what is small of ``at_once`` of them is fetched together.

        Parameters
        ----------
        entries
            The tensors.
        at_once
            Tensors whose rows are looked at together.

        Yields
        ------
        TensorPages
            One per entry, in order.

        Raises
        ------
        SnapshotCorruptError
            As :meth:`read`.
        """
        if not isinstance(self._rows, IndexedRows):
            from hurray_arrow.snapshot.partial import TensorPages

            for entry in entries:
                self._check_companions(entry)
                yield TensorPages(self.checked_tensor(entry)[0])
            return
        reader = self._partial_reader(self._rows)
        remaining = iter(entries)
        while some := list(islice(remaining, at_once)):
            for entry in some:
                self._check_companions(entry)
            yield from reader.open(some)

    def _partial_reader(self, rows: IndexedRows, gap_bytes: int | None = None) -> PartialReader:
        from hurray_arrow.snapshot.partial import PartialReader

        return PartialReader(rows, tables_of=self._tables_of, gap_bytes=gap_bytes)

    def plane_sizes(self, entry: Entry, *, most_rows: int = 16) -> PlaneSizes | None:
        """Return what the byte planes of an archived tensor's pages take, from the headers of its rows.

        Parameters
        ----------
        entry
            The tensor.
        most_rows
            Rows looked at, at equal distances.

        Returns
        -------
        PlaneSizes or None
            ``None`` where pages are not compressed, or the snapshot was recovered.

        Raises
        ------
        SnapshotCorruptError, UnsupportedError
            As :func:`~hurray_arrow.snapshot.plane_sizes.plane_sizes`.
        """
        if not isinstance(self._rows, IndexedRows):
            return None
        return self._rows.plane_sizes(entry.tensor_index, most_rows=most_rows)

    def verify(self, *, progress: Callback | None = None) -> VerifyReport:
        """Check everything: hashes, structure, every tensor's invariants, every page checksum, that none is missing.

        Parameters
        ----------
        progress
            Told of the bytes of pages read.

        Returns
        -------
        VerifyReport
            What was checked, and what could not be.

        Raises
        ------
        SnapshotCorruptError
            Everything that is wrong, in ``.problems``.

        Examples
        --------
        >>> report = snapshot.verify()
        >>> report.num_tensors, report.num_pages, report.unverified
        (2, 10, ())
        """
        from hurray_arrow.snapshot.verification import verify_snapshot

        return verify_snapshot(self, self._rows, progress=progress or NoOpCallback())

    def close(self) -> None:
        """Close the file, when no thread reads any more; tensors that were read stay valid."""
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._row_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self._row_reader().schema.__arrow_c_schema__()

    def _row_reader(self) -> pa.RecordBatchReader:
        from hurray_arrow.snapshot.row_stream import row_reader

        return row_reader(self._rows, self.entries, tensor_of=self.checked_tensor, metadata=self.metadata)

    def __repr__(self) -> str:
        return f"Snapshot({self.url!r}, profile={self.profile!r}, {len(self.entries)} tensors)"
