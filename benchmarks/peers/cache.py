"""The tensors that every peer gets: a real cache, laid out for more sequences until it is large enough.

This module runs in the peers' environments: the standard library and numpy.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROLES = ("key", "value")
MIN_TENSORS = 30
MODEL = "SmolLM2-135M-Instruct"
Array = npt.NDArray[np.generic]


@dataclass(frozen=True, order=True, slots=True)
class Key:
    """Which tensor."""

    layer: int
    role: str

    @property
    def name(self) -> str:
        """Its name where a format has names: ``key_7``."""
        return f"{self.role}_{self.layer}"


class Cache:
    """A folder of arrays, mapped: all processes share one copy of it.

    Parameters
    ----------
    folder
        As :func:`tile` made it.
    """

    TABLES = ("block_table", "seq_ptr", "seq_lens")

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.block_table, self.seq_ptr, self.seq_lens = (self._array(name) for name in self.TABLES)
        self.num_layers = len(list(self.folder.glob("key_*.npy")))

    def _array(self, name: str) -> Array:
        array: Array = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return array

    @property
    def keys(self) -> list[Key]:
        """All tensors, layer after layer."""
        return [Key(layer, role) for layer in range(self.num_layers) for role in ROLES]

    @functools.cached_property
    def pools(self) -> dict[Key, Array]:
        """Per tensor bfloat16 bits, uint16 ``[num_pages, page_size, num_heads, head_dim]``."""
        return {key: self._array(key.name) for key in self.keys}

    @property
    def tables(self) -> dict[str, Array]:
        """The block table (uint32), its bounds by sequence (uint32) and the tokens of each sequence (uint64)."""
        return {name: getattr(self, name) for name in self.TABLES}

    def gather(self, key: Key, sequence: int) -> Array:
        """Return what reading one sequence has to give."""
        return gather(self.pools[key], self.page_ids(sequence), int(self.seq_lens[sequence]))

    def page_ids(self, sequence: int) -> Array:
        """Return the ids of the sequence's pages."""
        return page_ids(self.block_table, self.seq_ptr, sequence)


def page_ids(block_table: Array, seq_ptr: Array, sequence: int) -> Array:
    """Return the ids of a sequence's pages."""
    ids: Array = block_table[int(seq_ptr[sequence]) : int(seq_ptr[sequence + 1])].astype(np.int64)
    return ids


def gather(pool: Array, ids: Array, num_tokens: int) -> Array:
    """Put a sequence's tokens in order: ``[tokens, num_heads, head_dim]``, in new memory."""
    pages: Array = pool[ids]
    return pages.reshape(-1, *pages.shape[2:])[:num_tokens]


def runs(ids: Array) -> list[tuple[int, int]]:
    """Return the half-open ranges of page ids that ids, in any order, make up."""
    found: list[tuple[int, int]] = []
    for page in sorted({int(page) for page in ids}):
        if found and found[-1][1] == page:
            found[-1] = (found[-1][0], page + 1)
        else:
            found.append((page, page + 1))
    return found


def join_runs(pieces: Iterable[Array], ids: Array, num_tokens: int) -> Array:
    """As :func:`gather`, of one array of pages for each of the ids' :func:`runs`."""
    return gather(np.concatenate(list(pieces)), np.searchsorted(np.unique(ids), ids), num_tokens)


def tile(source: Path, folder: Path, total_bytes: int) -> bool:
    """Lay a cache out many times over until it has about so many bytes, and put its arrays into a folder.

    Copy c of layer l is the cache's layer l + c, so that the pages of one tensor are as different as a real pool's as
    long as there are no more copies than layers. Each copy has its own pages and its own sequences.

    Returns
    -------
    bool
        Whether there are more, so that some pages are in a tensor twice.
    """
    with np.load(source) as found:
        arrays = {name: found[name] for name in found.files}
    pools = {role: arrays[f"{role}_pool"] for role in ROLES}
    layers, num_pages = pools["key"].shape[:2]
    num_layers = layers * -(-MIN_TENSORS // (layers * len(ROLES)))
    copies = max(1, round(total_bytes / (num_layers * len(ROLES) * pools["key"][0].nbytes)))
    folder.mkdir(parents=True)
    for layer, role in itertools.product(range(num_layers), ROLES):
        pool = np.concatenate([pools[role][(layer + copy) % layers] for copy in range(copies)])
        np.save(folder / f"{Key(layer, role).name}.npy", pool)
    table, seq_ptr = arrays["block_table"], arrays["seq_ptr"]
    shift = np.arange(copies)[:, None]
    np.save(folder / "block_table.npy", (table + shift * num_pages).reshape(-1).astype(np.uint32))
    bounds = (seq_ptr[1:] + shift * len(table)).reshape(-1)
    np.save(folder / "seq_ptr.npy", np.concatenate([[0], bounds]).astype(np.uint32))
    np.save(folder / "seq_lens.npy", np.tile(arrays["seq_lens"], copies).astype(np.uint64))
    return bool(copies > layers)
