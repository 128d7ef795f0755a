"""Every target by its name, with what it starts from: seeds made by its script, and the inputs that were kept.

A kept input lies in ``corpora/NAME.txt``, one line of hexadecimal digits each: it reached an edge that no seed reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.targets import (
    catalogues,
    containers,
    descriptors,
    documents,
    extensions,
    files,
    layouts,
    rewrites,
    sets,
    streams,
    tables,
)

CORPORA = Path(__file__).with_name("corpora")


class Target(NamedTuple):
    """A function that takes any bytes and raises where the library breaks a promise, and where to start."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    #: The modules whose branches it is there for; `branches.py` counts them.
    decoders: tuple[str, ...]


TARGETS: dict[str, Target] = {
    "descriptors": Target(
        descriptors.run,
        descriptors.seeds,
        ("_wire", "codec", "descriptor", "sections", "schemes", "elements", "packing", "quantization"),
    ),
    "extensions": Target(extensions.run, extensions.seeds, ("arrow/types", "arrow/page_class")),
    "metadata": Target(documents.run_metadata, documents.metadata_seeds, ("_json", "arrow/metadata")),
    "index": Target(documents.run_index, documents.index_seeds, ("snapshot/index",)),
    "layouts": Target(layouts.run, layouts.seeds, ("arrow/ipc_layout",)),
    "share": Target(
        files.run_share,
        files.seeds,
        (
            *("snapshot/tail", "snapshot/row_source", "snapshot/partial", "snapshot/checksums", "snapshot/groups"),
            *("snapshot/verification", "snapshot/expectations", "snapshot/entries", "invariants", "sequence_rules"),
        ),
    ),
    "archives": Target(
        files.run_archives,
        files.seeds,
        ("snapshot/archive_source", "snapshot/plane_sizes", "arrow/page_buffers", "arrow/planes"),
    ),
    "streams": Target(
        streams.run,
        streams.seeds,
        ("snapshot/stream_reader", "snapshot/pipes", "arrow/small_columns", "arrow/ipc_file"),
    ),
    "rewrites": Target(
        rewrites.run,
        rewrites.seeds,
        (
            *("snapshot/recovery", "arrow/rows", "arrow/tensor_rows", "arrow/facts", "arrow/windows"),
            *("arrow/convert", "arrow/capsules"),
        ),
    ),
    "sets": Target(sets.run, sets.seeds, ("snapshot/sets", "snapshot/set_members", "snapshot/set_metadata")),
    "catalogues": Target(catalogues.run, catalogues.seeds, ("catalog/document", "catalog/reader", "catalog/finder")),
    "tables": Target(
        tables.run,
        tables.seeds,
        (
            *("engines/tables", "engines/padded_batch", "engines/vllm", "engines/sglang", "engines/flashinfer"),
            *("engines/tensorrt_llm", "engines/lmcache", "engines/page_moves"),
        ),
    ),
    "containers": Target(
        containers.run, containers.seeds, ("engines/hurray", "engines/hurray_files", "engines/hurray_places")
    ),
}


def kept(name: str) -> list[bytes]:
    """Return the kept inputs of a target."""
    path = CORPORA / f"{name}.txt"
    return [bytes.fromhex(line) for line in path.read_text().split("\n") if line] if path.exists() else []


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """Write the kept inputs of a target, shortest first."""
    lines = [data.hex() for data in sorted(set(inputs), key=lambda data: (len(data), data))]
    (CORPORA / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines if line))
