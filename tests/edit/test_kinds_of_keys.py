"""Keys of every type, with or without a word of the program about it: each tool finds them as the others write them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import headrace as hr
from headrace.edit.erasing.erase import erase_key
from headrace.model.keys import key_text
from headrace.state.store import open_store
from tests.cli.calling import call


class Color(Enum):
    RED = "red"
    BLUE = "blue"


NOON = hr.timestamp("2024-01-01T12:00")
KEYS: dict[str, tuple[Any, list[Any]]] = {
    "text": (str, ["", "sl/ash ünï😀", "null", '"null"', "42", "x:y@41", "line\nbreak"]),
    "text or null": (str | None, ["a", None]),
    "int": (int, [0, -1, 2**53 + 1, 2**63 - 1]),
    "float": (float, [0.5, -1.25, 1e300, math.inf, -math.inf]),
    "decimal": (Decimal, [Decimal("1.50"), Decimal("-3")]),
    "bool": (bool, [True, False]),
    "bytes": (bytes, [b"", b"\x00\xff", b"ab"]),
    "date": (date, [date(2024, 1, 1), date(1, 1, 1)]),
    "datetime": (datetime, [datetime(2024, 1, 1, 12, tzinfo=UTC)]),
    "timestamp": (hr.Timestamp, [NOON]),
    "span": (timedelta, [timedelta(seconds=5)]),
    "uuid": (UUID, [UUID(int=7)]),
    "enum": (Color, [Color.RED, Color.BLUE]),
}  # fmt: skip
WRITTEN_OTHERWISE = ("datetime", "timestamp")
"""Types whose keys are numbers to whoever does not know them."""
STEPS = {"spent", "rolling", "newest", "hourly", "sittings", "recent", "joined"}


class Job:
    """A job whose keys are of a type, in every kind of table."""

    def __init__(self, kind: str, *, said: bool = True) -> None:
        """``said``: whether the program says of what type keys are."""
        annotation, self.keys = KEYS[kind]
        self.type = annotation if said else None
        namespace = {"__annotations__": {"k": annotation, "n": int, "at": hr.Timestamp}, "__module__": __name__}
        self.row: Any = type("Hit", (hr.Record,), namespace)
        self.app = hr.App("keys")
        self.hits = self.app.read("hits", hr.source.items([]), self.row, time=self.row.at)
        keyed = self.hits.key_by(self.row.k if said else lambda hit: hit.k)
        keyed.process(process_of(self.row, annotation)).named("spent").show()
        keyed.aggregate(n=hr.count(), cents=hr.sum("n")).named("rolling").queryable()
        keyed.latest().named("newest").queryable()
        keyed.window(hr.tumbling("1h")).aggregate(n=hr.count()).named("hourly").queryable()
        keyed.window(hr.session("30m")).aggregate(n=hr.count()).named("sittings").queryable()
        keyed.aggregate(n=hr.sum("n", over="1h")).named("recent").show()
        pairs = keyed.join(keyed, within=("0s", "1h"))
        pairs.select(self.row, k="left.k", n="left.n", at="right.at").named("joined").show()

    def run(self, store: Path) -> None:
        with hr.testing.Harness(self.app, start="2024-01-01T12:00", store=store, parallelism=2) as h:
            for minute in (1, 2):
                h.push(self.hits, *(self.row(key, minute, h.at(f"12:0{minute}")) for key in self.keys))
                h.epoch()

    def text(self, key: Any) -> str:
        return key_text(key.value if isinstance(key, Enum) else key, self.type)


def process_of(row: Any, annotation: Any) -> Any:
    """A function that keeps something for keys of a type."""

    class Spent(hr.Process[row, row, annotation]):  # type: ignore[valid-type]
        total: hr.ValueState[int]
        shops: hr.MapState[str, int]
        quiet: hr.Timer

        def on_event(self, event: Any, ctx: Any) -> Iterator[Any]:
            self.total.set((self.total.get() or 0) + event.n)
            self.shops["s"] = event.n
            self.quiet.set(hr.Timestamp(event.at + hr.hours(5)))
            yield event

        def on_timer(self, timer: Any, ctx: Any) -> Iterator[Any]:
            yield from ()

    return Spent()


def ask(*words: object) -> Any:
    """What a command says of a store, a state and a key, which may begin with a minus."""
    done = call(*words[:-3], "--json", "--", *words[-3:])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


CASES = [(kind, True) for kind in KEYS] + [(kind, False) for kind in KEYS if kind not in WRITTEN_OTHERWISE]
IDS = [f"{kind}{'' if said else ', unsaid'}" for kind, said in CASES]


@pytest.mark.parametrize(("kind", "said"), CASES, ids=IDS)
def test_a_key_is_found_edited_and_erased_as_it_is_written(kind: str, said: bool, tmp_path: Path) -> None:
    job, store = Job(kind, said=said), tmp_path / "store"
    job.run(store)
    for key in job.keys:
        text = job.text(key)
        assert ask("state", "--history", store, "spent.total", text)["versions"][-1]["value"] == 3
        done = ask("edit", "--set", "77", "--why", "a test", store, "spent.total", text)
        assert done["changes"][0]["before"] == 3, text
    first, *others = job.keys
    assert set(erase_key(open_store(str(store)), job.text(first)).rows) == STEPS
    for state in ("spent.total", "spent.quiet", "rolling", "newest", "hourly", "sittings", "recent"):
        assert call("state", "--", store, state, job.text(first)).exit_code == 1, state
    for key in others:
        assert ask("state", store, "spent.total", job.text(key))["value"] == 77


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@pytest.mark.parametrize("kind", KEYS)
def test_keys_are_the_same_when_they_are_exported_and_read_again(kind: str, form: str, tmp_path: Path) -> None:
    job, store = Job(kind), tmp_path / "store"
    job.run(store)
    hr.Store(store).export(tmp_path / "files", format=form)
    states = ["spent.total", "spent.shops", "spent.quiet"]
    if (kind, form) != ("float", "jsonl"):
        # Values that are no numbers are null in JSON; keys are not.
        states += ["newest", "hourly", "sittings"]
    hr.bootstrap(job.app, tmp_path / "new", {state: tmp_path / "files" / state for state in states})
    found = hr.diff(store, tmp_path / "new")
    assert [each.address for each in found.states if each.address in states and not each.same] == []
