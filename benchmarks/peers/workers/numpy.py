"""numpy's own files: a folder of ``.npy`` that are mapped, or one ``.npz``."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.peers.cache import MODEL, Array, Cache, Key, gather, join_runs, page_ids, runs
from benchmarks.peers.protocol import Peer, Place, serve

HEADER_BYTES = 128


class Npy(Peer):
    """One ``.npy`` per tensor. From a store the header is one range, whole pages another: the format says where."""

    def versions(self) -> dict[str, str]:
        """Return numpy's."""
        return {"numpy": np.__version__}

    def write(self, place: Place, cache: Cache) -> None:
        """Save one array after another."""
        arrays = {**cache.tables, **{key.name: pool for key, pool in cache.pools.items()}}
        for name, array in arrays.items():
            np.save(place.path(f"{name}.npy"), array)
        if place.is_remote:
            objects().send(place, [place.path(f"{name}.npy") for name in arrays])

    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Map the files, or fetch them whole."""
        if place.is_remote:
            return self._fetched(place, [key.name for key in keys])
        return [np.load(place.path(f"{key.name}.npy"), mmap_mode="r") for key in keys]

    def _fetched(self, place: Place, names: Sequence[str]) -> list[Array]:
        headers = self._headers(place, names)
        wanted = [(f"{name}.npy", start, start + size) for name, (start, size, _, _) in headers.items()]
        fetched = objects().fetch_ranges(place, wanted)
        return [
            data.view(dtype).reshape(shape)
            for data, (_, _, dtype, shape) in zip(fetched, headers.values(), strict=True)
        ]

    def _headers(
        self, place: Place, names: Sequence[str]
    ) -> dict[str, tuple[int, int, np.dtype[Any], tuple[int, ...]]]:
        """Return where each array's data start, their bytes, the dtype and the shape."""
        fetched = objects().fetch_ranges(place, [(f"{name}.npy", 0, HEADER_BYTES) for name in names])
        return {name: header_of(data.tobytes()) for name, data in zip(names, fetched, strict=True)}

    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Take the pages out of the mapped files, or fetch runs of neighbouring pages."""
        if not place.is_remote:
            table, seq_ptr, seq_lens = (np.load(place.path(f"{name}.npy")) for name in Cache.TABLES)
            ids = page_ids(table, seq_ptr, sequence)
            return [gather(pool, ids, int(seq_lens[sequence])) for pool in self.read(place, keys)]
        table, seq_ptr, seq_lens = self._fetched(place, Cache.TABLES)
        ids = page_ids(table, seq_ptr, sequence)
        num_tokens, found = int(seq_lens[sequence]), runs(ids)
        headers = self._headers(place, [key.name for key in keys])
        wanted = {}
        for name, (at, size, _, shape) in headers.items():
            page_bytes = size // shape[0]
            wanted[f"{name}.npy"] = [(at + start * page_bytes, at + end * page_bytes) for start, end in found]
        parts = objects().fetch_parts(place, wanted)
        return [
            join_runs((part.view(dtype).reshape(-1, *shape[1:]) for part in parts[f"{name}.npy"]), ids, num_tokens)
            for name, (_, _, dtype, shape) in headers.items()
        ]


def header_of(head: bytes) -> tuple[int, int, np.dtype[Any], tuple[int, ...]]:
    """Read the header of an array: where data start, their bytes, dtype, shape."""
    file = io.BytesIO(head)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return file.tell(), int(np.prod(shape)) * dtype.itemsize, dtype, shape


class Npz(Peer):
    """One zip file of arrays. From a store the members that are asked for, through a buffered reader."""

    NAME = "cache.npz"

    def versions(self) -> dict[str, str]:
        """Return numpy's."""
        return {"numpy": np.__version__}

    def write(self, place: Place, cache: Cache) -> None:
        """Save all arrays as they are: deflating bfloat16 takes most of a minute for a gigabyte."""
        arrays: dict[str, Any] = {key.name: pool for key, pool in cache.pools.items()}
        arrays.update(cache.tables, model=np.array(MODEL))
        np.savez(place.path(self.NAME), **arrays)
        if place.is_remote:
            objects().send(place, [place.path(self.NAME)])

    def _open(self, place: Place) -> Any:
        if place.is_remote:
            return np.load(objects().reader(place, self.NAME))
        return np.load(place.path(self.NAME))

    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Read the tensors; zip's CRCs are compared."""
        with self._open(place) as file:
            return [file[key.name] for key in keys]

    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Read all tensors: numpy reads no part of a member."""
        with self._open(place) as file:
            ids = page_ids(file["block_table"], file["seq_ptr"], sequence)
            num_tokens = int(file["seq_lens"][sequence])
            return [gather(file[key.name], ids, num_tokens) for key in keys]

    def model(self, place: Place) -> str | None:
        """Return it from an array of text."""
        with self._open(place) as file:
            return str(file["model"])


def objects() -> Any:
    """Return the module that knows S3, which needs a client that local files don't."""
    from benchmarks.peers.workers import objects as module

    return module


if __name__ == "__main__":
    serve({"npy": Npy, "npz": Npz}[sys.argv[1]]())
