"""A loop that has another name in the new program: rows that wait in it go on, or the start is refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError, UpgradeRefused
from headrace.model.crash import Crash, planned
from headrace.testing import Harness


class Hop(hr.Record):
    name: str
    left: int


class Step(hr.Record):
    name: str
    left: int
    done: int = 0


def hopping(loop: str, *, was: str | None = None, kind: Any = Hop) -> tuple[hr.App, Any, Any]:
    app = hr.App("hops")
    hops = app.read("hops", hr.source.items([]), kind)
    again = app.loop(loop, kind, was=was)
    every = hops.union(again).map(lambda hop: hop.replace(left=hop.left - 1), output=kind)
    every.filter(lambda hop: hop.left > 0).feed(again)
    ended = every.filter(lambda hop: hop.left <= 0)
    ended.show()
    return app, hops, ended


def waiting(store: Path) -> None:
    """Two rows in the loop ``again``."""
    app, hops, _ = hopping("again")
    with Harness(app, store=store) as h:
        h.push(hops, Hop("a", 2), Hop("b", 3))
        h.epoch()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_that_wait_go_on_under_the_new_name_and_it_may_be_forgotten_then(tmp_path: Path, parallelism: int) -> None:
    waiting(tmp_path)
    app, _, ended = hopping("repeat", was="again")
    with Harness(app, store=tmp_path, parallelism=parallelism) as h:
        h.epoch()
        assert [row.name for row in h.take(ended)] == ["a"]
    app, _, ended = hopping("repeat")
    with Harness(app, store=tmp_path) as h:
        h.drain()
        assert [row.name for row in h.take(ended)] == ["b"]


def test_they_go_on_once_where_the_first_epoch_dies(tmp_path: Path) -> None:
    waiting(tmp_path)

    def die(point: str, epoch: int) -> None:
        if point == "before_publish":
            raise Crash(point)

    with pytest.raises(Crash), planned(die), Harness(hopping("repeat", was="again")[0], store=tmp_path) as h:
        h.epoch()
    app, _, ended = hopping("repeat", was="again")
    with Harness(app, store=tmp_path) as h:
        h.drain()
        assert sorted(row.name for row in h.take(ended)) == ["a", "b"]


def test_their_type_may_change_with_the_name(tmp_path: Path) -> None:
    waiting(tmp_path)
    app, _, ended = hopping("repeat", was="again", kind=Step)
    with Harness(app, store=tmp_path) as h:
        h.drain()
        assert sorted(h.take(ended), key=lambda row: row.name) == [Step("a", 0), Step("b", 0)]


@pytest.mark.parametrize(
    ("loop", "was", "words"),
    [
        ("repeat", None, "rows wait in the loop 'again', which the program does not have"),
        ("repeat", "agian", "is to go on with 'agian', and the store has no such loop"),
    ],
)
def test_what_matches_nothing_is_refused_and_can_be_given_up(tmp_path: Path, loop: str, was: Any, words: str) -> None:
    waiting(tmp_path)
    with pytest.raises(UpgradeRefused, match=words):
        Harness(hopping(loop, was=was)[0], store=tmp_path)
    app, _, ended = hopping(loop)
    with Harness(app, store=tmp_path, drop=["again"]) as h:
        h.drain()
        assert h.take(ended) == []


def test_a_loop_was_not_itself() -> None:
    with pytest.raises(ProgramError, match="was="):
        hopping("again", was="again")
