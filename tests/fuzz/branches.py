"""Which branches of the decoders the fuzz targets reach by themselves: seeds and kept inputs, under coverage.py.

A module counts where it interprets bytes or tables from outside: what targets name as their ``decoders``. Functions in
one that only write, or take what callers say, are listed in ``NOT_DECODING`` by name; nothing in the package is marked
for this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.fuzz.all_targets import TARGETS

ROOT = Path(__file__).parents[2]
PACKAGE = "hurray_arrow"

#: Functions by module that write, or take what callers say, and interpret nothing from outside.
NOT_DECODING: dict[str, tuple[str, ...]] = {
    # Element types by the names and dtypes that callers give, and writing packed values.
    "elements": ("_tag", "ElementType.pack"),
    "packing": ("pack_codes", "_pack6"),
    "arrow/metadata": ("new_metadata", "schema_metadata", "package_version"),
    "arrow/types": ("register", "unregister"),
    "arrow/facts": ("sequences_array", "_lengths", "_strings", "_ragged", "_media"),
    "arrow/convert": ("to_record_batch",),
    "arrow/planes": ("to_planes",),
    # Selectors are the caller's.
    "snapshot/entries": (
        *("select_entries", "exact_selectors", "one_entry", "held_values", "_listed", "_values", "_roles"),
    ),
    "snapshot/groups": ("Groups.__init__", "Groups.place", "Groups.keep", "_tables_xxh3", "_copied", "same_tables"),
    "snapshot/pipes": (
        "PipeSink.__init__",
        "PipeSink.write",
        "PipeSink.drain",
        "PipeSink.flush",
        "PipeSink._write_all",
    ),
    "snapshot/sets": ("member_name", "is_glob", "find_snapshots"),
    # What pyhurray gets, and what imports it.
    "engines/hurray": (
        *("HurrayStatusError.__init__", "tensor_capsule", "imported_hurray", "_handed_out"),
        *("_Library.__init__", "_Library.push", "_Library.new_capsule"),
    ),
    "engines/hurray_files": ("write_container", "_named", "_facts_text", "_plain", "_plain_value"),
    # Values moved by columns that were looked at before, for torch's caches and for LMCache.
    "engines/padded_batch": ("column_rows", "column_rows.rows", "batch_lengths", "fill_columns"),
    "engines/lmcache": ("import_cache", "_rows", "_check_alike"),
    "engines/page_moves": tuple(
        f"PageMoves.{name}" for name in ("of_whole_pages", "copies", "_apart", "_write_pieces")
    ),
}


class Counts(NamedTuple):
    """What was reached of a module's decoding functions."""

    module: str
    statements: int
    missed_lines: tuple[int, ...]
    branches: int
    missed_branches: tuple[tuple[int, int], ...]

    @property
    def percent(self) -> float:
        """Branches reached; of a module without branches, all."""
        return 100.0 * (1 - len(self.missed_branches) / self.branches) if self.branches else 100.0


def measure(names: Iterable[str], folder: Path) -> list[Counts]:
    """Replay targets, each in a process of its own, and count what they reach together of their decoders.

    Raises
    ------
    RuntimeError
        An input breaks a target.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*"):
        old.unlink()
    names = list(names)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = list(pool.map(lambda name: _replay(name, folder), names))
    broken = [name for name, code in zip(names, codes, strict=True) if code]
    if broken:
        raise RuntimeError(f"inputs break {', '.join(broken)}: python -m tests.fuzz replay {' '.join(broken)}")
    data, report = folder / "all", folder / "all.json"
    found = [str(folder / name) for name in names]
    _coverage("combine", f"--data-file={data}", "--keep", "-q", *found)
    _coverage("json", f"--data-file={data}", "-q", "-o", str(report))
    files = json.loads(report.read_text())["files"]
    modules = dict.fromkeys(module for name in names for module in TARGETS[name].decoders)
    return [_count(module, files[f"{PACKAGE}/{module}.py"]) for module in modules]


def table(counts: list[Counts], *, missed: bool = False) -> Iterator[str]:
    """Yield the lines of a Markdown table, and the branches that were missed if asked."""
    yield "| module | statements | branches | reached |"
    yield "|---|--:|--:|--:|"
    for each in counts:
        yield f"| `{each.module}` | {each.statements} | {each.branches} | {each.percent:.1f} % |"
    statements, branches = (sum(getattr(each, name) for each in counts) for name in ("statements", "branches"))
    yield f"| **all** | {statements} | {branches} | {percent(counts):.1f} % |"
    for each in counts if missed else ():
        if each.missed_branches or each.missed_lines:
            missed_branches = " ".join(f"{start}->{end if end > 0 else 'exit'}" for start, end in each.missed_branches)
            yield f"{each.module}: lines {' '.join(map(str, each.missed_lines))}; branches {missed_branches}"


def percent(counts: list[Counts]) -> float:
    """Return the share of all branches that were reached."""
    return 100.0 * (1 - sum(len(c.missed_branches) for c in counts) / sum(c.branches for c in counts))


def _replay(name: str, folder: Path) -> int:
    command = ["run", f"--data-file={folder / name}", "-m", "tests.fuzz", "replay", name]
    return _coverage(*command, check=False)


def _coverage(*arguments: str, check: bool = True) -> int:
    return subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, check=check).returncode


def _count(module: str, found: dict[str, Any]) -> Counts:
    left_out = NOT_DECODING.get(module, ())
    unknown = set(left_out) - set(found["functions"])
    if unknown:
        raise LookupError(f"{module} has no functions {sorted(unknown)}")
    regions = [region for name, region in found["functions"].items() if name not in left_out]
    return Counts(
        module,
        sum(region["summary"]["num_statements"] for region in regions),
        tuple(sorted(line for region in regions for line in region["missing_lines"])),
        sum(region["summary"]["num_branches"] for region in regions),
        tuple(sorted((start, end) for region in regions for start, end in region["missing_branches"])),
    )
