"""What is in the file: everything, nothing from elsewhere, and no name as anything but text."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

import hurray_arrow as ha
from hurray_arrow.report import document, html, write_report
from hurray_arrow.report.figures import sized_values
from hurray_arrow.report.pictures import sections
from tests.report.hostile import LAYER, MODEL, NAMES, SECRETS, write_hostile

VOID = {"meta", "link", "img", "source", "br"}
TAGS = {
    *("html", "head", "meta", "title", "link", "style", "body", "header", "p", "h1", "bdi", "dl", "div", "dt", "dd"),
    *("nav", "ul", "li", "a", "main", "section", "h2", "figure", "h3", "picture", "source", "img", "figcaption"),
    *("details", "summary", "table", "caption", "span", "thead", "tbody", "tr", "th", "td", "footer"),
}
BIDI = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Parsed(HTMLParser):
    """Tags, attributes and text of a page; every tag has to be closed where it was opened."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts, self._open = [], [], [], []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def values(self, name):
        return [value for _, found, value in self.attributes if found == name]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = write_hostile(tmp_path_factory.mktemp("document") / "<b>$cache$.arrow")
    with ha.open_snapshot(path) as snapshot:
        return html(snapshot)


@pytest.fixture(scope="module")
def parsed(page):
    return Parsed(page)


@pytest.fixture(scope="module")
def drawings(parsed):
    urls = [url for name in ("src", "srcset") for url in parsed.values(name)]
    prefix = "data:image/svg+xml;base64,"
    assert all(url.startswith(prefix) for url in urls)
    return [base64.b64decode(url.removeprefix(prefix)).decode() for url in urls]


def test_nothing_but_the_templates_tags_and_attributes(parsed):
    assert set(parsed.tags) <= TAGS
    names = {name for _, name, _ in parsed.attributes}
    assert not [name for name in names if name.startswith("on") or name == "style"]
    assert "script" not in parsed.tags


def test_names_are_text(page, parsed):
    cells = "\n".join(parsed.texts)
    for name in (*NAMES[:3], NAMES[4], NAMES[6]):
        assert name in cells
    assert "\\u202egpj.exe\\u2066" in cells
    assert "line\\nbreak\\x00\\x1b[31mred" in cells
    assert MODEL.replace("\u202e", "\\u202e") in cells
    assert LAYER.replace("\u2067", "\\u2067") + "0" in cells
    assert "<b>$cache$.arrow" in cells
    assert not BIDI.search(page)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", page)


def test_secrets_are_not_in_it(page, drawings):
    for text in (page, *drawings):
        for secret in (*SECRETS, "tenant-", "adapter-of-one", "654321"):
            assert secret not in text
    assert "tenant, adapter, user" in page


def test_nothing_comes_from_elsewhere(parsed):
    addresses = [value for name in ("href", "src", "srcset") for value in parsed.values(name)]
    assert len(addresses) > 9 * 4
    sections = set(parsed.values("id"))
    for address in addresses:
        assert address.startswith("data:") or (address.startswith("#") and address[1:] in sections)
    assert not {"action", "formaction", "background", "poster", "data", "ping", "cite"} & {
        name for _, name, _ in parsed.attributes
    }


def test_the_policy_forbids_all_but_this_style_and_its_images(page, parsed):
    [policy] = [value for value in parsed.values("content") if "default-src" in value]
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert page.index("Content-Security-Policy") < page.index("<style>")
    assert "url(" not in style
    assert "@import" not in style


def test_drawings_neither_run_nor_load_anything(drawings):
    assert len(drawings) == 9 * 4
    for text in drawings:
        for element in ET.fromstring(text).iter():  # noqa: S314  made a moment ago, by matplotlib
            tag = element.tag.rpartition("}")[2]
            assert tag in {"svg", "defs", "style", "g", "path", "use", "clipPath", "rect", "text", "image", "tspan"}
            for name, value in element.attrib.items():
                assert not name.startswith("on")
                if name.endswith("href"):
                    assert value.startswith(("#", "data:image/png;base64,"))
        assert "url(http" not in text
        assert "@import" not in text


def test_a_drawing_has_names_as_they_are(drawings):
    texts = {
        element.text
        for text in drawings
        for element in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314
    }
    assert any(text and text.startswith("2 · $") and text.endswith("$x_{$") for text in texts)
    assert any(text and text.startswith("0 · <scr") for text in texts)
    assert not any(BIDI.search(text) for text in texts if text)


def test_every_picture_has_its_numbers_and_its_words(page):
    figures = re.findall(r"<figure>(.*?)</figure>", page, re.DOTALL)
    assert len(figures) == 9
    for figure in figures:
        assert len(re.findall(r'alt="[^"]{20,}"', figure)) == 1
        assert "<figcaption>" in figure
        assert "<table>" in figure
        assert figure.count("<source") == 3


def test_a_table_is_as_wide_as_its_head(page):
    for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL):
        columns = len(re.findall(r'<th scope="col"', table))
        rows = re.findall(r"<tr>(<th scope=\"row\".*?)</tr>", table)
        assert rows
        assert {len(re.findall(r"<t[hd][ >]", row)) for row in rows} == {columns}


def test_a_snapshot_has_one_report(page, tmp_path, monkeypatch):
    drawn = iter(re.findall(r"<figure>.*?</figure>", page, re.DOTALL))
    with ha.open_snapshot(write_hostile(tmp_path / "<b>$cache$.arrow")) as snapshot:
        first = next(sections(snapshot, sized_values(snapshot, sample_bytes=1 << 20))).pictures[0]
        assert all(source.url in page for source in document._rendered(first)["sources"])
        # One picture drawn again is enough; the words and numbers are all of them.
        monkeypatch.setattr(document, "_light_and_dark", lambda *_: [document.Source("", "data:,", 1, 1)])
        again = html(snapshot)
    for figure in re.findall(r"<figure>.*?</figure>", again, re.DOTALL):
        assert settled(figure) == settled(next(drawn))
    assert settled(again) == settled(page)


def settled(text):
    """What a second snapshot of the same cache has in common with the first, pictures aside."""
    text = re.sub(r"<picture>.*?</picture>", "", text, flags=re.DOTALL)
    return re.sub(r"<dt>(created|id)</dt><dd>.*?</dd>", "", text)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Leave the pictures out: these tests are about the file."""
    monkeypatch.setattr("hurray_arrow.report.document.sections", lambda *_: iter(()))


@pytest.fixture
def snapshot(tmp_path, quick):  # noqa: ARG001  one fixture after the other
    with ha.open_snapshot(write_hostile(tmp_path / "cache.arrow")) as opened:
        yield opened


def test_a_report_is_for_its_owner_and_replaces_nothing(snapshot, tmp_path):
    path = tmp_path / "report.html"
    written = write_report(snapshot, path)
    assert path.stat().st_size == written
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_report(snapshot, path)
    assert write_report(snapshot, path, overwrite=True, mode=0o644) == written
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_report_that_fails_leaves_nothing(snapshot, tmp_path, monkeypatch):
    monkeypatch.setattr("hurray_arrow.report.document.sized_values", lambda *_, **__: 1 / 0)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError):
        write_report(snapshot, tmp_path / "report.html")
    assert sorted(tmp_path.iterdir()) == before


def test_a_budget_below_nothing_is_refused(snapshot):
    with pytest.raises(ValueError, match="sample_bytes"):
        html(snapshot, sample_bytes=-1)


@pytest.mark.usefixtures("quick")
def test_a_url_is_shown_without_what_may_be_secret():
    ha.write_snapshot("memory://key-4711/caches/c.arrow", [], overwrite=True)
    with ha.open_snapshot("memory://key-4711/caches/c.arrow") as snapshot:
        snapshot.url = "https://user:pa55@host/caches/c.arrow?X-Signature=5e5e"
        text = html(snapshot)
    assert "<bdi>c.arrow</bdi>" in text
    assert not {"pa55", "5e5e", "host", "4711"} & set(re.split(r"\W+", text))


def test_a_snapshot_of_nothing_has_a_report():
    ha.write_snapshot("memory://report/nothing", [], overwrite=True)
    with ha.open_snapshot("memory://report/nothing") as snapshot:
        text = html(snapshot)
    assert Parsed(text).tags.count("figure") == 0
    assert "No tensor has values" in text


@pytest.mark.usefixtures("quick")
def test_what_was_recovered_says_so(tmp_path):
    path = write_hostile(tmp_path / "cache.arrow")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"hurray_arrow.index") - 200])
    with ha.open_snapshot(path, recover=True) as snapshot:
        unverified = len(snapshot.unverified)
        text = html(snapshot)
    assert unverified
    assert f"{unverified} parts of it could not be verified" in text
