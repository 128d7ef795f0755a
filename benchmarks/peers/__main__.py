"""Measure every peer on the same work, and write the tables and the picture of docs/benchmarks.

``python -m benchmarks.peers [NAME …] [--quick] [--rounds N] [--only local|s3] [--write FOLDER]``;
``HURRAY_BENCH_CACHE`` names another cache than the one the repository ships.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import abilities, measuring, results, tables
from benchmarks.peers.cache import tile
from benchmarks.peers.contenders import BY_NAME, CONTENDERS
from benchmarks.peers.environments import ROOT
from benchmarks.peers.places import LocalPlaces, object_places

SAMPLE = ROOT / "examples" / "data" / "smollm2_small.npz"
MIB = 1 << 20
FULL_BYTES, QUICK_BYTES, SMALL_BYTES = 512 * MIB, 32 * MIB, 4 * MIB
#: Seconds after which a contender's work is not repeated.
LIMIT_S = 10.0
#: Seconds for the rounds at each kind of place; all of it together takes twelve minutes at most on an idle machine.
BUDGET_S = {"local": 120.0, "s3": 270.0}


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BY_NAME)} (all by default)")
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the size, two rounds")
    parser.add_argument("--rounds", type=int, help="alternating rounds (5, quick 2)")
    parser.add_argument("--only", choices=("local", "s3"), help="one kind of place")
    parser.add_argument("--folder", type=Path, help="where local files go (the system's folder for temporary ones)")
    parser.add_argument("--here", action="store_true", help="all in the environment of this program, which has to do")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write peers.json, tables and picture there")
    parser.add_argument("--render", type=Path, metavar="FOLDER", help="measure nothing: tables and picture anew")
    options = parser.parse_args(arguments)
    # Whoever ends it gets the server ended and the files removed, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    unknown = sorted(set(options.names) - set(BY_NAME))
    if unknown:
        parser.error(f"no peer {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    folder = options.render or options.write
    document = results.load(options.render / "peers.json") if options.render else run(options)
    if folder:
        from benchmarks.peers import picture

        results.save(document, folder / "peers.json")
        tables.renew(document, folder / "peers.md")
        picture.draw(document, folder / "peers.svg")
    print(tables.all_of(document))


def run(options: argparse.Namespace) -> results.Document:
    """Make the input, measure at both kinds of place, and try what each peer can express."""
    contenders = [contender for contender in CONTENDERS if not options.names or contender.name in options.names]
    if options.here:
        contenders = [contender.in_this_environment() for contender in contenders]
    source = Path(os.environ.get("HURRAY_BENCH_CACHE", SAMPLE))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        (folder / "files").mkdir()
        plan = measuring.Plan(
            contenders=contenders,
            cache=folder / "cache",
            warm_up=folder / "small",
            rounds=options.rounds or (2 if options.quick else 5),
            limit_s=LIMIT_S,
            budget_s=BUDGET_S,
            repeats=tile(source, folder / "cache", QUICK_BYTES if options.quick else FULL_BYTES),
        )
        tile(source, plan.warm_up, SMALL_BYTES)
        local = LocalPlaces(folder / "files")
        figures = []
        if options.only != "s3":
            figures += measuring.measure(plan, local)
        if options.only != "local":
            with object_places() as places:
                figures += measuring.measure(plan, places)
        return results.document_of(plan, figures, abilities.tried(contenders, plan.warm_up, local))


if __name__ == "__main__":
    main()
