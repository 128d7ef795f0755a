"""The command ``hurray-arrow`` from its first moment on: Ctrl-C ends it quietly while the package is still imported.

Beside the package and not in it: what is in it comes after the import of ``hurray_arrow``, which is most of the start.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    # A shell that runs it in the background may have it ignored, and then it stays so.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        # Without unwinding: nothing has been opened yet, and extensions make odd errors of an interrupted import.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from hurray_arrow.cli import load

    app = load()
    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="hurray-arrow")


if __name__ == "__main__":
    main()
