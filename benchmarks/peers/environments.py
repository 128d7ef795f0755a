"""An environment for each peer, made once: ``.venv-peers/NAME`` in the checkout."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-peers"
REQUIREMENTS = Path(__file__).parent / "requirements"


def python_of(environment: str) -> Path:
    """Return an environment's interpreter; made with pip when it is missing or its requirements have changed."""
    if not environment:
        return Path(sys.executable)
    folder = FOLDER / environment
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in files_of(environment))).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install"]
        # One file after the other: torch has to be there before something asks for any torch, and brings another.
        for path in files_of(environment):
            subprocess.run([*pip, "--quiet", "--requirement", str(path)], check=True)
        stamp.write_text(wanted)
    return python


def files_of(environment: str) -> list[Path]:
    """Return its file of requirements after those that it names, which are installed first."""
    path = REQUIREMENTS / f"{environment}.txt"
    named = [line.split()[1] for line in path.read_text().splitlines() if line.startswith("-r ")]
    return [*(found for name in named for found in files_of(name.removesuffix(".txt"))), path]
