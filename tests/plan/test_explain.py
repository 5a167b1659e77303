from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import headrace as hr
from headrace.plan.explain import outline


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int = 0


class Fraud(hr.Process[Tx, Tx, str]):
    small: hr.ValueState[bool]
    shops: hr.MapState[str, int] = hr.state(ttl=hr.ttl("7d", clock="event"), was="merchants")
    quiet: hr.Timer
    odd: hr.Side[Tx]

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Tx]:
        yield event

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None: ...


@pytest.fixture
def app() -> hr.App:
    app = hr.App("fraud")
    tx = app.read("tx", hr.source.files("tx/"), Tx, time=Tx.at, out_of_order="5s", idle="1m")
    tx.errors.write(hr.sink.files("dead/"))
    good = tx.where("cents > 0").with_columns(Tx, cents="cents * 2")
    alerts = good.key_by(Tx.card).process(Fraud())
    alerts.side(Fraud.odd).write(hr.sink.files("odd/", format="parquet"))
    alerts.where("cents > 5").union(alerts).write(hr.sink.console())
    totals = good.key_by("card").aggregate(total=hr.sum(Tx.cents), n=hr.count()).named("totals").queryable()
    totals.key_by("card").latest().named("newest", was="old").queryable()
    good.key_by(lambda t: t.cents).reduce(lambda a, b: a).named("by_cents").queryable()
    return app


def plain(text: str) -> str:
    """Without the places in this file, which change with every edit."""
    return re.sub(r"  \(\S*test_explain\.py:\d+\)", "", text)


def test_the_text_is_a_tree_of_steps_state_exchanges_and_guarantees(app: hr.App) -> None:
    assert plain(app.explain()) == (
        """app fraud

tx: read files tx/ (json) → Tx
│    event time at, out of order by 5s, idle after 1m
├─ errors → Failed
│  └─ tx_errors_files_dead: write files dead/ (json) [exactly once]
└─ where cents > 0 [in the JVM]
   └─ with_columns cents = cents * 2 → Tx [in the JVM]
      ├─ ⇄ exchange 1 by card, shared by 2 steps
      │  ├─ fraud: process Fraud → Tx
      │  │  │    small: value of bool
      │  │  │    shops: map of str → int, ttl 7d by event clock, was merchants
      │  │  │    quiet: timer
      │  │  │    odd: side of Tx
      │  │  ├─ side odd → Tx
      │  │  │  └─ fraud_odd_files_odd: write files odd/ (parquet) [exactly once]
      │  │  ├─ where cents > 5 [in the worker]
      │  │  │  └─ union of 2 → Tx
      │  │  │     └─ fraud_console: write console (20 rows) [at least once]
      │  │  └─ → union of 2 → Tx, shown above
      │  └─ totals: aggregate total, n → Row [queryable]
      │     │    upsert by card
      │     │    keeps accumulators of total, n
      │     └─ newest: latest → Row [queryable]
      │             upsert by card
      │             was old
      │             no exchange: the rows already lie by card
      │             keeps a Row per key
      └─ ⇄ exchange 2 by <lambda>
         └─ by_cents: reduce <lambda> → Tx [queryable]
                 upsert, no unique key is known
                 keeps a Tx per key
"""
    )


def test_expressions_run_in_the_jvm_until_the_first_fork(app: hr.App) -> None:
    where = {step.title: step.runs for step in outline(app).steps if step.verb in ("where", "with_columns")}
    assert where == {
        "where cents > 0": ["jvm"],
        "with_columns cents = cents * 2": ["jvm"],
        "where cents > 5": ["worker"],
    }
    forked = hr.App("forked")
    tx = forked.read("tx", hr.source.items([]), Tx)
    tx.where("cents > 0").write(hr.sink.collect())
    tx.where("cents < 0").write(hr.sink.collect())
    assert [step.runs for step in outline(forked).steps if step.verb == "where"] == [["worker"], ["worker"]]


def test_every_step_tells_its_place(app: hr.App) -> None:
    lines = [line for line in app.explain().splitlines() if "→" in line or "write" in line]
    assert any(re.search(r"\(tests/plan/test_explain\.py:\d+\)$", line) for line in lines)


def test_mermaid_names_every_step_and_edge(app: hr.App) -> None:
    text = app.explain("mermaid")
    lines = text.splitlines()
    assert lines[0] == "flowchart LR"
    nodes = {match[1] for line in lines if (match := re.match(r'    (n\d+)(\[\("|\["|\[\["|\(\["|\[/")', line))}
    edges = [re.fullmatch(r'    (n\d+) (?:-->|==>\|"[^"]+"\|) (n\d+)', line) for line in lines[1 + len(nodes) :]]
    assert all(edges)
    assert {end for edge in edges if edge for end in edge.groups()} <= nodes
    assert '    n4 ==>|"exchange 1 by card"| n5' in lines
    assert "cents #gt; 0" in text
    assert "ttl 7d by event clock" in text


def test_mermaid_draws_the_automaton_of_a_pattern() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    pattern = hr.pattern("small", "cents < 9").not_then("mid", "cents = 9").then("large", "cents > 9").within("1m")
    tx.key_by(Tx.card).match(pattern, clock="wall").named("fraud").select(card="small.card").write(hr.sink.collect())
    lines = app.explain("mermaid").splitlines()
    start = next(i for i, line in enumerate(lines) if "subgraph" in line)
    assert [line.strip() for line in lines[start:]] == [
        'subgraph n1_pattern["the pattern"]',
        'n1_start(("start"))',
        'n1_end(("the end"))',
        'n1_s2["small"]',
        'n1_s3["large"]',
        "n1_start --> n1_s2",
        'n1_s2 -->|"then, unless stopped"| n1_s3',
        "n1_s3 --> n1_end",
        "end",
        "n1 -.- n1_pattern",
    ]


def test_mermaid_draws_the_ways_through_a_row_pattern_of_sql() -> None:
    app = hr.App("shop")
    app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    query = """SELECT * FROM tx MATCH_RECOGNIZE (PARTITION BY card ORDER BY at MEASURES A.cents AS low
        PATTERN (A B+ C?) DEFINE A AS cents < 9, B AS cents > 9, C AS cents = 9)"""
    app.sql(query, name="rows").write(hr.sink.collect())
    lines = [line.strip() for line in app.explain("mermaid").splitlines()]
    boxes = [line.partition("_")[2] for line in lines if '["' in line and "_s" in line]
    assert boxes == ['s2["A"]', 's3["B"]', 's4["B 2"]', 's5["C"]']
    arrows = [line.replace("n1_", "") for line in lines if line.startswith("n1_") and " --> " in line]
    assert arrows == [
        "start --> s2", "s2 --> s3", "s3 --> s4", "s3 --> s5", "s3 --> end", "s4 --> s4", "s4 --> s5", "s4 --> end",
        "s5 --> end",
    ]  # fmt: skip


def test_the_outline_can_be_written_as_json(app: hr.App) -> None:
    import msgspec

    told = msgspec.json.decode(msgspec.json.encode(outline(app)))
    assert told["app"] == "fraud"
    assert told["exchanges"][0] == {"number": 1, "key": "card", "after": 4, "steps": [5, 11]}
    assert [step.get("kind") for step in told["steps"] if step.get("name") in ("fraud", "totals")] == [
        None,
        "upsert by card",
    ], "the kind of append streams goes without saying"


def test_expressions_keep_and_rename_the_unique_key_as_they_do_its_columns(app: hr.App) -> None:
    tx = app.read("more", hr.source.items([]), Tx)
    totals = tx.key_by("card").aggregate(n=hr.count(), total=hr.sum("cents")).named("more_totals")
    assert str(totals.where("n > 1").node.kind) == "upsert by card"
    assert str(totals.select(owner="card", n="n").node.kind) == "upsert by owner"
    assert str(totals.with_columns(double="n * 2").node.kind) == "upsert by card"
    assert str(totals.with_columns(card="upper(card)").node.kind) == "upsert, no unique key is known"
    assert str(totals.select("n").node.kind) == "upsert, no unique key is known"
    assert str(totals.map(lambda row: row.n, output=int).node.kind) == "upsert, no unique key is known"
    assert str(totals.changes().node.kind) == "append"


def test_results_of_windows_have_the_window_in_their_key(app: hr.App) -> None:
    tx = app.read("more", hr.source.items([]), Tx, time=Tx.at)
    by_card = tx.key_by("card")
    hourly = by_card.window(hr.tumbling("1h"), fire=hr.early("1s")).aggregate(n=hr.count())
    assert str(hourly.node.kind) == "upsert by card, window_start, window_end"
    grown = by_card.window(hr.session("1h"), fire=hr.early("1s")).aggregate(n=hr.count())
    assert str(grown.node.kind) == "upsert, no unique key is known", "a session that grew is another window"
    assert str(by_card.window(hr.tumbling("1h")).aggregate(n=hr.count()).node.kind) == "append"
