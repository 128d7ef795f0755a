"""Foreign arrays: taken without a copy, by their bits, or refused."""

from __future__ import annotations

import array
import sys
import types

import ml_dtypes
import numpy as np
import pytest

from hurray_arrow.engines.arrays import as_array, as_words
from hurray_arrow.errors import LayoutError, UnsupportedError


class Exporter:
    """An array that is only known through DLPack."""

    def __init__(self, data, device=1):
        self.data, self.device = data, device

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return (self.device, 0)


def refused(call, *args, **options):
    with pytest.raises(LayoutError) as caught:
        call(*args, **options)
    return caught.value.expected, caught.value.actual


def test_numpy_arrays_are_taken_as_they_are():
    data = np.arange(30, dtype=np.float16).reshape(2, 3, 5).transpose(2, 0, 1)[:, ::1]
    view = as_array(data)
    assert view.strides == data.strides
    assert np.shares_memory(view, data)
    assert view.flags.writeable
    data.flags.writeable = False
    assert not as_array(data).flags.writeable


def test_subclasses_become_plain_arrays(tmp_path):
    data = np.memmap(tmp_path / "pool", np.float32, "w+", shape=(3, 5))
    assert type(as_array(data)) is np.ndarray
    assert np.shares_memory(as_array(data), data)


def test_dlpack_shares_memory():
    data = np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2]
    view = as_array(Exporter(data))
    assert view.tolist() == data.tolist()
    assert np.shares_memory(view, data)


def test_dlpack_of_a_device_is_refused():
    assert refused(as_array, Exporter(np.zeros(3), device=2)) == ([1, 3], 2)


def test_dlpack_of_a_type_that_numpy_does_not_know_is_refused():
    class Odd(Exporter):
        dtype = "odd"

        def __dlpack__(self, **options):
            raise BufferError("no such type")

    assert refused(as_array, Odd(np.zeros(3))) == ("a numpy dtype", "odd")


def test_the_buffer_protocol_shares_memory():
    data = array.array("H", range(12))
    view = as_array(memoryview(data).cast("B").cast("H", (3, 4)))
    assert view.shape == (3, 4)
    view[1, 2] = 77
    assert data[6] == 77
    assert as_array(bytearray(6)).dtype == np.uint8
    assert not as_array(b"abc").flags.writeable


@pytest.mark.parametrize("nothing", [object(), 3, "text", [1, 2]])
def test_what_is_no_array_is_refused(nothing):
    assert refused(as_array, nothing) == ("an array", type(nothing).__name__)


def test_masked_and_big_endian_arrays_are_refused():
    assert refused(as_array, np.ma.masked_array([1], [1]))[1] == "MaskedArray"
    assert refused(as_array, np.zeros(2, ">f4")) == ("<f4", ">f4")


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e5m2])
def test_values_become_their_bits(dtype):
    data = np.arange(30).reshape(2, 3, 5).astype(dtype).transpose(1, 0, 2)
    words, element = as_words(data)
    assert (words.dtype.kind, words.itemsize) == ("u", np.dtype(dtype).itemsize)
    assert element.dtype == np.dtype(dtype)
    assert np.shares_memory(words, data)
    assert np.array_equal(words.view(dtype), data)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, "V2"])
def test_bits_have_to_be_named(dtype):
    assert refused(as_words, np.zeros((2, 4), dtype)) == ("element_type=", str(np.dtype(dtype)))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.uint8, "float8_e4m3"),
        (np.int8, "float8_e5m2"),
        (np.uint16, "bfloat16"),
        (np.int16, "float16"),
        (np.int8, "int8"),
    ],
)
def test_bits_that_are_named(dtype, name):
    words, element = as_words(np.zeros((2, 4), dtype), element_type=name)
    assert (words.shape, element.name) == ((2, 4), name)


def test_bytes_of_a_wider_type():
    data = np.zeros((3, 2, 8), np.int8).transpose(1, 0, 2)
    words, element = as_words(data, element_type="bfloat16")
    assert (words.shape, words.dtype, element.name) == ((2, 3, 4), np.uint16, "bfloat16")
    assert np.shares_memory(words, data)
    assert refused(as_words, np.zeros((2, 7), np.uint8), element_type="bfloat16")[0] == 2
    assert refused(as_words, np.zeros((8, 2), np.uint8).T, element_type="bfloat16")[0] == 2


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float16, "bfloat16"),
        (ml_dtypes.bfloat16, "float16"),
        (np.float32, "bfloat16"),
        (np.uint32, "bfloat16"),
        (np.float16, "int16"),
    ],
)
def test_another_type_is_refused(dtype, name):
    assert refused(as_words, np.zeros((2, 4), dtype), element_type=name) == (name, str(np.dtype(dtype)))


def test_types_narrower_than_a_byte_are_refused():
    with pytest.raises(UnsupportedError):
        as_words(np.zeros(4, ml_dtypes.int4))


def test_a_destination_has_to_be_writable():
    data = np.zeros((2, 4), np.float16)
    assert as_words(data, writable=True)[0].flags.writeable
    data.flags.writeable = False
    assert refused(as_words, data, writable=True) == ("writable", "read-only")


# -- torch, which is never imported ------------------------------------------------------------------------------------


def fake_torch():
    """As much of torch as is asked for: a tensor has a dtype by name and memory that numpy sees."""
    torch = types.ModuleType("torch")

    class Tensor:
        layout = "torch.strided"
        dtypes = types.MappingProxyType({"torch.uint8": np.uint8, "torch.int16": np.int16})

        def __init__(self, data, dtype, device="cpu", layout="torch.strided"):
            self.data, self.dtype, self.layout = data, dtype, layout
            self.device = types.SimpleNamespace(type=device)

        def detach(self):
            return Tensor(self.data, self.dtype)

        def element_size(self):
            return self.data.itemsize

        def view(self, dtype):
            return Tensor(self.data.view(self.dtypes[dtype]), dtype)

        def numpy(self):
            if self.dtype in ("torch.bfloat16", "torch.float8_e4m3fn"):
                raise TypeError("unsupported ScalarType")
            return self.data

    torch.Tensor, torch.uint8, torch.int16 = Tensor, "torch.uint8", "torch.int16"
    return torch


def test_torch_is_not_imported():
    assert "torch" not in sys.modules or sys.modules["torch"] is not None
    source = __import__("inspect").getsource(sys.modules["hurray_arrow.engines.arrays"])
    assert "import torch" not in source


@pytest.mark.parametrize(
    ("dtype", "bits", "scalar"),
    [("torch.bfloat16", np.uint16, ml_dtypes.bfloat16), ("torch.float8_e4m3fn", np.uint8, ml_dtypes.float8_e4m3fn)],
)
def test_torch_types_without_a_numpy_type_come_by_their_bits(monkeypatch, dtype, bits, scalar):
    torch = fake_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    data = np.arange(24, dtype=bits).reshape(2, 3, 4).transpose(1, 0, 2)
    view = as_array(torch.Tensor(data, dtype))
    assert view.dtype == np.dtype(scalar)
    assert np.shares_memory(view, data)
    assert np.array_equal(view.view(bits), data)


def test_other_torch_tensors(monkeypatch):
    torch = fake_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    data = np.zeros((2, 3), np.float32)
    assert np.shares_memory(as_array(torch.Tensor(data, "torch.float32")), data)
    assert refused(as_array, torch.Tensor(data, "torch.float32", device="cuda"))[0] == "cpu"
    assert refused(as_array, torch.Tensor(data, "torch.float32", layout="torch.sparse_coo"))[1] == "torch.sparse_coo"
