"""pyhurray's containers: one ``.hrry`` with block-paged tensors."""

from __future__ import annotations

from collections.abc import Sequence

import hurray
import numpy as np

from benchmarks.peers.cache import MODEL, Array, Cache, Key, gather, page_ids
from benchmarks.peers.protocol import Peer, Place, serve
from benchmarks.peers.workers import objects

NAME = "cache.hrry"


class Hrry(Peer):
    """The layout's own container. It knows local files only, and keeps no lengths, so they go in as one array more."""

    def versions(self) -> dict[str, str]:
        """Return pyhurray's."""
        return {"pyhurray": hurray.__version__}

    def write(self, place: Place, cache: Cache) -> None:
        """Save all tensors at once."""
        tensors = {key.name: paged(key, pool, cache) for key, pool in cache.pools.items()}
        tensors["seq_lens"] = hurray.from_numpy(np.array(cache.seq_lens))
        path = place.path(NAME)
        hurray.save(str(path), tensors, kv={"model": MODEL})
        if place.is_remote:
            objects.send(place, [path])

    def _load(self, place: Place, keys: Sequence[Key]) -> dict[str, hurray.Tensor]:
        path = objects.fetch_file(place, NAME) if place.is_remote else place.path(NAME)
        found: dict[str, hurray.Tensor] = hurray.load(str(path), names=[*(key.name for key in keys), "seq_lens"])
        return found

    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Load the tensors by name; CRCs are compared."""
        found = self._load(place, keys)
        return [pool_of(found[key.name]) for key in keys]

    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Load all tensors: there is nothing between a whole tensor and none."""
        found = self._load(place, keys)
        num_tokens = int(np.asarray(found["seq_lens"])[sequence])
        tensors = [found[key.name] for key in keys]
        table, seq_ptr = (np.asarray(tensors[0].buffer(index)).view(np.uint32) for index in (1, 2))
        ids = page_ids(table, seq_ptr, sequence)
        return [gather(pool_of(tensor), ids, num_tokens) for tensor in tensors]

    def model(self, place: Place) -> str | None:
        """Return it from the key-value section."""
        return str(hurray.load_kv(str(place.path(NAME)))["model"])


def paged(key: Key, pool: Array, cache: Cache) -> hurray.Tensor:
    """Make a tensor; from Python pyhurray takes buffers of several as ``bytes`` only."""
    num_pages, page_size = pool.shape[:2]
    layout = hurray.BlockPagedLayout(
        page_size=page_size,
        num_pages=num_pages,
        paged_axis=0,
        num_seqs=len(cache.seq_lens),
        kv_role=key.role,
        layer_index=key.layer,
    )
    shape = [len(cache.block_table) * page_size, *pool.shape[2:]]
    tables = [cache.block_table.tobytes(), cache.seq_ptr.tobytes()]
    return hurray.Tensor(pool.tobytes(), hurray.bfloat16, shape, aux_buffers=tables, layout=layout)


def pool_of(tensor: hurray.Tensor) -> Array:
    """Return the pages where pyhurray has them."""
    layout = tensor.layout
    pool: Array = np.asarray(tensor.buffer(0)).view(np.uint16)
    return pool.reshape(layout.num_pages, layout.page_size, *tensor.shape[1:])


if __name__ == "__main__":
    serve(Hrry())
