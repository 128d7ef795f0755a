"""Which faults are tried on which store, and what each ends in: docs/faults.md shows it, test_faults.py tries it all.

python -m tests.stores.fault_table    writes the table into docs/faults.md
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- the tables: made by tests/stores/fault_table.py -->\n", "<!-- end of the tables -->\n"

#: What reading and writing may end in beside an error.
RIGHT, PUBLISHED = "right bytes", "published"
STORES = {
    "local": "local file",
    "s3": "S3",
    "azure": "Azure",
    "gcs": "Google",
    "obstore": "S3 by obstore",
    "http": "HTTP",
    "memory": "others",
}
REMOTE = ("s3", "azure", "gcs", "obstore")


@dataclass(frozen=True)
class Fault:
    """One row: what happens, and what comes out by store; a store that is left out cannot have it."""

    name: str
    text: str
    ends: dict[str, str]


def _on(*stores: str, end: str, **others: str) -> dict[str, str]:
    return {store: {**dict.fromkeys(stores, end), **others}[store] for store in STORES if store in {*stores, *others}}


READING = (
    Fault(
        "cut",
        "each connection is cut at a random byte, once (a local read comes in random pieces)",
        _on("local", *REMOTE, "http", "memory", end=RIGHT),
    ),
    Fault(
        "cut for good",
        "… every time (the local file ends early)",
        _on(*REMOTE, "http", "memory", end="SnapshotError", local="SnapshotIncompleteError"),
    ),
    Fault("busy", "503, twice", _on(*REMOTE, "http", "memory", end=RIGHT)),
    Fault("busy for good", "503, every time", _on(*REMOTE, "http", "memory", end="SnapshotError")),
    Fault("slow", "bytes come slowly, in a dozen pieces", _on("local", *REMOTE, "http", "memory", end=RIGHT)),
    Fault("stalled", "no answer comes until the client's own timeout", _on(*REMOTE, "http", end="SnapshotError")),
    Fault(
        "flipped",
        "a bit changes on the way or under the reader, with `verify=True`",
        _on("local", *REMOTE, "http", "memory", end="SnapshotCorruptError"),
    ),
    Fault(
        "forbidden",
        "permission is denied",
        _on("local", *REMOTE, "http", "memory", end="PermissionError"),
    ),
    Fault(
        "replaced",
        "another snapshot takes the name while it is open",
        _on(*REMOTE, "http", "memory", end="SnapshotChangedError", local=RIGHT),
    ),
    Fault(
        "deleted",
        "it is deleted while it is open",
        _on(*REMOTE, "http", "memory", end="SnapshotChangedError", local=RIGHT),
    ),
    Fault(
        "killed",
        "the server is killed",
        _on(*REMOTE, "http", end="SnapshotError"),
    ),
    Fault("broken", "the disk says that it cannot be read", _on("memory", end="SnapshotError", local="OSError")),
)

WRITING = (
    Fault("cut", "an upload is cut at a random byte, once", _on(*REMOTE, end=PUBLISHED)),
    Fault("cut for good", "… every time", _on(*REMOTE, "memory", end="SnapshotError")),
    Fault("busy", "503, twice", _on(*REMOTE, end=PUBLISHED)),
    Fault("busy for good", "503, every time", _on(*REMOTE, end="SnapshotError")),
    Fault("slow", "every answer comes late", _on(*REMOTE, "memory", end=PUBLISHED)),
    Fault("stalled", "no answer comes until the client's own timeout", _on(*REMOTE, end="SnapshotError")),
    Fault(
        "forbidden",
        "permission is denied, or the folder is read-only",
        _on("local", *REMOTE, "memory", end="PermissionError"),
    ),
    Fault("full", "the disk or the store is full", _on(*REMOTE, "memory", end="SnapshotError", local="OSError")),
    Fault("lost", "the answer to what publishes it is lost behind the store, once", _on(*REMOTE, end=PUBLISHED)),
    Fault("lost for good", "… every time", _on(*REMOTE, end=PUBLISHED)),
    Fault("killed", "the server is killed", _on(*REMOTE, end="SnapshotError")),
    Fault("broken", "the disk does not keep what it was given", _on("local", end="OSError")),
)


def cells(rows: tuple[Fault, ...], stores: tuple[str, ...] = tuple(STORES)) -> list[tuple[str, str, str]]:
    """Return (fault, store, what it ends in) of every cell that is tried."""
    return [(row.name, store, end) for row in rows for store, end in row.ends.items() if store in stores]


def tables() -> str:
    """Return both tables."""
    parts = []
    for title, rows in (("Reading", READING), ("Writing over an existing snapshot", WRITING)):
        parts.append(f"\n## {title}\n\n| | {' | '.join(STORES.values())} |\n|---|{'---|' * len(STORES)}\n")
        for row in rows:
            ends = (row.ends.get(store, "–") for store in STORES)
            shown = (f"`{end}`" if end.endswith("Error") else end for end in ends)
            parts.append(f"| {row.text} | {' | '.join(shown)} |\n")
    return "".join(parts) + "\n"


def page() -> str:
    """Return docs/faults.md with its tables made anew."""
    text = PAGE.read_text()
    return text[: text.index(BEGIN) + len(BEGIN)] + tables() + text[text.index(END) :]


if __name__ == "__main__":
    PAGE.write_text(page())
