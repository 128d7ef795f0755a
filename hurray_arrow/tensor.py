"""BlockPagedTensor: a descriptor, its borrowed buffers, and what is known of its sequences.

Spec: block-paged layout; wire-format page section 2; snapshot format section 2.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from hurray_arrow import invariants
from hurray_arrow.buffers import fit_buffers, on_cpu, take_memory, validate_arrays
from hurray_arrow.descriptor import BlockPagedDescriptor, BufferHandle, Statistics
from hurray_arrow.doors import TensorDoors
from hurray_arrow.elements import ElementType, PrivateType
from hurray_arrow.elements import element_type as element_type_of
from hurray_arrow.errors import InvariantError, Problem, ProblemCode, QuantizationError, UnknownSequenceLengthError
from hurray_arrow.intake import as_bytes, shape_pool, take_names, take_pool, take_tables
from hurray_arrow.quantization import Quantization
from hurray_arrow.reading import PagedReading
from hurray_arrow.schemes import FIRST_PARAMETER_BUFFER
from hurray_arrow.sequences import SequenceFacts, Sequences, known_sequences, read_only
from hurray_arrow.spec import IndexType, KvRole

Bytes: TypeAlias = npt.NDArray[np.uint8]
IndexArray: TypeAlias = npt.NDArray[Any]

#: A tensor with one of these has no shape to open, also for a permissive reader.
_INTOLERABLE = frozenset({ProblemCode.SEQ_PTR_SIZE})


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class BlockPagedTensor(PagedReading, TensorDoors):
    """A paged KV cache tensor of one layer and role: its descriptor, its borrowed buffers, its sequences.

    Build one with :meth:`from_arrays` or :meth:`from_buffers`. Buffers are never copied; the tensor holds read-only
    views that keep the caller's memory alive, and the caller's own arrays stay as writable as they were.

    Parameters
    ----------
    descriptor
        What the tensor says of itself. Its buffer handles give the sizes of the buffers here.
    page_pool
        ``[num_pages, page_size, num_heads, head_dim]`` of ``element_type.pool_dtype``; uint8 ``[pool_bytes]`` for
        types narrower than a byte.
    block_table
        uint32 or uint64 ``[total_logical_pages]``: page ids.
    seq_ptr
        As block_table, ``[num_seqs + 1]``: where each sequence's page ids begin.
    quantization_buffers
        Buffers 3, 4, … of the descriptor, uint8 ``[bytes]`` each.
    sequences
        What is known of the sequences.
    layer_name
        The engine's name of the layer.
    component
        ``values``, or the name of a companion such as ``scales``.
    kv_group
        Number of the group of tensors that share tables and sequences; ``None`` lets a writer number them.
    original_descriptor
        The producer's descriptor bytes where ``descriptor`` had to differ.
    problems
        What ``permissive`` let through.
    permissive
        Open a tensor that breaks invariants 1 to 3 and 6 or a rule about parameters, padding or sequences, and say so
        in ``problems``. What is then read is checked before every access.

    Raises
    ------
    InvariantError
        With everything that is broken: any code of :meth:`validate`, and ``buffer_dtype``, ``buffer_layout``,
        ``buffer_missing``, ``page_pool_size``, ``block_table_size``, which ``permissive`` does not let through; or
        ``field_out_of_range`` for a component without a name or a kv_group that is no uint32.
    QuantizationError
        Where only ``quantization_buffer_size`` is wrong.

    Spec: block-paged layout, Buffer Table and Storage Invariants.
    """

    descriptor: BlockPagedDescriptor
    page_pool: npt.NDArray[Any]
    block_table: IndexArray
    seq_ptr: IndexArray
    quantization_buffers: tuple[Bytes, ...] = ()
    sequences: Sequences = field(default_factory=Sequences)
    layer_name: str | None = None
    component: str = "values"
    kv_group: int | None = None
    original_descriptor: bytes | None = None
    problems: tuple[Problem, ...] = field(init=False, default=())
    permissive: InitVar[bool] = False

    def __post_init__(self, permissive: bool) -> None:
        object.__setattr__(self, "kv_group", take_names(self.layer_name, self.component, self.kv_group))
        _refuse(validate_arrays(self.descriptor, self._arrays))
        for name in ("page_pool", "block_table", "seq_ptr"):
            object.__setattr__(self, name, read_only(getattr(self, name)))
        object.__setattr__(self, "quantization_buffers", tuple(map(as_bytes, self.quantization_buffers)))
        problems = self.validate()
        if not permissive or any(problem.code in _INTOLERABLE for problem in problems):
            _refuse(problems)
        object.__setattr__(self, "problems", tuple(problems))

    # -- constructors ----------------------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        page_pool: Any,
        block_table: Any = None,
        seq_ptr: Any = None,
        *,
        kv_role: KvRole | str,
        block_tables: Any = None,
        total_tokens: int | None = None,
        element_type: ElementType | npt.DTypeLike | None = None,
        private: PrivateType | None = None,
        page_shape: Sequence[int] | None = None,
        num_pages: int | None = None,
        layer_index: int | None = None,
        index_type: IndexType | str | None = None,
        quantization: Quantization | None = None,
        quantization_buffers: Sequence[Any] = (),
        statistics: Statistics | None = None,
        alignment: int = 64,
        sequences: Sequences | None = None,
        layer_name: str | None = None,
        component: str = "values",
        kv_group: int | None = None,
        permissive: bool = False,
        **facts: Unpack[SequenceFacts],
    ) -> BlockPagedTensor:
        """Build a tensor on numpy arrays, without copying any of them.

        What does not fit is refused with the call that would convert it, if one keeps the values; nothing is converted
        or guessed.

        Parameters
        ----------
        page_pool
            ``[num_pages, page_size, num_heads, head_dim]``, C-contiguous and little-endian. bfloat16 and float8 come
            as ml_dtypes arrays, or as uint16 and uint8 bits with ``element_type``. Types narrower than a byte come
            packed, as uint8 bytes of any shape with ``element_type``, ``page_shape`` and ``num_pages``; so may any
            other type.
        block_table, seq_ptr
            uint32 or uint64 ``[total_logical_pages]`` and ``[num_seqs + 1]``.
        kv_role
            ``"key"``, ``"value"`` or ``"fused"``.
        block_tables
            Instead of ``block_table`` and ``seq_ptr``: one list of page ids per sequence, from which new arrays are
            built. Only a sequence's own pages, no padding.
        total_tokens
            Tokens of all sequences; only needed where ``seq_lens`` does not say it.
        element_type
            Name, tag or dtype; taken from the array when ``None``.
        private
            The extension-type section of a private element type.
        page_shape
            ``(page_size, num_heads, head_dim)`` of a pool of bytes.
        num_pages
            Pages of a pool of bytes.
        layer_index
            The layer; ``None`` where the tensor belongs to no layer.
        index_type
            ``"uint32"`` or ``"uint64"``; taken from block_table when ``None``, uint32 for ``block_tables``.
        quantization
            The scheme.
        quantization_buffers
            Buffers 3, 4, …: arrays or bytes that the scheme names by index.
        statistics
            What the producer computed of the values.
        alignment
            Alignment in bytes that the descriptor states for every buffer.
        sequences
            What is known of the sequences, instead of single facts.
        layer_name, component, kv_group
            As of the class.
        permissive
            As of the class.
        **facts
            The arguments of :class:`Sequences`: ``seq_lens``, ``ids``, ``token_ids``, ``page_positions``, ``adapter``,
            ``tenant``, ``media``.

        Returns
        -------
        BlockPagedTensor
            Read-only views of the caller's memory.

        Raises
        ------
        InvariantError
            ``buffer_dtype``, ``buffer_layout``, ``page_pool_size``, ``page_id_out_of_range``, ``index_type_invalid``
            for ids that a uint32 does not hold, and all codes of :meth:`validate`.
        UnknownSequenceLengthError
            Neither ``seq_lens`` nor ``total_tokens`` says how many tokens there are.
        InvalidDescriptorError
            Fields that no descriptor may have.

        Examples
        --------
        >>> keys = ha.BlockPagedTensor.from_arrays(pool, block_tables=[[4, 1], [4]], seq_lens=[7, 3], kv_role="key")
        >>> keys
        <BlockPagedTensor key of no layer: float16, 5 pages [4, 2, 3], 2 sequences, 10 tokens, 264 bytes>
        >>> np.shares_memory(keys.page_pool, pool)
        True

        Spec: block-paged layout, Buffer Table; wire-format page sections 2 and 4.
        """
        element = None if element_type is None else element_type_of(element_type, private=private)
        problems, tables = take_tables(block_table, seq_ptr, block_tables=block_tables, index_type=index_type)
        pool_problems, taken = take_pool(page_pool, element, page_shape=page_shape, num_pages=num_pages)
        parameter_problems, parameters = take_memory(quantization_buffers, first=FIRST_PARAMETER_BUFFER)
        if taken is None or tables is None or parameter_problems:
            raise InvariantError([*pool_problems, *problems, *parameter_problems])
        known = known_sequences(sequences, facts)
        arrays = (taken.page_pool, tables.block_table, tables.seq_ptr, *parameters)
        num_seqs = tables.seq_ptr.size - 1
        descriptor = BlockPagedDescriptor(
            element_type=taken.element_type,
            shape=(_total_tokens(known, num_seqs) if total_tokens is None else total_tokens, *taken.page_shape[1:]),
            page_size=taken.page_shape[0],
            num_pages=taken.num_pages,
            num_seqs=num_seqs,
            kv_role=kv_role,  # type: ignore[arg-type]  # the descriptor takes the role's name too
            layer_index=layer_index,
            index_type=tables.index_type,
            buffers=tuple(BufferHandle(byte_size=array.nbytes, alignment=alignment) for array in arrays),
            quantization=quantization,
            statistics=statistics,
        )
        return cls(
            descriptor,
            taken.page_pool,
            tables.block_table,
            tables.seq_ptr,
            tuple(parameters),
            sequences=known,
            layer_name=layer_name,
            component=component,
            kv_group=kv_group,
            permissive=permissive,
        )

    @classmethod
    def from_buffers(
        cls,
        descriptor: BlockPagedDescriptor | bytes | bytearray | memoryview,
        buffers: Sequence[Any],
        *,
        strict: bool = True,
        sequences: Sequences | None = None,
        layer_name: str | None = None,
        component: str = "values",
        kv_group: int | None = None,
        original_descriptor: bytes | None = None,
        permissive: bool = False,
        **facts: Unpack[SequenceFacts],
    ) -> BlockPagedTensor:
        """Build a tensor on a descriptor and its buffers, without copying them.

        Device, sync mode and memory class become those of CPU memory, which this is; with the sizes of buffers that
        were cut they are all that may differ from the producer's descriptor.

        Parameters
        ----------
        descriptor
            HRRY bytes, or the descriptor.
        buffers
            All buffers in the descriptor's order: arrays, bytes, memoryviews, …; ``None`` for an empty one.
        strict
            Refuse a buffer 0 to 2 that is longer than the specification's size; ``False`` cuts it, with a warning.
        sequences
            What is known of the sequences, instead of single facts.
        layer_name, component, kv_group
            As of the class.
        original_descriptor
            The producer's bytes where ``descriptor`` is not the producer's own any more.
        permissive
            As of the class; a paged_axis that is not 0 is let through too.
        **facts
            The arguments of :class:`Sequences`.

        Returns
        -------
        BlockPagedTensor
            Read-only views that keep the buffers alive. ``original_descriptor`` has the given descriptor's bytes where
            it was patched.

        Raises
        ------
        WireFormatError, UnsupportedError
            Bytes that a reader rejects; another layout; sizes that numpy cannot hold.
        InvariantError
            ``buffer_missing``, ``buffer_dtype``, ``buffer_layout``, ``page_pool_size``, ``block_table_size``,
            ``seq_ptr_size``, ``quantization_buffer_size``, and all codes of :meth:`validate`. A block_table that is
            longer or shorter than seq_ptr says is ``seq_ptr_end``.

        Warns
        -----
        UserWarning
            A buffer was cut.

        Examples
        --------
        >>> again = ha.BlockPagedTensor.from_buffers(keys.descriptor.encode(), keys.buffers)
        >>> np.shares_memory(again.page_pool, pool), again.num_seqs
        (True, 3)

        Spec: block-paged layout, Buffer Table; snapshot format section 2, what is patched in place.
        """
        if not isinstance(descriptor, BlockPagedDescriptor):
            descriptor = BlockPagedDescriptor.decode(descriptor, permissive=permissive)
        problems, memory = take_memory(buffers)
        cut: list[str] = []
        if not problems:
            problems, memory, cut = fit_buffers(descriptor, memory, strict=strict)
        if problems:
            raise InvariantError(problems)
        if cut:
            warnings.warn(f"cut to the specification's size: {', '.join(cut)}", UserWarning, stacklevel=2)
        patched = on_cpu(descriptor, memory)
        if patched is not descriptor and original_descriptor is None:
            original_descriptor = descriptor.encode()
        element, shape = patched.element_type, patched.page_shape
        return cls(
            patched,
            shape_pool(memory[0], element, num_pages=patched.num_pages, page_shape=shape),
            memory[1].view(patched.index_dtype),
            memory[2].view(patched.index_dtype),
            tuple(memory[FIRST_PARAMETER_BUFFER:]),
            sequences=known_sequences(sequences, facts),
            layer_name=layer_name,
            component=component,
            kv_group=kv_group,
            original_descriptor=original_descriptor,
            permissive=permissive,
        )

    # -- rules -----------------------------------------------------------------------------------------------------

    def validate(self) -> list[Problem]:
        """Find all that is broken, in the arrays as they are now.

        Returns
        -------
        list of Problem
            The descriptor's own codes; ``seq_ptr_start``, ``seq_ptr_end``, ``seq_ptr_decreasing``,
            ``page_id_out_of_range``, ``page_pool_padding``, ``total_tokens_exceed_pages``,
            ``quantization_buffer_size``, ``sequence_facts_size``, ``seq_lens_sum``, ``seq_len_exceeds_pages``,
            ``page_positions_invalid``, ``token_ids_size``, ``media_span_invalid``. The first 100 of a kind, then one
            that counts them.

        Examples
        --------
        >>> wrong = ha.BlockPagedTensor.from_arrays(
        ...     pool, block_tables=[[5]], seq_lens=[3], kv_role="key", permissive=True
        ... )
        >>> print(wrong.validate()[0])
        block_table[0]: page id 5, expected < num_pages 5 (Storage Invariants 3)

        Spec: block-paged layout, Storage Invariants; wire-format page sections 2 to 4; snapshot format section 2.
        """
        return invariants.validate_tensor(self.descriptor, self._arrays, sequences=self.sequences)

    def check(self) -> None:
        """Raise what :meth:`validate` finds.

        Raises
        ------
        InvariantError
            With every problem.
        QuantizationError
            Where only parameters have the wrong size.

        Spec: as :meth:`validate`.
        """
        _refuse(self.validate())


def _refuse(problems: list[Problem]) -> None:
    if not problems:
        return
    only_parameters = all(problem.code == ProblemCode.QUANTIZATION_BUFFER_SIZE for problem in problems)
    raise QuantizationError(problems) if only_parameters else InvariantError(problems)


def _total_tokens(sequences: Sequences, num_seqs: int) -> int:
    if num_seqs and (sequences.seq_lens is None or sequences.seq_lens_known is not None):
        raise UnknownSequenceLengthError(
            "the length of some sequence is not known: pass seq_lens= for all, or total_tokens="
        )
    return sequences.recorded_tokens()
