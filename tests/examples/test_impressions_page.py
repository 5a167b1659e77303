"""The page of the example in a real browser: it shows what is in the state, and follows it by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from tests.examples.browser import files_of, open_browser
from tests.examples.programs import EXAMPLES, load_program
from tests.serve.served import Served
from tests.services import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

pytestmark = pytest.mark.browser

PATIENCE_MS = 60_000
"""How long the browser may take until it shows what is expected; nothing waits that long when all is well."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def origin() -> Iterator[str]:
    with files_of(EXAMPLES / "impressions" / "page") as address:
        yield address


class Job:
    """The example as a job that counts what a test says."""

    def __init__(self, folder: Path) -> None:
        self.program: Any = load_program("impressions", folder)
        self.path = folder / "store"
        self.h = hr.testing.Harness(self.program.app, start="2024-05-01T12:00", store=self.path)

    def see(self, tweet: str, times: int, at: str) -> None:
        self.h.push(self.program.impressions, *[self.program.Impression(tweet, self.h.at(at))] * times)

    def epoch(self, watermark: str) -> int:
        self.h.epoch(watermark=watermark)
        return hr.Store(self.path).epoch


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    with made.h:
        for number in range(12):
            made.see(f"tweet-{number}", 100 - number, "12:00:01")
        made.epoch("12:00:02")
        yield made


def new_context(browser: Browser) -> BrowserContext:
    made = browser.new_context()
    made.set_default_timeout(PATIENCE_MS)
    return made


def expect(page: Any, selector: str, text: str) -> None:
    from playwright.sync_api import expect as expecting

    expecting(page.locator(selector)).to_have_text(text, timeout=PATIENCE_MS)


def test_the_page_shows_the_counters_and_follows_them(browser: Browser, origin: str, job: Job) -> None:
    with Served(job.path, origins=[origin]) as served, new_context(browser) as context:
        served.wait_for(0)
        page = context.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.goto(f"{origin}/?api={served.url}&tweet=tweet-5")
        expect(page, "#views", "95")
        expect(page, "#tweets", "12")
        expect(page, "#top tr:first-child td:nth-child(1)", "tweet-0")
        assert page.locator("#top tr").count() == 10

        job.see("tweet-5", 1000, "12:00:07")
        job.see("tweet-new", 7, "12:00:07")
        newest = job.epoch("12:00:08")
        expect(page, "#views", "1,095")
        expect(page, "#tweets", "13")
        expect(page, "#top tr:first-child td:nth-child(1)", "tweet-5")
        expect(page, "#top tr:first-child td:nth-child(2)", "1,095")
        expect(page, "#status", f"epoch {newest}, live")
        # The first window closed at 12:00:05 and is kept; the second one still grows.
        page.locator("#recent rect").nth(1).wait_for(state="attached", timeout=PATIENCE_MS)
        assert page.locator("#recent rect").count() == 2

        page.locator("#top tr", has_text="tweet-3").click()
        expect(page, "#views", "97")
        assert complaints == []


def test_the_page_goes_on_when_the_server_comes_back(browser: Browser, origin: str, job: Job) -> None:
    http_port = free_port()
    with new_context(browser) as context:
        page = context.new_page()
        with Served(job.path, origins=[origin], http_port=http_port) as served:
            served.wait_for(0)
            page.goto(f"{origin}/?api={served.url}&tweet=tweet-5")
            expect(page, "#views", "95")
        expect(page, "#status", "the server is away; trying again")
        job.see("tweet-5", 5, "12:00:03")
        job.epoch("12:00:04")
        with Served(job.path, origins=[origin], http_port=http_port) as served:
            served.wait_for(1)
            expect(page, "#views", "100")
            expect(page, "#status", "epoch 1, live")


def test_a_page_that_is_opened_before_the_first_epoch_goes_on_with_it(
    browser: Browser, origin: str, tmp_path: Path
) -> None:
    with Served(tmp_path / "store", origins=[origin]) as served, new_context(browser) as context:
        page = context.new_page()
        # Both streams are refused once, and a browser does not repeat one that was.
        with (
            page.expect_response(lambda got: got.status == 503 and "&key=" in got.url, timeout=PATIENCE_MS),
            page.expect_response(lambda got: got.status == 503 and "&key=" not in got.url, timeout=PATIENCE_MS),
        ):
            page.goto(f"{origin}/?api={served.url}&tweet=tweet-1")
        expect(page, "#status", "the server is away; trying again")
        job = Job(tmp_path)
        with job.h:
            job.see("tweet-1", 3, "12:00:01")
            job.epoch("12:00:02")
            expect(page, "#views", "3")
            expect(page, "#tweets", "1")
            expect(page, "#status", "epoch 0, live")


def test_a_page_from_elsewhere_is_told_nothing(browser: Browser, origin: str, job: Job) -> None:
    with Served(job.path, origins=["http://localhost:1"]) as served, new_context(browser) as context:
        served.wait_for(0)
        page = context.new_page()
        page.goto(f"{origin}/?api={served.url}&tweet=tweet-5")
        expect(page, "#status", "the server is away; trying again")
        assert page.locator("#views").inner_text() == "–"
