"""The driver's side of a worker: a process that is asked, and answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.cache import Key
from benchmarks.peers.contenders import Contender
from benchmarks.peers.environments import ROOT
from benchmarks.peers.protocol import Place


class PeerError(RuntimeError):
    """A peer's library raised; the text has its type and its message."""


class Worker(AbstractContextManager["Worker"]):
    """A contender's process; ends with the block.

    Parameters
    ----------
    contender
        Who.
    python
        The interpreter of its environment.
    """

    def __init__(self, contender: Contender, python: Path) -> None:
        self.contender = contender
        command = [str(python), "-W", "ignore", "-m", f"benchmarks.peers.workers.{contender.worker}"]
        self._process = subprocess.Popen(
            [*command, *filter(None, [contender.argument])],
            cwd=ROOT,
            env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def ask(self, verb: str, place: Place | None = None, keys: Sequence[Key] = (), **more: Any) -> dict[str, Any]:
        """Ask one question, and wait; :func:`benchmarks.peers.protocol.answer_to` says what more is needed.

        Raises
        ------
        PeerError
            The library raised, or its process ended.
        """
        question = {"verb": verb, "keys": [asdict(key) for key in keys], **more}
        if place is not None:
            question["place"] = asdict(place)
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("both are pipes")
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"it ended ({self._process.wait()})"}
        if "error" in answer:
            raise PeerError(f"{self.contender.name}, {verb}: {answer['error']}")
        return answer
