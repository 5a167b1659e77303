"""Columnar sessions in programs: with crashes, other numbers of shards and folds they give what the general ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.read.store import newest_manifests
from headrace.testing import Harness

START = "2024-01-01T12:00"
EPOCHS = 9


class Hit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int


class Sum(hr.Aggregator[Hit, int, int]):
    """An aggregate of one's own: such sessions are kept one by one."""

    def zero(self) -> int:
        return 0

    def add(self, acc: int, x: Hit) -> int:
        return acc + x.n

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc


class Job:
    """Sessions with late rows, early results and gaps of their own, once in columns and once one by one."""

    def __init__(self) -> None:
        self.app = hr.App("sessions")
        self.hits = self.app.read("hits", hr.source.items([]), Hit, time=Hit.at)
        by_page = self.hits.key_by(Hit.page)
        kept = by_page.window(hr.session("30s"), allow_late="1m")
        early = by_page.window(hr.session(hr.col("n") * 1_000_000 + 20_000_000), fire=hr.early("1m", clock="event"))
        self.kept = kept.aggregate(total=hr.sum("n"), last=hr.last("n")).named("kept")
        self.held = kept.aggregate(total=hr.sum("n"), last=hr.last("n"), own=Sum()).named("held")
        self.early = early.aggregate(total=hr.sum("n"), rows=hr.count()).named("early")
        self.early_held = early.aggregate(total=hr.sum("n"), rows=hr.count(), own=Sum()).named("early_held")
        self.streams = {
            "kept": self.kept, "held": self.held, "early": self.early, "early_held": self.early_held,
            "late": self.kept.late, "held_late": self.held.late,
            "finals": self.kept.finals(), "held_finals": self.held.finals(),
        }  # fmt: skip

    def take(self, h: Harness) -> dict[str, list[Any]]:
        return {name: sorted(map(_told, h.take(stream))) for name, stream in self.streams.items()}


def _told(row: Any) -> tuple[Any, ...]:
    names = ("page", "window_start", "window_end", "total", "last", "rows", "pane", "at", "n")
    return tuple(getattr(row, name, 0) for name in names)


def play(h: Harness, job: Job, epoch: int) -> None:
    """Rows of one epoch: out of order, some of them late."""
    base = h.at("12:00") + hr.seconds(40 * epoch)
    for i in range(7):
        if (i + epoch) % 3:
            page = f"page-{i}"
            h.push(job.hits, Hit(page, base + hr.seconds(7 * i), i), Hit(page, base - hr.seconds(5 * i), 10 + epoch))
    h.push(job.hits, Hit("slow", base - hr.seconds(100 if epoch % 2 else 200), 1))


def watermark(epoch: int) -> str:
    seconds = max(40 * epoch - 20, 0)
    return f"12:{seconds // 60:02d}:{seconds % 60:02d}"


def test_columnar_sessions_survive_crashes_and_other_numbers_of_shards(tmp_path: Path) -> None:
    points = ("before_publish", "outputs_staged", "offsets_written", "published")
    told: list[Any] = []
    for epoch in range(EPOCHS + 1):
        job, last = Job(), epoch == EPOCHS
        with Harness(job.app, start=START, store=tmp_path, parallelism=(2, 3, 1, 5)[epoch % 4]) as h:
            if not last:
                play(h, job, epoch)
            at = "no point" if last else points[epoch % len(points)]
            if last:
                h.epoch(final=True)
            else:
                h.crash(at=at, watermark=watermark(epoch))
            if not last and at != "published":
                h.epoch(watermark=watermark(epoch))
            found = job.take(h)
            for mine, others in (
                ("kept", "held"),
                ("early", "early_held"),
                ("late", "held_late"),
                ("finals", "held_finals"),
            ):
                assert found[mine] == found[others], f"{mine} in epoch {epoch}, after a crash at {at}"
            told += [row[6] for name in ("kept", "early") for row in found[name]]
            if epoch % 2:
                h.maintain()
    assert {"early", "on_time", "late"} <= set(told)


def test_sessions_cannot_be_kept_when_they_are_gone() -> None:
    sessions = Job().kept
    with pytest.raises(hr.ProgramError, match="keep= is not supported for these windows"):
        sessions.queryable(keep="1h")


def test_a_program_that_waits_for_a_session_says_until_when(tmp_path: Path) -> None:
    job = Job()
    with Harness(job.app, start=START, store=tmp_path) as h:
        h.push(job.hits, Hit("a", h.at("12:00:10"), 1))
        h.epoch(watermark="12:00:11")
        assert newest_manifests(hr.Store(tmp_path))[-1].waits_for["kept"] == h.at("12:00:40") - 1
