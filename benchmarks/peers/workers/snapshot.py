"""Snapshots as this package writes them, in the profiles ``share`` and ``archive``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

import hurray_arrow as ha
from benchmarks.peers.cache import MODEL, Array, Cache, Key
from benchmarks.peers.protocol import Peer, Place, serve

NAME = "cache.arrow"


class Snapshot(Peer):
    """Snapshots of one profile.

    Parameters
    ----------
    profile
        ``share`` or ``archive``.
    """

    def __init__(self, profile: str) -> None:
        self.profile = profile

    def versions(self) -> dict[str, str]:
        """Return ours and Arrow's."""
        return {name: version(name) for name in ("hurray-arrow", "pyarrow")}

    def write(self, place: Place, cache: Cache) -> None:
        """Write one file, which is there when all of it is; waits for the disk itself."""
        tensors = [
            ha.BlockPagedTensor.from_arrays(
                pool,
                cache.block_table,
                cache.seq_ptr,
                seq_lens=cache.seq_lens,
                element_type="bfloat16",
                kv_role=key.role,
                layer_index=key.layer,
            )
            for key, pool in cache.pools.items()
        ]
        ha.write_snapshot(**where(place), tensors=tensors, profile=self.profile, metadata={"model": {"name": MODEL}})

    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Read some tensors: views of the mapping where there is one."""
        return self._read(place, keys, verify=False)

    def verify(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """As read, and compare every page with its checksum."""
        return self._read(place, keys, verify=True)

    def _read(self, place: Place, keys: Sequence[Key], *, verify: bool) -> Sequence[Array]:
        with ha.open_snapshot(**where(place)) as snapshot:
            layers = sorted({key.layer for key in keys})
            roles = sorted({key.role for key in keys})
            found = {
                key_of(tensor): bits(tensor.page_pool)
                for tensor in snapshot.iter_tensors(layer_index=layers, kv_role=roles, verify=verify)
            }
        return [found[key] for key in keys]

    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Fetch the pages that it needs; those of a mapped file are there, and only gathered."""
        with ha.open_snapshot(**where(place)) as snapshot:
            if place.is_remote or self.profile == "archive":
                partial = snapshot.read_sequences(sequence)
                found = {key_of(tensor): bits(tensor.gather(0)) for tensor in partial.tensors}
            else:
                found = {key_of(tensor): bits(tensor.gather(sequence)) for tensor in snapshot.iter_tensors()}
        return [found[key] for key in keys]

    def model(self, place: Place) -> str | None:
        """Return the model's name in the snapshot's metadata."""
        with ha.open_snapshot(**where(place)) as snapshot:
            return str(snapshot.metadata["model"]["name"])

    def refuses(self, place: Place, model: str) -> bool:
        """Open it for another model."""
        try:
            ha.open_snapshot(**where(place), expect={"model.name": model}).close()
        except ha.SnapshotMismatchError:
            return True
        return False

    def longest_by_sql(self, place: Place) -> int | None:
        """Ask DuckDB for it."""
        import duckdb

        with ha.open_snapshot(**where(place)) as snapshot:
            sequences = snapshot.sequences()  # noqa: F841 - DuckDB finds it by its name
            [(longest,)] = duckdb.connect().execute("select max(num_tokens) from sequences").fetchall()
        return int(longest)


def key_of(tensor: ha.BlockPagedTensor) -> Key:
    """Return which tensor it is."""
    return Key(tensor.layer_index or 0, tensor.kv_role)


def bits(array: Array) -> Array:
    """Return bfloat16 as the bits that the others give."""
    return array.view(np.uint16)


def where(place: Place) -> dict[str, Any]:
    """Return what opening and writing are told."""
    if place.is_remote:
        return {"path": f"s3://{place.bucket}/{NAME}", "filesystem": filesystem(place)}
    return {"path": place.path(NAME)}


@functools.cache
def filesystem(place: Place) -> Any:
    """Return the process's client: obstore's, as the other peers have."""
    from obstore.fsspec import FsspecStore

    return FsspecStore(
        "s3",
        endpoint=place.endpoint,
        access_key_id=place.access_key,
        secret_access_key=place.secret_key,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


if __name__ == "__main__":
    serve(Snapshot(sys.argv[1]))
