"""Real processes to share with: each runs a program of its own and is ended by its own pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_S = 60
ROOT = Path(__file__).parents[2]
HEAD = """
import hashlib, os, socket, sys
import numpy as np
import hurray_arrow as ha
from hurray_arrow import share
from tests.share import contents
peer = socket.socket(fileno=int(sys.argv[1]))
def say(text):
    print(text, flush=True)
"""


@contextmanager
def child(program, *arguments):
    """Start a program that has a Unix socket to us as ``peer``; yields (process, socket)."""
    ours, theirs = socket.socketpair()
    with ours:
        command = [sys.executable, "-W", "error", "-c", HEAD + program, str(theirs.fileno()), *map(str, arguments)]
        with theirs:
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        ours.settimeout(TIMEOUT_S)
        try:
            yield process, ours
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def line_of(process):
    """Return the next line that a child says, or fail with what it died of."""
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line.strip()


def finish(process):
    """Let a child end by itself, and return what it still said."""
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return out.split()


def kill(process):
    """End a child as the system would: it cannot clean up."""
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL
