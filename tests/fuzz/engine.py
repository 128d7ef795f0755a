"""Run one target under libFuzzer: ``python -m tests.fuzz.engine NAME [what libFuzzer takes]``; needs atheris."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["hurray_arrow"]):
    from tests.fuzz.all_targets import TARGETS

if __name__ == "__main__":
    _, name, *arguments = sys.argv
    # What libFuzzer starts again to merge inputs, through a shell: a module is no program.
    atheris.Setup([f"{sys.executable} -m tests.fuzz.engine {name}", *arguments], TARGETS[name].run)
    atheris.Fuzz()
