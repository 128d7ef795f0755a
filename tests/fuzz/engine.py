"""Run one target under libFuzzer: ``python -m tests.fuzz.engine NAME [what libFuzzer takes]``; needs atheris."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["hurray_arrow"]):
    from tests.fuzz.all_targets import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target.run)
    atheris.Fuzz()
