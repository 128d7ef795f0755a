"""Gigabytes go through in the memory of one layer, and page numbers beyond 2³² are only numbers.

``make test-big`` does the same with a hundred gigabytes; benchmarks/large.py says how.
"""

from __future__ import annotations

import numpy as np
import pytest

import hurray_arrow as ha
from benchmarks.large import GB, LIMIT_BYTES, CountingSink, in_a_process, serving
from hurray_arrow import ops
from hurray_arrow.snapshot.index import Index, IndexRow
from hurray_arrow.snapshot.row_source import sparse_memory

TOTAL_BYTES = 4 * GB
#: What a process has that imports everything and holds the pool of one layer, whatever the size of the snapshot is.
MOST_BYTES = 450 << 20


@pytest.mark.parametrize("kind", ["layers", "one", "archive"])
def test_a_sequence_of_gigabytes(kind):
    """Everything is written, and one sequence comes back from a server that makes the bytes up."""
    found = in_a_process("read", kind, TOTAL_BYTES // 4 if kind == "archive" else TOTAL_BYTES)
    assert found["peak_bytes"] < MOST_BYTES < LIMIT_BYTES
    assert found["tensors"] == {"layers": 60, "one": 1, "archive": 15}[kind]
    assert found["right"]
    if kind == "archive":
        assert found["file_bytes"] < 1 << 20
        return
    assert found["file_bytes"] > TOTAL_BYTES
    assert 11 * (64 << 10) <= found["needed_bytes"] <= found["fetched_bytes"] < 4 << 20
    assert found["requests"] < 20


#: More pages than 32 bits count, of one byte each.
NUM_PAGES = 2**32 + 11
TABLES = [[2**32 + 10, 3, 2**32], [3], [2**32 - 1, 2**32 + 7]]


def made_up(_, start, size):
    """Make up the byte of each page from its number."""
    return (np.arange(start, start + size) % 251).astype(np.uint8)


@pytest.fixture(scope="module")
def more_than_32_bits():
    pool = sparse_memory(NUM_PAGES)
    tensor = ha.BlockPagedTensor.from_arrays(
        pool.reshape(NUM_PAGES, 1, 1, 1),
        block_tables=TABLES,
        index_type="uint64",
        seq_lens=[3, 1, 2],
        kv_role="key",
        layer_index=0,
    )
    sink = CountingSink(pool)
    ha.write_snapshot(sink, [tensor], checksums=False)
    assert sink.published
    assert sink.page_bytes == NUM_PAGES
    with serving(sink, made_up) as (url, answers):
        yield url, answers, tensor


def test_pages_beyond_32_bits_are_read(more_than_32_bits):
    url, answers, tensor = more_than_32_bits
    with ha.open_snapshot(url) as snapshot:
        [entry] = snapshot.entries
        before = sum(answers)
        part = snapshot.read_sequences([2, 0])
        [compact] = part.tensors
        # The metadata of one row, and six bytes out of four gigabytes, with gaps of no more than 1 MiB.
        assert sum(answers) - before < 4 << 20
        assert snapshot.group_tables(0).block_table.tolist() == [page for table in TABLES for page in table]
    assert entry.num_pages == NUM_PAGES == tensor.num_pages
    assert part.fetched.needed_pages == 5
    assert compact.num_pages == 5
    for place, table in enumerate((TABLES[2], TABLES[0])):
        assert compact.gather(place).reshape(-1).tolist() == [page % 251 for page in table]


def test_tables_beyond_32_bits_are_judged(more_than_32_bits):
    _, _, tensor = more_than_32_bits
    assert tensor.validate() == []
    decoded = ha.BlockPagedDescriptor.decode(tensor.descriptor.encode())
    assert decoded == tensor.descriptor
    assert (decoded.num_pages, decoded.pool_bytes) == (NUM_PAGES, NUM_PAGES)
    assert [tensor.page_ids(place).tolist() for place in range(3)] == TABLES
    with pytest.raises(ha.InvariantError) as error:
        ha.BlockPagedTensor.from_arrays(
            sparse_memory(NUM_PAGES).reshape(NUM_PAGES, 1, 1, 1),
            block_tables=[[NUM_PAGES - 1, NUM_PAGES]],
            seq_lens=[2],
            index_type="uint64",
            kv_role="key",
        )
    assert error.value.codes == ["page_id_out_of_range"]
    assert error.value.problems[0].where == "block_table[1]"


def test_operations_beyond_32_bits(more_than_32_bits):
    _, _, tensor = more_than_32_bits
    picked = ops.select(tensor, [1, 2])
    assert picked.block_table.tolist() == [3, 2**32 - 1, 2**32 + 7]
    compact = ops.compact(picked)
    assert (compact.num_pages, compact.block_table.tolist()) == (3, [0, 1, 2])


def index_row(number, **values):
    return IndexRow(
        **{
            "tensor_index": number,
            "layer_index": number,
            "layer_name": None,
            "kv_role": "key",
            "component": "values",
            "kv_group": 0,
            "page_offset": 0,
            "num_pages": 2**40 + 1,
            "num_seqs": 2**33 + 5,
            "element_type": "bfloat16",
            "page_shape": (16, 8, 128),
            "encoding": "plain",
            "index_type": "uint64",
            **values,
        }
    )


def test_an_index_of_petabytes():
    """Offsets beyond 2⁵³ come through JSON as they are."""
    page_bytes = 2 * 16 * 8 * 128
    pages_bytes = (2**40 + 1) * page_bytes
    rows, offset = [], 1000
    for number in range(3):
        pages_offset = offset + 4096
        body_bytes = 3096 + pages_bytes + 40
        rows.append(
            index_row(
                number, offset=offset, metadata_bytes=1000, body_bytes=body_bytes, pages_offset=pages_offset,
                pages_bytes=pages_bytes, checksums_offset=offset + 2000, head_xxh3="0" * 16, tail_xxh3="f" * 16,
            )
        )  # fmt: skip
        offset += -(-(1000 + body_bytes) // 8) * 8
    assert rows[-1].offset > 2**53
    index = Index(tuple(rows), "0" * 16)
    pairs = {name.encode(): value.encode() for name, value in index.custom_metadata().items()}
    assert Index.from_custom_metadata(pairs, url="made up", file_bytes=offset).rows == index.rows
