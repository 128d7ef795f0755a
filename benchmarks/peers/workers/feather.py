"""pyarrow's Feather files: a column per tensor, a row per page; uncompressed, so that they can be mapped."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import feather
from pyarrow import fs as pafs

from benchmarks.peers.cache import Array, Cache, Key, gather
from benchmarks.peers.protocol import Peer, Place, serve
from benchmarks.peers.workers.tables import pages_of, pages_table, sequences_table

PAGES, SEQUENCES = "pages.feather", "sequences.feather"


class Feather(Peer):
    """Two tables: pages and sequences. Arrow's own client for S3."""

    def versions(self) -> dict[str, str]:
        """Return pyarrow's."""
        return {"pyarrow": pa.__version__}

    def write(self, place: Place, cache: Cache) -> None:
        """Write both tables."""
        for name, table in ((PAGES, pages_table(cache)), (SEQUENCES, sequences_table(cache))):
            if place.is_remote:
                with filesystem(place).open_output_stream(f"{place.bucket}/{name}") as out:
                    feather.write_feather(table, out, compression="uncompressed")
            else:
                feather.write_feather(table, place.path(name), compression="uncompressed")

    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Read some columns."""
        names = [key.name for key in keys]
        if place.is_remote:
            with filesystem(place).open_input_file(f"{place.bucket}/{PAGES}") as file:
                table = feather.read_table(file, columns=names)
        else:
            # All columns, where they lie in the mapping: asked for some, Arrow copies those.
            table = pa.ipc.open_file(pa.memory_map(str(place.path(PAGES)))).read_all()
        return [pages_of(table, name, table.schema) for name in names]

    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Take pages out of the mapped columns. From a store all columns have to come: they are one batch."""
        if place.is_remote:
            with filesystem(place).open_input_file(f"{place.bucket}/{SEQUENCES}") as file:
                sequences = feather.read_table(file)
        else:
            sequences = feather.read_table(place.path(SEQUENCES))
        ids = sequences["page_ids"][sequence].values.to_numpy()
        num_tokens = sequences["num_tokens"][sequence].as_py()
        return [gather(pool, ids, num_tokens) for pool in self.read(place, keys)]

    def model(self, place: Place) -> str | None:
        """Return it from the schema's metadata."""
        with pa.memory_map(str(place.path(PAGES))) as file:
            return str(pa.ipc.open_file(file).schema.metadata[b"model"].decode())

    def longest_by_sql(self, place: Place) -> int | None:
        """Ask DuckDB for it."""
        import duckdb

        sequences = feather.read_table(place.path(SEQUENCES))  # noqa: F841 - DuckDB finds it by its name
        [(longest,)] = duckdb.connect().execute("select max(num_tokens) from sequences").fetchall()
        return int(longest)


@functools.cache
def filesystem(place: Place) -> pafs.S3FileSystem:
    """Return the process's client."""
    return pafs.S3FileSystem(
        access_key=place.access_key,
        secret_key=place.secret_key,
        endpoint_override=place.endpoint.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
        # Its own three seconds without a byte are few while a whole object passes the proxy that counts.
        request_timeout=120,
    )


if __name__ == "__main__":
    serve(Feather())
