"""Every test here opens pages in a real Chromium; each worker has its own."""

from __future__ import annotations

import pytest

from tests.browser.chromium import chromium


def pytest_collection_modifyitems(items):
    for item in items:
        if "/browser/" in str(item.path):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser():
    with chromium() as running:
        yield running
