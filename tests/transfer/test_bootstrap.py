"""The first epoch of a job, made of files and DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.model import crash
from headrace.state import layout
from headrace.state.store import open_store
from headrace.testing import Harness
from headrace.transfer.bootstrap import bootstrap
from tests.cli.calling import call, call_json
from tests.transfer.till import FIRST, SECOND, START_US, Rule, Till, sale

WATERMARK = START_US + 50 * 60_000_000 - 1
STATES = [
    "keep.newest", "keep.count", "keep.brief", "keep.most", "keep.mean", "keep.hours", "keep.trail", "keep.alarm",
    "keep.bells", "keep.wall", "last", "total", "visits", "ruled.limits", "ruled.spent",
]  # fmt: skip


def clock() -> float:
    return START_US / 1e6


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store after one epoch of the till, and its exports."""
    folder = tmp_path_factory.mktemp("till")
    till = Till(folder / "store")
    till.h.push(till.rules, Rule("r", 5))
    till.epoch(*FIRST[:2])
    till.epoch(*FIRST[2:])
    till.close()
    store = hr.Store(folder / "store")
    store.export(folder / "parquet")
    store.export(folder / "jsonl", format="jsonl")
    store.export(folder / "exact", exact=True)
    return folder


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    till = Till()
    yield till.app
    till.close()


def test_a_job_on_an_exact_export_goes_on_as_the_exported_one(exports: Path, app: Any, tmp_path: Path) -> None:
    report = bootstrap(app, tmp_path / "new", export=exports / "exact", clock=clock, parallelism=3)
    assert report.rows["keep.count"] == 4
    # In a copy, because going on changes the store.
    import shutil

    shutil.copytree(exports / "store", tmp_path / "old")
    old, new = Till(tmp_path / "old"), Till(tmp_path / "new", parallelism=3)
    for rows in (SECOND, [sale("ü:x", 1, 200), sale("a", 6, 500)]):
        assert new.epoch(*rows) == old.epoch(*rows)
    for info in hr.Store(tmp_path / "old").states():
        after = hr.Store(tmp_path / "new").state(info.address)
        assert dict(after.scan()) == dict(hr.Store(tmp_path / "old").state(info.address).scan()), info.address
    old.close()
    new.close()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_state_that_was_exported_is_the_same_when_it_is_read_again(
    exports: Path, app: Any, tmp_path: Path, state: str, form: str
) -> None:
    bootstrap(app, tmp_path / "new", {state: exports / form / state}, clock=clock, watermark=WATERMARK)
    before, after = hr.Store(exports / "store").state(state), hr.Store(tmp_path / "new").state(state)
    assert dict(after.scan()) == dict(before.scan())
    for key in before:
        assert after._reader.expires_us(_encoded(key)) == before._reader.expires_us(_encoded(key))


def _encoded(key: Any) -> bytes:
    from headrace.model.keys import encode_key

    return encode_key(key)


def test_rows_of_a_step_become_what_the_step_keeps_of_them(exports: Path, app: Any, tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([msgspec.structs.asdict(each) for each in FIRST])
    names = ["keep", "last", "total", "sums", "hourly", "sliding", "visits", "held", "looking", "in_turn"]
    others = pa.Table.from_pylist([msgspec.structs.asdict(each.replace(n=-each.n)) for each in FIRST])
    report = bootstrap(
        app, tmp_path / "new", rows={**dict.fromkeys(names, rows), "joined.left": rows, "joined.right": others},
        watermark=WATERMARK, clock=clock,
    )  # fmt: skip
    assert report.rows["hourly"] == report.rows["joined.right"] == len(FIRST)
    before, after = hr.Store(exports / "store"), hr.Store(tmp_path / "new")
    for info in before.states():
        if info.step in names:
            assert dict(after.state(info.address).scan()) == dict(before.state(info.address).scan()), info
    old, new = Till(exports / "store"), Till(tmp_path / "new")
    assert new.joined.node.id == old.joined.node.id
    new.close()
    old.close()


def test_timers_that_were_bootstrapped_fire(exports: Path, app: Any, tmp_path: Path) -> None:
    states = {f"keep.{name}": exports / "parquet" / f"keep.{name}" for name in ("alarm", "bells", "wall")}
    bootstrap(app, tmp_path / "new", states, watermark=WATERMARK, clock=clock)
    till = Till(tmp_path / "new")
    till.h.epoch(watermark=str(int(START_US / 1e6)) and "2024-01-01T14:00", clock="2024-01-01T13:30")
    fired = sorted(till.h.take(till.keep))
    till.close()
    assert [each.split(" at ")[0] for each in fired] == [
        "alarm of ", "alarm of a", "alarm of b", "alarm of ü:x", "bells of a", "wall of ", "wall of a", "wall of b",
        "wall of ü:x",
    ]  # fmt: skip


class Hit(hr.Record):
    page: str
    n: int = 1


def totals(function: Any = None) -> tuple[hr.App, Any, Any]:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.items([]), Hit)
    step = hits.key_by(Hit.page).aggregate(n=hr.sum("n"), rows=hr.count(), mean=hr.avg("n")).named("totals")
    step.show()
    return app, hits, step


HISTORY = {"page": ["a", "b"], "n": [10, 20], "rows": [3, 4], "mean.total": [10.0, 20.0], "mean.rows": [3, 4]}


@pytest.mark.parametrize("kind", ["polars", "pandas", "arrow", "path", "lines"])
def test_history_comes_as_files_or_as_frames(tmp_path: Path, kind: str) -> None:
    app, hits, step = totals()
    frame = pl.DataFrame(HISTORY)
    frame.write_parquet(tmp_path / "history.parquet")
    frame.write_ndjson(tmp_path / "history.jsonl")
    data = {
        "polars": frame, "pandas": frame.to_pandas(), "arrow": frame.to_arrow(),
        "path": tmp_path / "history.parquet", "lines": str(tmp_path / "history.jsonl"),
    }[kind]  # fmt: skip
    bootstrap(app, tmp_path / "new", {"totals": data})
    with Harness(app, store=tmp_path / "new", start="2030-01-01") as h:
        h.push(hits, Hit("a", 2))
        h.epoch()
        assert [(row.page, row.n, row.rows, row.mean) for row in h.take(step)] == [("a", 12, 4, 3.0)]
        held = h.state(step, key="b")
        assert (held.page, held.n, held.rows, held.mean) == ("b", 20, 4, 5.0)
        assert h.published == 1


def test_more_rows_than_fit_into_memory_are_sorted_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.transfer import runs

    monkeypatch.setitem(runs.RunSorter.__init__.__kwdefaults__, "chunk_rows", 500)
    app, _, _ = totals()
    count = 5_000
    frame = pa.table({"page": [f"p{n}" for n in range(count)], "n": list(range(count)), "rows": [1] * count,
                      "mean.total": [1.0] * count, "mean.rows": [1] * count})  # fmt: skip
    report = bootstrap(app, tmp_path / "new", {"totals": frame.to_reader(max_chunksize=400)})
    assert report.runs == 1
    view = hr.Store(tmp_path / "new").state("totals")
    assert len(view) == count
    assert view["p4321"]["n"] == 4321
    assert len(open_store(tmp_path / "new").list(layout.RUNS)) == 1


@pytest.mark.parametrize("chunk_rows", [1, 1000])
def test_a_key_that_comes_twice_is_refused_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    from headrace.transfer import runs

    monkeypatch.setitem(runs.RunSorter.__init__.__kwdefaults__, "chunk_rows", chunk_rows)
    app, _, _ = totals()
    table = pa.Table.from_pydict({name: [*values, values[0]] for name, values in HISTORY.items()})
    with pytest.raises(hr.HeadraceError, match="comes 2 times") as raised:
        bootstrap(app, tmp_path / "new", {"totals": table.to_reader(max_chunksize=1)})
    assert "key a" in str(raised.value)


class Box(hr.Record):
    a: int
    tags: list[str] = []


class Boxes(hr.Process[Hit, str, int]):
    box: hr.ValueState[Box]
    seen: hr.MapState[str, hr.Timestamp]

    def on_event(self, event: Hit, ctx: hr.Context[int]) -> None: ...


def boxes() -> hr.App:
    app = hr.App("boxes")
    hits = app.read("hits", hr.source.items([]), Hit)
    hits.key_by(Hit.n).process(Boxes()).named("step").show()
    return app


@pytest.mark.parametrize(
    ("state", "columns", "words"),
    [
        ("step.box", {"key": ["x"], "a": [1]}, ["row 0, column key", "expected: int", "found:    'x'"]),
        ("step.box", {"key": [1, None], "a": [1, 2]}, ["row 1, column key", "None"]),
        ("step.box", {"k": [1], "a": [1]}, ["no column holds the keys", "found:    k, a"]),
        ("step.box", {"key": [1, 2], "a": ["1", "two"]}, ["row 0", "Expected `int`, got `str` - at `$.a`"]),
        ("step.box", {"key": [1, 2], "a": [1, None]}, ["row 1", "missing required field `a`"]),
        ("step.box", {"key": [1], "a": [1], "b": [2]}, ["row 0", "unknown field `b`"]),
        ("step.seen", {"key": [1], "entry": ["e"], "value": ["soon"]}, ["row 0", "Timestamp", "soon"]),
        ("step.seen", {"key": [1], "value": [5]}, ["no column holds the names of entries"]),
        ("step.box", {"key": pa.array([1], pa.timestamp("ns")), "a": [1]}, ["do not fit its type", "rows from 0"]),
        ("step.bxo", {"key": [1]}, ["no such state", "did you mean step.box?"]),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_told_with_row_and_column(
    tmp_path: Path, state: str, columns: dict[str, list[Any]], words: list[str]
) -> None:
    with pytest.raises(hr.HeadraceError) as raised:
        bootstrap(boxes(), tmp_path / "new", {state: pa.table(columns)})
    for word in words:
        assert word in str(raised.value), str(raised.value)
    assert not open_store(tmp_path / "new").exists(layout.STORE_RECORD)


def test_what_the_results_of_windows_do_not_say_is_refused(exports: Path, app: Any, tmp_path: Path) -> None:
    parts = "'mean.total' and 'mean.rows'"
    for state, words in {
        "sliding": "sliding windows", "held": "row by row", "hourly": parts, "sums": parts, "looking": "keeps rows",
    }.items():  # fmt: skip
        with pytest.raises(hr.HeadraceError) as raised:
            bootstrap(app, tmp_path / "new", {state: exports / "parquet" / state})
        assert words in str(raised.value)
        assert "--rows" in str(raised.value)


def test_a_store_that_is_there_is_left_alone(exports: Path, app: Any, tmp_path: Path) -> None:
    with pytest.raises(hr.HeadraceError, match="something else") as raised:
        bootstrap(app, exports / "store", {"last": exports / "parquet" / "last"})
    assert "the store of app 'till'" in str(raised.value)
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(hr.HeadraceError, match="something else"):
        bootstrap(app, tmp_path, {"last": exports / "parquet" / "last"})


@pytest.mark.parametrize("point", ["making", "manifest_written", "store_made"])
def test_a_bootstrap_that_died_is_no_store_and_begins_again(
    exports: Path, app: Any, tmp_path: Path, point: str
) -> None:
    def strike(at: str, epoch: int) -> None:
        if at == point:
            raise crash.Crash(point)

    with pytest.raises(crash.Crash), crash.planned(strike):
        bootstrap(app, tmp_path / "new", export=exports / "exact", clock=clock)
    with pytest.raises(hr.HeadraceError, match="no store here"):
        hr.Store(tmp_path / "new")
    bootstrap(app, tmp_path / "new", {"last": exports / "parquet" / "last"}, clock=clock)
    opened = hr.Store(tmp_path / "new")
    assert opened.epochs() == [0]
    assert len(opened.state("last")) == 4
    files = open_store(tmp_path / "new")
    assert not files.exists(layout.MAKING)
    assert len(files.list(layout.RUNS)) == 1


def test_of_two_attempts_at_one_store_the_later_one_makes_it(app: Any, exports: Path, tmp_path: Path) -> None:
    def overtaken(done: int, total: int) -> None:
        if done == total:
            bootstrap(app, tmp_path / "new", {"last": exports / "jsonl" / "last"}, clock=clock)

    with pytest.raises(hr.HeadraceError, match="something else"):
        bootstrap(app, tmp_path / "new", {"total": exports / "parquet" / "total"}, clock=clock, progress=overtaken)
    opened = hr.Store(tmp_path / "new")
    assert (len(opened.state("last")), len(opened.state("total"))) == (4, 0)


def test_a_source_begins_where_it_is_told(tmp_path: Path) -> None:
    app, _, _ = totals()
    history = pa.table(HISTORY)
    bootstrap(app, tmp_path / "new", {"totals": history}, offsets={"hits": {"rows": 7}})
    assert hr.Store(tmp_path / "new").epoch == 0
    for given, words in (({"hist": {"rows": 7}}, "did you mean hits?"), ({"hits": "seven"}, "no offset"),
                         ({"hits": {"logOffset": 3}}, "list of files")):  # fmt: skip
        with pytest.raises(hr.HeadraceError) as raised:
            bootstrap(app, tmp_path / "other", {"totals": history}, offsets=given)
        assert words in str(raised.value)


def test_files_and_stores_may_lie_behind_urls(exports: Path, app: Any, tmp_path: Path) -> None:
    where = f"memory://{tmp_path.name}"
    hr.Store(exports / "store").export(f"{where}/exact", exact=True)
    hr.Store(exports / "store").export(f"{where}/lines", "last", format="jsonl")
    bootstrap(app, f"{where}/all", export=f"{where}/exact", clock=clock)
    bootstrap(app, f"{where}/last", {"last": f"{where}/lines/last"}, clock=clock)
    for name in ("all", "last"):
        assert len(hr.Store(f"{where}/{name}").state("last")) == 4
    with pytest.raises(hr.HeadraceError, match="nobody knows"):
        hr.Store(exports / "store").export("nowhere://at/all")


def test_an_export_of_a_step_that_is_gone_is_refused_by_name(exports: Path, tmp_path: Path) -> None:
    app, _, _ = totals()
    with pytest.raises(hr.HeadraceError, match="no step of the program takes the state of 'held'"):
        bootstrap(app, tmp_path / "new", export=exports / "exact")
    with pytest.raises(hr.HeadraceError, match="does not hold all") as raised:
        bootstrap(app, tmp_path / "new", export=exports / "parquet")
    assert "--state held=" in str(raised.value)


PROGRAM = """
import headrace as hr

class Hit(hr.Record):
    page: str
    n: int = 1

app = hr.App("hits")
hits = app.read("hits", hr.source.items([]), Hit)
hits.key_by(Hit.page).latest().named("last").show()
"""


def test_the_command_makes_a_store_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    pl.DataFrame({"page": ["a"], "n": [3]}).write_parquet(tmp_path / "history.parquet")
    where = f"last={tmp_path / 'history.parquet'}"
    result = call("bootstrap", tmp_path / "app.py", "--store", tmp_path / "new", "--state", where)
    assert result.exit_code == 0, result.stderr
    assert "headrace run" in result.stdout
    assert call_json("state", tmp_path / "new", "last", "a")["value"] == {"page": "a", "n": 3}
    again = call("bootstrap", tmp_path / "app.py", "--store", tmp_path / "new", "--state", where)
    assert again.exit_code == 4
    assert "something else" in again.stderr
    data = call_json("bootstrap", tmp_path / "app.py", "--store", tmp_path / "second", "--rows", where)
    assert data["rows"] == {"last": 1}
    assert call("bootstrap", tmp_path / "app.py", "--store", tmp_path / "third", "--state", "last").exit_code == 2
