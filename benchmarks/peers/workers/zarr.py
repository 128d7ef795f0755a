"""Zarr 3: a group of arrays in chunks of pages, shuffled and compressed with zstd, a shard per array.

A chunk has a CRC, as a user who cares for what comes back would ask for; it costs little.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.storage import LocalStore, ObjectStore

from benchmarks.peers.cache import MODEL, Array, Cache, Key, gather, page_ids
from benchmarks.peers.protocol import Peer, Place, serve

#: Smaller chunks are read faster in part, but compress worse and cost Python for each.
CHUNK_PAGES = 128


class Zarr(Peer):
    """A consolidated group; its own store over obstore."""

    def versions(self) -> dict[str, str]:
        """Return zarr's and that of the codecs."""
        return {name: version(name) for name in ("zarr", "numcodecs")}

    def write(self, place: Place, cache: Cache) -> None:
        """Write array after array."""
        group = zarr.create_group(store(place), attributes={"model": MODEL})
        for name, array in cache.tables.items():
            group.create_array(name, data=np.array(array))
        for key, pool in cache.pools.items():
            chunk = (CHUNK_PAGES, *pool.shape[1:])
            shard = (-(-len(pool) // CHUNK_PAGES) * CHUNK_PAGES, *pool.shape[1:])
            block_bytes = CHUNK_PAGES * pool[0].nbytes
            # One block per chunk: with Blosc's own choice at this level it compresses to 82 % instead of 75 %.
            codec = BloscCodec(cname="zstd", clevel=1, shuffle="shuffle", typesize=2, blocksize=block_bytes)
            array = group.create_array(
                key.name,
                shape=pool.shape,
                dtype=pool.dtype,
                chunks=chunk,
                shards=shard,
                compressors=[codec, Crc32cCodec()],
            )
            array[...] = pool
        zarr.consolidate_metadata(group.store)

    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Read whole arrays."""
        group = opened(place)
        return [group[key.name][...] for key in keys]

    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Read the chunks that have pages of it: as one slice, which Zarr is quicker at than at picking pages."""
        group = opened(place)
        ids = page_ids(group["block_table"][...], group["seq_ptr"][...], sequence)
        num_tokens = int(group["seq_lens"][sequence])
        first, last = int(ids.min()), int(ids.max())
        return [gather(group[key.name][first : last + 1], ids - first, num_tokens) for key in keys]

    def model(self, place: Place) -> str | None:
        """Return it from the group's attributes."""
        return str(opened(place).attrs["model"])


def opened(place: Place) -> Any:
    """Open the group; one object says what all arrays are."""
    return zarr.open_consolidated(store(place), zarr_format=3, mode="r")


def store(place: Place) -> Any:
    """Return where the group lies."""
    if place.is_remote:
        from benchmarks.peers.workers import objects

        return ObjectStore(objects.store(place))
    return LocalStore(place.folder)


if __name__ == "__main__":
    serve(Zarr())
