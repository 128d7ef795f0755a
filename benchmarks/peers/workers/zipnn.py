"""ZipNN: a safetensors file whose tensors are compressed one by one, read through its plugin for ``safe_open``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import safetensors.torch
import torch
from zipnn import ZipNN, zipnn_safetensors
from zipnn.util_safetensors import (
    COMPRESSED_DTYPE,
    COMPRESSION_METHOD,
    build_compressed_tensor_info,
    set_compressed_tensors_metadata,
)
from zipnn.zipnn import decompress_safetensors_tensor

from benchmarks.peers.cache import MODEL, Array, Cache, Key, gather, page_ids
from benchmarks.peers.protocol import Peer, Place, serve
from benchmarks.peers.workers import objects
from benchmarks.peers.workers.safetensors import fetched, header_of

NAME = "cache.znn.safetensors"


class Zipnn(Peer):
    """As its script for safetensors files does it; a tensor is compressed as a whole, and so read."""

    def __init__(self) -> None:
        zipnn_safetensors()

    def versions(self) -> dict[str, str]:
        """Return ZipNN's and what it stands on."""
        return {name: version(name) for name in ("zipnn", "safetensors", "torch")}

    def write(self, place: Place, cache: Cache) -> None:
        """Compress tensor after tensor with as many threads as there are processors, then save them."""
        tensors, infos = {}, {}
        for key, pool in cache.pools.items():
            # A copy: it moves the bits of what it compresses, in place, and does not move them back.
            tensor = torch.from_numpy(np.array(pool)).view(torch.bfloat16)
            codec = ZipNN(
                input_format="torch", bytearray_dtype="bfloat16", method=COMPRESSION_METHOD, threads=os.cpu_count()
            )
            tensors[key.name] = torch.frombuffer(codec.compress(tensor), dtype=COMPRESSED_DTYPE)
            infos[key.name] = build_compressed_tensor_info(tensor)
        for name, array in cache.tables.items():
            tensors[name] = torch.from_numpy(np.array(array))
        metadata = {"model": MODEL}
        set_compressed_tensors_metadata(infos, metadata)
        safetensors.torch.save_file(tensors, place.path(NAME), metadata)
        if place.is_remote:
            objects.send(place, [place.path(NAME)])

    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Decompress tensors by name; from a store those ranges of the file."""
        if place.is_remote:
            return fetched_pools(place, header_of(place, NAME), [key.name for key in keys])
        with safetensors.torch.safe_open(place.path(NAME), framework="pt") as file:
            return [bits(file.get_tensor(key.name)) for key in keys]

    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Decompress all tensors, and take the pages."""
        names = [key.name for key in keys]
        if place.is_remote:
            header = header_of(place, NAME)
            table, seq_ptr, seq_lens = fetched(place, header, Cache.TABLES)
            pools = fetched_pools(place, header, names)
        else:
            with safetensors.torch.safe_open(place.path(NAME), framework="pt") as file:
                table, seq_ptr, seq_lens = (file.get_tensor(name).numpy() for name in Cache.TABLES)
                pools = [bits(file.get_tensor(name)) for name in names]
        ids = page_ids(table, seq_ptr, sequence)
        return [gather(pool, ids, int(seq_lens[sequence])) for pool in pools]

    def model(self, place: Place) -> str | None:
        """Return it from the header's metadata."""
        with safetensors.torch.safe_open(place.path(NAME), framework="pt") as file:
            return str(file.metadata()["model"])


def bits(tensor: torch.Tensor) -> Array:
    """Return a tensor's memory."""
    array: Array = tensor.view(torch.uint16).numpy()
    return array


def fetched_pools(place: Place, header: dict[str, Any], names: Sequence[str]) -> list[Array]:
    """Fetch the ranges of some tensors, and decompress them."""
    return [bits(decompress_safetensors_tensor(torch.from_numpy(array))) for array in fetched(place, header, names)]


if __name__ == "__main__":
    serve(Zipnn())
