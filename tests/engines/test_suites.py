"""Every adapter keeps the contract."""

from __future__ import annotations

import numpy as np

from hurray_arrow.engines import flashinfer, sglang, tensorrt_llm, vllm
from hurray_arrow.engines.layouts import Content
from hurray_arrow.engines.suite import AdapterSuite
from tests.engines import memory

KEYS_AND_VALUES = (Content.PAIR, Content.PACKED, Content.CPU, Content.CPU_ROWS)


def layouts_of(engine):
    return tuple(name for name, layout in engine.LAYOUTS.items() if layout.content in KEYS_AND_VALUES)


class TestVllm(AdapterSuite):
    adapter = vllm
    layouts = layouts_of(vllm)

    def arrays(self, layout, keys, values):
        return memory.vllm(layout, keys, values)

    def tables(self, rows, seq_lens):
        # vLLM pads with block 0, and leaves stale ids of earlier requests behind a row's end.
        table = memory.rectangle(rows, pad=0)
        table[:, -2:] = 10
        return {"block_tables": table, "seq_lens": np.array(seq_lens, np.int32)}


class TestVllmSlotMapping(TestVllm):
    def tables(self, rows, seq_lens):
        slots = [slot for row, n in zip(rows, seq_lens, strict=False) for slot in memory.slots_of(row, n, 5)]
        return {"slot_mapping": np.array([*slots, -1, -1, -1], np.int64), "seq_lens": np.array(seq_lens, np.int32)}


class TestFlashInfer(AdapterSuite):
    adapter = flashinfer
    layouts = layouts_of(flashinfer)

    def arrays(self, layout, keys, values):
        return memory.flashinfer(layout, keys, values)

    def tables(self, rows, seq_lens):
        used = [row[: -(-n // 5)] for row, n in zip(rows, seq_lens, strict=False)]
        indptr = np.cumsum([0, *map(len, used)]).astype(np.int32)
        indices = np.array([page for row in used for page in row] + [10, 10], np.int32)
        last = np.array(
            [n - 5 * (len(row) - 1) if row else 0 for row, n in zip(used, seq_lens, strict=False)], np.int32
        )
        return {"kv_indptr": indptr, "kv_indices": indices, "kv_last_page_len": last}


class TestSglang(AdapterSuite):
    adapter = sglang
    layouts = layouts_of(sglang)

    def arrays(self, layout, keys, values):
        return memory.sglang(layout, keys, values)

    def tables(self, rows, seq_lens):
        table = np.full((len(rows) + 3, 17), 54, np.int32)
        indices = np.arange(len(rows), 0, -1)
        for row, n, index in zip(rows, seq_lens, indices, strict=False):
            table[index, :n] = memory.slots_of(row, n, 5)
        return {"req_to_token": table, "seq_lens": np.array(seq_lens, np.int64), "req_pool_indices": indices}


class TestSglangTokenPages(TestSglang):
    """page_size 1: a sequence is scattered token by token."""

    layouts = ("BNHD", "2BNHD")
    page_size = 1
    num_pages = 29
    rows = ([3, 28, 10, 5, 7, 1, 0, 2, 21, 20, 19, 13, 4], [], [3, 28, 11, 17, 25, 6])
    seq_lens = (13, 0, 6)

    def tables(self, rows, seq_lens):
        table = np.full((len(rows) + 3, 17), 27, np.int32)
        for index, (row, n) in enumerate(zip(rows, seq_lens, strict=False)):
            table[index, :n] = row[:n]
        return {"req_to_token": table, "seq_lens": np.array(seq_lens, np.int64)}

    def test_sharing_is_kept(self):
        for layout in self.layouts:
            assert [tensor.shared_pages().size for tensor in self.export(layout)] == [2] * 4

    def test_restore_takes_token_slots(self):
        pool, blocks = self.empty_pool("BNHD"), self.blocks
        sglang.restore_into(
            pool,
            self.export("2BNHD"),
            layout="BNHD",
            sequence=0,
            token_slots=np.array(blocks),
            page_size=1,
            expect=None,
            element_type="bfloat16",
        )
        for place, name in enumerate(("layers.0", "layers.1")):
            for role, array in enumerate(pool[name]):
                assert np.array_equal(array[blocks], self.expected_tokens(place, role, 0))
                assert (np.delete(array, blocks, axis=0) == 0xFFFF).all()


class TestTensorRtLlm(AdapterSuite):
    adapter = tensorrt_llm
    layouts = layouts_of(tensorrt_llm)
    page_size = 4
    rows = ([3, 8, 10, 7], [], [8, 1])
    seq_lens = (13, 0, 6)

    def arrays(self, layout, keys, values):
        # A layer's buffers are a view into the pool of all layers.
        dense = memory.flashinfer(layout, keys, values)
        pool = np.full((dense.shape[0], 3, *dense.shape[1:]), memory.GAP, np.uint16)
        pool[:, 1] = dense
        return pool[:, 1]

    def tables(self, rows, seq_lens):
        return {"block_ids": memory.rectangle(rows, pad=0), "seq_lens": np.array(seq_lens, np.int32)}

    def export(self, layout, **changes):
        changes["tokens_per_block"] = changes.pop("page_size", self.page_size)
        options = {"element_type": "bfloat16", "num_heads": 3, "head_dim": 7, "layout": layout, **changes}
        options["layout"] = options.pop("named", layout)
        rows, seq_lens = options.pop("rows", self.rows), options.pop("seq_lens", self.seq_lens)
        arrays = options.pop("arrays", None)
        cache = self.cache(layout) if arrays is None else arrays
        return tensorrt_llm.export_cache(cache, **{**self.tables(rows, seq_lens), **options})


def test_the_suites_cover_every_layout_of_keys_and_values():
    assert len(TestVllm.layouts) == 15
    assert len(TestFlashInfer.layouts) == 4
    assert len(TestSglang.layouts) == 3
    assert len(TestTensorRtLlm.layouts) == 2
