"""Fuzz, and keep what was found: ``python -m tests.fuzz --help``. Seeds, finds and crashes lie in ``.fuzz/``."""

from __future__ import annotations

import argparse
import hashlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import branches
from tests.fuzz.all_targets import CORPORA, TARGETS, keep, kept

WORK = Path(__file__).parents[2] / ".fuzz"
#: One input may take this long, and so much memory in all: libFuzzer's own watch over what never comes back.
TIMEOUT_SECONDS, RSS_LIMIT_MB = 30, 3000
MAX_INPUT_BYTES = 4096
_EDGES = re.compile(r"\bcov: (\d+)")
#: What nobody wants to read: which modules are instrumented, which words were used.
_NOISE = ("INFO: Instrumenting", '"', "#####")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("what", choices=("run", "keep", "replay", "coverage"))
    parser.add_argument("names", nargs="*", metavar="target", help=f"of {', '.join(TARGETS)}; all of them by default")
    parser.add_argument("--seconds", type=int, default=300, help="for each target, at most (default 300)")
    parser.add_argument("--quiet", type=int, metavar="SECONDS", help="stop a target that found no new edge for so long")
    parser.add_argument("--missed", action="store_true", help="with coverage: lines and branches that were missed")
    options = parser.parse_intermixed_args(arguments)
    names = options.names or list(TARGETS)
    unknown = sorted(set(names) - set(TARGETS))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}")
    if options.what == "coverage":
        return show_coverage(names, missed=options.missed)
    how = {"run": lambda name: run(name, options.seconds, options.quiet), "keep": minimize, "replay": replay}
    work = how[options.what]
    return max([work(name) for name in names])


def folder_of(name: str) -> Path:
    """Return a target's folder of inputs, with all seeds and kept ones in it."""
    folder = WORK / name / "inputs"
    folder.mkdir(parents=True, exist_ok=True)
    for data in (*TARGETS[name].seeds(), *kept(name)):
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    return folder


def run(name: str, seconds: int, quiet_seconds: int | None = None) -> int:
    """Fuzz a target; what breaks it is written beside its inputs."""
    print(f"== {name}, {seconds} s", flush=True)
    command = _command(name, str(folder_of(name)), f"-max_total_time={seconds}", "-print_final_stats=1")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        found = _watch(process, quiet_seconds or seconds + TIMEOUT_SECONDS)
    print(f"{name}: {found}", flush=True)
    return 0 if found.ok else 1


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


def show_coverage(names: Sequence[str], *, missed: bool) -> int:
    """Print which branches of the decoders the seeds and kept inputs of some targets reach."""
    for line in branches.table(branches.measure(names, WORK / "coverage"), missed=missed):
        print(line)
    return 0


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


class Found(NamedTuple):
    """What a run came to."""

    ok: bool
    edges: int
    quiet_seconds: int
    last_line: str

    def __str__(self) -> str:
        how = "nothing broke" if self.ok else "SOMETHING BROKE, see above"
        return f"{self.edges} edges, no new one in the last {self.quiet_seconds} s; {how}; {self.last_line}"


def _watch(process: subprocess.Popen[str], quiet_seconds: int) -> Found:
    """Show what libFuzzer says; end it when no new edge came for so long."""
    edges, since, last, ended = 0, time.monotonic(), "", False
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read_lines, args=(process, lines), daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=1)
        except queue.Empty:
            line = ""
        if line is None:
            break
        found = _EDGES.search(line)
        if found and int(found[1]) > edges:
            edges, since = int(found[1]), time.monotonic()
        last = line.strip()[:100] if found else last
        if line and not line.startswith(_NOISE):
            print(line, end="", flush=True)
        if not ended and time.monotonic() - since > quiet_seconds:
            ended = True
            process.send_signal(signal.SIGINT)
    # libFuzzer ends by an error of its own kind when it is interrupted.
    return Found(ended or process.wait() == 0, edges, int(time.monotonic() - since), last)


def _read_lines(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    for line in process.stderr or ():
        lines.put(line)
    lines.put(None)


def _libfuzzer(name: str, *arguments: str) -> int:
    return min(subprocess.run(_command(name, *arguments), check=False).returncode, 1) and 1


def _command(name: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "tests.fuzz.engine", name, *arguments, f"-timeout={TIMEOUT_SECONDS}"]
    return [
        *command,
        *(f"-rss_limit_mb={RSS_LIMIT_MB}", f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={WORK / name}/"),
    ]


if __name__ == "__main__":
    sys.exit(main())
