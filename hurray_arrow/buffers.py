"""A descriptor's buffers as they come from elsewhere: memory of any kind, fitted to the specification's sizes.

Spec: block-paged layout, Buffer Table and Storage Invariants; snapshot format section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.errors import Problem, ProblemCode
from hurray_arrow.intake import array_problems, as_bytes

Bytes: TypeAlias = npt.NDArray[np.uint8]

BUFFER_NAMES = ("page_pool", "block_table", "seq_ptr")
_SIZE_CODES = (ProblemCode.PAGE_POOL_SIZE, ProblemCode.BLOCK_TABLE_SIZE, ProblemCode.SEQ_PTR_SIZE)
_SPECS = ("Storage Invariants 4", "Buffer Table", "Buffer Table")


def buffer_name(index: int) -> str:
    """Name a buffer as messages do."""
    return BUFFER_NAMES[index] if index < len(BUFFER_NAMES) else f"buffers[{index}]"


def parameter_name(index: int) -> str:
    """Name a buffer as whoever passes the parameters of a scheme alone does."""
    return f"quantization_buffers[{index - len(BUFFER_NAMES)}]"


def take_memory(buffers: Sequence[Any], *, first: int = 0) -> tuple[list[Problem], list[Bytes]]:
    """View memory of any kind as bytes.

    Parameters
    ----------
    buffers
        Arrays, bytes, memoryviews and whatever else has the buffer protocol; ``None`` for an empty buffer.
    first
        Index of the first buffer in the descriptor, for messages; where it is not 0 the caller has these alone, as
        ``quantization_buffers``.

    Returns
    -------
    problems : list of Problem
        Codes ``buffer_dtype``, ``buffer_layout``.
    memory : list of numpy.ndarray
        Read-only uint8 views that keep the memory alive; empty ones where there are problems.
    """
    name = parameter_name if first else buffer_name
    found = [_view(buffer, name(index)) for index, buffer in enumerate(buffers, first)]
    return [problem for problems, _ in found for problem in problems], [view for _, view in found]


def _view(buffer: Any, name: str) -> tuple[list[Problem], Bytes]:
    empty = np.empty(0, np.uint8)
    if buffer is None:
        return [], empty
    if isinstance(buffer, np.ndarray):
        problems = array_problems(buffer, name=name, dtypes=(), ndim=None)
        return problems, empty if problems else as_bytes(buffer)
    try:
        view = memoryview(buffer)
    except TypeError:
        message = f"{type(buffer).__name__}, expected an array, bytes or another object with the buffer protocol"
        return [Problem(ProblemCode.BUFFER_DTYPE, name, message, "Buffer Table")], empty
    if not view.c_contiguous:
        message = f"strides {view.strides} are not C-contiguous: bytes({name})"
        return [Problem(ProblemCode.BUFFER_LAYOUT, name, message, "Buffer Table")], empty
    return [], as_bytes(np.frombuffer(view.cast("B"), np.uint8)) if view.nbytes else empty


def fit_buffers(
    descriptor: BlockPagedDescriptor, memory: list[Bytes], *, strict: bool
) -> tuple[list[Problem], list[Bytes], list[str]]:
    """Compare the buffers with the descriptor and with the specification's exact sizes.

    Parameters
    ----------
    descriptor
        Of the tensor.
    memory
        uint8 ``[bytes]`` per buffer.
    strict
        Report a buffer 0 to 2 that is longer than the specification's size; otherwise cut it.

    Returns
    -------
    problems : list of Problem
        Codes ``buffer_missing``, ``page_pool_size``, ``block_table_size``, ``seq_ptr_size``,
        ``quantization_buffer_size``. That block_table and seq_ptr disagree is an invariant of its own.
    fitted : list of numpy.ndarray
        The buffers, cut where they were to be cut.
    cut : list of str
        What was cut, in words.

    Spec: block-paged layout, Buffer Table and Storage Invariants 4; snapshot format section 2.
    """
    if len(memory) != len(descriptor.buffers):
        return [_count_problem(len(memory), len(descriptor.buffers))], memory, []
    problems: list[Problem] = []
    cut: list[str] = []
    width = descriptor.index_dtype.itemsize
    fitted = list(memory)
    # seq_ptr first, because it says how long block_table is.
    for index in (2, 0, 1):
        declared = descriptor.buffers[index].byte_size
        size = memory[index].size
        wanted = (descriptor.pool_bytes, _table_bytes(descriptor, fitted[2]), (descriptor.num_seqs + 1) * width)[index]
        longest = max(size, declared)
        if size < declared or (index != 1 and longest < wanted):
            problems.append(_size_problem(index, size, declared, wanted))
        elif longest > wanted and not strict:
            fitted[index] = memory[index][:wanted]
            cut.append(f"{buffer_name(index)} from {longest} to {wanted} bytes")
        elif size > declared or (index != 1 and longest > wanted) or (index == 1 and size % width):
            problems.append(_size_problem(index, size, declared, wanted))
    for index in range(len(BUFFER_NAMES), len(memory)):
        declared, size = descriptor.buffers[index].byte_size, memory[index].size
        if size != declared:
            message = f"{size} bytes, expected the descriptor's {declared}"
            problems.append(Problem(ProblemCode.QUANTIZATION_BUFFER_SIZE, buffer_name(index), message, "wire format 2"))
    return problems, fitted, cut


def _table_bytes(descriptor: BlockPagedDescriptor, seq_ptr: Bytes) -> int:
    """Give the size of block_table that seq_ptr names; the descriptor's where seq_ptr itself is too short."""
    width = descriptor.index_dtype.itemsize
    if seq_ptr.size < (descriptor.num_seqs + 1) * width:
        return descriptor.buffers[1].byte_size
    last = seq_ptr[descriptor.num_seqs * width :][:width]
    return int(last.view(descriptor.index_dtype)[0]) * width


def _count_problem(count: int, expected: int) -> Problem:
    message = f"{count} buffers, expected {expected}, as many as the descriptor has"
    return Problem(ProblemCode.BUFFER_MISSING, "buffers", message, "Buffer Table")


def _size_problem(index: int, size: int, declared: int, wanted: int) -> Problem:
    message = f"{size} bytes, the descriptor says {declared}, expected {wanted}"
    if size >= declared and size >= wanted:
        message += "; strict=False cuts a longer buffer"
    return Problem(_SIZE_CODES[index], buffer_name(index), message, _SPECS[index])


def validate_arrays(descriptor: BlockPagedDescriptor, arrays: Sequence[Any]) -> list[Problem]:
    """Check that arrays are what the descriptor says: their number, dtypes, shapes and sizes.

    Parameters
    ----------
    descriptor
        Of the tensor.
    arrays
        page_pool, block_table, seq_ptr, then the quantization parameters.

    Returns
    -------
    list of Problem
        Codes ``buffer_missing``, ``buffer_dtype``, ``buffer_layout``, ``page_pool_size``, ``block_table_size``,
        ``seq_ptr_size``, ``quantization_buffer_size``.

    Spec: block-paged layout, Buffer Table and Storage Invariants 4.
    """
    if len(arrays) != len(descriptor.buffers):
        return [_count_problem(len(arrays), len(descriptor.buffers))]
    element = descriptor.element_type
    tables = [descriptor.index_dtype]
    packed = element.is_packed
    problems = array_problems(
        arrays[0], name="page_pool", dtypes=[element.pool_dtype], ndim=1 if packed else 4, of_bytes=packed
    )
    for index in range(1, len(arrays)):
        of_bytes = index >= len(BUFFER_NAMES)
        dtypes = [np.dtype(np.uint8)] if of_bytes else tables
        name = parameter_name(index) if of_bytes else buffer_name(index)
        problems += array_problems(arrays[index], name=name, dtypes=dtypes, ndim=1, of_bytes=of_bytes)
    if problems:
        return problems
    shape = (descriptor.pool_bytes,) if element.is_packed else (descriptor.num_pages, *descriptor.page_shape)
    if arrays[0].shape != shape:
        message = f"shape {arrays[0].shape}, expected {shape}"
        problems.append(Problem(ProblemCode.PAGE_POOL_SIZE, "page_pool", message, "Storage Invariants 4"))
    for index, (array, handle) in enumerate(zip(arrays, descriptor.buffers, strict=True)):
        if array.nbytes != handle.byte_size:
            message = f"{array.nbytes} bytes, expected the descriptor's {handle.byte_size}"
            code = _SIZE_CODES[index] if index < len(_SIZE_CODES) else ProblemCode.QUANTIZATION_BUFFER_SIZE
            problems.append(Problem(code, buffer_name(index), message, "Buffer Table"))
    return problems


def on_cpu(descriptor: BlockPagedDescriptor, memory: Sequence[Bytes]) -> BlockPagedDescriptor:
    """Give the descriptor with the buffers' sizes, all in CPU memory, which is where numpy arrays are.

    Spec: snapshot format section 2, what is patched in place.
    """
    handles = tuple(
        replace(handle, byte_size=part.size, device_tag=0, sync_mode=0, memory_class=0)
        for handle, part in zip(descriptor.buffers, memory, strict=True)
    )
    return descriptor if handles == descriptor.buffers else replace(descriptor, buffers=handles)
