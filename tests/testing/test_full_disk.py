"""A disk without room for the store: it is told, and the job goes on when there is room again."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import StoreError
from headrace.testing import Harness
from tests.crash.played import FILES
from tests.examples.programs import read_lines


class Note(hr.Record):
    user: str
    text: str


class Newest(hr.Process[Note, Note, str]):
    newest: hr.ValueState[str]

    def on_event(self, event: Note, ctx: hr.Context[str]) -> Iterator[Note]:
        self.newest.set(event.text)
        yield event


@contextmanager
def no_room(most_bytes: int) -> Iterator[None]:
    """A file that may not grow is what a full disk looks like to whoever writes it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_in_four_parts_and_the_job_goes_on_when_there_is_room(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = [Note(f"u{n % 7}", rng.randbytes(500).hex()) for n in range(60)]
    app = hr.App("notes")
    notes = app.read("notes", hr.source.items([]), Note)
    kept = notes.key_by(Note.user).process(Newest()).named("newest")
    kept.write(hr.sink.files(tmp_path / "out"), name="out")
    with Harness(app, store=tmp_path / "store", sinks=True, limits=FILES) as h:
        h.push(notes, *rows[:20])
        h.epoch()
        h.push(notes, *rows[20:40])
        with no_room(2_000), pytest.raises(StoreError) as full:
            h.epoch()
        told = full.value
        assert "no room" in told.what and str(tmp_path / "store") in told.where
        assert told.expected and "File too large" in told.found and "start again" in told.next_move
        assert h.published == 0, "what was not published never happened"
        h.restart()
        h.epoch()
        h.push(notes, *rows[40:])
        h.epoch()
        assert h.state(kept, Newest.newest, "u3") == [row.text for row in rows if row.user == "u3"][-1]
    assert sorted(row["text"] for row in read_lines(tmp_path / "out")) == sorted(row.text for row in rows)
