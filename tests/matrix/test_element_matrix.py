"""Every element type × index type × quantization scheme, in full: this floor is fast enough for it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.errors import UnsupportedError
from hurray_arrow.tensor import BlockPagedTensor
from tests.sample import (
    ALL_ELEMENT_TYPES,
    INDEX_TYPES,
    SCHEMES,
    SHARED,
    UNREFERENCED,
    codes_of,
    expected_codes,
    make_tensor,
)

MATRIX = list(itertools.product(ALL_ELEMENT_TYPES, INDEX_TYPES, SCHEMES))
WITHOUT_NUMBERS = {"float128", "complex64", "complex128"}


def expected_numbers(tensor, seq):
    """Dequantize token by token in float64, from the specification's formula."""
    values = tensor.gather(seq).astype(np.float64)
    scheme = tensor.quantization
    if scheme is None:
        return values
    if scheme.scheme == "per_tensor":
        return (values - scheme.zero_point) * scheme.scale
    buffers = dict(enumerate((bytes(buffer) for buffer in tensor.quantization_buffers), 3))
    count = tensor.num_pages * tensor.page_size if scheme.axis == 0 else tensor.descriptor.shape[scheme.axis]
    scale_dtype = {0x01: np.float16, 0x03: np.float32}[scheme.scale_type_tag]
    scales = np.frombuffer(buffers[scheme.scale_buffer_index], scale_dtype, count).astype(np.float64)
    zero_points = np.zeros(count)
    if (index := scheme.zero_point_buffer_index) is not None:
        start = scales.size * 4 if index == scheme.scale_buffer_index else 0
        zero_points = np.frombuffer(buffers[index], np.int32, count, start).astype(np.float64)
    if scheme.axis == 0:
        tokens = range(len(values))
        size = tensor.page_size
        slots = [int(tensor.page_ids(seq)[t // size]) * size + t % size for t in tokens]
        return (values - zero_points[slots][:, None, None]) * scales[slots][:, None, None]
    shape = (-1, 1) if scheme.axis == 1 else (-1,)
    return (values - zero_points.reshape(shape)) * scales.reshape(shape)


def test_the_matrix_is_whole():
    assert len(MATRIX) == (26 + 5) * 2 * 9


@pytest.mark.parametrize(("element", "index_type", "quantization"), MATRIX)
def test_each(element, index_type, quantization):
    tensor = make_tensor(element_type=element, index_type=index_type, quantization=quantization)
    assert BlockPagedDescriptor.decode(tensor.descriptor.encode()) == tensor.descriptor
    again = BlockPagedTensor.from_buffers(tensor.descriptor.encode(), tensor.buffers, sequences=tensor.sequences)
    assert again.equals(tensor)
    assert again.block_table.dtype == again.seq_ptr.dtype == index_type
    assert tensor.validate() == []
    for seq in range(4):
        codes = expected_codes(tensor, seq, tensor.token_count(seq))
        assert codes_of(tensor.gather(seq), tensor.element_type.bits) == codes
    assert tensor.shared_pages().tolist() == list(SHARED)
    assert tensor.unreferenced_pages().tolist() == list(UNREFERENCED)


@pytest.mark.parametrize(("element", "index_type", "quantization"), MATRIX)
def test_numbers(element, index_type, quantization):
    tensor = make_tensor(element_type=element, index_type=index_type, quantization=quantization)
    if element in WITHOUT_NUMBERS or element.startswith("private") or quantization in ("nf4", "mxfp"):
        with pytest.raises(UnsupportedError):
            tensor.dequantize(0)
        return
    # Random bits are NaN, infinite and too large for float32 here and there.
    with np.errstate(all="ignore"):
        for seq in (0, 2):
            expected = expected_numbers(tensor, seq).astype(np.float32)
            found = tensor.dequantize(seq)
            assert (found.dtype, found.shape) == (np.float32, expected.shape)
            np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-5, equal_nan=True)
        assert np.array_equal(tensor.dequantize_pages([5])[0], tensor.dequantize_pages()[5], equal_nan=True)
