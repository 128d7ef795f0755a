"""Run the measurements: ``python -m benchmarks [NAME …] [--quick] [--rounds N]``."""

from __future__ import annotations

import argparse
import importlib
import platform

import numpy as np
import pyarrow as pa

MODULES = (
    "share",
    "handover",
    "archive",
    "stores",
    "ops",
    "engines",
    "views",
    "catalog",
    "ray",
    "imports",
    "scaling",
    "large",
)
#: These need the environment of an engine, so they run only when they are named.
ENGINE_MODULES = ("real_model",)


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"some of {', '.join(MODULES)} (all by default), {', '.join(ENGINE_MODULES)}",
    )
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the sizes")
    parser.add_argument("--rounds", type=int, default=7, help="alternating rounds of each pair")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - {*MODULES, *ENGINE_MODULES})
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join((*MODULES, *ENGINE_MODULES))}")
    print(f"python {platform.python_version()}, numpy {np.__version__}, pyarrow {pa.__version__}, {platform.machine()}")
    for name in arguments.names or MODULES:
        module = importlib.import_module(f"benchmarks.{name}")
        for line in module.results(scale=16 if arguments.quick else 1, rounds=arguments.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
