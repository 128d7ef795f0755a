"""A contract for adapters: tests that an adapter of any engine inherits and has to pass.

Subclass :class:`AdapterSuite` in a test module, say how to lay dense pages out in the engine's memory and what its
tables look like, and pytest runs the rest::

    class TestMyEngine(AdapterSuite):
        adapter = my_engine  # has export_cache, import_cache, restore_into
        layouts = ("2BNHD",)

        def arrays(self, layout, keys, values):
            return np.stack([keys, values])

        def tables(self, rows, seq_lens):
            return {"block_tables": rows, "seq_lens": seq_lens}

All sizes are different primes, one page is shared, one sequence is empty, one last page is partial, and unused slots
and pages hold bytes that may not come out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hurray_arrow.errors import LayoutError, SnapshotMismatchError
from hurray_arrow.tensor import BlockPagedTensor

Pages = npt.NDArray[np.uint16]

_LAYERS = ("layers.0", "layers.1")
_FOREIGN = 0xFFFF


def check(passed: object, about: object) -> None:
    """Fail a test, also where Python runs without assertions.

    Raises
    ------
    AssertionError
        ``passed`` is false.
    """
    if not passed:
        raise AssertionError(about)


class AdapterSuite:
    """The contract. Override what the engine does differently; every ``test_`` has to pass.

    Attributes
    ----------
    adapter
        Module or object with ``export_cache``, ``import_cache`` and ``restore_into``.
    layouts
        The layouts to test.
    num_pages, page_size, num_heads, head_dim
        Sizes.
    rows, seq_lens
        The sequences' pages and lengths.
    export_options, import_options, restore_options
        Further arguments of the adapter's functions.
    """

    adapter: Any
    layouts: ClassVar[Sequence[str]]
    num_pages: ClassVar[int] = 11
    page_size: ClassVar[int] = 5
    num_heads: ClassVar[int] = 3
    head_dim: ClassVar[int] = 7
    rows: ClassVar[Sequence[Sequence[int]]] = ([3, 8, 10], [], [8, 1])
    seq_lens: ClassVar[Sequence[int]] = (13, 0, 6)
    export_options: ClassVar[dict[str, Any]] = {}
    import_options: ClassVar[dict[str, Any]] = {}
    restore_options: ClassVar[dict[str, Any]] = {}

    # -- what an engine says of itself -----------------------------------------------------------------------------

    def arrays(self, layout: str, keys: Pages, values: Pages) -> Any:
        """Lay dense pages ``[num_pages, page_size, num_heads, head_dim]`` out as one layer of the engine has them.

        Parameters
        ----------
        layout
            The layout's name.
        keys, values
            uint16 bits.

        Returns
        -------
        array or tuple of arrays
            New memory, writable.
        """
        raise NotImplementedError

    def tables(self, rows: Sequence[Sequence[int]], seq_lens: Sequence[int]) -> dict[str, Any]:
        """Give the arguments of ``export_cache`` that say which pages each sequence has.

        Parameters
        ----------
        rows
            Page ids by sequence.
        seq_lens
            Tokens by sequence.

        Returns
        -------
        dict
            With padding and stale entries where the engine has some.
        """
        raise NotImplementedError

    # -- what the tests are made of --------------------------------------------------------------------------------

    def pages_of(self, layer: int) -> tuple[Pages, Pages]:
        """Give keys and values of a layer, every element different from its neighbours, unused slots foreign."""
        rng = np.random.default_rng(layer + 1)
        shape = (2, self.num_pages, self.page_size, self.num_heads, self.head_dim)
        both = rng.integers(0, _FOREIGN, shape, dtype=np.uint16)
        used = np.zeros(shape[1:3], np.bool_)
        for row, tokens in zip(self.rows, self.seq_lens, strict=True):
            for token in range(tokens):
                used[row[token // self.page_size], token % self.page_size] = True
        both[:, ~used] = _FOREIGN
        return both[0], both[1]

    def cache(self, layout: str) -> dict[str, Any]:
        """Give all layers in the engine's memory."""
        return {name: self.arrays(layout, *self.pages_of(place)) for place, name in enumerate(_LAYERS)}

    def export(self, layout: str, **changes: Any) -> list[BlockPagedTensor]:
        """Export all layers."""
        rows, seq_lens = changes.pop("rows", self.rows), changes.pop("seq_lens", self.seq_lens)
        options = {
            "layout": changes.pop("named", layout),
            "page_size": self.page_size,
            "element_type": "bfloat16",
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            **self.tables(rows, seq_lens),
            **self.export_options,
            **changes,
        }
        arrays = options.pop("arrays", None)
        tensors: list[BlockPagedTensor] = self.adapter.export_cache(
            self.cache(layout) if arrays is None else arrays, **options
        )
        return tensors

    def restore(self, layout: str, destination: Any, tensors: Any, **changes: Any) -> Any:
        """Restore a sequence."""
        options = {
            "layout": layout,
            "page_size": self.page_size,
            "element_type": "bfloat16",
            "sequence": 0,
            "expect": None,
            **self.restore_options,
            **changes,
        }
        return self.adapter.restore_into(destination, tensors, **options)

    def expected_tokens(self, layer: int, role: int, seq: int) -> Pages:
        """Give a sequence's tokens by a plain loop."""
        pages = self.pages_of(layer)[role]
        size = self.page_size
        tokens = [pages[self.rows[seq][t // size], t % size] for t in range(self.seq_lens[seq])]
        return np.array(tokens, np.uint16).reshape(-1, self.num_heads, self.head_dim)

    @property
    def blocks(self) -> list[int]:
        """Pages for the first sequence in a pool to restore into, in no order."""
        order = np.random.default_rng(5).permutation(self.num_pages)
        blocks: list[int] = order[: len(self.rows[0])].tolist()
        return blocks

    def empty_pool(self, layout: str) -> dict[str, Any]:
        """Give a pool in which every value is foreign."""
        shape = (self.num_pages, self.page_size, self.num_heads, self.head_dim)
        foreign = np.full(shape, _FOREIGN, np.uint16)
        return {name: self.arrays(layout, foreign, foreign) for name in _LAYERS}

    # -- the contract ----------------------------------------------------------------------------------------------

    def test_every_token_comes_out_at_its_position(self) -> None:
        """Values are found by sequence, token, head and dim, in every layer and role."""
        for layout in self.layouts:
            tensors = self.export(layout)
            check(
                [(t.layer_name, t.kv_role) for t in tensors] == [(n, r) for n in _LAYERS for r in ("key", "value")],
                self.adapter,
            )
            for place, tensor in enumerate(tensors):
                check(tensor.layer_index == place // 2, self.adapter)
                for seq in range(len(self.rows)):
                    found = tensor.gather(seq).view(np.uint16)
                    check(np.array_equal(found, self.expected_tokens(place // 2, place % 2, seq)), layout)

    def test_nothing_else_of_the_pool_comes_out(self) -> None:
        """Only referenced pages are exported, and slots behind a sequence's end are zero."""
        used = {page for row in self.rows for page in row}
        for layout in self.layouts:
            for tensor in self.export(layout):
                check(tensor.num_pages == len(used), layout)
                check(not (tensor.page_pool.view(np.uint16) == _FOREIGN).any(), layout)
                check(tensor.unreferenced_pages().size == 0, self.adapter)

    def test_a_whole_pool_comes_out_as_it_is(self) -> None:
        """With pages="all" every page keeps its number and its bytes."""
        for layout in self.layouts:
            for place, tensor in enumerate(self.export(layout, pages="all")):
                expected = self.pages_of(place // 2)[place % 2]
                check(np.array_equal(tensor.page_pool.view(np.uint16), expected), layout)

    def test_sharing_is_kept(self) -> None:
        """A page of two sequences is stored once."""
        for layout in self.layouts:
            for tensor in self.export(layout):
                check(tensor.shared_pages().size == 1, layout)

    def test_empty_batches_and_sequences_are_no_errors(self) -> None:
        """No sequences, and sequences without tokens, give tensors without pages."""
        batches: list[tuple[list[list[int]], list[int]]] = [([], []), ([[], []], [0, 0])]
        for layout in self.layouts:
            for rows, seq_lens in batches:
                for tensor in self.export(layout, rows=rows, seq_lens=seq_lens):
                    check((tensor.num_seqs, tensor.num_pages, tensor.total_tokens) == (len(rows), 0, 0), layout)

    def test_an_export_is_a_copy(self) -> None:
        """Writing to the engine's memory afterwards changes nothing that was exported."""
        for layout in self.layouts:
            cache = self.cache(layout)
            tensors = self.export(layout, arrays=cache)
            for array in cache.values():
                for each in array if isinstance(array, tuple) else (array,):
                    each[...] = 0
            for tensor, fresh in zip(tensors, self.export(layout), strict=True):
                check(tensor.equals(fresh), layout)

    def test_import_gives_the_engine_its_memory_back(self) -> None:
        """Export, import, export again: the same bytes, in the same layout and in another one."""
        for place, source in enumerate(self.layouts):
            tensors = self.export(source)
            rows: list[list[int]] = [tensors[0].page_ids(seq).tolist() for seq in range(len(self.rows))]
            for layout in {source, self.layouts[place - 1]}:
                arrays = self.adapter.import_cache(tensors, layout=layout, expect=None, **self.import_options)
                check(list(arrays) == list(_LAYERS), self.adapter)
                for tensor, again in zip(tensors, self.export(layout, arrays=arrays, rows=rows), strict=True):
                    check(tensor.equals(again), (source, layout))

    def test_import_compares_with_what_is_expected(self) -> None:
        """A field that differs, and one that nobody states, are mismatches."""
        tensors = self.export(self.layouts[0])
        metadata = {"model": {"name": "m", "revision": "r1"}}
        for field in ("model.revision", "model.rope"):
            call = partial(self.adapter.import_cache, tensors, layout=self.layouts[0], **self.import_options)
            self._refused(SnapshotMismatchError, partial(call, expect={field: "r2"}, metadata=metadata))

    def test_restore_writes_the_sequence_and_nothing_else(self) -> None:
        """The named pages hold the tokens; every other slot of the pool stays as it was."""
        for layout in self.layouts:
            pool, blocks = self.empty_pool(layout), self.blocks
            restored = self.restore(layout, pool, self.export(layout), block_ids=blocks)
            check(restored.num_tokens == self.seq_lens[0], self.adapter)
            check(restored.page_ids[0].tolist() == blocks, self.adapter)
            after = self.export(layout, arrays=pool, pages="all", rows=[blocks], seq_lens=[self.seq_lens[0]])
            for place, tensor in enumerate(after):
                check(
                    np.array_equal(tensor.gather(0).view(np.uint16), self.expected_tokens(place // 2, place % 2, 0)),
                    self.adapter,
                )
                values = tensor.page_pool.view(np.uint16).reshape(-1, self.num_heads, self.head_dim)
                slots = [
                    blocks[t // self.page_size] * self.page_size + t % self.page_size for t in range(self.seq_lens[0])
                ]
                others = np.delete(values, slots, axis=0)
                check((others == _FOREIGN).all(), layout)

    def test_a_refused_restore_leaves_the_pool_untouched(self) -> None:
        """Ids outside, ids twice, too few or too many, more tokens than stored, another cache: nothing is written."""
        layout = self.layouts[0]
        tensors, pool, blocks = self.export(layout), self.empty_pool(layout), self.blocks
        wrong: list[dict[str, Any]] = [
            {"block_ids": [*blocks[:-1], self.num_pages]},
            {"block_ids": [*blocks[:-1], -1]},
            {"block_ids": [*blocks[:-1], blocks[0]]},
            {"block_ids": blocks[:-1]},
            {"block_ids": [*blocks, self.num_pages - 1]},
            {"block_ids": blocks, "tokens": self.seq_lens[0] + 1},
            {"block_ids": blocks, "page_size": self.page_size + 1},
            {"block_ids": blocks, "sequence": len(self.rows)},
            {"block_ids": blocks, "element_type": "float16"},
        ]
        for changes in wrong:
            self._refused(LayoutError, partial(self.restore, layout, pool, tensors, **changes))
        self._refused(
            SnapshotMismatchError,
            lambda: self.restore(layout, pool, tensors, block_ids=blocks, expect={"model.name": "m"}),
        )
        one_layer = {_LAYERS[0]: pool[_LAYERS[0]]}
        self._refused(LayoutError, lambda: self.restore(layout, one_layer, tensors, block_ids=blocks))
        for tensor in self.export(layout, arrays=pool, pages="all"):
            check((tensor.page_pool.view(np.uint16) == _FOREIGN).all(), self.adapter)

    def test_pages_outside_the_pool_are_refused(self) -> None:
        """An id inside a sequence's length that is no page is refused, with the bound and the id."""
        for layout in self.layouts:
            rows = [list(row) for row in self.rows]
            rows[0][1] = self.num_pages
            error = self._refused(LayoutError, partial(self.export, layout, rows=rows))
            check((error.expected, error.actual) == (self.num_pages, self.num_pages), layout)

    def test_layouts_are_names(self) -> None:
        """An unknown layout is refused with the known ones."""
        error = self._refused(LayoutError, partial(self.export, self.layouts[0], named="unknown"))
        check(set(self.layouts) <= set(error.expected), self.adapter)

    def test_sizes_are_checked(self) -> None:
        """Heads and page size that are not the arrays' are refused with both numbers."""
        for layout in self.layouts:
            error = self._refused(LayoutError, partial(self.export, layout, num_heads=self.num_heads + 1))
            check((error.expected, error.actual) == (self.num_heads + 1, self.num_heads), layout)

    def test_bits_have_to_be_named(self) -> None:
        """Integers without an element type are refused: they may be the bits of anything."""
        for layout in self.layouts:
            error = self._refused(LayoutError, partial(self.export, layout, element_type=None))
            check(error.expected == "element_type=", self.adapter)

    @staticmethod
    def _refused(kind: type[Exception], call: Callable[[], object]) -> Any:
        try:
            call()
        except kind as error:
            return error
        raise AssertionError(f"expected {kind.__name__}")
