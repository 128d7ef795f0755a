"""The report: one HTML file that asks nobody for anything.

Pictures are SVG in data URLs, each for a wide and a narrow page, on a light and a dark ground. As images they cannot
run or load anything; the page itself has no script, and its policy forbids both. What a snapshot calls things is data:
the template escapes all of it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import matplotlib.style
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from hurray_arrow.arrow.metadata import package_version
from hurray_arrow.report.figures import sized_values
from hurray_arrow.report.look import DARK, LIGHT, Look
from hurray_arrow.report.names import shortened
from hurray_arrow.report.numbers import Table
from hurray_arrow.report.pictures import Picture, sections
from hurray_arrow.report.sampling import DEFAULT_SAMPLE_BYTES
from hurray_arrow.snapshot.files import AtomicFile, PathLike
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.texts import WITHHELD, printable, size

#: The widths that figures are drawn for, in inches of 96 pixels.
_WIDE, _NARROW = 7.5, 3.7
_LONGEST_NAME = 64
#: matplotlib reads its settings while it writes a file, from one place for all threads.
_SETTINGS = threading.Lock()
_SVG: Mapping[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "hurray-arrow", "svg.image_inline": True}


@dataclass(frozen=True, slots=True)
class Source:
    """One drawing of a picture: when it is to be shown, its data URL, its size in pixels."""

    media: str
    url: str
    width: int
    height: int


def html(snapshot: Snapshot, *, sample_bytes: int = DEFAULT_SAMPLE_BYTES) -> str:
    """Return the report on a snapshot.

    Parameters
    ----------
    snapshot
        An open snapshot.
    sample_bytes
        Bytes of pages to read of all tensors together; of each at least one run (256 KiB, or a row of an archive).

    Returns
    -------
    str
        An HTML document, the same for the same snapshot. It names sequences by their ids; tenants, adapters, token ids
        and the metadata's ``user`` are not in it. Statistics of values are: treat it as what it is about.

    Raises
    ------
    SnapshotCorruptError
        As :meth:`Snapshot.open_tensors`.

    Notes
    -----
    matplotlib's settings are its defaults while a picture is drawn, for other threads too.
    """
    if sample_bytes < 0:
        raise ValueError(f"sample_bytes={sample_bytes}, expected at least 0")
    values = sized_values(snapshot, sample_bytes=sample_bytes)
    shown = [
        {
            "key": section.key,
            "title": section.title,
            "words": section.words,
            "pictures": [_rendered(picture) for picture in section.pictures],
        }
        for section in sections(snapshot, values)
    ]
    css = _resource("page.css")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_resource("page.html.jinja"))
    return template.render(
        title=_title(snapshot),
        facts=list(_facts(snapshot)),
        sections=shown,
        css=Markup(css),  # noqa: S704  it is this package's, and the policy has its hash
        css_digest=digest,
        grounds=(LIGHT.ground, DARK.ground),
        withheld=[key for key in WITHHELD if snapshot.metadata.get(key) is not None],
        unverified=len(snapshot.unverified),
        version=package_version(),
    )


def write_report(
    snapshot: Snapshot,
    path: PathLike,
    *,
    sample_bytes: int = DEFAULT_SAMPLE_BYTES,
    overwrite: bool = False,
    mode: int = 0o600,
) -> int:
    """Write the report on a snapshot to a file, whole or not at all.

    Parameters
    ----------
    snapshot, sample_bytes
        As of :func:`html`.
    path
        The file's name; it appears when the file is complete.
    overwrite
        Replace an existing file.
    mode
        Permission bits.

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    FileExistsError
        The file exists, and ``overwrite`` is False.
    SnapshotCorruptError
        As :func:`html`.
    """
    file = AtomicFile(path, overwrite=overwrite, mode=mode)
    try:
        written = file.write(html(snapshot, sample_bytes=sample_bytes).encode())
    except BaseException:
        file.discard()
        raise
    file.publish()
    return written


def _rendered(picture: Picture) -> dict[str, Any]:
    sources = [
        source
        for media, width_inches in (("(max-width: 700px)", _NARROW), ("", _WIDE))
        for source in _light_and_dark(picture, media, width_inches)
    ]
    return {
        "title": picture.title,
        "caption": picture.caption,
        "alt": picture.alt,
        "sources": sources,
        "tables": [_shown(table) for table in picture.tables],
    }


def _light_and_dark(picture: Picture, media: str, width_inches: float) -> list[Source]:
    """Draw a picture for one width; the dark one first, because a page takes the first that fits."""
    with _SETTINGS, matplotlib.style.context(["default", dict(_SVG)]):
        light = picture.draw(Look(width_inches))
        light_source = _source(light, media)
        dark = picture.draw(Look(width_inches, dark=True))
        # Finding places for everything takes longer than drawing, and they are the same.
        dark.set_layout_engine("none")
        for axes, placed in zip(dark.axes, light.axes, strict=True):
            axes.set_position(placed.get_position(original=True))
        conditions = (media, "(prefers-color-scheme: dark)")
        return [_source(dark, " and ".join(filter(None, conditions))), light_source]


def _source(figure: Figure, media: str) -> Source:
    written = io.BytesIO()
    figure.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    width, height = figure.get_size_inches() * 96
    url = f"data:image/svg+xml;base64,{base64.b64encode(written.getvalue()).decode()}"
    return Source(media, url, round(width), round(height))


def _shown(table: Table) -> dict[str, Any]:
    rows = [[shortened(printable(text), _LONGEST_NAME) for text in row] for row in table.rows]
    columns = [shortened(printable(text), _LONGEST_NAME) for text in table.columns]
    texts = {"caption": table.caption, "note": table.note}
    return {**texts, "columns": columns, "rows": rows, "num_names": table.num_names}


def _title(snapshot: Snapshot) -> str:
    """Return the last part of the URL: the rest may be a secret, as what follows a question mark often is."""
    name = snapshot.url.partition("?")[0].rstrip("/").rpartition("/")[2]
    return shortened(printable(name), _LONGEST_NAME)


def _facts(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    metadata = snapshot.metadata
    model, engine = _mapping(metadata.get("model")), _mapping(metadata.get("engine"))
    entries = snapshot.entries
    told = [
        ("model", model.get("name")),
        ("revision", model.get("revision")),
        ("engine", engine.get("name")),
        ("profile", snapshot.profile),
        ("tensors", f"{len(entries):,}"),
        ("layers", f"{len({entry.layer for entry in entries}):,}"),
        ("element types", ", ".join(sorted({entry.element_type for entry in entries}))),
        ("size", size(sum(entry.stored_bytes for entry in entries))),
        ("created", metadata.get("created")),
        ("id", metadata.get("id")),
    ]
    for name, text in told:
        if text:
            yield name, shortened(printable(str(text)), _LONGEST_NAME)
    if missing := metadata.get("partial"):
        yield (
            "partial",
            "layers or companions are missing" if missing is True else shortened(printable(str(missing)), 80),
        )


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _resource(name: str) -> str:
    return files("hurray_arrow.report").joinpath(name).read_text(encoding="utf-8")
