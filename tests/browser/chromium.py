"""A real Chromium without a window: what a page asks for, what it complains of, and what can be seen of it.

The browser is the system's; ``make chromium`` installs it, and the variable CHROMIUM names another. It knows no name of
any host, so that a page that asks for something is found out and gets nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

#: Beside what Playwright gives every browser: a new empty folder for the user's data, and no window.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")


class NoBrowserError(RuntimeError):
    """There is no Chromium."""


@dataclass
class Visit:
    """A page that is open.

    ``requests`` are the URLs that it asked for, data URLs aside; ``problems`` its errors and warnings on the console,
    scripts' exceptions, failed requests and dialogs.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def ask(self, expression: str) -> Any:
        """Evaluate JavaScript in the page."""
        return self.page.evaluate(expression)


def executable() -> str:
    """Return where Chromium is."""
    named = os.environ.get("CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise NoBrowserError(f"no {named or 'Chromium'}: `make chromium` installs it, CHROMIUM=/path/to/it names it")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser until the block is left."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=FLAGS, headless=True)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser: Browser, url: str, *, width: int, height: int = 844, dark: bool = False) -> Iterator[Visit]:
    """Open a page in a profile of its own, and note all that it does from the beginning."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    try:
        page = context.new_page()
        seen = Visit(page)
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("requestfailed", lambda request: seen.problems.append(f"failed: {request.url}"))
        page.on("pageerror", lambda error: seen.problems.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: (seen.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "console",
            lambda said: (
                seen.problems.append(f"{said.type}: {said.text}") if said.type in ("error", "warning") else None
            ),
        )
        page.goto(url, wait_until="load")
        yield seen
    finally:
        context.close()
