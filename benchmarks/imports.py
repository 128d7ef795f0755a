"""How long an import takes beside that of the packages that it needs, and how long the command takes to start.

Run with ``python -m benchmarks imports``. What an import loads, which decides its time, is asserted in
``tests/unit/test_front_door.py``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measure import Count, Measurement, alternate

NEEDED = "import numpy, pyarrow, fsspec"
OURS = "import hurray_arrow"
COMMAND = "import sys; sys.argv = ['hurray-arrow', '--version']; from hurray_arrow.cli import main; main()"
#: Processes are short and machines are busy.
ROUNDS = 3
#: Without it an installed package is not compiled anew every time; the first, unmeasured turn leaves what is compiled.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table."""
    del scale
    rounds *= ROUNDS
    ours_s, peer_s = alternate(lambda: _run(OURS), lambda: _run(NEEDED), rounds=rounds)
    yield Measurement(OURS, NEEDED, ours_s, peer_s, "time ≤ 1.3")
    turns = [(_processor_s(OURS), _processor_s(NEEDED)) for _ in range(rounds)]
    ours_s, peer_s = (statistics.median(each) for each in zip(*turns, strict=True))
    yield Measurement(f"{OURS}, processor time", NEEDED, ours_s, peer_s, "time ≤ 1.3")
    ours_s, peer_s = alternate(lambda: _run(COMMAND), lambda: _run(NEEDED), rounds=rounds)
    yield Measurement("hurray-arrow --version", NEEDED, ours_s, peer_s, "what Tab waits for")


def _run(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)


def _processor_s(program: str) -> float:
    """Return what a process took of the processors, whatever else they had to do."""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, program)
    return usage.ru_utime + usage.ru_stime
