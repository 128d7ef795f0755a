"""What a tensor can be asked for: single values, tokens, positions, dequantized values.

Every answer first checks the entries that it is going to use, so that a tensor that was opened permissively, or whose
borrowed arrays have changed since, gives an error and never memory outside its buffers.

Spec: block-paged layout, Element Lookup, Partial trailing page and Quantization Compatibility.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow import invariants, paging
from hurray_arrow.errors import InvariantError, Problem, ProblemCode, UnknownSequenceLengthError, UnsupportedError
from hurray_arrow.quantization import dequantize, split_parameters
from hurray_arrow.schemes import FIRST_PARAMETER_BUFFER, PerBlock
from hurray_arrow.sequences import Integers, UInt64Array, read_only, take_integers
from hurray_arrow.sharing import PageSharing

Bytes: TypeAlias = npt.NDArray[np.uint8]
IndexArray: TypeAlias = npt.NDArray[Any]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Which: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | npt.NDArray[Any]


class PagedReading(PageSharing):
    """The reading half of :class:`hurray_arrow.tensor.BlockPagedTensor`."""

    __slots__ = ()

    # -- sequences -------------------------------------------------------------------------------------------------

    def page_ids(self, seq: SupportsIndex) -> IndexArray:
        """Give a sequence's slice of block_table.

        Parameters
        ----------
        seq
            The sequence, from 0.

        Returns
        -------
        numpy.ndarray
            Page ids ``[pages]``, a read-only view of block_table. That they name pages is not checked here.

        Raises
        ------
        IndexError
            There is no such sequence.
        InvariantError
            ``seq_ptr_decreasing``, ``seq_ptr_end`` where its entries of seq_ptr cut nothing out of block_table.

        Examples
        --------
        >>> keys.page_ids(1).tolist()
        [4, 2, 0]

        Spec: block-paged layout, Buffer Table.
        """
        s = _index(seq, self.num_seqs, "sequence")
        start, stop = int(self.seq_ptr[s]), int(self.seq_ptr[s + 1])
        if start > stop:
            message = f"{stop}, expected >= seq_ptr[{s}] = {start}"
            code, spec = ProblemCode.SEQ_PTR_DECREASING, "Storage Invariants 2"
            raise InvariantError(Problem(code, f"seq_ptr[{s + 1}]", message, spec))
        if stop > self.block_table.size:
            message = f"{stop}, expected <= the number of block_table entries {self.block_table.size}"
            raise InvariantError(Problem(ProblemCode.SEQ_PTR_END, f"seq_ptr[{s + 1}]", message, "Storage Invariants 1"))
        return self.block_table[start:stop]

    def token_count(self, seq: SupportsIndex) -> int:
        """Give the number of stored tokens of a sequence.

        With one sequence it is total_tokens; else it is what ``sequences.seq_lens`` says. It is never estimated from
        pages.

        Parameters
        ----------
        seq
            The sequence, from 0.

        Returns
        -------
        int
            Tokens.

        Raises
        ------
        UnknownSequenceLengthError
            Nobody recorded the length.
        IndexError
            There is no such sequence.
        InvariantError
            ``seq_len_exceeds_pages``, ``sequence_facts_size`` and the codes of :meth:`page_ids`.

        Spec: wire-format page section 2.
        """
        s = _index(seq, self.num_seqs, "sequence")
        self._check_facts("seq_lens")
        length = self.sequences.length(s)
        if length is None and self.num_seqs == 1:
            length = self.descriptor.total_tokens
        if length is None:
            raise UnknownSequenceLengthError(
                f"the length of sequence {s} was not recorded, and its {self.page_ids(s).size} pages only bound it: "
                f"pass seq_lens="
            )
        pages = self.page_ids(s).size
        slots = pages * self.page_size
        if length > slots:
            message = f"{length} tokens, expected <= {pages} pages × page_size {self.page_size} = {slots}"
            code = ProblemCode.SEQ_LEN_EXCEEDS_PAGES
            raise InvariantError(Problem(code, f"seq_lens[{s}]", message, "wire format 2"))
        return length

    def positions(self, seq: Which) -> UInt64Array:
        """Give the position in its sequence of every stored token, in the order of :meth:`gather`.

        Parameters
        ----------
        seq
            The sequence, or several.

        Returns
        -------
        numpy.ndarray
            New uint64 array ``[tokens]``: 0, 1, … where no pages are absent.

        Raises
        ------
        UnknownSequenceLengthError, IndexError
            As :meth:`token_count`.
        InvariantError
            ``page_positions_invalid``, and the codes of :meth:`token_count`.

        Spec: snapshot format section 2, absent pages.
        """
        parts = [self._positions(s) for s in _each(seq)]
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.uint64)])

    def _positions(self, s: int) -> UInt64Array:
        tokens = self.token_count(s)
        self._check_facts("page_positions")
        facts = self.sequences.page_positions
        starts = None if facts is None else facts[s]
        if starts is None:
            return np.arange(tokens, dtype=np.uint64)
        used = -(-tokens // self.page_size)
        if starts.size < used:
            message = f"{starts.size} positions, expected one per stored page ({used})"
            code = ProblemCode.PAGE_POSITIONS_INVALID
            raise InvariantError(Problem(code, f"page_positions[{s}]", message, "snapshot format 2"))
        slots = np.arange(min(self.page_size, tokens), dtype=np.uint64)
        return (starts[:used, np.newaxis] + slots).reshape(-1)[:tokens]

    # -- values ----------------------------------------------------------------------------------------------------

    def element(self, seq: SupportsIndex, token: SupportsIndex, head: SupportsIndex, dim: SupportsIndex) -> Any:
        """Look one stored value up by the specification's formula; it is not dequantized.

        Parameters
        ----------
        seq, token, head, dim
            From 0; ``token`` counts stored tokens.

        Returns
        -------
        scalar
            Of the element type's unpacked dtype; ``numpy.void`` for float128 and private types of whole bytes, the
            uint8 code for narrower ones.

        Raises
        ------
        IndexError
            There is no such element.
        UnknownSequenceLengthError, InvariantError
            As :meth:`gather`.

        Spec: block-paged layout, Element Lookup.
        """
        s = _index(seq, self.num_seqs, "sequence")
        t = _index(token, self.token_count(s), "token")
        h = _index(head, self.num_heads, "head")
        d = _index(dim, self.head_dim, "dim")
        page_size = self.page_size
        place = int(self.seq_ptr[s]) + t // page_size
        invariants.check_page_ids(self.block_table[place : place + 1], num_pages=self.num_pages, first=place)
        slot = int(self.block_table[place]) * page_size + t % page_size
        flat = (slot * self.num_heads + h) * self.head_dim + d
        if self.element_type.is_packed:
            return self.descriptor.element_type.unpack(self.page_pool, 1, start=flat)[0]
        return self.page_pool.reshape(-1)[flat]

    def gather(self, seq: Which) -> npt.NDArray[Any]:
        """Copy the stored tokens of a sequence, or of several one after the other, page by page.

        Slots behind a sequence's last token are not read.

        Parameters
        ----------
        seq
            The sequence, or several.

        Returns
        -------
        numpy.ndarray
            New array ``[tokens, num_heads, head_dim]`` of ``element_type.pool_dtype``; unpacked values for types
            narrower than a byte (uint8 codes for private ones). Not dequantized.

        Raises
        ------
        UnknownSequenceLengthError, IndexError
            As :meth:`token_count`.
        InvariantError
            ``page_id_out_of_range``, and the codes of :meth:`token_count`.

        Examples
        --------
        >>> keys.gather(1).shape  # [tokens, num_heads, head_dim]
        (11, 2, 3)
        >>> bool((keys.gather(0)[:4] == keys.gather(1)[:4]).all())  # the page that both name
        True

        Spec: block-paged layout, Element Lookup and Partial trailing page.
        """
        return self._gather([self._run(s) for s in _each(seq)])

    def dequantize(self, seq: Which) -> Float32Array:
        """Gather the stored tokens of a sequence, or of several, as the float32 numbers that they stand for.

        Parameters
        ----------
        seq
            The sequence, or several.

        Returns
        -------
        numpy.ndarray
            New float32 array ``[tokens, num_heads, head_dim]``; the values as they are where there is no scheme. Scales
            that lie in a companion are a tensor of their own, and are not applied: multiply by what they gather.

        Raises
        ------
        UnsupportedError
            NF4, MXFP, complex and opaque values.
        QuantizationError
            ``quantization_buffer_size``.
        UnknownSequenceLengthError, IndexError, InvariantError
            As :meth:`gather`.

        Examples
        --------
        >>> packed = ha.BlockPagedTensor.from_arrays(
        ...     pool.astype(np.int8), block_tables=[[4]], seq_lens=[2], kv_role="key", quantization=ha.PerTensor(0.5)
        ... )
        >>> packed.dequantize(0)[0, 0].tolist(), packed.gather(0)[0, 0].tolist()
        ([48.0, 48.5, 49.0], [96, 97, 98])

        Spec: block-paged layout, Per-page-slot parameters and Per-scheme composition.
        """
        return self._dequantize([self._run(s) for s in _each(seq)])

    def values_of_pages(self, page_ids: Integers | None = None) -> npt.NDArray[Any]:
        """Give whole pages with all their slots, also those that no token fills.

        Parameters
        ----------
        page_ids
            Pages ``[n]``; ``None`` for the whole pool.

        Returns
        -------
        numpy.ndarray
            ``[n, page_size, num_heads, head_dim]`` of the dtype of :meth:`gather`. New; but the whole pool of a type
            of whole bytes is a read-only view.

        Raises
        ------
        InvariantError
            ``page_id_out_of_range``, ``buffer_dtype``.

        Spec: block-paged layout, Element Lookup.
        """
        if page_ids is None and not self.element_type.is_packed:
            return read_only(self.page_pool)
        ids, slots = self._pages_run(page_ids)
        return self._gather([(ids, slots)]).reshape(ids.size, *self.descriptor.page_shape)

    def dequantize_pages(self, page_ids: Integers | None = None) -> Float32Array:
        """Give whole pages, also their unused slots, as the float32 numbers that they stand for.

        Parameters
        ----------
        page_ids
            Pages ``[n]``; ``None`` for the whole pool.

        Returns
        -------
        numpy.ndarray
            New float32 array ``[n, page_size, num_heads, head_dim]``.

        Raises
        ------
        UnsupportedError, QuantizationError
            As :meth:`dequantize`.
        InvariantError
            ``page_id_out_of_range``, ``buffer_dtype``.

        Spec: block-paged layout, Per-page-slot parameters and Per-scheme composition.
        """
        ids, slots = self._pages_run(page_ids)
        return self._dequantize([(ids, slots)]).reshape(ids.size, *self.descriptor.page_shape)

    # -- what the answers stand on ---------------------------------------------------------------------------------

    def _run(self, s: int) -> paging.Run:
        """Give the page ids that hold the tokens of a sequence, checked, and how many tokens they are."""
        tokens = self.token_count(s)
        used = self.page_ids(s)[: -(-tokens // self.page_size)]
        invariants.check_page_ids(used, num_pages=self.num_pages, first=int(self.seq_ptr[s]))
        return used, tokens

    def _pages_run(self, page_ids: Integers | None) -> paging.Run:
        if page_ids is None:
            ids: IndexArray = np.arange(self.num_pages, dtype=np.uint64)
        else:
            ids = take_integers(page_ids, np.uint64, where="page_ids", code=ProblemCode.PAGE_ID_OUT_OF_RANGE)
            invariants.check_page_ids(ids, num_pages=self.num_pages, name="page_ids")
        return ids, ids.size * self.page_size

    def _check_facts(self, name: str) -> None:
        size, num_seqs = self.sequences.sizes().get(name), self.num_seqs
        if size is not None and size != num_seqs:
            message = f"{size} entries, expected one per sequence ({num_seqs})"
            raise InvariantError(Problem(ProblemCode.SEQUENCE_FACTS_SIZE, name, message, "snapshot format 2"))

    def _gather(self, runs: list[paging.Run]) -> npt.NDArray[Any]:
        if not self.element_type.is_packed:
            return paging.gather_tokens(self.page_pool, runs)
        element_type, page_shape = self.element_type, self.descriptor.page_shape
        return paging.gather_packed(self.page_pool, runs, element_type=element_type, page_shape=page_shape)

    def _dequantize(self, runs: list[paging.Run]) -> Float32Array:
        descriptor = self.descriptor
        quantization, dtype = descriptor.quantization, descriptor.element_type.dtype
        if dtype is None or dtype.kind == "c":
            raise UnsupportedError(f"values of type {descriptor.element_type} have no float32 numbers")
        if quantization is None:
            # float64 may pass the range of float32: infinity is IEEE's answer, as it is with a scheme.
            with np.errstate(over="ignore", invalid="ignore"):
                return self._gather(runs).astype(np.float32)
        scales, zero_points = split_parameters(
            quantization,
            dict(enumerate(self.quantization_buffers, FIRST_PARAMETER_BUFFER)),
            shape=descriptor.shape,
            num_pages=descriptor.num_pages,
            page_size=descriptor.page_size,
        )
        if isinstance(quantization, PerBlock):
            by_page = (descriptor.num_pages, descriptor.page_size)
            scales = paging.gather_tokens(scales.reshape(by_page), runs)
            zero_points = None if zero_points is None else paging.gather_tokens(zero_points.reshape(by_page), runs)
        return dequantize(self._gather(runs), quantization, scales=scales, zero_points=zero_points)


def _index(value: SupportsIndex, size: int, name: str) -> int:
    if not isinstance(value, SupportsIndex):
        raise TypeError(f"{name}: {value!r}, expected its place, an integer")
    index = operator.index(value)
    if not 0 <= index < size:
        raise IndexError(f"{name} {index}, expected 0 <= {name} < {size}")
    return index


def _each(seq: Which) -> list[int]:
    if isinstance(seq, str):
        raise TypeError("seq: an id, expected the place of a sequence, an integer; ops.select() takes ids")
    # An array also has __index__, whatever its shape is.
    if isinstance(seq, SupportsIndex) and not (isinstance(seq, np.ndarray) and seq.ndim):
        return [operator.index(seq)]
    return [operator.index(s) for s in seq]
