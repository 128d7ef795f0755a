"""Operations in any order against a plain Python model of a paged cache: no token ever changes or moves."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from hurray_arrow import ops
from hurray_arrow.elements import element_type
from hurray_arrow.errors import InvariantError, QuantizationError
from hurray_arrow.tensor import BlockPagedTensor
from tests.paged_model import Cache, cache_of, chunks, distinct_pages, has_hole, lengths, pages, positions, slots
from tests.sample import ALL_ELEMENT_TYPES, INDEX_TYPES, make_tensor

#: Every way in which elements lie in memory: packed on bytes and off them, by groups of three bytes, whole, opaque.
TYPES = ("bfloat16", "uint8", "int4", "float6_e2m3", "bool", "uint2", "float128", "private_0xFE", "private_0xF2")
SCHEMES = ("none", "per_tensor", "per_channel_dims", "per_block", "per_block_zero_points", "per_block_one_buffer")
MAX_PAGES = 60


@dataclass
class Held:
    """A group, what the model says of it, and its bytes as they were."""

    group: list[BlockPagedTensor]
    model: Cache
    raw: list[list[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.raw = [[bytes(buffer) for buffer in tensor.buffers] for tensor in self.group]

    @property
    def first(self) -> BlockPagedTensor:
        return self.group[0]


@st.composite
def groups(draw) -> list[BlockPagedTensor]:
    scheme = draw(st.sampled_from(SCHEMES))
    page_size = draw(st.sampled_from([2, 4, 8] if scheme.startswith("per_block") else [1, 2, 3, 4, 5, 8]))
    num_pages = draw(st.integers(1, 7))
    element = draw(st.sampled_from(TYPES))
    heads, dims = draw(st.integers(0, 3)), (draw(st.integers(0, 5)), draw(st.integers(0, 5)))
    # Any row may name any page, but forks of a prefix are what caches share: half of the rows begin with another one.
    rows: list[list[int]] = []
    for _ in range(draw(st.integers(0, 4))):
        row = draw(st.lists(st.integers(0, num_pages - 1), max_size=4))
        if rows and draw(st.booleans()):
            row = [*rows[-1][: draw(st.integers(0, 3))], *row][:5]
        rows.append(row)
    lens = [draw(st.integers(0, len(row) * page_size)) for row in rows]
    holes = [draw(st.lists(st.integers(0, 2), min_size=len(row), max_size=len(row))) for row in rows]
    starts = [[int(s) for s in np.cumsum(gaps) * 3 + np.arange(len(gaps)) * page_size] for gaps in holes]
    with_holes = draw(st.booleans())
    common = {
        "num_pages": num_pages,
        "page_size": page_size,
        "num_heads": heads,
        "index_type": draw(st.sampled_from(INDEX_TYPES)),
        "block_tables": rows,
        "seq_lens": lens,
        "ids": [f"s{number}" for number in range(len(rows))],
        "page_positions": [each if draw(st.booleans()) else None for each in starts] if with_holes else None,
        "seed": draw(st.integers(0, 3)),
    }
    made = [
        make_tensor(element_type=element, quantization=scheme, head_dim=dim, kv_role=role, **common)
        for role, dim in zip(("key", "value"), dims, strict=True)
    ]
    if draw(st.booleans()):
        made.append(make_tensor(element_type="float32", head_dim=1, kv_role="key", component="scales", **common))
    return made


class Operations(RuleBasedStateMachine):
    held = Bundle("held")

    def check(self, given: Held, result: list[BlockPagedTensor], expected: Cache) -> Held:
        """A result holds what the model says, keeps all rules, and the input is as it was."""
        assert cache_of(result) == expected
        for tensor in result:
            assert tensor.validate() == []
            assert tensor.original_descriptor is None
            assert tensor.sequences is result[0].sequences
            for name in ("block_table", "seq_ptr"):
                assert getattr(tensor, name).ctypes.data == getattr(result[0], name).ctypes.data
            assert tensor.descriptor.index_type == given.first.descriptor.index_type
        assert [[bytes(buffer) for buffer in tensor.buffers] for tensor in given.group] == given.raw
        return Held(result, expected)

    @initialize(target=held, group=groups())
    def first(self, group):
        return Held(group, cache_of(group))

    @rule(target=held, group=groups())
    def another(self, group):
        return Held(group, cache_of(group))

    @rule(target=held, cache=held)
    def compact(self, cache):
        result = ops.compact(cache.group)
        used = {page for seq in range(cache.first.num_seqs) for page in pages(cache.first, seq)}
        assert [tensor.num_pages for tensor in result] == [len(used)] * len(result)
        table = result[0].block_table.tolist()
        assert list(dict.fromkeys(table)) == list(range(len(used)))
        return self.check(cache, result, cache.model)

    @rule(target=held, cache=held)
    def sanitize(self, cache):
        result = ops.sanitize(cache.group)
        first = result[0]
        filled = {slot for seq in range(first.num_seqs) for slot in slots(first, seq)}
        unused = [slot for slot in range(first.num_pages * first.page_size) if slot not in filled]
        for tensor in result:
            width = tensor.num_heads * tensor.head_dim * tensor.element_type.bits
            whole = int.from_bytes(tensor.buffers[0].tobytes(), "little")
            assert not any(whole >> slot * width & ((1 << width) - 1) for slot in unused)
        return self.check(cache, result, cache.model)

    @rule(target=held, cache=consumes(held), data=st.data())
    def repage(self, cache, data):
        size, first = data.draw(st.sampled_from([1, 2, 3, 4, 6, 8, 16])), cache.first
        if first.page_size == size:
            assert all(a is b for a, b in zip(ops.repage(cache.group, size), cache.group, strict=True))
            return cache
        if str(getattr(first.quantization, "scheme", None)) == "per_block" and size in (1, 3, 6):
            with pytest.raises(QuantizationError) as caught:
                ops.repage(cache.group, size)
            assert caught.value.codes == ["quantization_block_size_invalid"] * len(caught.value.codes)
            return cache
        if any(has_hole(positions(first, seq), size) for seq in range(first.num_seqs)):
            with pytest.raises(InvariantError) as refused:
                ops.repage(cache.group, size)
            assert set(refused.value.codes) == {"page_positions_invalid"}
            return cache
        result = ops.repage(cache.group, size)
        rows = [tuple(row) for seq in range(first.num_seqs) for row in chunks(slots(first, seq), size)]
        if first.page_size % size == 0 or size % first.page_size == 0:
            # Units go as a whole, so that their slots behind a sequence's end are there for others that go on.
            unit = min(first.page_size, size)
            rows = [tuple(slot // unit for slot in row[::unit]) for row in rows]
            assert result[0].num_pages == distinct_pages(rows)
        assert result[0].page_size == size
        assert result[0].block_table.size == len(rows)
        return self.check(cache, result, cache.model)

    @rule(target=held, cache=held, data=st.data())
    def select(self, cache, data):
        first = cache.first
        places = data.draw(st.lists(st.integers(0, first.num_seqs - 1), max_size=4)) if first.num_seqs else []
        ends = st.none() | st.integers(0, 60)
        ranges = data.draw(st.lists(st.tuples(st.integers(0, 40), ends), min_size=len(places), max_size=len(places)))
        ranges = [(start, stop if stop is None or stop >= start else start) for start, stop in ranges]
        expected: Cache = []
        kept = []
        for place, (start, stop) in zip(places, ranges, strict=True):
            inside = [p for p in positions(first, place) if p >= start and (stop is None or p < stop)]
            before = sum(p < start for p in positions(first, place)) if inside else 0
            kept.append((inside, before % first.page_size != 0))
            expected.append({p: cache.model[place][p] for p in inside})
        if any(moved and has_hole(inside, first.page_size) for inside, moved in kept):
            with pytest.raises(InvariantError) as refused:
                ops.select(cache.group, places, tokens=ranges)
            assert set(refused.value.codes) == {"page_positions_invalid"}
            return cache
        result = ops.select(cache.group, places, tokens=ranges)
        copied = any(moved for _, moved in kept)
        assert [len(pages(result[0], seq)) for seq in range(len(places))] == [
            len(chunks(inside, first.page_size)) for inside, _ in kept
        ]
        for old, new in zip(cache.group, result, strict=True):
            if not copied and old.page_pool.nbytes:
                assert new.page_pool.ctypes.data == old.page_pool.ctypes.data
        assert result[0].sequences.ids is None or list(result[0].sequences.ids) == [
            first.sequences.ids[place] for place in places
        ]
        return self.check(cache, result, expected)

    @rule(target=held, one=held, other=held, share=st.booleans(), three=st.booleans())
    def concat(self, one, other, share, three):
        batches = [one, other, one] if three else [one, other]
        if sum(batch.first.num_pages for batch in batches) > MAX_PAGES:
            return one
        expected = [sequence for batch in batches for sequence in batch.model]
        if _kind(one) != _kind(other):
            with pytest.raises((InvariantError, QuantizationError)) as refused:
                ops.concat([batch.group for batch in batches], share_equal_pages=share)
            assert set(refused.value.codes) <= {"tensor_mismatch", "quantization_mismatch"}
            return one
        result = ops.concat([batch.group for batch in batches], share_equal_pages=share)
        if share:
            assert len(set(result[0].block_table.tolist())) == len(_contents(batches))
        elif one is other:
            assert result[0].num_pages == one.first.num_pages
        return self.check(one, result, expected)

    @rule(target=held, cache=held, data=st.data())
    def heads(self, cache, data):
        total = cache.first.num_heads
        cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=2)))
        ranges = list(zip([0, *cuts], [*cuts, total], strict=True))
        order = data.draw(st.permutations(range(len(ranges))))
        ranges = [ranges[place] for place in order]
        ranges += ranges[: data.draw(st.integers(0, 1))]
        parts = ops.split_heads(cache.group, ranges)
        for part, (start, stop) in zip(parts, ranges, strict=True):
            assert [tensor.num_heads for tensor in part] == [stop - start] * len(part)
        result = ops.merge_heads(parts, head_ranges=ranges)
        for old, new in zip(cache.group, result, strict=True):
            assert bytes(new.buffers[0]) == bytes(old.buffers[0])
        return self.check(cache, result, cache.model)

    @rule(target=held, cache=held)
    def fuse(self, cache):
        key, value = cache.group[:2]
        packed = ops.fuse(key, value)
        width = key.head_dim + value.head_dim
        assert (packed.kv_role, packed.head_dim) == ("fused", width)
        for seq in [seq for seq, length in enumerate(lengths(key)) if length and width and key.num_heads]:
            last = (seq, lengths(key)[seq] - 1, key.num_heads - 1)
            for dim in range(width):
                half, place = (key, dim) if dim < key.head_dim else (value, dim - key.head_dim)
                assert packed.element(*last, dim).tobytes() == half.element(*last, place).tobytes()
        halves = ops.unfuse(packed, key_dim=key.head_dim)
        assert [half.kv_role for half in halves] == ["key", "value"]
        for old, new in zip((key, value), halves, strict=True):
            assert [bytes(buffer) for buffer in new.buffers] == [bytes(buffer) for buffer in old.buffers]
        return cache


def _kind(held: Held) -> list[tuple]:
    """What batches have to have in common."""
    return [
        (
            tensor.element_type,
            tensor.descriptor.page_shape,
            tensor.kv_role,
            tensor.component,
            tensor.quantization,
            () if getattr(tensor.quantization, "block_size", None) else [bytes(b) for b in tensor.quantization_buffers],
        )
        for tensor in held.group
    ]


def _contents(batches: list[Held]) -> set[tuple]:
    """The different pages of several batches: filled to the same slot with the same bits in every tensor."""
    fills: dict[tuple, list] = {}
    for batch in batches:
        first = batch.first
        memory = tuple(
            (buffer.ctypes.data, buffer.nbytes, tensor.num_pages)
            for tensor in batch.group
            for buffer in (tensor.buffers[0], *tensor.quantization_buffers)
        )
        for seq in range(first.num_seqs):
            tokens = chunks([batch.model[seq][p] for p in positions(first, seq)], first.page_size)
            for place, page in enumerate(pages(first, seq)):
                mine = tokens[place] if place < len(tokens) else []
                known = fills.setdefault((memory, page), [])
                if len(mine) > len(known):
                    fills[memory, page] = mine
    return {tuple(content) for content in fills.values()}


TestOperations = Operations.TestCase
TestOperations.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)


def test_the_machine_draws_every_way_that_elements_lie_in_memory():
    bits = {element_type(ALL_ELEMENT_TYPES[name]).bits for name in TYPES}
    assert bits == {1, 2, 4, 6, 8, 16, 24, 128}
