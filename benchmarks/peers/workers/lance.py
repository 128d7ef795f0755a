"""Lance: two datasets, of pages (a column per tensor, a row per page) and of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import lance
import numpy as np

from benchmarks.peers.cache import Array, Cache, Key, gather
from benchmarks.peers.protocol import Peer, Place, serve
from benchmarks.peers.workers.tables import pages_of, pages_table, sequences_table

PAGES, SEQUENCES = "pages.lance", "sequences.lance"


class Lance(Peer):
    """Rows can be taken by their numbers. Its own client for S3."""

    def versions(self) -> dict[str, str]:
        """Return Lance's, whose package is called pylance."""
        return {name: version(name) for name in ("pylance", "pyarrow")}

    def write(self, place: Place, cache: Cache) -> None:
        """Write both datasets."""
        for name, table in ((PAGES, pages_table(cache)), (SEQUENCES, sequences_table(cache))):
            lance.write_dataset(table, **where(place, name), data_storage_version="2.1")

    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Read some columns."""
        names = [key.name for key in keys]
        dataset = lance.dataset(**where(place, PAGES))
        table = dataset.to_table(columns=names)
        return [pages_of(table, name, dataset.schema) for name in names]

    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Take the rows of its pages."""
        [found] = lance.dataset(**where(place, SEQUENCES)).take([sequence]).to_pylist()
        names = [key.name for key in keys]
        ids = np.array(found["page_ids"])
        dataset = lance.dataset(**where(place, PAGES))
        rows = dataset.take(ids, columns=names)
        return [
            gather(pages_of(rows, name, dataset.schema), np.arange(len(ids)), found["num_tokens"]) for name in names
        ]

    def model(self, place: Place) -> str | None:
        """Return it from the schema's metadata."""
        return str(lance.dataset(**where(place, PAGES)).schema.metadata[b"model"].decode())

    def longest_by_sql(self, place: Place) -> int | None:
        """Ask Lance's own engine for it."""
        dataset = lance.dataset(**where(place, SEQUENCES))
        [batch] = dataset.sql("select max(num_tokens) as longest from dataset").build().to_batch_records()
        return int(batch["longest"][0].as_py())


def where(place: Place, name: str) -> dict[str, Any]:
    """Return what opening and writing are told."""
    if not place.is_remote:
        return {"uri": str(place.path(name))}
    options = {
        "aws_access_key_id": place.access_key,
        "aws_secret_access_key": place.secret_key,
        "aws_endpoint": place.endpoint,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    return {"uri": f"s3://{place.bucket}/{name}", "storage_options": options}


if __name__ == "__main__":
    serve(Lance())
