"""The tensor against a plain Python loop, on tensors that nobody thought of."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hurray_arrow.elements import PrivateType, element_type
from hurray_arrow.errors import InvalidDescriptorError, ProblemCode, UnknownSequenceLengthError
from hurray_arrow.sequences import Sequences
from hurray_arrow.tensor import BlockPagedTensor
from tests.sample import ALL_ELEMENT_TYPES, INDEX_TYPES, codes_of, expected_codes, make_tensor, random_pool

SIZES = st.fixed_dictionaries(
    {
        "num_pages": st.integers(1, 7),
        "page_size": st.integers(1, 5),
        "num_heads": st.integers(0, 3),
        "head_dim": st.integers(0, 4),
    }
)


@st.composite
def tensors(draw, element_types=tuple(ALL_ELEMENT_TYPES)):
    sizes = draw(SIZES)
    rows = draw(st.lists(st.lists(st.integers(0, sizes["num_pages"] - 1), max_size=4), max_size=5))
    lens = [draw(st.integers(0, len(row) * sizes["page_size"])) for row in rows]
    return make_tensor(
        element_type=draw(st.sampled_from(element_types)),
        index_type=draw(st.sampled_from(INDEX_TYPES)),
        block_tables=rows,
        seq_lens=lens,
        seed=draw(st.integers(0, 99)),
        **sizes,
    )


@given(tensors(), st.data())
def test_gather_and_lookup_are_the_plain_loop(tensor, data):
    bits = tensor.element_type.bits
    wanted = data.draw(st.lists(st.integers(0, max(tensor.num_seqs - 1, 0)), max_size=4 if tensor.num_seqs else 0))
    plain = [expected_codes(tensor, seq, tensor.token_count(seq)) for seq in wanted]
    assert codes_of(tensor.gather(wanted), bits) == list(itertools.chain(*plain))
    for seq, codes in zip(wanted, plain, strict=True):
        assert codes_of(tensor.gather(seq), bits) == codes
        if codes:
            place = data.draw(st.integers(0, len(codes) - 1))
            rest, dim = divmod(place, tensor.head_dim)
            token, head = divmod(rest, tensor.num_heads)
            value = np.asarray(tensor.element(seq, token, head, dim))
            assert codes_of(value, bits) == [codes[place]]


@given(tensors())
def test_descriptor_and_buffers_are_the_whole_tensor(tensor):
    copies = [bytes(buffer) for buffer in tensor.buffers]
    again = BlockPagedTensor.from_buffers(tensor.descriptor.encode(), copies, sequences=tensor.sequences)
    assert again.equals(tensor)
    assert [bytes(buffer) for buffer in again.buffers] == copies


@given(tensors())
def test_sharing_is_the_plain_loop(tensor):
    rows = [tensor.page_ids(seq).tolist() for seq in range(tensor.num_seqs)]
    references = [sum(row.count(page) for row in rows) for page in range(tensor.num_pages)]
    owners = [sum(page in row for row in rows) for page in range(tensor.num_pages)]
    assert tensor.page_references().tolist() == references
    assert tensor.sequences_per_page().tolist() == owners
    assert tensor.shared_pages().tolist() == [page for page, count in enumerate(owners) if count > 1]
    assert tensor.unreferenced_pages().tolist() == [page for page, count in enumerate(references) if not count]


@given(tensors(element_types=("int8", "int4", "bfloat16")))
def test_positions_count_up_where_no_page_is_absent(tensor):
    for seq in range(tensor.num_seqs):
        assert tensor.positions(seq).tolist() == list(range(tensor.token_count(seq)))


INDICES = st.one_of(st.integers(0, 9), st.sampled_from([2**31, 2**32 - 1]))
LENGTHS = st.none() | st.integers(0, 12) | st.sampled_from([2**63, 2**64 - 1])


def broken_rules(*, table, seq_ptr, lens, num_pages, page_size, total_tokens):
    """Return the codes of the rules that are broken, one entry at a time and in Python integers."""
    code = ProblemCode
    broken = {
        code.SEQ_PTR_START: seq_ptr[0] != 0,
        code.SEQ_PTR_END: seq_ptr[-1] != len(table),
        code.SEQ_PTR_DECREASING: any(b < a for a, b in itertools.pairwise(seq_ptr)),
        code.PAGE_ID_OUT_OF_RANGE: any(page >= num_pages for page in table),
        code.TOTAL_TOKENS_EXCEED_PAGES: total_tokens > len(table) * page_size,
    }
    known = [length for length in lens if length is not None]
    if known:
        pages = [max(b - a, 0) for a, b in itertools.pairwise(seq_ptr)]
        broken[code.SEQ_LEN_EXCEEDS_PAGES] = any(
            length is not None and length > count * page_size for length, count in zip(lens, pages, strict=True)
        )
        slots = sum(count * page_size for length, count in zip(lens, pages, strict=True) if length is None)
        broken[code.SEQ_LENS_SUM] = not sum(known) <= total_tokens <= sum(known) + slots
    return {rule for rule, is_broken in broken.items() if is_broken}


@given(st.data())
def test_any_table_is_judged_right_and_read_safely(data):
    num_pages, page_size = data.draw(st.integers(0, 7)), data.draw(st.integers(1, 5))
    table = data.draw(st.lists(INDICES, max_size=6))
    seq_ptr = data.draw(st.lists(INDICES, min_size=1, max_size=5))
    lens = data.draw(st.lists(LENGTHS, min_size=len(seq_ptr) - 1, max_size=len(seq_ptr) - 1))
    total_tokens = data.draw(st.integers(0, 40))
    width = data.draw(st.sampled_from(INDEX_TYPES))
    tensor = make_tensor(
        element_type=data.draw(st.sampled_from(["int16", "int4"])),
        num_pages=num_pages,
        page_size=page_size,
        block_table=np.array(table, width),
        seq_ptr=np.array(seq_ptr, width),
        index_type=width,
        sequences=Sequences(seq_lens=lens),
        total_tokens=total_tokens,
        permissive=True,
    )
    fields = {"num_pages": num_pages, "page_size": page_size, "total_tokens": total_tokens}
    expected = broken_rules(table=table, seq_ptr=seq_ptr, lens=lens, **fields)
    assert {problem.code for problem in tensor.problems} == expected
    for seq in range(tensor.num_seqs):
        for call in (tensor.gather, tensor.positions, tensor.dequantize):
            try:
                tokens = len(call(seq))
            except (InvalidDescriptorError, UnknownSequenceLengthError):
                assert expected or None in lens
                continue
            assert tokens == (total_tokens if lens[seq] is None else lens[seq])


@given(st.integers(0, 255), st.sampled_from([1, 2, 4, 8, 24, 40]), tensors(element_types=("uint8",)))
def test_private_types_are_carried_bit_for_bit(seed, bits, shape_from):
    element = element_type(0xF5, private=PrivateType(bits))
    page_shape = shape_from.descriptor.page_shape
    pool = random_pool(element, num_pages=shape_from.num_pages, page_shape=page_shape, seed=seed)
    raw = {"page_shape": page_shape, "num_pages": shape_from.num_pages} if element.is_packed else {}
    tensor = BlockPagedTensor.from_arrays(
        pool,
        shape_from.block_table,
        shape_from.seq_ptr,
        element_type=element,
        sequences=shape_from.sequences,
        kv_role="fused",
        **raw,
    )
    assert bytes(tensor.buffers[0]) == pool.tobytes()
    for seq in range(tensor.num_seqs):
        assert codes_of(tensor.gather(seq), bits) == expected_codes(tensor, seq, tensor.token_count(seq))
