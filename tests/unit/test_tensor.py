from __future__ import annotations

import dataclasses
import gc
import pickle
import tracemalloc
import weakref
from array import array

import ml_dtypes
import numpy as np
import pytest

from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.elements import element_type
from hurray_arrow.errors import (
    InvalidDescriptorError,
    InvariantError,
    QuantizationError,
    UnknownSequenceLengthError,
    UnsupportedError,
)
from hurray_arrow.quantization import PerBlock, PerTensor
from hurray_arrow.sequences import Sequences
from hurray_arrow.tensor import BlockPagedTensor
from tests.sample import (
    BLOCK_TABLES,
    HEAD_DIM,
    NUM_HEADS,
    NUM_PAGES,
    PAGE_SIZE,
    SHARED,
    UNREFERENCED,
    make_tensor,
    random_pool,
    sample_facts,
    seq_lens_of,
)

POOL = random_pool(element_type("float16"), num_pages=NUM_PAGES, page_shape=(PAGE_SIZE, NUM_HEADS, HEAD_DIM))
TABLE = np.array([5, 2, 6, 5, 0, 2], np.uint32)
SEQ_PTR = np.array([0, 3, 3, 5, 6], np.uint32)


def address(buffer):
    return buffer.__array_interface__["data"][0]


def build(page_pool=POOL, block_table=TABLE, seq_ptr=SEQ_PTR, **arguments):
    arguments = {"kv_role": "key", "seq_lens": seq_lens_of(PAGE_SIZE)} | arguments
    return BlockPagedTensor.from_arrays(page_pool, block_table, seq_ptr, **arguments)


def memmap_like(memory):
    class Pool(np.ndarray):
        pass

    return np.frombuffer(memory, np.float16).reshape(POOL.shape).view(Pool)


def refused(call, *arguments, error=InvariantError, **keywords):
    with pytest.raises(error) as caught:
        call(*arguments, **keywords)
    return caught.value


class TestFromArrays:
    def test_fields_come_from_the_arrays(self):
        tensor = build(layer_index=3, layer_name="layers.3", component="scales", kv_group=2)
        assert tensor.descriptor.shape == (27, 3, 11)
        assert (tensor.total_tokens, tensor.num_heads, tensor.head_dim) == (27, 3, 11)
        assert (tensor.num_pages, tensor.page_size, tensor.num_seqs) == (7, 5, 4)
        assert (tensor.kv_role, tensor.layer_index, tensor.layer_name) == ("key", 3, "layers.3")
        assert (tensor.component, tensor.kv_group, tensor.element_type.name) == ("scales", 2, "float16")
        assert tensor.quantization is None
        assert [handle.byte_size for handle in tensor.descriptor.buffers] == [7 * 5 * 3 * 11 * 2, 24, 20]
        assert tensor.nbytes == 7 * 5 * 3 * 11 * 2 + 24 + 20
        assert (tensor.problems, tensor.original_descriptor) == ((), None)

    def test_the_worked_example_of_the_specification(self):
        pool = np.arange(320, dtype=np.float16).reshape(5, 4, 2, 8)
        tensor = BlockPagedTensor.from_arrays(
            pool, block_tables=[[0, 1], [0]], seq_lens=[6, 3], kv_role="key", layer_index=3
        )
        assert tensor.descriptor.encode().hex() == (
            "4852525901008500000000000000010a030000000900000000000000020000000000000008000000000000000000000000000000"
            "040000000500000000000000000000000200000000030000000000000000000003"
            "800200000000000040000000000000000c0000000000000040000000000000000c000000000000004000000000000000"
        )
        assert tensor.element(1, 2, 1, 5) == pool[0, 2, 1, 5]
        assert tensor.element(0, 5, 0, 7) == pool[1, 1, 0, 7]

    def test_nothing_is_copied_and_the_callers_arrays_stay_writable(self):
        scales = np.arange(28, dtype=np.float32) + 1
        pool = np.zeros((7, 4, 3, 11), np.int8)
        table, seq_ptr = TABLE.copy(), SEQ_PTR.copy()
        tensor = build(
            pool,
            table,
            seq_ptr,
            seq_lens=None,
            total_tokens=9,
            quantization=PerBlock(0, 4, 3),
            quantization_buffers=[scales],
        )
        mine = (pool, table, seq_ptr, scales)
        theirs = (tensor.page_pool, tensor.block_table, tensor.seq_ptr, tensor.quantization_buffers[0])
        assert list(map(address, mine)) == list(map(address, theirs)) == list(map(address, tensor.buffers))
        assert all(each.flags.writeable for each in mine)
        assert not any(each.flags.writeable for each in (*theirs, *tensor.buffers))
        assert [buffer.nbytes for buffer in tensor.buffers] == [each.nbytes for each in mine]

    def test_a_pool_is_never_copied_on_the_way(self):
        pool = np.zeros((64, 16, 8, 128), np.float16)
        tracemalloc.start()
        try:
            build(pool, seq_lens=None, total_tokens=9)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < pool.nbytes // 8

    def test_the_tensor_keeps_the_memory_alive_and_nothing_else_does(self):
        memory = array("B", bytes(POOL))
        alive = weakref.ref(memory)
        tensor = build(memmap_like(memory))
        del memory
        gc.collect()
        assert alive() is not None
        assert tensor.gather(0).tobytes() == build().gather(0).tobytes()
        del tensor
        gc.collect()
        assert alive() is None

    def test_subclasses_of_ndarray_become_plain_arrays(self):
        assert type(build(memmap_like(POOL)).page_pool) is np.ndarray

    def test_bits_of_types_that_numpy_does_not_know(self):
        bits = POOL.view(np.uint16)
        tensor = build(bits, element_type="bfloat16")
        assert tensor.page_pool.dtype == ml_dtypes.bfloat16
        assert address(tensor.page_pool) == address(bits)
        assert build(bits).element_type.name == "uint16"
        assert build(bits.view(ml_dtypes.bfloat16)).element_type.name == "bfloat16"
        small = np.zeros((7, 5, 3, 11), np.uint8)
        assert build(small, element_type="float8_e5m2").page_pool.dtype == ml_dtypes.float8_e5m2
        assert build(small).element_type.name == "uint8"

    def test_float128_is_sixteen_opaque_bytes(self):
        tensor = build(np.zeros((7, 5, 3, 11), "V16"), element_type="float128")
        assert tensor.gather(0).dtype == np.dtype("V16")

    def test_packed_types_are_bytes_of_any_shape(self):
        element = element_type("int4")
        values = (np.arange(7 * 6 * 3 * 11) % 13 - 6).astype(ml_dtypes.int4).reshape(7, 6, 3, 11)
        raw = element.pack(values)
        arguments = {"element_type": "int4", "page_shape": (6, 3, 11), "num_pages": 7}
        for pool in (raw, raw.reshape(7, -1)):
            tensor = build(pool, seq_lens=seq_lens_of(6), **arguments)
            assert address(tensor.page_pool) == address(raw)
            assert tensor.page_pool.shape == (raw.size,)
            assert (tensor.values_of_pages() == values).all()

    def test_bytes_of_whole_byte_types_become_the_array(self):
        raw = POOL.reshape(-1).view(np.uint8)
        tensor = build(raw, element_type="float16", page_shape=(5, 3, 11), num_pages=7)
        assert (tensor.page_pool.shape, tensor.page_pool.dtype) == ((7, 5, 3, 11), np.float16)
        assert tensor.equals(build())

    @pytest.mark.parametrize(
        ("arguments", "code", "call"),
        [
            ({"page_pool": POOL[:, ::2]}, "buffer_layout", "np.ascontiguousarray(page_pool)"),
            ({"page_pool": np.asfortranarray(POOL)}, "buffer_layout", "np.ascontiguousarray(page_pool)"),
            ({"page_pool": POOL[0]}, "buffer_layout", "expected 4"),
            ({"page_pool": POOL.astype(">f2")}, "buffer_dtype", "page_pool.astype('<f2')"),
            ({"page_pool": POOL.astype(">f2"), "element_type": "float16"}, "buffer_dtype", "page_pool.astype('<f2')"),
            ({"page_pool": POOL.tolist()}, "buffer_dtype", "np.asarray(page_pool)"),
            ({"page_pool": np.ma.array(POOL)}, "buffer_dtype", "page_pool.data"),
            ({"page_pool": np.ma.array(POOL, mask=POOL > 7)}, "buffer_dtype", "page_pool.filled("),
            ({"page_pool": POOL, "element_type": "float32"}, "buffer_dtype", "page_pool.astype(np.float32)"),
            ({"page_pool": POOL, "element_type": "bfloat16"}, "buffer_dtype", "page_pool.astype('bfloat16')"),
            ({"page_pool": POOL.view(np.int16), "element_type": "bfloat16"}, "buffer_dtype", ".view('uint16')"),
            ({"page_pool": POOL.view(np.uint16), "element_type": "float16"}, "buffer_dtype", "astype(np.float16)"),
            ({"page_pool": POOL.astype(np.bool_)}, "buffer_dtype", "element_type('bool').pack(page_pool)"),
            ({"page_pool": np.zeros(POOL.shape, ml_dtypes.int4)}, "buffer_dtype", "element_type('int4').pack("),
            ({"page_pool": POOL, "element_type": "uint2"}, "buffer_dtype", "these values are none of uint2"),
            ({"block_table": TABLE.astype(np.int64)}, "buffer_dtype", "block_table.astype(np.uint32)"),
            ({"block_table": TABLE.astype(np.int32)}, "buffer_dtype", "block_table.astype(np.uint32)"),
            ({"block_table": TABLE.astype(">u4")}, "buffer_dtype", "block_table.astype('<u4')"),
            ({"block_table": TABLE.tolist()}, "buffer_dtype", "np.asarray(block_table).astype(np.uint32)"),
            ({"block_table": np.repeat(TABLE, 2)[::2]}, "buffer_layout", "np.ascontiguousarray(block_table)"),
            ({"block_table": TABLE.reshape(2, 3)}, "buffer_layout", "expected 1"),
            ({"seq_ptr": SEQ_PTR.astype(np.uint64)}, "buffer_dtype", "seq_ptr.astype(np.uint32)"),
            ({"seq_ptr": SEQ_PTR.astype(float)}, "buffer_dtype", "seq_ptr.astype(np.uint32)"),
            ({"seq_ptr": SEQ_PTR[:0]}, "seq_ptr_size", "expected num_seqs + 1"),
            ({"index_type": "uint64"}, "buffer_dtype", "block_table.astype(np.uint64)"),
            ({"quantization_buffers": [np.zeros((4, 4), np.float32).T]}, "buffer_layout", "array(quantization_b"),
            ({"quantization_buffers": [np.zeros(4, ">f4")]}, "buffer_dtype", "_buffers[0].astype('<f4')"),
            ({"quantization_buffers": [memoryview(b"abcdef")[::2]]}, "buffer_layout", "bytes(quantization_buffers[0])"),
            ({"quantization_buffers": [3.5]}, "buffer_dtype", "buffer protocol"),
        ],
    )  # fmt: skip
    def test_what_does_not_fit_is_refused_with_the_call_that_converts(self, arguments, code, call):
        error = refused(build, **arguments)
        assert code in error.codes
        assert call in str(error)

    def test_all_refusals_come_at_once(self):
        error = refused(build, POOL[:, ::2], TABLE.astype(np.int64), SEQ_PTR.astype(">u4"))
        assert error.codes == ["buffer_layout", "buffer_dtype", "buffer_dtype"]

    @pytest.mark.parametrize("num_pages", [6, 8, 2**70])
    def test_a_pool_of_bytes_has_its_size(self, num_pages):
        raw = POOL.reshape(-1).view(np.uint8)
        error = refused(build, raw, element_type="float16", page_shape=(5, 3, 11), num_pages=num_pages)
        assert error.codes == ["page_pool_size"]

    @pytest.mark.parametrize(
        "arguments",
        [
            {"page_shape": (5, 3, 11), "num_pages": 7},
            {"element_type": "float16", "num_pages": 7},
            {"element_type": "float16", "page_shape": (5, 3, 11)},
            {"block_tables": [[1]]},
            {"block_table": None},
            {"seq_ptr": None},
            {"block_table": None, "block_tables": [[1]]},
            {"sequences": Sequences()},
            {"seq_length": [1]},
        ],
    )
    def test_arguments_that_contradict_each_other(self, arguments):
        with pytest.raises(TypeError):
            build(**arguments)

    def test_unknown_names(self):
        assert refused(build, kv_role="keys", error=InvalidDescriptorError).codes == ["kv_role_invalid"]
        assert refused(build, index_type="int32", error=InvalidDescriptorError).codes == ["index_type_invalid"]
        assert refused(build, element_type="bf16", error=InvalidDescriptorError).codes == ["element_type_invalid"]
        with pytest.raises(UnsupportedError):
            build(np.zeros((7, 5, 3, 11), "V3"))

    def test_total_tokens_is_known_or_asked_for(self):
        for lens in (None, [13, None, 10, 4]):
            with pytest.raises(UnknownSequenceLengthError):
                build(seq_lens=lens)
            assert build(seq_lens=lens, total_tokens=27).total_tokens == 27
        assert refused(build, total_tokens=26).codes == ["seq_lens_sum"]
        assert build(block_table=TABLE[:0], seq_ptr=SEQ_PTR[:1], seq_lens=None).total_tokens == 0

    def test_alignment_is_stated_for_every_buffer(self):
        assert [handle.alignment for handle in build(alignment=4096).descriptor.buffers] == [4096] * 3


class TestBlockTables:
    @pytest.mark.parametrize("index_type", ["uint32", "uint64"])
    def test_one_list_per_sequence(self, index_type):
        rows = [[5, 2, 6], [], np.array([5, 0], np.int64), (2,)]
        tensor = build(block_table=None, seq_ptr=None, block_tables=rows, index_type=index_type)
        assert (tensor.block_table.tolist(), tensor.seq_ptr.tolist()) == (TABLE.tolist(), SEQ_PTR.tolist())
        assert tensor.block_table.dtype == tensor.seq_ptr.dtype == index_type

    def test_no_sequences(self):
        tensor = build(block_table=None, seq_ptr=None, block_tables=[], seq_lens=[])
        assert (tensor.num_seqs, tensor.block_table.size, tensor.seq_ptr.tolist()) == (0, 0, [0])

    @pytest.mark.parametrize(
        ("rows", "index_type", "code"),
        [
            ([[5, -1], [2]], None, "page_id_out_of_range"),
            ([[5], np.array([2, -1])], None, "page_id_out_of_range"),
            ([[2**32]], None, "page_id_out_of_range"),
            ([[2**64]], "uint64", "page_id_out_of_range"),
            ([[7]], None, "page_id_out_of_range"),
            ([[1.0]], None, "buffer_dtype"),
            ([np.array([1.0])], None, "buffer_dtype"),
            ([np.array([[1]])], None, "buffer_dtype"),
            (np.zeros((4, 3), np.int32), None, "buffer_layout"),
        ],
    )
    def test_what_is_no_page_id_is_refused(self, rows, index_type, code):
        arguments = {"block_tables": rows, "index_type": index_type, "seq_lens": None, "total_tokens": 0}
        assert refused(build, block_table=None, seq_ptr=None, **arguments).codes == [code]

    def test_a_large_id_needs_the_wide_type(self):
        tensor = build(
            np.zeros((2**33, 5, 0, 11), np.float16),
            None,
            None,
            block_tables=[[2**32]],
            index_type="uint64",
            seq_lens=[3],
        )
        assert tensor.block_table.tolist() == [2**32]
        assert tensor.gather(0).shape == (3, 0, 11)


class TestFromBuffers:
    def test_the_same_tensor_comes_back_without_a_copy(self):
        tensor = make_tensor(quantization="per_block_zero_points")
        for descriptor in (tensor.descriptor, tensor.descriptor.encode(), memoryview(tensor.descriptor.encode())):
            again = BlockPagedTensor.from_buffers(descriptor, tensor.buffers, sequences=tensor.sequences)
            assert again.equals(tensor)
            assert list(map(address, again.buffers)) == list(map(address, tensor.buffers))
            assert again.original_descriptor is None

    def test_memory_of_any_kind(self):
        tensor = make_tensor()
        buffers = [bytearray(tensor.buffers[0]), memoryview(tensor.block_table), tensor.buffers[2].tobytes()]
        again = BlockPagedTensor.from_buffers(tensor.descriptor, buffers, seq_lens=seq_lens_of(PAGE_SIZE))
        assert again.equals(tensor)
        assert not any(buffer.flags.writeable for buffer in again.buffers)

    def test_an_empty_buffer_may_be_none(self):
        tensor = make_tensor(block_tables=[], seq_lens=[])
        again = BlockPagedTensor.from_buffers(tensor.descriptor, [tensor.page_pool, None, tensor.seq_ptr])
        assert again.equals(tensor)

    def test_memory_that_is_not_aligned_for_its_type(self):
        tensor = make_tensor(element_type="float64", index_type="uint64")
        buffers = [memoryview(b"x" + bytes(buffer))[1:] for buffer in tensor.buffers]
        again = BlockPagedTensor.from_buffers(tensor.descriptor, buffers, seq_lens=seq_lens_of(PAGE_SIZE))
        assert not again.page_pool.flags.aligned or not again.seq_ptr.flags.aligned
        assert again.equals(tensor)
        assert again.gather([0, 2, 3]).tobytes() == tensor.gather([0, 2, 3]).tobytes()

    def test_other_devices_become_the_cpu_and_the_bytes_are_kept(self):
        tensor = make_tensor()
        handles = [dataclasses.replace(h, device_tag=1, sync_mode=2, memory_class=2) for h in tensor.descriptor.buffers]
        foreign = dataclasses.replace(tensor.descriptor, buffers=tuple(handles))
        again = BlockPagedTensor.from_buffers(foreign.encode(), tensor.buffers, sequences=tensor.sequences)
        assert again.descriptor == tensor.descriptor
        assert again.original_descriptor == foreign.encode()
        kept = BlockPagedTensor.from_buffers(
            foreign, tensor.buffers, sequences=tensor.sequences, original_descriptor=b"1"
        )
        assert kept.original_descriptor == b"1"

    @pytest.mark.parametrize(("index", "code"), [(0, "page_pool_size"), (1, "seq_ptr_end"), (2, "seq_ptr_size")])
    def test_a_longer_buffer_is_refused_or_cut(self, index, code):
        tensor = make_tensor()
        longer = bytes(tensor.buffers[index]) + bytes(24)
        handles = list(tensor.descriptor.buffers)
        handles[index] = dataclasses.replace(handles[index], byte_size=len(longer))
        descriptor = dataclasses.replace(tensor.descriptor, buffers=tuple(handles))
        buffers = [*tensor.buffers[:index], longer, *tensor.buffers[index + 1 :]]
        assert code in refused(BlockPagedTensor.from_buffers, descriptor, buffers).codes
        with pytest.warns(UserWarning, match="cut"):
            again = BlockPagedTensor.from_buffers(descriptor, buffers, strict=False, sequences=tensor.sequences)
        assert again.equals(tensor)
        assert again.original_descriptor == descriptor.encode()

    @pytest.mark.parametrize(("index", "code"), [(0, "page_pool_size"), (1, "block_table_size"), (2, "seq_ptr_size")])
    def test_memory_behind_a_buffer_is_refused_or_left_alone(self, index, code):
        tensor = make_tensor()
        buffers = list(tensor.buffers)
        buffers[index] = bytes(buffers[index]) + b"\xff" * 8
        assert refused(BlockPagedTensor.from_buffers, tensor.descriptor, buffers).codes == [code]
        with pytest.warns(UserWarning, match="cut"):
            again = BlockPagedTensor.from_buffers(tensor.descriptor, buffers, strict=False, sequences=tensor.sequences)
        assert again.equals(tensor)
        assert again.original_descriptor is None

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("permissive", [True, False])
    @pytest.mark.parametrize(
        ("index", "code"),
        [(0, "page_pool_size"), (1, "block_table_size"), (2, "seq_ptr_size"), (3, "quantization_buffer_size")],
    )
    def test_a_shorter_buffer_is_always_refused(self, index, code, strict, permissive):
        tensor = make_tensor(quantization="per_channel_dims")
        buffers = list(tensor.buffers)
        buffers[index] = buffers[index][:-4]
        call = {"strict": strict, "permissive": permissive}
        assert refused(BlockPagedTensor.from_buffers, tensor.descriptor, buffers, **call).codes == [code]

    @pytest.mark.parametrize("count", [2, 4])
    def test_every_buffer_of_the_descriptor(self, count):
        tensor = make_tensor()
        buffers = [*tensor.buffers, b""][:count]
        assert refused(BlockPagedTensor.from_buffers, tensor.descriptor, buffers).codes == ["buffer_missing"]

    def test_a_table_whose_size_is_no_multiple_of_its_ids(self):
        tensor = make_tensor()
        handles = list(tensor.descriptor.buffers)
        handles[1] = dataclasses.replace(handles[1], byte_size=22)
        descriptor = dataclasses.replace(tensor.descriptor, buffers=tuple(handles))
        buffers = [tensor.buffers[0], tensor.buffers[1][:22], tensor.buffers[2]]
        error = refused(BlockPagedTensor.from_buffers, descriptor, buffers, permissive=True)
        assert error.codes == ["block_table_size"]

    def test_a_hostile_seq_ptr_cannot_make_a_table_grow(self):
        tensor = make_tensor(index_type="uint64")
        seq_ptr = tensor.seq_ptr.copy()
        seq_ptr[-1] = 2**64 - 1
        buffers = [tensor.page_pool, tensor.block_table, seq_ptr]
        assert "seq_ptr_end" in refused(BlockPagedTensor.from_buffers, tensor.descriptor, buffers).codes
        again = BlockPagedTensor.from_buffers(tensor.descriptor, buffers, permissive=True, sequences=tensor.sequences)
        assert [str(problem.code) for problem in again.problems] == ["seq_ptr_end"]
        assert refused(again.gather, 3).codes == ["seq_ptr_end"]
        assert (again.gather(0) == tensor.gather(0)).sum() > 0

    def test_sizes_that_numpy_cannot_hold(self):
        huge = dataclasses.replace(make_tensor(num_heads=0).descriptor, num_pages=2**64 - 1)
        with pytest.raises(UnsupportedError):
            BlockPagedTensor.from_buffers(huge, [b"", TABLE, SEQ_PTR], seq_lens=seq_lens_of(PAGE_SIZE))

    def test_a_pool_of_products_beyond_64_bits_is_measured_and_not_allocated(self):
        descriptor = dataclasses.replace(
            make_tensor().descriptor, shape=(27, 2**20, 2**20), num_pages=2**33, page_size=2**31
        )
        assert descriptor.pool_bytes == 2 ** (33 + 31 + 40 + 1)
        error = refused(BlockPagedTensor.from_buffers, descriptor, [POOL, TABLE, SEQ_PTR])
        assert error.codes == ["page_pool_size"]
        assert str(2**105) in str(error)

    def test_many_pages_of_nothing(self):
        tensor = make_tensor(element_type="int4", num_heads=0, num_pages=2**40)
        assert tensor.gather([0, 2]).shape == (23, 0, 11)
        assert (tensor.num_pages, tensor.descriptor.pool_bytes) == (2**40, 0)


class TestConstructor:
    def test_arrays_that_the_descriptor_does_not_describe(self):
        tensor = make_tensor(quantization="per_channel_dims")
        parts = {
            name: getattr(tensor, name) for name in ("page_pool", "block_table", "seq_ptr", "quantization_buffers")
        }
        for change, code in [
            ({"page_pool": tensor.page_pool[:6]}, "page_pool_size"),
            ({"page_pool": tensor.page_pool.reshape(7, 5, 11, 3)}, "page_pool_size"),
            ({"page_pool": tensor.page_pool.view(np.uint16)}, "buffer_dtype"),
            ({"block_table": tensor.block_table[:5]}, "block_table_size"),
            ({"seq_ptr": tensor.seq_ptr[:4]}, "seq_ptr_size"),
            ({"quantization_buffers": ()}, "buffer_missing"),
            ({"quantization_buffers": (tensor.quantization_buffers[0][:40],)}, "quantization_buffer_size"),
        ]:
            for permissive in (False, True):
                arguments = {**parts, **change, "permissive": permissive}
                error = refused(BlockPagedTensor, tensor.descriptor, error=InvalidDescriptorError, **arguments)
                assert code in error.codes

    @pytest.mark.parametrize(
        ("names", "error"),
        [
            ({"kv_group": -1}, InvariantError),
            ({"kv_group": 2**32}, InvariantError),
            ({"kv_group": "0"}, TypeError),
            ({"component": ""}, InvariantError),
            ({"component": None}, TypeError),
            ({"layer_name": 3}, TypeError),
        ],
    )
    def test_names_that_no_column_holds(self, names, error):
        for permissive in (False, True):
            caught = refused(make_tensor, **names, permissive=permissive, error=error)
            if error is InvariantError:
                assert caught.codes == ["field_out_of_range"]

    def test_a_group_is_a_python_integer(self):
        assert [type(make_tensor(kv_group=group).kv_group) for group in (np.int64(1), True, 2**32 - 1)] == [int] * 3
        assert make_tensor(kv_group=np.uint32(7)).kv_group == 7

    def test_replace_checks_again(self):
        tensor = make_tensor(**sample_facts())
        assert dataclasses.replace(tensor, layer_name="a").layer_name == "a"
        assert refused(dataclasses.replace, tensor, sequences=Sequences(seq_lens=[1])).codes == ["sequence_facts_size"]

    def test_a_tensor_cannot_be_changed(self):
        tensor = make_tensor()
        with pytest.raises(dataclasses.FrozenInstanceError):
            tensor.layer_name = "x"
        with pytest.raises(ValueError, match="read-only"):
            tensor.page_pool[0] = 0

    def test_pickling(self):
        tensor = make_tensor(**sample_facts(), quantization="per_channel_dims")
        assert pickle.loads(pickle.dumps(tensor)).equals(tensor)  # noqa: S301 - our own bytes

    def test_wrong_parameters_alone_are_a_quantization_error(self):
        arguments = {"quantization": "per_block", "quantization_buffers": [np.ones(27, np.float16)]}
        assert refused(make_tensor, error=QuantizationError, **arguments).codes == ["quantization_buffer_size"]
        error = refused(make_tensor, **arguments, total_tokens=3)
        assert error.codes == ["quantization_buffer_size", "seq_lens_sum"]
        assert not isinstance(error, QuantizationError)


class TestReading:
    def test_lengths(self):
        tensor = make_tensor()
        assert [tensor.token_count(s) for s in range(4)] == [13, 0, 10, 4]
        assert [tensor.page_ids(s).tolist() for s in range(4)] == list(BLOCK_TABLES)
        assert address(tensor.page_ids(2)) == address(tensor.block_table) + 12

    def test_an_unknown_length_is_an_error_and_never_a_guess(self):
        tensor = make_tensor(seq_lens=[13, None, None, 4], total_tokens=27)
        assert tensor.gather([0, 3]).shape == (17, 3, 11)
        # Also where it could be worked out: an empty sequence, and what is left of the total.
        for seq in (1, 2):
            for call in (tensor.token_count, tensor.gather, tensor.positions, tensor.dequantize):
                with pytest.raises(UnknownSequenceLengthError):
                    call(seq)
            with pytest.raises(UnknownSequenceLengthError):
                tensor.element(seq, 0, 0, 0)
        with pytest.raises(UnknownSequenceLengthError):
            make_tensor(seq_lens=None, total_tokens=27).gather([0, 2])

    def test_one_sequence_has_all_tokens(self):
        tensor = make_tensor(block_tables=[[4, 1]], seq_lens=None, total_tokens=7)
        assert tensor.token_count(0) == 7
        assert tensor.gather(0).shape == (7, 3, 11)
        assert tensor.positions(0).tolist() == list(range(7))

    def test_a_partial_page_is_read_up_to_its_last_token(self):
        tensor = make_tensor(element_type="float32")
        expected = np.concatenate([tensor.page_pool[5], tensor.page_pool[2], tensor.page_pool[6, :3]])
        assert tensor.gather(0).tobytes() == expected.tobytes()
        assert tensor.gather(0).base is None or tensor.gather(0).base.nbytes == expected.nbytes

    def test_several_sequences_are_one_after_the_other(self):
        tensor = make_tensor()
        both = np.concatenate([tensor.gather(3), tensor.gather(1), tensor.gather(0)])
        for which in ([3, 1, 0], (3, 1, 0), np.array([3, 1, 0], np.uint64)):
            assert tensor.gather(which).tobytes() == both.tobytes()
        assert tensor.gather([]).shape == (0, 3, 11)
        assert tensor.gather(np.int64(3)).tobytes() == tensor.gather(3).tobytes()
        assert tensor.positions([3, 1, 2]).tolist() == [*range(4), *range(10)]
        assert tensor.positions([]).shape == (0,)

    def test_what_is_gathered_belongs_to_the_caller(self):
        tensor = make_tensor()
        values = tensor.gather(2)
        values[:] = 0
        assert not np.shares_memory(values, tensor.page_pool)
        assert values.flags.writeable

    @pytest.mark.parametrize("seq", [-1, 4, 2**40])
    def test_there_is_no_such_sequence(self, seq):
        tensor = make_tensor()
        for call in (tensor.gather, tensor.token_count, tensor.positions, tensor.page_ids, tensor.dequantize):
            with pytest.raises(IndexError):
                call(seq)

    @pytest.mark.parametrize(
        "place", [(0, 13, 0, 0), (0, -1, 0, 0), (1, 0, 0, 0), (0, 0, 3, 0), (0, 0, 0, 11), (0, 0, -1, 0)]
    )
    def test_there_is_no_such_element(self, place):
        with pytest.raises(IndexError):
            make_tensor().element(*place)

    def test_positions_of_stored_pages(self):
        tensor = make_tensor(**sample_facts())
        assert tensor.positions(0).tolist() == [0, 1, 2, 3, 4, 15, 16, 17, 18, 19, 26, 27, 28]
        assert tensor.positions(3).tolist() == [10, 11, 12, 13]
        assert tensor.positions([2, 1]).tolist() == list(range(10))
        assert tensor.positions(0).dtype == np.uint64

    def test_positions_at_the_end_of_uint64(self):
        tensor = make_tensor(block_tables=[[4]], seq_lens=[5], page_positions=[[2**64 - 5]])
        assert tensor.positions(0).tolist() == list(range(2**64 - 5, 2**64))

    def test_pages_with_all_their_slots(self):
        tensor = make_tensor()
        assert tensor.values_of_pages([6, 0]).tobytes() == tensor.page_pool[[6, 0]].tobytes()
        assert address(tensor.values_of_pages()) == address(tensor.page_pool)
        assert not tensor.values_of_pages().flags.writeable
        assert tensor.values_of_pages([]).shape == (0, 5, 3, 11)
        packed = make_tensor(element_type="uint4")
        assert (packed.values_of_pages([6, 0]) == packed.values_of_pages()[[6, 0]]).all()
        for pages in ([7], [-1], np.array([2**64 - 1], np.uint64)):
            assert refused(tensor.values_of_pages, pages).codes == ["page_id_out_of_range"]
            assert refused(tensor.dequantize_pages, pages).codes == ["page_id_out_of_range"]

    def test_a_long_packed_pool_is_unpacked_in_parts(self, monkeypatch):
        whole = make_tensor(element_type="int4").gather([0, 2, 3])
        monkeypatch.setattr("hurray_arrow.paging._UNPACKED_AT_ONCE_ELEMS", 170)
        assert make_tensor(element_type="int4").gather([0, 2, 3]).tobytes() == whole.tobytes()
        by_bytes = make_tensor(element_type="int4", page_size=4).gather(0)
        monkeypatch.undo()
        assert make_tensor(element_type="int4", page_size=4).gather(0).tobytes() == by_bytes.tobytes()


class TestDequantize:
    def test_without_a_scheme_values_stay_themselves(self):
        tensor = make_tensor(element_type="int8")
        assert (tensor.dequantize(0) == tensor.gather(0).astype(np.float32)).all()
        assert tensor.dequantize(0).dtype == np.float32

    @pytest.mark.parametrize("scheme", [None, PerTensor(1.0)], ids=["none", "per_tensor"])
    def test_numbers_beyond_float32_are_infinite(self, scheme):
        tensor = BlockPagedTensor.from_arrays(
            np.full((1, 2, 1, 3), -1e300), block_tables=[[0]], seq_lens=[2], kv_role="key", quantization=scheme
        )
        assert (tensor.dequantize(0) == -np.inf).all()

    @pytest.mark.parametrize("name", ["float128", "complex64", "private_0xF7", "private_0xF2"])
    @pytest.mark.parametrize("quantization", ["none", "per_tensor"])
    def test_opaque_values_have_no_numbers(self, name, quantization):
        with pytest.raises(UnsupportedError):
            make_tensor(element_type=name, quantization=quantization).dequantize(0)

    @pytest.mark.parametrize("quantization", ["nf4", "mxfp"])
    def test_schemes_without_a_rule(self, quantization):
        with pytest.raises(UnsupportedError):
            make_tensor(element_type="int8", quantization=quantization).dequantize(0)

    def test_per_block_follows_the_page_and_not_the_token(self):
        tensor = make_tensor(element_type="int8", quantization="per_block_zero_points")
        zero_points = tensor.quantization_buffers[0].view(np.int32).reshape(7, 4)
        scales = tensor.quantization_buffers[1].view(np.float32).reshape(7, 4)
        for seq, token, page, slot in ((0, 6, 2, 2), (3, 2, 2, 2), (2, 1, 5, 1), (0, 1, 5, 1)):
            stored = tensor.page_pool[page, slot].astype(np.float32) - np.float32(zero_points[page, slot])
            assert (tensor.dequantize(seq)[token] == stored * scales[page, slot]).all()
        assert (tensor.dequantize_pages([2])[0, 2] == tensor.dequantize(0)[6]).all()

    def test_the_same_pages_one_way_and_the_other(self):
        for quantization in (
            "per_tensor",
            "per_channel_heads",
            "per_channel_dims",
            "per_block",
            "per_block_one_buffer",
        ):
            tensor = make_tensor(element_type="int4", quantization=quantization)
            pages = tensor.dequantize_pages()
            flat = pages.reshape(-1, 3, 11)
            size = tensor.page_size
            slots = [int(p) * size + t for p in tensor.page_ids(0) for t in range(size)][: tensor.token_count(0)]
            assert (tensor.dequantize(0) == flat[slots]).all()
            assert (tensor.dequantize_pages([6, 1]) == pages[[6, 1]]).all()


class TestSharing:
    @pytest.mark.parametrize("index_type", ["uint32", "uint64"])
    def test_references(self, index_type):
        tensor = make_tensor(index_type=index_type)
        assert tensor.page_references().tolist() == [1, 0, 2, 0, 0, 2, 1]
        assert tensor.sequences_per_page().tolist() == [1, 0, 2, 0, 0, 2, 1]
        assert tensor.shared_pages().tolist() == list(SHARED)
        assert tensor.unreferenced_pages().tolist() == list(UNREFERENCED)
        assert {each.dtype for each in (tensor.page_references(), tensor.shared_pages())} == {np.dtype(np.int64)}

    @pytest.mark.parametrize("pair_limit", [2**63, 0])
    def test_a_page_twice_in_one_sequence_is_not_shared(self, monkeypatch, pair_limit):
        monkeypatch.setattr("hurray_arrow.sharing._PAIR_LIMIT", pair_limit)
        tensor = make_tensor(block_tables=[[3, 1, 3, 3], [4], [1, 3, 1]], seq_lens=[20, 5, 15])
        assert tensor.page_references().tolist() == [0, 3, 0, 4, 1, 0, 0]
        assert tensor.sequences_per_page().tolist() == [0, 2, 0, 2, 1, 0, 0]
        assert tensor.shared_pages().tolist() == [1, 3]

    def test_empty_batches(self):
        tensor = make_tensor(block_tables=[], seq_lens=[])
        assert tensor.shared_pages().tolist() == []
        assert tensor.unreferenced_pages().tolist() == list(range(7))
        nothing = make_tensor(block_tables=[[], []], seq_lens=[0, 0], num_pages=0)
        assert nothing.sequences_per_page().tolist() == nothing.unreferenced_pages().tolist() == []


class TestPermissive:
    @pytest.mark.parametrize("element", ["bfloat16", "int4"])
    def test_a_page_that_is_not_there(self, element):
        rows = [[5, 7, 6], [], [5, 0], [2]]
        assert refused(make_tensor, block_tables=rows).codes == ["page_id_out_of_range"]
        tensor = make_tensor(element_type=element, block_tables=rows, permissive=True, quantization="per_block")
        assert [(str(p.code), p.where) for p in tensor.problems] == [("page_id_out_of_range", "block_table[1]")]
        assert refused(tensor.check).codes == ["page_id_out_of_range"]
        for call in (tensor.gather, tensor.dequantize):
            assert refused(call, 0).codes == ["page_id_out_of_range"]
            assert refused(call, [2, 0]).codes == ["page_id_out_of_range"]
        assert refused(tensor.element, 0, 4, 0, 0).codes == ["page_id_out_of_range"]
        for call in (tensor.page_references, tensor.shared_pages, tensor.unreferenced_pages):
            assert refused(call).codes == ["page_id_out_of_range"]
        # What is whole can be read.
        assert tensor.element(0, 3, 0, 0) == tensor.gather(2)[3, 0, 0]

    def test_an_entry_that_no_token_needs_is_not_looked_at(self):
        tensor = make_tensor(block_tables=[[5, 7]], seq_lens=[4], permissive=True)
        assert tensor.gather(0).tobytes() == tensor.page_pool[5, :4].tobytes()

    @pytest.mark.parametrize(
        ("seq_ptr", "codes"),
        [
            ([0, 3, 1, 5, 6], {2: "seq_len_exceeds_pages", 1: "seq_ptr_decreasing"}),
            ([0, 3, 3, 2**32 - 1, 6], {2: "seq_ptr_end", 3: "seq_ptr_decreasing"}),
            ([0, 3, 3, 5, 9], {3: "seq_ptr_end"}),
        ],
    )
    def test_a_seq_ptr_that_cuts_nothing(self, seq_ptr, codes):
        arguments = {"block_table": TABLE, "seq_ptr": np.array(seq_ptr, np.uint32), "seq_lens": [13, 0, 25, 4]}
        tensor = make_tensor(**arguments, total_tokens=27, permissive=True)
        assert tensor.gather(0).shape == (13, 3, 11)
        for seq, code in codes.items():
            for call in (tensor.gather, tensor.token_count, tensor.dequantize, tensor.positions):
                assert refused(call, seq).codes == [code]
        assert tensor.page_references().sum() == 6
        assert tensor.problems
        assert refused(tensor.shared_pages).codes

    def test_a_table_that_does_not_begin_at_0_is_read_by_the_formula(self):
        arguments = {"block_table": TABLE, "seq_ptr": np.array([1, 3, 3, 5, 6], np.uint32)}
        tensor = make_tensor(**arguments, seq_lens=[9, 0, 10, 4], permissive=True)
        assert [str(problem.code) for problem in tensor.problems] == ["seq_ptr_start"]
        assert tensor.gather(0)[:5].tobytes() == tensor.page_pool[2].tobytes()

    def test_lengths_that_pages_do_not_hold(self):
        tensor = make_tensor(seq_lens=[16, 0, 10, 4], permissive=True)
        assert [str(problem.code) for problem in tensor.problems] == ["seq_len_exceeds_pages"]
        assert refused(tensor.gather, 0).codes == ["seq_len_exceeds_pages"]
        one = make_tensor(block_tables=[[3]], seq_lens=None, total_tokens=6, permissive=True)
        assert [str(problem.code) for problem in one.problems] == ["total_tokens_exceed_pages"]
        assert refused(one.gather, 0).codes == ["seq_len_exceeds_pages"]

    def test_facts_of_the_wrong_size(self):
        tensor = make_tensor(seq_lens=[13], page_positions=[[0]] * 3, total_tokens=27, permissive=True)
        assert [str(problem.code) for problem in tensor.problems] == ["sequence_facts_size"] * 2
        assert refused(tensor.gather, 0).codes == ["sequence_facts_size"]
        tensor = make_tensor(page_positions=[[0]] * 3, permissive=True)
        assert tensor.gather(0).shape == (13, 3, 11)
        assert refused(tensor.positions, 0).codes == ["sequence_facts_size"]
        tensor = make_tensor(page_positions=[[0], None, None, None], permissive=True)
        assert refused(tensor.positions, 0).codes == ["page_positions_invalid"]

    def test_padding_and_parameters(self):
        pool = make_tensor(element_type="bool").page_pool.copy()
        pool[-1] |= 0x80
        assert refused(make_tensor, element_type="bool", page_pool=pool).codes == ["page_pool_padding"]
        assert make_tensor(element_type="bool", page_pool=pool, permissive=True).gather(0).shape == (13, 3, 11)
        arguments = {"quantization": "per_block", "quantization_buffers": [np.ones(27, np.float16)]}
        tensor = make_tensor(**arguments, permissive=True)
        assert tensor.gather(0).shape == (10, 3, 11)
        assert refused(tensor.dequantize, 0, error=QuantizationError).codes == ["quantization_buffer_size"]

    def test_a_paged_axis_that_is_not_0(self):
        tensor = make_tensor()
        data = bytearray(tensor.descriptor.encode())
        data[64] = 1
        assert refused(BlockPagedTensor.from_buffers, data, tensor.buffers, error=InvalidDescriptorError).codes == [
            "paged_axis_invalid"
        ]
        again = BlockPagedTensor.from_buffers(data, tensor.buffers, sequences=tensor.sequences, permissive=True)
        assert [str(problem.code) for problem in again.problems] == ["paged_axis_invalid"]
        assert again.gather(0).tobytes() == tensor.gather(0).tobytes()
        assert again.descriptor.encode() == bytes(data)

    def test_all_broken_rules_come_at_once(self):
        arguments = sample_facts() | {"seq_lens": [16, 0, 10, 4], "ids": ["x"], "total_tokens": 99}
        seq_ptr = np.array([1, 3, 2, 5, 8], np.uint32)
        error = refused(make_tensor, block_table=TABLE + np.uint32(2), seq_ptr=seq_ptr, **arguments)
        assert set(error.codes) == {
            "seq_ptr_start",
            "seq_ptr_end",
            "seq_ptr_decreasing",
            "page_id_out_of_range",
            "total_tokens_exceed_pages",
            "sequence_facts_size",
            "seq_len_exceeds_pages",
            "seq_lens_sum",
            "page_positions_invalid",
            "token_ids_size",
        }

    def test_arrays_that_change_after_opening(self):
        table = TABLE.copy()
        tensor = make_tensor(block_table=table, seq_ptr=SEQ_PTR)
        assert tensor.validate() == []
        table[1] = 2**32 - 1
        assert refused(tensor.gather, 0).codes == refused(tensor.check).codes == ["page_id_out_of_range"]


class TestEdges:
    @pytest.mark.parametrize("element", ["bfloat16", "int4", "float6_e2m3", "bool", "float128"])
    @pytest.mark.parametrize(
        ("sizes", "tables", "lens"),
        [
            ({}, [], []),
            ({}, [[], [], []], [0, 0, 0]),
            ({}, [[3], [5, 1]], [0, 0]),
            ({"num_pages": 0}, [[]], [0]),
            ({"num_heads": 0}, [[3, 6], [2]], [7, 5]),
            ({"head_dim": 0}, [[3, 6], [2]], [7, 5]),
            ({"page_size": 1}, [[3, 6, 0], [2]], [3, 1]),
            ({"num_heads": 1, "head_dim": 1}, [[3, 6], [2]], [7, 5]),
        ],
    )
    def test_nothing_and_little(self, element, sizes, tables, lens):
        tensor = make_tensor(element_type=element, block_tables=tables, seq_lens=lens, **sizes)
        shape = (tensor.num_heads, tensor.head_dim)
        for seq, length in enumerate(lens):
            assert tensor.gather(seq).shape == (length, *shape)
            assert tensor.positions(seq).tolist() == list(range(length))
        assert tensor.gather(range(len(lens))).shape == (sum(lens), *shape)
        assert tensor.values_of_pages().shape == (tensor.num_pages, tensor.page_size, *shape)
        assert tensor.page_references().sum() == sum(map(len, tables))
        again = BlockPagedTensor.from_buffers(tensor.descriptor.encode(), tensor.buffers, sequences=tensor.sequences)
        assert again.equals(tensor)

    def test_facts_of_an_empty_batch_say_nothing(self):
        tensor = make_tensor(block_tables=[], seq_lens=[])
        assert tensor.equals(make_tensor(block_tables=[], seq_lens=None))


class TestEquals:
    @pytest.mark.parametrize(
        "change",
        [
            {"seed": 12},
            {"layer_index": 18},
            {"layer_name": "x"},
            {"component": "scales"},
            {"block_tables": [[5, 2, 6], [], [5, 0], [3]]},
            {"adapter": ["a", None, None, None]},
            {"seq_lens": [12, 0, 10, 5]},
        ],
    )
    def test_every_byte_and_fact_counts(self, change):
        assert make_tensor().equals(make_tensor())
        assert not make_tensor().equals(make_tensor(**change))

    def test_parameters_count(self):
        arguments = {"quantization": "per_channel_dims"}
        other = make_tensor(**arguments, quantization_buffers=[np.ones(11, np.float32)])
        assert not make_tensor(**arguments).equals(other)

    def test_bytes_and_not_numbers(self):
        zeros = np.zeros((7, 5, 3, 11), np.float32)
        assert not make_tensor(element_type="float32", page_pool=zeros).equals(
            make_tensor(element_type="float32", page_pool=-zeros)
        )
        nan = np.full((7, 5, 3, 11), np.nan, np.float32)
        assert make_tensor(element_type="float32", page_pool=nan).equals(
            make_tensor(element_type="float32", page_pool=nan.copy())
        )

    def test_a_large_pool_is_compared_to_its_end(self, monkeypatch):
        monkeypatch.setattr("hurray_arrow.tensor_fields._COMPARED_AT_ONCE_BYTES", 512)
        pool = make_tensor().page_pool.copy()
        assert make_tensor(page_pool=pool.copy()).equals(make_tensor())
        pool.view(np.uint16)[-1, -1, -1, -1] ^= 1
        assert not make_tensor(page_pool=pool).equals(make_tensor())


def test_repr_says_what_it_is_and_no_secret():
    text = repr(make_tensor(**sample_facts(), quantization="per_tensor", component="scales"))
    assert text == (
        "<BlockPagedTensor value scales of layer 17: bfloat16, per_tensor, 7 pages [5, 3, 11], "
        "4 sequences, 27 tokens, 2354 bytes>"
    )
    assert repr(make_tensor(seq_lens=[16, 0, 10, 4], permissive=True)).endswith(", 1 problems>")
    assert "no layer" in repr(make_tensor(layer_index=None))


def test_the_descriptor_is_the_one_that_decodes():
    tensor = make_tensor(quantization="per_block_one_buffer", index_type="uint64")
    assert BlockPagedDescriptor.decode(tensor.descriptor.encode()) == tensor.descriptor


@pytest.mark.parametrize("element_type", ["int4", "bfloat16"])
def test_pages_of_a_shape_that_no_array_has_are_refused(element_type):
    """A packed pool without pages was taken, and every read of it ended in numpy's own error."""
    tensor = make_tensor(element_type=element_type, num_pages=0, block_tables=[[]], seq_lens=[0])
    descriptor = dataclasses.replace(tensor.descriptor, shape=(0, 2**40, 2**40))
    with pytest.raises(UnsupportedError):
        BlockPagedTensor.from_buffers(descriptor, tensor.buffers)
