"""The documentation as it is read: built without a warning, every page opened from the disk, every link followed.

One test builds the site and looks at all of it, because tests of one module may run in several processes.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from sphinx.util.inventory import InventoryFile

import hurray_arrow
from hurray_arrow import arrow, catalog, identity, ops, report, share, views
from tests.browser.chromium import visit

ROOT = Path(__file__).parents[2]
DESK, PHONE = 1280, 390
#: Where links may lead out of the site; nobody follows them here.
OUTSIDE = (
    "https://github.com/pgillet/hurray",
    "https://www.sphinx-doc.org/",
    "https://github.com/pradyunsg/furo",
    # What docs/benchmarks/peers.md cites.
    "https://arrow.apache.org/docs/format/",
    "https://docs.pytorch.org/docs/stable/notes/serialization.html",
    "https://github.com/huggingface/safetensors",
    "https://github.com/zipnn/zipnn",
    "https://lancedb.github.io/lance/format/",
    "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html",
    "https://zarr-specs.readthedocs.io/en/latest/v3/core/",
    "https://pradyunsg.me/",
)
LINKS = "[...document.querySelectorAll('a[href]')].map(link => link.href)"
ANCHORS = "[...document.querySelectorAll('[id], a[name]')].map(each => each.id || each.name)"


@dataclass
class Site:
    """What a crawl has found: the anchors of every page, and each page's links to other places."""

    root: str
    anchors: dict[str, set[str]] = field(default_factory=dict)
    links: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def broken(self) -> list[str]:
        """Return every link that leads nowhere."""
        return [
            f"{page} -> {link}"
            for page, links in self.links.items()
            for link in links
            if not (self._leads_inside(link) if link.startswith("file:") else link.startswith(OUTSIDE))
        ]

    def _leads_inside(self, link: str) -> bool:
        page, anchor = urldefrag(link)
        if page in self.anchors:
            return not anchor or unquote(anchor) in self.anchors[page]
        return (
            page.startswith(self.root) and not page.endswith(".html") and Path(unquote(urlsplit(page).path)).is_file()
        )


def crawl(browser, folder: Path, first: str) -> Site:
    """Open every page that can be reached from the first one."""
    site = Site(folder.as_uri() + "/")
    todo = [site.root + first]
    with visit(browser, todo[0], width=DESK) as seen:
        while todo:
            url = todo.pop()
            if url in site.anchors:
                continue
            seen.problems.clear(), seen.requests.clear()
            seen.page.goto(url)
            site.anchors[url], site.links[url] = set(seen.ask(ANCHORS)), seen.ask(LINKS)
            site.problems += [f"{url}: {problem}" for problem in seen.problems]
            site.problems += [f"{url} asks for {asked}" for asked in seen.requests if not asked.startswith(site.root)]
            pages = {urldefrag(link).url for link in site.links[url]}
            todo += sorted(page for page in pages if page.startswith(site.root) and page.endswith(".html"))
    return site


def build(folder: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-d", str(folder / "doctrees")]
    done = subprocess.run([*command, ".", str(folder / "site")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def undescribed(folder: Path) -> set[str]:
    """Return the public names that the reference does not have."""
    with (folder / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", "{}{}".format)
    # A dict until Sphinx 9.0, an object that has one from 9.1 on.
    kinds = getattr(inventory, "data", inventory).values()
    names = {name.rpartition(".")[2] for kind in kinds for name in kind}
    public = (hurray_arrow, ops, share, identity, views, catalog, report, arrow)
    return {name for module in public for name in module.__all__} - names


def test_the_site_is_whole_quiet_and_asks_nobody(browser, tmp_path):
    build(tmp_path)
    assert undescribed(tmp_path / "site") == set()
    site = crawl(browser, tmp_path / "site", "docs/index.html")
    assert site.problems == []
    assert site.broken() == []
    built = {path.as_uri() for path in (tmp_path / "site").rglob("*.html")}
    assert built - set(site.anchors) == {site.root + "search.html", site.root + "index.html"}
    assert len(built) > 40
    with visit(browser, site.root + "index.html", width=PHONE) as seen:
        seen.page.wait_for_url(site.root + "docs/index.html")
    with visit(browser, site.root + "search.html?q=seq_ptr", width=PHONE) as seen:
        # Results come one after another.
        seen.page.wait_for_selector("#search-results li a[href*='docs/format.html']")
        assert seen.problems == []
    with visit(browser, site.root + "docs/format.html", width=PHONE) as seen:
        assert seen.ask("document.documentElement.scrollWidth") == PHONE


def test_what_is_broken_is_found(browser, tmp_path):
    """The test above would notice."""
    (tmp_path / "data.txt").write_text("there")
    (tmp_path / "index.html").write_text(
        "<h1 id='here'>1</h1><a href='#here'></a><a href='two.html#there'></a><a href='data.txt'></a>"
        "<a href='gone.txt'></a><a href='#gone'></a><a href='two.html#gone'></a><a href='https://example.com/'></a>"
    )
    (tmp_path / "two.html").write_text("<p id='there'></p><img src='http://127.0.0.1:9/a.png'>")
    site = crawl(browser, tmp_path, "index.html")
    assert len(site.anchors) == 2
    ends = ("gone.txt", "#gone", "#gone", "https://example.com/")
    assert [link.endswith(end) for link, end in zip(site.broken(), ends, strict=True)] == [True] * 4
    assert {problem.split()[1] for problem in site.problems} == {"failed:", "error:", "asks"}
