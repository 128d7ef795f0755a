"""A report opened in a real browser, on a phone and on a desk, by day and by night."""

from __future__ import annotations

import re

import pytest

import hurray_arrow as ha
from hurray_arrow.report import write_report
from tests.browser.chromium import visit
from tests.report.hostile import NAMES, write_hostile

PHONE, DESK = 390, 1280
VISITS = [(width, dark) for width in (PHONE, DESK) for dark in (False, True)]
PICTURES = 9
OPEN_ALL = "for (const each of document.querySelectorAll('details')) each.open = true"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with ha.open_snapshot(write_hostile(folder / "hostile.arrow")) as snapshot:
        write_report(snapshot, folder / "report.html")
    return (folder / "report.html").as_uri()


#: For each image whether it came, what it says to who cannot see it, at which scale, and which of its sources it is.
IMAGES = """
[...document.images].map(image => ({
  loaded: image.complete && image.naturalWidth > 0,
  alt: image.alt,
  scale: image.getBoundingClientRect().width / image.naturalWidth,
  source: [...image.parentElement.children].findIndex(each => (each.srcset || each.src) === image.currentSrc),
}))
"""


@pytest.mark.parametrize(("width", "dark"), VISITS)
def test_a_report_is_quiet_asks_for_nothing_and_fits(browser, url, width, dark):
    with visit(browser, url, width=width, dark=dark) as seen:
        pictures = seen.ask(IMAGES)
        assert len(pictures) == PICTURES
        assert all(picture["loaded"] and picture["alt"] for picture in pictures)
        drawn_for = {(PHONE, True): 0, (PHONE, False): 1, (DESK, True): 2, (DESK, False): 3}
        assert {picture["source"] for picture in pictures} == {drawn_for[width, dark]}
        # Words in a picture have the size that they were drawn in.
        assert all(0.9 < picture["scale"] <= 1 for picture in pictures)
        ground = re.findall(r"\d+", seen.ask("getComputedStyle(document.body).backgroundColor"))
        assert (max(map(int, ground)) < 60) if dark else (min(map(int, ground)) > 200)
        assert seen.ask("document.documentElement.scrollWidth") == width
        seen.ask(OPEN_ALL)
        assert seen.ask("document.documentElement.scrollWidth") == width
        assert seen.requests == [url]
        assert seen.problems == []


def test_wide_tables_scroll_in_their_own_box(browser, url):
    with visit(browser, url, width=PHONE) as seen:
        seen.ask(OPEN_ALL)
        boxes = seen.ask("[...document.querySelectorAll('.table')].map(box => [box.scrollWidth, box.clientWidth])")
        assert len(boxes) >= PICTURES
        assert max(inner - outer for inner, outer in boxes) > 100
        assert all(outer < PHONE for _, outer in boxes)
        assert seen.ask("[...document.querySelectorAll('.table')].every(box => box.tabIndex === 0)")


def test_names_stay_names(browser, url):
    with visit(browser, url, width=DESK) as seen:
        counts = seen.ask(
            "['script', 'style', 'svg', 'marquee', 'b', 'i', 'iframe', 'object'].map(tag => "
            "document.getElementsByTagName(tag).length)"
        )
        assert counts == [0, 1, 0, 0, 0, 0, 0, 0]
        attributes = seen.ask(
            "[...new Set([...document.querySelectorAll('*')].flatMap(each => each.getAttributeNames()))].sort()"
        )
        assert [name for name in attributes if name.startswith("on") or name == "style"] == []
        text = seen.ask("[...document.querySelectorAll('td')].map(cell => cell.textContent).join('|')")
        assert all(name in text for name in NAMES[:3])
        assert "\\u202egpj.exe\\u2066" in text
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", text)
        assert seen.problems == []


def test_what_a_page_asks_for_is_found_out(browser, tmp_path):
    """The tests above would notice: this page does what a report must not."""
    page = tmp_path / "loud.html"
    page.write_text(
        "<p style='width: 500px'>wide</p><img src='http://127.0.0.1:9/a.png'><script>console.error('x')</script>"
        "<script>alert('hi'); throw new Error('thrown')</script>"
    )
    with visit(browser, page.as_uri(), width=PHONE) as seen:
        assert seen.requests == [page.as_uri(), "http://127.0.0.1:9/a.png"]
        assert {problem.partition(":")[0] for problem in seen.problems} == {"error", "dialog", "exception", "failed"}
        assert seen.ask("document.documentElement.scrollWidth") > PHONE
    policy = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">"
    page.write_text(policy + page.read_text())
    with visit(browser, page.as_uri(), width=PHONE) as seen:
        assert len([problem for problem in seen.problems if "Content Security Policy" in problem]) == 4
