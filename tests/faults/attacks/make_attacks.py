"""Write the attacks into a folder, or their table into the README.

python -m tests.faults.attacks.make_attacks FOLDER
python -m tests.faults.attacks.make_attacks --readme
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from tests.faults.attacks import contents, structure, texts
from tests.faults.attacks.attack import ATTACKS, TAKEN

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- the table: made by make_attacks.py --readme -->\n", "<!-- end of the table -->\n"
#: Importing them registers what they make.
MODULES = (structure, contents, texts)


def table() -> str:
    """Return the README's table of all attacks."""
    parts = []
    for group, found in groupby(ATTACKS.values(), key=lambda each: each.group):
        parts.append(f"\n### {group}\n\n| file | tries | stopped by | when |\n|---|---|---|---|\n")
        for each in found:
            suffix = "stream" if each.is_stream else "arrow"
            ends = "taken as it is | " if each.stopped_by == TAKEN else f"`{each.stopped_by}` | {each.at}"
            parts.append(f"| `{each.name}.{suffix}` | {each.tries} | {ends} |\n")
    return "".join(parts) + "\n"


def readme() -> str:
    """Return the README with its table made anew."""
    text = README.read_text()
    return text[: text.index(BEGIN) + len(BEGIN)] + table() + text[text.index(END) :]


def write(folder: Path) -> None:
    """Write every attack into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in ATTACKS.values():
        (folder / f"{each.name}.{'stream' if each.is_stream else 'arrow'}").write_bytes(each.make())


if __name__ == "__main__":
    if sys.argv[1] == "--readme":
        README.write_text(readme())
    else:
        write(Path(sys.argv[1]))
