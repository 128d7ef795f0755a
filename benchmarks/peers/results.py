"""Everything that was measured, as one document of plain values: what is kept, and what tables are made of."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.cache import Cache
from benchmarks.peers.measuring import Figures, Plan, sequence_of

FORMAT = 1
Document = dict[str, Any]


def document_of(plan: Plan, figures: Sequence[Figures], tried: Sequence[Mapping[str, Any]]) -> Document:
    """Put it together; times in seconds, sizes in bytes."""
    places = list(dict.fromkeys(of.place for of in figures))
    document = {
        "format": FORMAT,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine(),
        "input": described(Cache(plan.cache), repeats=plan.repeats),
        "rounds": {place: max(len(of.seconds) for of in figures if of.place == place) for place in places},
        "contenders": {
            contender.name: {"files": contender.files, "ours": contender.is_ours} for contender in plan.contenders
        },
        "figures": [asdict(found) for found in figures],
        "tried": {str(found["contender"]): dict(found) for found in tried},
    }
    return {name: rounded(value) for name, value in document.items()}


def machine() -> dict[str, Any]:
    """Return the class of the machine, and nothing by which it could be found."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processors": os.cpu_count(),
        "memory_gib": round(memory_bytes / 2**30),
        "python": platform.python_version(),
    }


def described(cache: Cache, *, repeats: bool) -> dict[str, Any]:
    """Return what the input is."""
    pool = cache.pools[cache.keys[0]]
    sequence = sequence_of(cache)
    return {
        "tensors": len(cache.keys),
        "pool_bytes": sum(pool.nbytes for pool in cache.pools.values()),
        "pages": len(pool),
        "page_shape": list(pool.shape[1:]),
        "page_bytes": pool[0].nbytes,
        "sequences": len(cache.seq_lens),
        "sequence_pages": len(cache.page_ids(sequence)),
        "sequence_tokens": int(cache.seq_lens[sequence]),
        # Else a compressor may find a page of a tensor a second time, which no real cache would offer.
        "repeats": repeats,
    }


def figures_of(document: Document) -> dict[tuple[str, str, str], Figures]:
    """Return the figures by contender, place and work."""
    found = (Figures(**figures) for figures in document["figures"])
    return {(figures.contender, figures.place, figures.work): figures for figures in found}


def save(document: Document, path: Path) -> None:
    """Keep it."""
    path.write_text(json.dumps(document, indent=1) + "\n")


def rounded(value: Any) -> Any:
    """Return plain values with times to the microsecond."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def load(path: Path) -> Document:
    """Return what was kept.

    Raises
    ------
    ValueError
        It has another format.
    """
    document: Document = json.loads(path.read_text())
    if document["format"] != FORMAT:
        raise ValueError(f"{path.name}: format {document['format']!r}, expected {FORMAT}")
    return document
