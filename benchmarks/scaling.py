"""How the cost of every operation grows with a snapshot: sequences, tensors, groups, pages and table entries.

Run with ``python -m benchmarks scaling`` (``--quick`` leaves the largest size out), which also draws
``docs/benchmarks/scaling.svg``. That nothing grows faster than linearly is asserted by counts, not by times, in
``tests/large/test_growth.py``, on the same cases.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import hurray_arrow as ha
from benchmarks.measure import Count
from benchmarks.share import FOLDER
from hurray_arrow import ops

PICTURE = Path(__file__).parents[1] / "docs" / "benchmarks" / "scaling.svg"
#: A time below this is that of a call, and says nothing about growth.
FLOOR_S = 0.002
#: Largest growth over the last decade that is still called linear: ten times, and room for caches and noise.
LINEAR = 15.0


@dataclass(frozen=True, slots=True)
class Case:
    """One snapshot of an axis, as tensors and in both profiles on disk."""

    tensors: list[ha.BlockPagedTensor]
    share: Path
    archive: Path
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def make(cls, axis: Axis, size: int, folder: Path) -> Case:
        """Write the snapshots of a size into a folder."""
        tensors, metadata = axis.make(size)
        case = cls(tensors, folder / f"{size}.share.arrow", folder / f"{size}.archive.arrow", metadata)
        case.write(case.share, "share")
        case.write(case.archive, "archive")
        return case

    def write(self, path: Path, profile: str) -> None:
        """Write the tensors."""
        ha.write_snapshot(path, self.tensors, metadata=self.metadata, profile=profile, overwrite=True)

    def view(self, name: str, *columns: str) -> int:
        """Consume some columns of a view; give its rows."""
        with ha.open_snapshot(self.share) as snapshot:
            return sum(len(batch) for batch in getattr(snapshot, name)(columns=columns or None))

    def read_sequences(self, path: Path, *, every: int = 0) -> int:
        """Read the last sequence by its place, or every so manieth by its id, of all tensors; give their number."""
        tensor = self.tensors[0]
        which: Any = list(tensor.sequences.ids or ())[::every] if every else tensor.num_seqs - 1
        layer_index = None if every else tensor.layer_index
        with ha.open_snapshot(path) as snapshot:
            return len(snapshot.read_sequences(which, layer_index=layer_index).tensors)


@dataclass(frozen=True, slots=True)
class Axis:
    """What grows: its sizes over three decades, and the tensors and metadata of a size."""

    name: str
    sizes: tuple[int, ...]
    make: Callable[[int], tuple[list[ha.BlockPagedTensor], dict[str, Any]]]


def _tensor(table: npt.NDArray[Any], seq_ptr: npt.NDArray[Any], **facts: Any) -> ha.BlockPagedTensor:
    num_pages, page_size = facts.pop("num_pages"), facts.pop("page_size")
    pool = (np.arange(num_pages * page_size * 8, dtype=np.uint32) >> 5).astype(np.uint16).view(np.float16)
    return ha.BlockPagedTensor.from_arrays(
        pool.reshape(num_pages, page_size, 1, 8), table.astype(np.uint32), seq_ptr.astype(np.uint32), **facts
    )


def of_sequences(count: int) -> tuple[list[ha.BlockPagedTensor], dict[str, Any]]:
    """Two tensors of many sequences: each has a page of its own, and one that it shares with nine others."""
    own = np.arange(count)
    table = np.stack([count + own // 10, own], axis=1).reshape(-1)
    facts = {
        "num_pages": count + -(-count // 10),
        "page_size": 4,
        "seq_lens": np.full(count, 7),
        "ids": [f"sequence-{number}" for number in range(count)],
        "token_ids": list(np.arange(7 * count, dtype=np.uint32).reshape(count, 7)),
        "layer_index": 0,
    }
    return [_tensor(table, np.arange(count + 1) * 2, kv_role=role, **facts) for role in ("key", "value")], {}


def of_tensors(count: int, *, own_tables: bool = False) -> tuple[list[ha.BlockPagedTensor], dict[str, Any]]:
    """Give many small tensors of one kv_group, or each with tables of its own, and metadata that list all of them."""
    tensors = []
    for number in range(count):
        last = (number % 37, number // 37) if own_tables else (2, 3)
        tensors.append(
            _tensor(
                np.array([0, 1, 0, *last]),
                np.array([0, 2, 4, 5]),
                num_pages=37,
                page_size=2,
                seq_lens=[4, 3, 1],
                ids=["a", "b", "c"],
                kv_role="key",
                layer_index=number,
                layer_name=f"layers.{number}",
            )
        )
    names = [[f"layers.{number}"] for number in range(count)] if own_tables else [[f"layers.{n}" for n in range(count)]]
    return tensors, {"groups": [{"kind": "full", "layer_names": each, "components": ["values"]} for each in names]}


def of_pages(count: int) -> tuple[list[ha.BlockPagedTensor], dict[str, Any]]:
    """One tensor of one sequence that has many pages of 64 bytes."""
    facts = {"seq_lens": [4 * count], "ids": ["a"], "kv_role": "key", "layer_index": 0}
    return [_tensor(np.arange(count), np.array([0, count]), num_pages=count, page_size=4, **facts)], {}


def of_entries(count: int) -> tuple[list[ha.BlockPagedTensor], dict[str, Any]]:
    """One tensor of a thousand pages, to which a hundred sequences refer again and again."""
    table = np.random.default_rng(3).integers(0, 1000, count)
    ids = [f"sequence-{number}" for number in range(100)]
    facts = {"seq_lens": np.full(100, count // 100), "ids": ids, "kv_role": "key", "layer_index": 0}
    return [_tensor(table, np.arange(101) * (count // 100), num_pages=1000, page_size=1, **facts)], {}


AXES = (
    Axis("sequences", (100, 1000, 10_000, 100_000), of_sequences),
    Axis("tensors", (1, 10, 100, 1000), of_tensors),
    Axis("kv_groups", (1, 10, 100, 1000), lambda count: of_tensors(count, own_tables=True)),
    Axis("pages", (1000, 10_000, 100_000, 1_000_000), of_pages),
    Axis("table entries", (10_000, 100_000, 1_000_000, 10_000_000), of_entries),
)


def _opened(work: Callable[[ha.Snapshot], object]) -> Callable[[Case], object]:
    def run(case: Case) -> object:
        with ha.open_snapshot(case.share) as snapshot:
            return work(snapshot)

    return run


#: What is done with a snapshot. Each opens it anew, so that nothing is remembered from the time before.
WORKS: dict[str, Callable[[Case], object]] = {
    "write": lambda case: case.write(case.share, "share"),
    "write archive": lambda case: case.write(case.archive, "archive"),
    "open and list": _opened(lambda snapshot: len(snapshot.select(kv_role="key"))),
    "read one tensor": _opened(lambda snapshot: snapshot.read(layer_index=0, kv_role="key")),
    "read all": _opened(lambda snapshot: len(list(snapshot.iter_tensors()))),
    "read one sequence": lambda case: case.read_sequences(case.share),
    "read one sequence, archive": lambda case: case.read_sequences(case.archive),
    "read every third by id": lambda case: case.read_sequences(case.share, every=3),
    "ops.select of one sequence": lambda case: ops.select(case.tensors[0], case.tensors[0].num_seqs - 1),
    "verify": _opened(lambda snapshot: snapshot.verify()),
    "validate": lambda case: [tensor.validate() for tensor in case.tensors],
    "view tensors": lambda case: case.view("tensors"),
    "view sequences": lambda case: case.view("sequences", "sequence_id", "num_tokens", "page_ids", "shared_pages"),
    "view pages": lambda case: case.view("pages"),
    "view tokens": lambda case: case.view("tokens", "sequence_id", "token_id", "page_id"),
}


def measured(axis: Axis, sizes: tuple[int, ...], rounds: int) -> dict[str, list[float]]:
    """Return the least processor time of every work at every size, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in WORKS}
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        for size in sizes:
            case = Case.make(axis, size, Path(folder))
            for name, work in WORKS.items():
                times[name].append(min(_seconds(work, case) for _ in range(rounds)))
    return times


def _seconds(work: Callable[[Case], object], case: Case) -> float:
    # Processor time of all threads: what other processes do at the same time has no part in it.
    start = time.process_time()
    work(case)
    return time.process_time() - start


def results(*, scale: int, rounds: int) -> Iterator[Count]:
    """Yield the lines of the table, and draw the picture when all sizes were measured."""
    found: dict[str, tuple[tuple[int, ...], dict[str, list[float]]]] = {}
    for axis in AXES:
        sizes = axis.sizes if scale == 1 else axis.sizes[:-1]
        times = measured(axis, sizes, max(1, rounds // 2))
        found[axis.name] = sizes, times
        for name, seconds in times.items():
            steps = " ".join(f"{1e3 * each:9.2f}" for each in seconds)
            growth = seconds[-1] / max(seconds[-2], FLOOR_S)
            what = f"{axis.name} {sizes[0]:,} … {sizes[-1]:,}: {name}"
            yield Count(what, f"{steps} ms", f"last decade x{growth:.1f}, ≤ {LINEAR:.0f}")
    if scale == 1:
        draw(found)


def draw(found: dict[str, tuple[tuple[int, ...], dict[str, list[float]]]]) -> None:
    """Draw time against size, a panel for each axis, beside lines that grow linearly."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "scaling", "svg.fonttype": "none"})
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(4 * len(found), 5), sharey=True, layout="constrained")
    most = max(max(seconds) for _, times in found.values() for seconds in times.values())
    for panel, (axis, (sizes, times)) in zip(panels, found.items(), strict=True):
        for exponent in range(-6, 3):
            ends = [10.0**exponent * size / sizes[-1] for size in (sizes[0], sizes[-1])]
            panel.plot([sizes[0], sizes[-1]], ends, color="0.85", linewidth=0.8, zorder=0)
        for number, (name, seconds) in enumerate(times.items()):
            style = ("-", "--", ":")[number // 10 % 3]
            panel.plot(sizes, seconds, style, marker=".", color=f"C{number % 10}", label=name)
        panel.set(xscale="log", yscale="log", title=axis, xlabel=f"number of {axis}", ylim=(1e-5, 2 * most))
    panels[0].set_ylabel("processor seconds; grey lines grow linearly")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})
    plt.close(figure)
