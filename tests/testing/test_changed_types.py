"""Between two runs the types of stored values may change: old values are read as what the rules, or a function, say."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import StoreError
from headrace.model import migrations
from headrace.model.order import EpochLimits
from headrace.plan.compile import compile_app
from headrace.state.manifest import read_state
from headrace.state.store import open_store
from headrace.transfer.export import ExportRequest, export_state
from headrace.transfer.record import EXACT
from headrace.upgrade.functions import function_lines
from tests.testing.changed import FILES, KEYS, Ask, Job, Told, keeping, kept, write


@pytest.fixture(autouse=True)
def _no_functions_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "_registered", {})


class Place(hr.Record):
    town: str
    people: int


class Renamed(hr.Record):
    people: float
    city: str = hr.field(was="town")
    country: str = "?"


class Smaller(hr.Record):
    town: str


class Colour(Enum):
    RED = "red"


class Colours(Enum):
    BLUE = "blue"
    RED = "red"


class Inner(hr.Record):
    place: Place
    more: list[Place]


class InnerRenamed(hr.Record):
    place: Renamed
    more: list[Renamed]


class Fixed(hr.Record, array_like=True):
    town: str


class FixedLonger(hr.Record, array_like=True):
    town: str
    people: int = 5


@dataclass
class Plain:
    town: str


@dataclass
class PlainLonger:
    town: str
    tags: list[str] = dataclass_field(default_factory=list)


class Round(hr.Record, tag="round"):
    town: str


class RoundNow(hr.Record, tag="round"):
    city: str = hr.field(was="town")


class Square(hr.Record, tag="square"):
    people: int = 0


class Change(NamedTuple):
    old: Any
    make: Any
    new: Any
    read: Any
    """What is read of the value that was made of 2."""


CHANGES = {
    "a field renamed, one added, one widened": Change(Place, lambda n: Place("x", n), Renamed, Renamed(2.0, "x")),
    "a field removed": Change(Place, lambda n: Place("x", n), Smaller, Smaller("x")),
    "an int widened": Change(int, lambda n: n, float, 2.0),
    "an int that may be None": Change(int, lambda n: n, int | None, 2),
    "a member added to a union": Change(int, lambda n: n, int | str, 2),
    "a member added to an enum": Change(Colour, lambda n: Colour.RED, Colours, Colours.RED),
    "records inside of records": Change(
        Inner, lambda n: Inner(Place("x", n), [Place("y", n)]), InnerRenamed,
        InnerRenamed(Renamed(2.0, "x"), [Renamed(2.0, "y")]),
    ),
    "an enum that is text now": Change(Colour, lambda n: Colour.RED, str, "red"),
    "a dataclass with a list added": Change(Plain, lambda n: Plain("x"), PlainLonger, PlainLonger("x", [])),
    "a tagged union": Change(Round, lambda n: Round("x"), RoundNow | Square, RoundNow("x")),
    "a place added": Change(Fixed, lambda n: Fixed("x"), FixedLonger, FixedLonger("x", 5)),
}  # fmt: skip


def versions(store: Path, step: str = "kept") -> list[int]:
    """Of the runs of the newest epoch."""
    files = open_store(store, durable=False)
    newest = max(int(path.stem) for path in (store / "manifests" / "0").iterdir())
    return [ref.version for ref in read_state(files, 0, newest).runs[step]]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("files", [False, True], ids=["in manifests", "in files"])
def test_every_kind_of_state_reads_old_values_by_the_rules(tmp_path: Path, change: Change, files: bool) -> None:
    options = {"limits": FILES} if files else {}
    write(keeping(change.old, change.make), tmp_path, **options)
    job = keeping(change.new, lambda n: change.read)
    with job.harness(tmp_path, parallelism=3, **options) as h:
        assert job.tell(h) == kept(change.read)
        h.crash()
        for _ in range(5):
            h.maintain()
            h.epoch()
        assert set(versions(tmp_path)) == {1}
        assert job.tell(h) == kept(change.read)
        # What is kept now is of the new type, whatever the program's rules say of the old one.
        h.push(job.asks, Ask("k1", 5))
        h.epoch()
        assert job.tell(h)["value"] == str(change.read)
    with job.harness(tmp_path, parallelism=1, **options) as h:
        assert job.tell(h, "k1")["newest"] == str(change.read)


class Cents(hr.Record):
    cents: int


class Money(hr.Record):
    euros: float
    currency: str


def to_money(old: Cents) -> Money:
    return Money(old.cents / 100, "EUR")


def test_a_function_leads_where_the_rules_do_not(tmp_path: Path) -> None:
    write(keeping(Cents, lambda n: Cents(n * 100)), tmp_path)
    hr.migrate(Cents, Money)(to_money)
    job = keeping(Money, lambda n: Money(float(n), "EUR"))
    with job.harness(tmp_path, limits=FILES) as h:
        assert job.tell(h) == kept(Money(2.0, "EUR"))


def test_functions_follow_each_other_and_the_rules(tmp_path: Path) -> None:
    class Precise(hr.Record):
        amount: str
        currency: str = "EUR"
        note: str = ""

    @hr.migrate(Money, Precise)
    def to_precise(old: Money) -> Precise:
        return Precise(f"{old.euros:.2f}", old.currency)

    write(keeping(Cents, lambda n: Cents(n * 100)), tmp_path)
    hr.migrate(Cents, Money, to_money)
    job = keeping(Precise, lambda n: Precise(str(n)))
    with job.harness(tmp_path) as h:
        assert job.tell(h) == kept(Precise("2.00"))


def test_a_function_may_leave_the_program_once_folds_have_rewritten_what_needed_it(tmp_path: Path) -> None:
    write(keeping(Cents, lambda n: Cents(n * 100)), tmp_path)
    hr.migrate(Cents, Money, to_money)
    job = keeping(Money, lambda n: Money(float(n), "EUR"))
    with job.harness(tmp_path, parallelism=3) as h:
        # A fold that dies before a manifest names what it wrote has not happened.
        h.crash("base_written")
        assert set(versions(tmp_path)) == {0}
        for _ in range(2 * 3):
            h.epoch()
            h.maintain()
        h.epoch()
    assert set(versions(tmp_path)) == {1}
    migrations._registered.clear()
    with job.harness(tmp_path) as h:
        assert [job.tell(h, key)["value"] for key in KEYS] == [str(Money(float(i + 1), "EUR")) for i in range(8)]


def needs_of(job: Job, store: Path) -> list[tuple[str, ...]]:
    """What a plan says of the functions of a program."""
    newest = max(int(path.stem) for path in (store / "manifests" / "0").iterdir())
    state = read_state(open_store(store, durable=False), 0, newest)
    facts = compile_app(job.app, parallelism=3, key_groups=128).facts
    return [line.notes for line in function_lines(state, facts)]


def test_a_plan_says_which_values_need_a_function_and_after_how_many_folds_none_does(tmp_path: Path) -> None:
    write(keeping(Cents, lambda n: Cents(n * 100)), tmp_path)
    hr.migrate(Cents, Money, to_money)
    job = keeping(Money, lambda n: Money(float(n), "EUR"))
    [notes] = needs_of(job, tmp_path)
    states = ", ".join(f"kept.{name}" for name in ("value", "few", "named", "newest", "acc"))
    assert notes == (f"needed by {states}", "rewritten by 3 folds between epochs")
    with job.harness(tmp_path, parallelism=3) as h:
        h.epoch()
        for folds in (2, 1, 0):
            h.maintain()
            h.epoch()
            [notes] = needs_of(job, tmp_path)
            assert notes[0].startswith("needed by") == (folds > 0) and (not folds or f"{folds} fold" in notes[1])
    assert "may be taken out" in notes[0]


def test_without_its_function_a_changed_type_is_refused(tmp_path: Path) -> None:
    write(keeping(Cents, Cents), tmp_path)
    job = keeping(Money, lambda n: Money(float(n), "EUR"))
    with pytest.raises(StoreError) as caught, job.harness(tmp_path) as h:
        job.tell(h)
    assert "Cents" in str(caught.value) and "Money" in str(caught.value) and "hr.migrate" in str(caught.value)


def fails(old: Cents) -> Money:
    raise ValueError(f"no rate for {old.cents}")


def test_a_function_that_raises_is_told_with_its_line_the_key_and_the_value(tmp_path: Path) -> None:
    write(keeping(Cents, Cents), tmp_path)
    hr.migrate(Cents, Money, fails)
    job = keeping(Money, lambda n: Money(float(n), "EUR"))
    with pytest.raises(StoreError) as caught, job.harness(tmp_path) as h:
        job.tell(h)
    text = str(caught.value)
    line = fails.__code__.co_firstlineno + 1
    for part in ("fails raised ValueError: no rate for", "state 'value'", f"test_changed_types.py:{line}", "key "):
        assert part in text
    job = keeping(Cents, Cents)
    with job.harness(tmp_path) as h:
        assert job.tell(h)["value"] == str(Cents(2))


def test_a_function_that_gives_another_type_than_it_says_is_told(tmp_path: Path) -> None:
    write(keeping(Cents, Cents), tmp_path)
    unchanged: Any = copy
    hr.migrate(Cents, Money, unchanged)
    job = keeping(Money, lambda n: Money(float(n), "EUR"))
    with pytest.raises(StoreError, match="missing required field"), job.harness(tmp_path) as h:
        job.tell(h)


@pytest.mark.parametrize("fold", [False, True], ids=["read", "folded"])
def test_an_integer_that_a_float_cannot_hold_is_refused_with_its_key(tmp_path: Path, fold: bool) -> None:
    write(keeping(int, lambda n: 2**53 + n), tmp_path)
    job = keeping(float, float)
    with pytest.raises(StoreError, match=r"2\*\*53") as caught, job.harness(tmp_path) as h:
        h.epoch()
        if fold:
            h.maintain()
        else:
            job.tell(h)
    assert "key" in str(caught.value)


def test_step_state_and_type_may_change_at_one_start_and_changes_be_spilled(tmp_path: Path) -> None:
    def program(value: Any, *, new: bool) -> Job:
        class Before(hr.Process[Ask, Told, str]):
            held: hr.ValueState[value]

            def on_event(self, event: Ask, ctx: hr.Context[str]) -> None:
                self.held.set(Place("x", event.n))

        class After(hr.Process[Ask, Told, str]):
            house: hr.ValueState[value] = hr.state(was="held", ttl="1d")

            def on_event(self, event: Ask, ctx: hr.Context[str]) -> Iterator[Told]:
                before = self.house.get()
                self.house.set(before.replace(country=before.country + "!"))
                yield Told(ctx.key, {"was": str(before)})

        app = hr.App("changed")
        asks = app.read("asks", hr.source.items([]), Ask)
        step = asks.key_by(Ask.key).process(After() if new else Before())
        return Job(app, asks, step.named("moved", was="kept") if new else step.named("kept"))

    write(program(Place, new=False), tmp_path)
    job = program(Renamed, new=True)
    limits = EpochLimits(inline_run_bytes=0, overlay_bytes=1)
    with job.harness(tmp_path, limits=limits, parallelism=3) as h:
        for times in range(3):
            h.push(job.asks, *(Ask(key) for key in KEYS))
            h.epoch()
            h.maintain()
            expected = {key: str(Renamed(i + 1.0, "x", "?" + "!" * times)) for i, key in enumerate(KEYS)}
            assert {told.key: told.kept["was"] for told in h.take(job.told)} == expected
        h.crash()
        assert job.tell(h) == {"was": str(Renamed(2.0, "x", "?!!!"))}


# --- several changes after each other


class V1(hr.Record):
    a: int
    b: int = 1


class V2(hr.Record):
    a: int


class V3(hr.Record):
    a: int
    b: str = "again"


class Added(hr.Record):
    a: int
    b: int = 7


class Required(hr.Record):
    a: int
    b: int


@pytest.mark.parametrize("folds", [False, True], ids=["read from old runs", "folded in between"])
@pytest.mark.parametrize(
    ("types", "first", "last"),
    [
        ([V1, V2, V3], V1(2, 5), V3(2, "again")),
        ([V1, V2, Added], V1(2, 5), Added(2, 7)),
        ([V2, Added, Required], V2(2), Required(2, 7)),
        ([V2, Added, V1, V2, Required], V2(2), None),
        ([Place, Renamed, Renamed], Place("x", 2), Renamed(2.0, "x")),
    ],
    ids=[
        "removed, and added as another", "removed, and added with another default", "added, and then required",
        "refused at the end", "renamed, and known as renamed",
    ],
)  # fmt: skip
def test_values_are_read_as_if_every_program_in_between_had_rewritten_them(
    tmp_path: Path, types: list[Any], first: Any, last: Any, folds: bool
) -> None:
    write(keeping(types[0], lambda n: first), tmp_path)
    for kind in types[1:-1]:
        job = keeping(kind, lambda n: None)
        with job.harness(tmp_path) as h:
            for _ in range(6 if folds else 1):
                h.epoch()
                if folds:
                    h.maintain()
            h.epoch()
    job = keeping(types[-1], lambda n: last)
    if last is None:
        with pytest.raises(StoreError, match="added without a default"):
            job.harness(tmp_path)
        return
    with job.harness(tmp_path) as h:
        assert job.tell(h) == kept(last)


def test_a_version_that_was_used_never_means_another_type(tmp_path: Path) -> None:
    def program(value: Any, other: Any) -> Job:
        class OneState(hr.Process[Ask, Ask, str]):
            place: hr.ValueState[value]

            def on_event(self, event: Ask, ctx: hr.Context[str]) -> Iterator[Ask]:
                if event.n:
                    self.place.set(Place("x", event.n))
                else:
                    yield Ask(str(self.place.get()))

        class TwoStates(OneState):
            other: hr.ValueState[other]

            def on_event(self, event: Ask, ctx: hr.Context[str]) -> Iterator[Ask]:
                self.other.set(event.n)
                return super().on_event(event, ctx)

        app = hr.App("changed")
        asks = app.read("asks", hr.source.items([]), Ask)
        function = OneState() if other is None else TwoStates()
        return Job(app, asks, asks.key_by(Ask.key).process(function).named("kept"))

    for step, other in enumerate([int, float, None, None]):
        job = program(Place, other)
        with job.harness(tmp_path, drop=["kept.other"] if other is None else []) as h:
            h.push(job.asks, Ask(f"k{step}", 5))
            h.epoch()
    # The state that made the version rise is gone, and `place` has still the type it had then.
    assert versions(tmp_path) == [1, 1, 1, 0]
    job = program(Renamed, None)
    with job.harness(tmp_path) as h:
        h.push(job.asks, *(Ask(f"k{i}") for i in range(4)))
        h.epoch()
        assert [ask.key for ask in h.take(job.told)] == [str(Renamed(5.0, "x"))] * 4


# --- readers


def test_readers_answer_in_the_stored_version_and_by_rules_in_the_type_they_ask_for(tmp_path: Path) -> None:
    write(keeping(Place, lambda n: Place("x", n)), tmp_path)
    job = keeping(Renamed, lambda n: Renamed(n, "y"))
    with job.harness(tmp_path) as h:
        h.push(job.asks, Ask("k0", 5))
        h.epoch()
        store = hr.Store(str(tmp_path))
        old_rows = {info.state: (info.rows, info.old_rows) for info in store.states()}
        assert old_rows["value"] == (9, 8) and old_rows["named"] == (9, 8)
        assert store.state("kept.value").get_many(["k0", "k1"]) == [
            {"people": 5, "city": "y", "country": "?"},
            {"town": "x", "people": 2},
        ]
        for name, kind, of in (
            ("value", Renamed, lambda value: value),
            ("newest", Renamed, lambda value: value),
            ("few", list[Renamed], lambda value: [value]),
            ("named", dict[str, Renamed], lambda value: {"it": value}),
        ):
            view = store.state(f"kept.{name}", kind)
            assert view["k1"] == of(Renamed(2.0, "x"))
            assert view.get_many(["k0"])[0] != of(Renamed(1.0, "x"))
            assert dict(view.scan())["k7"] == of(Renamed(8.0, "x"))
        assert h.state(job.told, job.told.node.fn.value, "k2") == Renamed(3.0, "x")


# --- tools that write


def test_an_edit_of_an_old_value_is_of_the_new_type(tmp_path: Path) -> None:
    write(keeping(Place, lambda n: Place("x", n)), tmp_path)
    job = keeping(Renamed, lambda n: Renamed(n, "y"))
    with job.harness(tmp_path) as h:
        h.epoch()
        with h.edit() as edit:
            edit.patch("kept.value", "k1", {"people": 7.5})
            edit.patch("kept.named", "k2", {"it": {"people": 1.0, "city": "z"}})
        assert job.tell(h)["value"] == str(Renamed(7.5, "x"))
        assert job.tell(h, "k2")["named"] == str({"it": Renamed(1.0, "z")})
        assert hr.Store(str(tmp_path)).state("kept.value")["k1"] == {"people": 7.5, "city": "x", "country": "?"}


def test_an_edit_of_a_value_that_needs_a_function_is_refused(tmp_path: Path) -> None:
    write(keeping(Cents, Cents), tmp_path)
    hr.migrate(Cents, Money, to_money)
    job = keeping(Money, lambda n: Money(float(n), "EUR"))
    with job.harness(tmp_path) as h:
        h.epoch()
        with pytest.raises(StoreError, match="run the job for a while"), h.edit() as edit:
            edit.patch("kept.value", "k1", {"euros": 1.0})


def test_an_exact_export_is_of_the_newest_types(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", tmp_path / "out"
    write(keeping(Place, lambda n: Place("x", n)), store)
    with keeping(Renamed, lambda n: Renamed(n, "y")).harness(store) as h:
        h.epoch()
        files = open_store(store, durable=False)
        export_state(files, "changed", read_state(files, 0, h.published), ExportRequest(str(folder), form=EXACT))
    [part] = (folder / "kept" / "value").glob("*.parquet")
    values = [msgspec.msgpack.decode(raw) for raw in pq.read_table(part).column("value").to_pylist()]
    assert len(values) == len(KEYS) and {"people": 2.0, "city": "x", "country": "?"} in values
