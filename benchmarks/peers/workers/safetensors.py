"""safetensors: one file, opened with ``safe_open``; from a store by its documented header and ranges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from benchmarks.peers.cache import MODEL, Array, Cache, Key, join_runs, page_ids, runs
from benchmarks.peers.protocol import Peer, Place, serve
from benchmarks.peers.workers import objects

NAME = "cache.safetensors"
DTYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64}
HEAD_BYTES = 64 << 10


class Safetensors(Peer):
    """The library opens local files; ranges of its format are described in Hugging Face's documentation."""

    def versions(self) -> dict[str, str]:
        """Return safetensors'."""
        return {"safetensors": version("safetensors")}

    def write(self, place: Place, cache: Cache) -> None:
        """Save all arrays at once."""
        arrays = {**cache.tables, **{key.name: pool for key, pool in cache.pools.items()}}
        safetensors.numpy.save_file(arrays, place.path(NAME), metadata={"model": MODEL})
        if place.is_remote:
            objects.send(place, [place.path(NAME)])

    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Get the tensors by name."""
        names = [key.name for key in keys]
        if place.is_remote:
            return fetched(place, header_of(place, NAME), names)
        with safetensors.safe_open(place.path(NAME), framework="numpy") as file:
            return [file.get_tensor(name) for name in names]

    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Take slices of neighbouring pages, or fetch those ranges."""
        if place.is_remote:
            return fetched_sequence(place, [key.name for key in keys], sequence)
        with safetensors.safe_open(place.path(NAME), framework="numpy") as file:
            table, seq_ptr, seq_lens = (file.get_tensor(name) for name in Cache.TABLES)
            ids, num_tokens = page_ids(table, seq_ptr, sequence), int(seq_lens[sequence])
            slices = [file.get_slice(key.name) for key in keys]
            return [join_runs((part[start:end] for start, end in runs(ids)), ids, num_tokens) for part in slices]

    def model(self, place: Place) -> str | None:
        """Return it from the header's metadata."""
        with safetensors.safe_open(place.path(NAME), framework="numpy") as file:
            return str(file.metadata()["model"])


def header_of(place: Place, name: str) -> dict[str, Any]:
    """Fetch the header: eight bytes of length, JSON. Its offsets are made those of the file."""
    [head] = objects.fetch_ranges(place, [(name, 0, HEAD_BYTES)])
    size = int.from_bytes(head[:8].tobytes(), "little")
    if size > HEAD_BYTES - 8:
        [head] = objects.fetch_ranges(place, [(name, 0, size + 8)])
    header: dict[str, Any] = json.loads(head[8 : size + 8].tobytes())
    header.pop("__metadata__")
    for tensor in header.values():
        tensor["file"] = name
        tensor["data_offsets"] = [offset + size + 8 for offset in tensor["data_offsets"]]
    return header


def fetched(place: Place, header: dict[str, Any], names: Sequence[str]) -> list[Array]:
    """Fetch whole tensors, as they are stored."""
    wanted = [(header[name]["file"], *header[name]["data_offsets"]) for name in names]
    arrays = objects.fetch_ranges(place, wanted)
    return [shaped(array, header[name]) for name, array in zip(names, arrays, strict=True)]


def shaped(data: Array, tensor: dict[str, Any]) -> Array:
    """Give bytes the dtype and shape that the header says."""
    array: Array = data.view(DTYPES[tensor["dtype"]])
    return array.reshape(-1, *tensor["shape"][1:])


def fetched_sequence(place: Place, names: Sequence[str], sequence: int) -> list[Array]:
    """Fetch the tables, then runs of neighbouring pages of every tensor."""
    header = header_of(place, NAME)
    table, seq_ptr, seq_lens = fetched(place, header, Cache.TABLES)
    ids, num_tokens = page_ids(table, seq_ptr, sequence), int(seq_lens[sequence])
    found = runs(ids)
    wanted = []
    for name in names:
        begin, end = header[name]["data_offsets"]
        page_bytes = (end - begin) // header[name]["shape"][0]
        wanted += [(begin + first * page_bytes, begin + last * page_bytes) for first, last in found]
    pieces = iter(objects.fetch_parts(place, {NAME: wanted})[NAME])
    return [join_runs((shaped(next(pieces), header[name]) for _ in found), ids, num_tokens) for name in names]


if __name__ == "__main__":
    serve(Safetensors())
