"""The cache that the repository ships has what its README says, and what the demo needs to show."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parents[2] / "examples" / "data"


@pytest.fixture(scope="module")
def cache():
    with np.load(DATA / "smollm2_small.npz") as arrays:
        return dict(arrays)


def tables(cache):
    return np.split(cache["block_table"], cache["seq_ptr"][1:-1])


def test_arrays_have_the_documented_shapes_and_dtypes(cache):
    found = {name: (array.dtype.name, array.shape) for name, array in cache.items()}
    assert found == {
        "layer_index": ("uint32", (5,)),
        "key_pool": ("uint16", (5, 31, 16, 3, 64)),
        "value_pool": ("uint16", (5, 31, 16, 3, 64)),
        "block_table": ("uint32", (60,)),
        "seq_ptr": ("uint32", (5,)),
        "seq_lens": ("uint64", (4,)),
        "token_ids": ("uint32", (931,)),
        "unreferenced_pages": ("uint32", (3,)),
    }
    assert (DATA / "smollm2_small.npz").stat().st_size <= 2_000_000


def test_three_sequences_share_sixteen_pages(cache):
    first, second, prefix, other = tables(cache)
    assert [len(table) for table in tables(cache)] == [21, 20, 16, 3]
    assert first[:16].tolist() == second[:16].tolist() == prefix.tolist()
    assert not set(first[16:]) & set(second[16:])
    assert not set(other) & {*first, *second}


def test_shared_tokens_lie_in_shared_pages(cache):
    first, second, prefix, _ = np.split(cache["token_ids"], np.cumsum(cache["seq_lens"])[:-1].astype(int))
    assert first[:256].tolist() == second[:256].tolist() == prefix.tolist()
    assert first[256] != second[256]


def test_last_pages_are_partial_except_the_prefix_alone(cache):
    assert cache["seq_lens"].tolist() == [331, 307, 256, 37]
    assert (cache["seq_lens"] % 16).tolist() == [11, 3, 0, 5]
    assert np.diff(cache["seq_ptr"]).tolist() == [-(-int(tokens) // 16) for tokens in cache["seq_lens"]]


def test_unreferenced_pages_are_exactly_those_that_no_table_names(cache):
    unnamed = np.setdiff1d(np.arange(31), cache["block_table"])
    assert cache["unreferenced_pages"].tolist() == unnamed.tolist()
    assert cache["key_pool"][:, unnamed].any()


def test_layers_and_roles_differ(cache):
    pools = [*cache["key_pool"], *cache["value_pool"]]
    assert len({pool.tobytes() for pool in pools}) == 10


def test_cut_keeps_tokens_and_values():
    spec = importlib.util.spec_from_file_location("cut_sample", DATA / "cut_sample.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(19)
    seq_lens = [669, 443, 320, 256, 757, 37]
    pages = [-(-tokens // 16) for tokens in seq_lens]
    source = {
        "key_pool": rng.integers(0, 2**16, (30, 210, 16, 1, 2), dtype=np.uint16),
        "value_pool": rng.integers(0, 2**16, (30, 210, 16, 1, 2), dtype=np.uint16),
        "block_table": rng.permutation(210)[: sum(pages)].astype(np.uint32),
        "seq_ptr": np.concatenate([[0], np.cumsum(pages)]).astype(np.uint32),
        "seq_lens": np.array(seq_lens, dtype=np.uint64),
        "token_ids": rng.integers(0, 999, sum(seq_lens), dtype=np.int32),
    }
    source["unreferenced_pages"] = np.setdiff1d(np.arange(210), source["block_table"]).astype(np.uint32)
    small = module.cut(source)
    for seq, (source_seq, tokens) in enumerate({0: 331, 2: 307, 3: 256, 5: 37}.items()):
        table = source["block_table"][source["seq_ptr"][source_seq] :][: -(-tokens // 16)]
        assert np.array_equal(small["value_pool"][3][tables(small)[seq]], source["value_pool"][22][table])
        assert np.array_equal(small["key_pool"][1][tables(small)[seq]], source["key_pool"][7][table])
        start = sum(seq_lens[:source_seq])
        end = int(small["seq_lens"][: seq + 1].sum())
        assert np.array_equal(small["token_ids"][end - tokens : end], source["token_ids"][start : start + tokens])
