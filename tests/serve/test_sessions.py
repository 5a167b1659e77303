"""Sessions are read alike whether they are put together from fragments or kept one by one, by every way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import headrace as hr
from headrace.read.entries import HeldWindowsReader
from headrace.read.follow import Follower
from headrace.read.store import Store
from headrace.read.windows import SlicedReader, WindowReader
from headrace.testing import Harness
from tests.serve.served import Served


class Click(hr.Record):
    user: str
    at: hr.Timestamp
    n: int = 1
    page: str = "/"


class Sum(hr.Aggregator[Click, int, int]):
    """An aggregate of one's own: such sessions are kept one by one."""

    def zero(self) -> int:
        return 0

    def add(self, acc: int, x: Click) -> int:
        return acc + x.n

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc


TOLD = ("user", "window_start", "window_end", "clicks", "total", "entry", "pages", "pane")


def program() -> tuple[hr.App, Any]:
    app = hr.App("visits")
    clicks = app.read("clicks", hr.source.items([]), Click, time=Click.at)
    window = clicks.key_by(Click.user).window(hr.session("10m"), allow_late="30m")
    aggs: Any = {
        "clicks": hr.count(),
        "total": hr.sum("n"),
        "entry": hr.first("page"),
        "pages": hr.count_distinct("page"),
    }
    window.aggregate(**aggs).named("fragments").queryable()
    window.aggregate(**aggs, own=Sum()).named("held").queryable()
    return app, clicks


def push(h: Harness, clicks: Any, *rows: str) -> None:
    for row in rows:
        user, at, page = row.split()
        h.push(clicks, Click(user, h.at(at), len(page), page))


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Path]:
    """Sessions that are open, that have fired and are kept, that were told late, that became one; and many others."""
    app, clicks = program()
    with Harness(app, start="2024-01-01T12:00", store=tmp_path, parallelism=3) as h:
        push(
            h,
            clicks,
            "ann 12:00 /a",
            "ann 12:20 /b",
            "bob 12:00 /",
            "eve 11:40 /",
            *(f"u{i} 12:01 /" for i in range(40)),
        )
        h.epoch(watermark="12:05")
        push(h, clicks, "ann 12:28 /cc", "bob 12:09 /b", *(f"u{i} 12:02 /x" for i in range(0, 40, 2)))
        h.epoch(watermark="12:21")
        push(h, clicks, "ann 12:10 /late", "bob 12:04 /", "cat 12:33 /")
        h.epoch(watermark="12:24")
        h.maintain()
        push(h, clicks, "ann 12:45 /d", "cat 12:40 /", "cat 12:55 /")
        h.epoch(watermark="12:25")
        yield tmp_path


def shown(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in TOLD}


def test_a_store_gives_the_same_for_both(stored: Path) -> None:
    found, held = Store(stored).state("fragments"), Store(stored).state("held")
    assert isinstance(found._reader, SlicedReader) and isinstance(held._reader, HeldWindowsReader)
    assert found.kind == held.kind == "windows"
    assert sorted(found) == sorted(held) and len(found) == len(held) == 43
    for key in held:
        assert shown(found[key]) == shown(held[key]) == shown(found.get_many([key])[0])
        mine, wanted = found.windows(key), held.windows(key)
        assert list(mine) == list(wanted)
        assert list(map(shown, mine.values())) == list(map(shown, wanted.values()))
        assert list(found.between(key)) == list(wanted)
    frame, whole = (view.to_polars().sort("user", "window_end") for view in (found, held))
    assert frame["clicks"].to_list() == whole["clicks"].to_list()
    assert (len(found.windows("ann")), len(found.windows("cat"))) == (2, 2)
    assert [row["pane"] for row in found.windows("ann").values()] == ["early", "early"]
    assert found["bob"]["pane"] == "late" and found["u1"]["pane"] == "on_time"


def test_servers_give_the_same_for_both(stored: Path) -> None:
    snapshot = Follower(Store(stored)).look()
    assert snapshot is not None
    found, held = snapshot.table("fragments"), snapshot.table("held")
    assert isinstance(found, WindowReader) and isinstance(held, WindowReader)
    assert sorted(found.page(0, 1000).keys) == sorted(held.page(0, 1000).keys)
    for key in held.page(0, 1000).keys:
        assert shown(found.value(key)) == shown(held.value(key))
        assert {w: shown(row) for w, row in found.windows(key).items()} == {
            w: shown(row) for w, row in held.windows(key).items()
        }
    with Served(stored) as served, redis.Redis(port=served.port) as client:
        served.wait_for(3)
        for user in ("ann", "bob", "cat", "u7"):
            assert shown(json.loads(client.get(f"fragments:{user}"))) == shown(json.loads(client.get(f"held:{user}")))
            fields, wanted = client.hgetall(f"fragments:{user}"), client.hgetall(f"held:{user}")
            assert list(fields) == list(wanted)
            assert [shown(json.loads(row)) for row in fields.values()] == [
                shown(json.loads(row)) for row in wanted.values()
            ]
        assert client.get("fragments:nobody") is None and client.get("fragments:eve") is None
        with hr.Client(served.url) as asked:
            assert shown(asked.state("fragments")["ann"]) == shown(asked.state("held")["ann"])


def test_sessions_that_are_over_are_not_shown_whether_or_not_they_were_folded_away(tmp_path: Path) -> None:
    app, clicks = program()
    with Harness(app, start="2024-01-01T12:00", store=tmp_path) as h:
        push(h, clicks, "ann 12:00 /a", "bob 12:30 /")
        h.epoch(watermark="12:05")
        push(h, clicks, "bob 12:38 /")
        h.epoch(watermark="12:41")
        assert sorted(Store(h.store).state("fragments")) == ["bob"]
        assert Store(h.store).state("fragments")["bob"]["clicks"] == 2
        assert [(info.address, info.kind) for info in Store(h.store).states()] == [
            ("fragments", "windows"), ("held", "windows"),
        ]  # fmt: skip
        h.maintain()
        h.epoch()
        assert sorted(Store(h.store).state("fragments")) == ["bob"]
