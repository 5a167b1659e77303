"""What runs where is decided by rules, shown as it is, and changes no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.plan.compile import compile_app
from headrace.plan.explain import outline
from headrace.plan.physical import Program
from headrace.plan.rules import RULES


class Click(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 0
    done: hr.Timestamp | None = None


def kafka() -> hr.Source:
    return hr.source.kafka("clicks", bootstrap="localhost:9092")


def json() -> hr.Source:
    return hr.source.files("in/")


def parquet() -> hr.Source:
    return hr.source.files("in/", format="parquet")


def items() -> hr.Source:
    return hr.source.items([])


def backfill() -> hr.Source:
    return hr.source.backfill(parquet(), kafka(), until="2024-01-01")


TIMES: dict[str, dict[str, Any]] = {
    "no time": {},
    "a field": {"time": Click.at},
    "SQL": {"time": "at + INTERVAL 1 SECOND"},
    "marks": {"time": Click.at, "watermark": hr.watermarks.punctuated(Click.done)},
}

# Source, time, expression → where the expression runs.
PLACES = [
    (kafka, "no time", "where", ["jvm"]),
    (kafka, "a field", "where", ["worker"]),
    (kafka, "SQL", "where", ["worker"]),
    (kafka, "marks", "where", ["worker"]),
    (kafka, "a field", "select", ["jvm"]),
    (json, "no time", "where", ["jvm"]),
    (json, "a field", "where", ["jvm"]),
    (json, "SQL", "where", ["jvm"]),
    (json, "marks", "where", ["worker"]),
    (json, "marks", "select", ["jvm"]),
    (parquet, "no time", "where", ["worker"]),
    (parquet, "a field", "where", ["worker"]),
    (parquet, "SQL", "where", ["worker"]),
    (parquet, "marks", "where", ["worker"]),
    (parquet, "no time", "where only Spark knows", ["jvm"]),
    (items, "no time", "where", ["jvm"]),
    (items, "a field", "where", ["jvm"]),
    (items, "a field", "select", ["jvm"]),
    (backfill, "a field", "select", ["jvm", "worker"]),
    (backfill, "a field", "where", ["worker"]),
]  # fmt: skip

EXPRESSIONS: dict[str, Any] = {
    "where": lambda clicks: clicks.where("n > 0"),
    "where only Spark knows": lambda clicks: clicks.where("soundex(page) <> 'x'"),
    "select": lambda clicks: clicks.select(Click, n="n + 1"),
}


def page_of(click: Click) -> str:
    return click.page


def program_of(app: hr.App, **options: Any) -> Program:
    return compile_app(app, parallelism=2, key_groups=128, **options)


def test_explain_prints_the_place_that_the_program_has() -> None:
    for source, time, expression, expected in PLACES:
        app = hr.App("places")
        clicks = EXPRESSIONS[expression](app.read("clicks", source(), Click, **TIMES[time]))
        clicks.map(page_of).write(hr.sink.discard())
        case = f"{source.__name__}, {time}, {expression}"
        (step,) = (step for step in outline(app).steps if step.verb in ("where", "select"))
        assert step.runs == expected, case
        (plan,) = program_of(app).sources
        in_chain = [op.node for op in plan.fragment.ops]
        in_prefix = [each.node for each in plan.prefix]
        assert (step.id in in_chain) != (step.id in in_prefix), case
        if source is not backfill:
            runs_in_worker = step.id in in_chain or plan.decoded
            assert runs_in_worker == (expected == ["worker"]), case
        shown = [line for line in app.explain().splitlines() if f"─ {step.title}" in line]
        names = {"jvm": "in the JVM", "worker": "in the worker"}
        assert all(f"[{' and '.join(names[place] for place in expected)}]" in line for line in shown) and shown, case


def test_behind_a_union_an_expression_runs_where_each_of_its_sources_is_decoded() -> None:
    app = hr.App("union")
    first = app.read("first", json(), Click)
    second = app.read("second", parquet(), Click)
    first.union(second).where("n > 0").map(page_of).write(hr.sink.discard())
    assert [[step.verb for step in source.prefix] for source in program_of(app).sources] == [["where"], ["where"]]
    assert "where n > 0 [in the JVM and in the worker]" in app.explain()


def test_explain_says_which_exchange_has_rows_combined_before_it() -> None:
    app = hr.App("combined")
    clicks = app.read("clicks", items(), Click, time=Click.at)
    clicks.key_by("page").window(hr.tumbling("1m")).aggregate(n=hr.count()).named("windows").queryable()
    assert "exchange 1 by page, rows combined before it" in app.explain()
    clicks.key_by("page").latest().named("last").queryable()
    assert "exchange 1 by page, shared by 2 steps" in app.explain(), "the other step wants the rows"
    assert "rows combined" not in app.explain()


def test_late_rows_that_somebody_reads_are_not_combined() -> None:
    app = hr.App("late")
    clicks = app.read("clicks", items(), Click, time=Click.at)
    windows = clicks.key_by("page").window(hr.tumbling("1m")).aggregate(n=hr.count()).named("windows")
    windows.late.write(hr.sink.discard())
    assert not program_of(app).edges[0].combined


def test_time_is_read_from_its_field_where_that_comes_through_as_it_was_read() -> None:
    expressions: list[tuple[Callable[[hr.Stream[Any]], hr.Stream[Any]], str | None]] = [
        (lambda clicks: clicks, "at"),
        (lambda clicks: clicks.where("n > 0").select(Click, n="n + 1"), "at"),
        (lambda clicks: clicks.with_columns(n="n + 1"), "at"),
        (lambda clicks: clicks.with_columns(at="at + INTERVAL 1 SECOND"), None),
        (lambda clicks: clicks.select("page"), None),
        (lambda clicks: clicks.select("page", at="done"), None),
    ]
    for said, field in expressions:
        app = hr.App("times")
        said(app.read("clicks", json(), Click, time=Click.at)).map(repr, output=str).write(hr.sink.discard())
        assert program_of(app).sources[0].time_field == field
    app = hr.App("times")
    app.read("clicks", json(), Click, time="at + INTERVAL 1 SECOND").map(repr, output=str).write(hr.sink.discard())
    assert program_of(app).sources[0].time_field is None


@pytest.mark.parametrize("left_out", [*RULES, None], ids=lambda rule: "none of them" if rule is None else rule.__name__)
def test_a_program_gives_the_same_results_without_a_rule(left_out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = () if left_out is None else tuple(rule for rule in RULES if rule is not left_out)

    def run() -> list[tuple[str, int]]:
        app = hr.App("same")
        clicks = app.read("clicks", items(), Click, time=Click.at)
        counts = clicks.where("n > 0").key_by("page").window(hr.tumbling("1m")).aggregate(n=hr.sum(Click.n))
        counts = counts.named("counts")
        with hr.testing.Harness(app) as h:
            h.push(clicks, *[Click("ab"[i % 2], hr.Timestamp(i * 7_000_000), i % 5) for i in range(40)])
            h.epoch()
            h.drain()
            return sorted((row.page, row.n) for row in h.take(counts))

    expected = run()
    monkeypatch.setattr("headrace.testing.taps.RULES", rules)
    assert run() == expected and len(expected) > 4
