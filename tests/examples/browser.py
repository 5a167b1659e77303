"""A real browser for tests of pages: Debian's Chromium, driven by Playwright. Missing, a test skips; in CI it fails."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        missing("there is no Chromium; on Debian and Ubuntu: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing('there is no Playwright; pip install -e ".[dev]" brings it')
    with sync_playwright() as playwright:
        # Its own sandbox cannot be made by root, as tests in a container are.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=120_000)
        try:
            yield browser
        finally:
            browser.close()


def missing(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def files_of(folder: Path) -> Iterator[str]:
    """The files of a folder on a port of their own, as `python -m http.server` gives them; yields the address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
