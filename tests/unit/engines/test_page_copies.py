"""Copies of pages: strided or dense, in order or not, in chunks, on two threads: the same bytes as by a plain loop."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hurray_arrow.engines import page_copies
from hurray_arrow.engines.page_copies import reading_pages, runs, writing_pages

PAGES, SLOTS, HEADS, WORDS = 23, 5, 3, 7


def pools(dtype):
    """Dense pages and the same pages as strided views of three kinds."""
    rng = np.random.default_rng(1)
    dense = rng.integers(0, 256, (PAGES, SLOTS, HEADS, WORDS * np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)
    heads_first = np.ascontiguousarray(dense.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    by_column = np.ascontiguousarray(dense.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    packed = np.concatenate([dense, dense], axis=-1)[..., WORDS:]
    return dense, {"dense": dense, "heads_first": heads_first, "by_column": by_column, "packed": packed}


@pytest.fixture(params=["whole", "chunks", "threads"])
def _how(request, monkeypatch):
    if request.param != "whole":
        monkeypatch.setattr(page_copies, "_CHUNK_BYTES", 1000)
    if request.param == "threads":
        monkeypatch.setattr(page_copies, "_THREADED_BYTES", 1)


@pytest.mark.usefixtures("_how")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint64, "V16"])
@pytest.mark.parametrize("ids", [None, [], [4], list(range(3, 19)), [7, 8, 9, 2, 22, 0, 1, 1]])
def test_reading(dtype, ids):
    dense, views = pools(dtype)
    page_ids = None if ids is None else np.array(ids, np.int64)
    expected = dense if ids is None else dense[ids]
    outs = {name: np.zeros(expected.shape, dense.dtype) for name in views}
    reading_pages([(view, outs[name]) for name, view in views.items()], page_ids=page_ids).run()
    assert all(out.tobytes() == expected.tobytes() for out in outs.values())


@pytest.mark.usefixtures("_how")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint64, "V16"])
@pytest.mark.parametrize("ids", [[], [4], list(range(3, 19)), [7, 8, 9, 2, 22, 0, 1]])
def test_writing(dtype, ids):
    dense, _ = pools(dtype)
    sources = np.random.default_rng(5).permutation(PAGES)[: len(ids)].astype(np.int64)
    if len(ids) > 3:
        sources[1:4] = [11, 12, 13]
    _, views = pools(dtype)
    expected = dense[::-1].copy()
    for page, source in zip(ids, sources.tolist(), strict=True):
        expected[page] = dense[source]
    for name, view in views.items():
        pool = np.zeros_like(view)
        pool[...] = dense[::-1]
        assert pool.strides == view.strides or name == "packed"
        writing_pages([(pool, dense)], page_ids=np.array(ids, np.int64), source_ids=sources).run()
        assert pool.tobytes() == expected.tobytes(), name


def test_what_lies_between_strided_pages_is_not_written():
    memory = np.full((PAGES, 2, SLOTS, HEADS, WORDS), 9, np.uint16)
    dense, _ = pools(np.uint16)
    writing_pages([(memory[:, 1], dense)], page_ids=np.arange(PAGES), source_ids=np.arange(PAGES)).run()
    assert (memory[:, 0] == 9).all()
    assert np.array_equal(memory[:, 1], dense)


def test_an_error_on_a_thread_comes_when_both_are_done(monkeypatch):
    monkeypatch.setattr(page_copies, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(page_copies, "_THREADED_BYTES", 1)
    dense, _ = pools(np.uint16)
    pool = np.zeros_like(dense)
    ids = np.arange(PAGES)
    ids[2] = PAGES
    with pytest.raises(IndexError):
        writing_pages([(pool, dense)], page_ids=ids, source_ids=np.arange(PAGES)).run()
    written = pool.copy()
    assert all(np.array_equal(pool[page], dense[page]) or not pool[page].any() for page in range(PAGES))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hurray-arrow-pages")]
    assert np.array_equal(pool, written)


def test_runs():
    assert list(runs(np.array([], np.int64))) == []
    assert list(runs(np.array([5, 6, 7, 2, 3, 9], np.int64))) == [(0, 3), (3, 5), (5, 6)]
