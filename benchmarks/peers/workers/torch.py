"""``torch.save``: a dict of tensors in one zip file, loaded with ``mmap``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.peers.cache import MODEL, Array, Cache, Key, gather, page_ids
from benchmarks.peers.protocol import Peer, Place, serve
from benchmarks.peers.workers import objects

NAME = "cache.pt"


class Torch(Peer):
    """Local files are mapped; from a store the library reads all of it."""

    def versions(self) -> dict[str, str]:
        """Return torch's."""
        return {"torch": torch.__version__}

    def write(self, place: Place, cache: Cache) -> None:
        """Save a dict."""
        tensors: dict[str, Any] = {
            key.name: torch.from_numpy(pool).view(torch.bfloat16) for key, pool in cache.pools.items()
        }
        tables = {name: torch.from_numpy(np.array(array)) for name, array in cache.tables.items()}
        torch.save({**tensors, **tables, "model": MODEL}, place.path(NAME))
        if place.is_remote:
            objects.send(place, [place.path(NAME)])

    def _load(self, place: Place, *, mmap: bool = True) -> Any:
        if place.is_remote:
            return torch.load(objects.fetch_file(place, NAME), mmap=True, weights_only=True)
        return torch.load(place.path(NAME), mmap=mmap, weights_only=True)

    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Map the file, and take the tensors."""
        found = self._load(place)
        return [bits(found[key.name]) for key in keys]

    def verify(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Read the file instead of mapping it."""
        found = self._load(place, mmap=False)
        return [bits(found[key.name]) for key in keys]

    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Take the pages out of the mapped tensors."""
        found = self._load(place)
        table, seq_ptr, seq_lens = (found[name].numpy() for name in Cache.TABLES)
        ids = page_ids(table, seq_ptr, sequence)
        return [gather(bits(found[key.name]), ids, int(seq_lens[sequence])) for key in keys]

    def model(self, place: Place) -> str | None:
        """Return it from the dict."""
        return str(self._load(place)["model"])


def bits(tensor: torch.Tensor) -> Array:
    """Return a tensor's memory."""
    array: Array = tensor.view(torch.uint16).numpy()
    return array


if __name__ == "__main__":
    serve(Torch())
