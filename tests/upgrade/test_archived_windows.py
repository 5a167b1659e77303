"""Windows that an older program archived are answered as the present one names their key and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connectors.files.roll_policy import RollPolicy
from headrace.edit.erasing.erase import erase_key
from headrace.model.keys import encode_key
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.serve.archived import HOUR, START, newest, table_of


class View(hr.Record):
    tweet: str
    at: hr.Timestamp
    n: int = 1


class Post(hr.Record):
    post: str = hr.field(was="tweet")
    at: hr.Timestamp = hr.Timestamp(0)
    n: float = 1.0


def run_hours(path: Path, kind: Any, key: str, hours: range, *, step: str = "hourly", was: str | None = None,
              **aggs: Any) -> None:  # fmt: skip
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), kind, time="at")
    hourly = views.key_by(key).window(hr.tumbling("1h")).aggregate(n=hr.sum("n"), **aggs).named(step, was=was)
    hourly.queryable(archive=str(path / "archive" / "hourly"))
    with Harness(app, start="2024-01-01", store=path / "state", sinks=True) as h:
        for hour in hours:
            for name in "ab":
                h.push(views, kind(name, hr.Timestamp(START + round((hour + 0.1) * HOUR)), hour))
            h.epoch(watermark=START + round((hour + 0.5) * HOUR))


@pytest.mark.parametrize("parts", [100, 3], ids=["lying apart", "put together"])
def test_old_windows_have_the_present_names(tmp_path: Path, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.files.archive.POLICY", RollPolicy(parts=parts))
    run_hours(tmp_path, View, "tweet", range(1, 4), rows=hr.count())
    run_hours(tmp_path, Post, "post", range(4, 7), step="posts", was="hourly", most=hr.max("n", where="n > 0"))
    # The third program no longer says that anything had another name.
    run_hours(tmp_path, Post, "post", range(7, 9), step="posts")
    snapshot = newest(tmp_path / "state")
    page = table_of(snapshot, "posts")
    assert page.archived is not None
    for key in "ab":
        (bucket,) = page.archived.buckets(START, START + 24 * HOUR)
        found = page.archived.windows(encode_key(key), bucket)
        assert [(row["post"], row["n"]) for row in found.values()] == [(key, hour) for hour in range(1, 8)]


def test_old_windows_are_erased_by_the_present_key(tmp_path: Path) -> None:
    run_hours(tmp_path, View, "tweet", range(1, 4))
    run_hours(tmp_path, Post, "post", range(4, 7))
    assert erase_key(LocalStore(tmp_path / "state", durable=False), "a").archived == 5
    page = table_of(newest(tmp_path / "state"))
    assert page.archived is not None
    (bucket,) = page.archived.buckets(START, START + 24 * HOUR)
    assert page.archived.windows(encode_key("a"), bucket) == {}
    assert len(page.archived.windows(encode_key("b"), bucket)) == 5
