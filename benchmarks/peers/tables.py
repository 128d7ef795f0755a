"""The document as Markdown tables, each of which replaces the one of its name in docs/benchmarks/peers.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.peers.claims import CLAIMS, PROPERTIES
from benchmarks.peers.measuring import WORKS, Figures
from benchmarks.peers.results import Document, figures_of

PLACES = {"local": "a local disk", "s3": "S3 on loopback"}
HEADINGS = {
    "write": "write",
    "tensor": "open, one tensor",
    "layer": "one layer",
    "sequence": "one sequence",
    "whole": "all tensors",
}
MIB = 1 << 20
NONE = "—"
NUMBERS = "--:"


def all_of(document: Document) -> str:
    """Return every table, one after another."""
    return "\n\n".join(f"## {name}\n\n{make(document)}" for name, make in TABLES.items())


def renew(document: Document, page: Path) -> None:
    """Replace the tables of a page, each between ``<!-- name -->`` and ``<!-- end -->``; prose stays.

    Raises
    ------
    ValueError
        The page has no place for a table.
    """
    text = page.read_text()
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->", "<!-- end -->"
        made = f"{begin}\n\n{make(document)}\n\n{end}"
        text, count = re.subn(f"{begin}.*?{end}", made.replace("\\", r"\\"), text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page.name}: {count} places for the table {name}, expected one")
    page.write_text(text)


def setting(document: Document) -> str:
    """Say what was measured, and on what."""
    of, machine = document["input"], document["machine"]
    shape = " × ".join(map(str, of["page_shape"]))
    where = (
        f"on a virtual machine with {machine['processors']} {machine['architecture']} processors and"
        f" {machine['memory_gib']} GiB of memory, {machine['system']}, Python {machine['python']}"
    )
    what = (
        f"{of['tensors']} tensors of bfloat16, {of['pool_bytes'] / MIB:.0f} MiB; each {of['pages']} pages of"
        f" {shape} ({of['page_bytes']} bytes), one block table for all with {of['sequences']} sequences"
    )
    sequence = (
        f"{of['sequence_tokens']} tokens in {of['sequence_pages']} pages,"
        f" {of['sequence_pages'] / of['pages']:.1%} of every pool"
    )
    rounds = " and ".join(f"{PLACES[place]} {count}" for place, count in document["rounds"].items())
    lines = [
        f"Measured on {document['date']}, {where}. Rounds: {rounds}.",
        f"Input: {what}. The sequence that is read has {sequence}.",
    ]
    if of["repeats"]:
        lines.append("The input's pages repeat within a tensor: sizes of the peers that compress are better than true.")
    return "\n".join(lines)


def contenders(document: Document) -> str:
    """List who takes part."""
    rows = []
    for name, about in document["contenders"].items():
        versions = document["tried"][name]["versions"]
        rows.append([name, about["files"], ", ".join(f"{package} {number}" for package, number in versions.items())])
    return table(["peer", "files", "versions"], rows)


def times(place: str) -> Callable[[Document], str]:
    """Make the table of times at a kind of place."""

    def make(document: Document) -> str:
        figures = figures_of(document)
        best = {work: fastest(document, place, work)[:1] for work in WORKS}
        rows = []
        for name in document["contenders"]:
            found = [figures.get((name, place, work)) for work in WORKS]
            size = relative_size(document, name, place)
            cells = [time_cell(one, is_best=[name] == best[work]) for one, work in zip(found, WORKS, strict=True)]
            rows.append([name, size, *cells])
        return table(["peer", "size", *HEADINGS.values()], rows, align=NUMBERS)

    return make


def fastest(document: Document, place: str, work: str) -> list[str]:
    """Return who did a work there, fastest first."""
    found = [figures for key, figures in figures_of(document).items() if key[1:] == (place, work)]
    return [figures.contender for figures in sorted(found, key=lambda figures: figures.median_s)]


def relative_size(document: Document, name: str, place: str) -> str:
    """Return the size of what was written, of the pools' bytes."""
    found = figures_of(document).get((name, place, "write"))
    return f"{found.counts['size_bytes'] / document['input']['pool_bytes']:.3f}" if found else NONE


def time_cell(found: Figures | None, *, is_best: bool) -> str:
    """Say the median and the range of all rounds."""
    if found is None:
        return NONE
    text = milliseconds(found.median_s)
    spread = f" ({milliseconds(min(found.seconds))}–{milliseconds(max(found.seconds))})" if found.seconds[1:] else ""
    return f"**{text}**{spread}" if is_best else f"{text}{spread}"


def milliseconds(seconds: float) -> str:
    """Say a time with about three digits."""
    value = seconds * 1e3
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def processor(document: Document) -> str:
    """Make the table of what the processors spent, which waits for no disk."""
    figures = figures_of(document)
    rows = []
    for name in document["contenders"]:
        found = [figures.get((name, place, work)) for place in PLACES for work in ("write", "whole")]
        rows.append(
            [
                name,
                *(milliseconds(sorted(one.cpu_seconds)[len(one.cpu_seconds) // 2]) if one else NONE for one in found),
            ]
        )
    heads = [f"{HEADINGS[work]}, {PLACES[place]}" for place in PLACES for work in ("write", "whole")]
    return table(["peer", *heads], rows, align=NUMBERS)


def memory(document: Document) -> str:
    """Make the table of peaks."""
    figures = figures_of(document)
    works = ("write", "tensor", "sequence", "whole")
    rows = []
    for name in document["contenders"]:
        found = [figures.get((name, place, work)) for place in PLACES for work in works]
        rows.append([name, *(f"{one.peak_bytes / MIB:,.0f}" if one else NONE for one in found)])
    heads = [f"{HEADINGS[work]}, {place}" for place in ("disk", "S3") for work in works]
    return table(["peer", *heads], rows, align=NUMBERS)


def traffic(document: Document) -> str:
    """Make the table of requests and bytes at the store, and of bytes from the disk."""
    figures = figures_of(document)
    rows = []
    for name in document["contenders"]:
        row = [name]
        for work in WORKS:
            counts = counts_of(figures.get((name, "s3", work)))
            moved = counts.get("sent_bytes" if work == "write" else "received_bytes")
            row.append(NONE if moved is None else f"{counts['requests']:,} · {moved / MIB:,.1f}")
        for work in ("tensor", "sequence"):
            read = counts_of(figures.get((name, "local", work))).get("disk_bytes")
            row.append(NONE if read is None else f"{read / MIB:,.1f}")
        rows.append(row)
    heads = [f"{HEADINGS[work]}: requests · MiB" for work in WORKS]
    cold = ["one tensor, from a cold disk: MiB", "one sequence, from a cold disk: MiB"]
    return table(["peer", *heads, *cold], rows, align=NUMBERS)


def counts_of(found: Figures | None) -> dict[str, int]:
    """Return what was counted, nothing where nothing was measured."""
    return found.counts if found else {}


def winners(document: Document) -> str:
    """Say of every work who was fastest, and how ours compare."""
    figures = figures_of(document)
    rows = []
    for place, place_name in PLACES.items():
        for work in WORKS:
            names = fastest(document, place, work)
            ours = [name for name in names if document["contenders"][name]["ours"]]
            if not names or not ours:
                continue
            best = figures[names[0], place, work].median_s
            cells = [
                f"{name} {number + 1} of {len(names)}, {figures[name, place, work].median_s / best:.1f} × its time"
                for number, name in enumerate(names)
                if name in ours
            ]
            rows.append([HEADINGS[work], place_name, names[0], "; ".join(cells)])
    return table(["work", "place", "fastest", "ours"], rows)


def expression(document: Document) -> str:
    """Make the table of what each can express: cited, tried or measured."""
    rows = []
    for name in document["contenders"]:
        verdicts = [CLAIMS[name][of].verdict for of in PROPERTIES]
        rows.append([name, *verdicts, *tried_cells(document, name), partial_cell(document, name)])
    return table(["peer", *PROPERTIES, "identity", "integrity", "SQL", "partial read"], rows)


def tried_cells(document: Document, name: str) -> list[str]:
    """Say what came of trying."""
    tried = document["tried"][name]
    identity = "refuses another" if tried["refuses_model"] else "kept" if tried["keeps_model"] else "no place"
    flips = tried["flips"]
    total = sum(flips.values())
    integrity = f"{flips.get('noticed', 0)} of {total} flips noticed"
    if flips.get("crashed"):
        integrity += f", {flips['crashed']} crashed"
    return [identity, integrity, "yes" if tried["has_sql"] else "no"]


def partial_cell(document: Document, name: str) -> str:
    """Say how much of the stored bytes one tensor and one sequence took from the store."""
    figures = figures_of(document)
    parts = []
    for work in ("tensor", "sequence"):
        found, written = figures.get((name, "s3", work)), figures.get((name, "s3", "write"))
        if not found or not written:
            return NONE
        parts.append(f"{found.counts['received_bytes'] / written.counts['size_bytes']:.1%}")
    return f"tensor {parts[0]}, sequence {parts[1]}"


def reasons(document: Document) -> str:
    """Say of every cited cell what the source says, and where it says so."""
    said: dict[str, list[str]] = {}
    for name in document["contenders"]:
        claims = CLAIMS[name]
        whys = {claim.why for claim in claims.values()}
        text = whys.pop() if len(whys) == 1 else "; ".join(f"{of}: {claims[of].why}" for of in PROPERTIES)
        said.setdefault(f"{text} ([source]({claims[PROPERTIES[0]].source})).", []).append(name)
    return "\n".join(f"- **{', '.join(names)}**: {text}" for text, names in said.items())


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, align: str = "---") -> str:
    """Make a Markdown table, its columns but the first aligned to the right with ``--:``."""
    lines = [heads, ["---", *[align for _ in heads[1:]]], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES: dict[str, Callable[[Document], str]] = {
    "setting": setting,
    "contenders": contenders,
    "local": times("local"),
    "s3": times("s3"),
    "winners": winners,
    "traffic": traffic,
    "memory": memory,
    "processor": processor,
    "expression": expression,
    "reasons": reasons,
}
