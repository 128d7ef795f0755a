"""Fuzz, and keep what was found: ``python -m tests.fuzz --help``. Seeds, finds and crashes lie in ``.fuzz/``."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.all_targets import CORPORA, TARGETS, keep, kept

WORK = Path(__file__).parents[2] / ".fuzz"
#: One input may take this long, and so much memory in all: libFuzzer's own watch over what never comes back.
TIMEOUT_SECONDS, RSS_LIMIT_MB = 30, 3000
MAX_INPUT_BYTES = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("what", choices=("run", "keep", "replay"))
    parser.add_argument("names", nargs="*", metavar="target", help=f"of {', '.join(TARGETS)}; all of them by default")
    parser.add_argument("--seconds", type=int, default=300, help="for each target (default 300)")
    options = parser.parse_intermixed_args(arguments)
    names = options.names or list(TARGETS)
    unknown = sorted(set(names) - set(TARGETS))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}")
    work = {"run": lambda name: run(name, options.seconds), "keep": minimize, "replay": replay}[options.what]
    return max([work(name) for name in names])


def folder_of(name: str) -> Path:
    """Return a target's folder of inputs, with all seeds and kept ones in it."""
    folder = WORK / name / "inputs"
    folder.mkdir(parents=True, exist_ok=True)
    for data in (*TARGETS[name].seeds(), *kept(name)):
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    return folder


def run(name: str, seconds: int) -> int:
    """Fuzz a target; what breaks it is written beside its inputs."""
    print(f"== {name}, {seconds} s", flush=True)
    return _libfuzzer(name, str(folder_of(name)), f"-max_total_time={seconds}", "-print_final_stats=1")


def minimize(name: str) -> int:
    """Keep of a target's inputs what reaches an edge that the seeds do not reach."""
    inputs, chosen = WORK / name / "inputs", WORK / name / "chosen"
    shutil.rmtree(chosen, ignore_errors=True)
    chosen.mkdir(parents=True)
    seeds = set(TARGETS[name].seeds())
    for data in seeds:
        (chosen / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    # Edges only: libFuzzer's features count how often an edge was passed too, which keeps ten times as much.
    failed = _libfuzzer(name, "-merge=1", "-use_counters=0", str(chosen), str(inputs))
    if not failed:
        CORPORA.mkdir(exist_ok=True)
        keep(name, {path.read_bytes() for path in chosen.iterdir()} - seeds)
        print(f"{name}: {len(kept(name))} kept beside {len(seeds)} seeds")
    return failed


def replay(name: str) -> int:
    """Run every seed and kept input in this process, which is how coverage is measured."""
    failed = 0
    for data in (*TARGETS[name].seeds(), *kept(name)):
        try:
            TARGETS[name].run(data)
        except Exception:  # noqa: BLE001 - whatever it is, it is reported with its input
            failed = 1
            print(f"{name} {data.hex()}\n{traceback.format_exc()}")
    return failed


def _libfuzzer(name: str, *arguments: str) -> int:
    command = [sys.executable, "-m", "tests.fuzz.engine", name, *arguments, f"-timeout={TIMEOUT_SECONDS}"]
    command += [f"-rss_limit_mb={RSS_LIMIT_MB}", f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={WORK / name}/"]
    return min(subprocess.run(command, check=False).returncode, 1) and 1


if __name__ == "__main__":
    sys.exit(main())
