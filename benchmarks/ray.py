"""Ray Data: 64 snapshots in S3, two workers; requests and bytes counted at the server, and the workers' memory.

Run with ``python -m benchmarks ray`` (``--quick`` for a sixteenth of the sizes). Starts SeaweedFS and Ray on loopback.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# First, because it says how Ray is to be imported.
from tests.ray.cluster import running_ray, worker_peaks_bytes  # isort: skip

import hurray_arrow as ha
from benchmarks.measure import Count, Measurement, alternate
from benchmarks.share import FOLDER
from hurray_arrow.views import read_snapshots as read_in_threads
from tests.ray.bucket import arrow, counted, needed_bytes, write
from tests.stores.servers import s3_store

SNAPSHOTS, LAYERS, LAYER = 64, 4, 5
ASKED: dict[str, Any] = {"layer_index": LAYER, "values": "stats", "per_head": True, "columns": ["token", "norm"]}
#: Heads of this size make 4 MiB of a layer's keys.
DIMS = 332


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table; sizes are divided by ``scale``."""
    with s3_store() as store, running_ray() as roots, tempfile.TemporaryDirectory(dir=FOLDER) as name:
        folder = Path(name)
        dims = (max(DIMS // scale, 83),) * LAYERS
        urls = [url for part in range(8) for url in write(store, folder, _names(part), dims=dims)]
        yield from ray_results(store, folder, roots, urls)
        yield from thread_results(store, urls, rounds)


def _names(part: int) -> list[str]:
    return [f"many/{part}{number}.arrow" for number in range(SNAPSHOTS // 8)]


def ray_results(store: Any, folder: Path, roots: Any, urls: list[str]) -> Iterator[Count]:
    """Norms of one layer's keys by head, of all snapshots: against one of them alone, and what lies in the file."""
    from hurray_arrow.ray import read_snapshots

    with ha.open_snapshot(urls[0], **store.how) as snapshot:
        rows = snapshot.tokens(**ASKED).read_all().num_rows
    requests_each, _ = counted(store)
    store.proxy.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = arrow(read_snapshots(store.url("many/*.arrow"), "tokens", **store.how, **ASKED)).num_rows
    assert found == SNAPSHOTS * rows  # noqa: S101  the whole answer
    requests, received = counted(store)
    needed, size = SNAPSHOTS * needed_bytes(folder / "a.arrow", LAYER), SNAPSHOTS * store.raw.size(urls[0])
    what = f"Ray: one layer of {LAYERS} in {SNAPSHOTS} snapshots of {size // SNAPSHOTS >> 20} MiB, 2 workers"
    yield Count(what, f"{received / needed:.3f} of the bytes needed", "≤ 1.1")
    yield Count("… requests at the server, against one by one", f"{requests / SNAPSHOTS / requests_each:.3f}", "≤ 1.1")
    yield Count("… the largest worker", f"{max(worker_peaks_bytes(roots)) >> 20} MiB resident at most", "≤ 1 GiB")


def thread_results(store: Any, urls: list[str], rounds: int) -> Iterator[Measurement]:
    """Read the same in one process through four threads, against one snapshot after the other."""

    def ours() -> int:
        return sum(batch.num_rows for batch in read_in_threads(urls, "tokens", **store.how, **ASKED))

    def peer() -> int:
        rows = 0
        for url in urls:
            with ha.open_snapshot(url, **store.how) as snapshot:
                rows += sum(batch.num_rows for batch in snapshot.tokens(**ASKED))
        return rows

    assert ours() == peer()  # noqa: S101  the same answer
    ours_s, peer_s = alternate(ours, peer, rounds=min(rounds, 3))
    yield Measurement("… in one process, four threads", "one after the other", ours_s, peer_s, "—")
