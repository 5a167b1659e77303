"""Columns that nobody asks for are neither decoded nor moved; what a query keeps follows from its text alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.plan import compile as compiling
from headrace.plan.compile import compile_app
from headrace.plan.physical import Program


class Bid(hr.Record):
    auction: int
    bidder: int
    price: int
    url: str
    at: hr.Timestamp
    note: str | None = None


class Auction(hr.Record):
    id: int
    seller: int
    item: str
    at: hr.Timestamp
    note: str | None = None


def app_of(say: Callable[[hr.App, Any, Any], Any], *, format: Any = "parquet") -> hr.App:
    app = hr.App("columns")
    bid = app.read("bid", hr.source.files("bids/", format=format), Bid, time=Bid.at)
    auction = app.read("auction", hr.source.files("auctions/", format=format), Auction, time=Auction.at)
    for stream in say(app, bid, auction):
        stream.write(hr.sink.discard())
    return app


def program_of(say: Callable[[hr.App, Any, Any], Any], **options: Any) -> Program:
    return compile_app(app_of(say, **options), parallelism=2, key_groups=16)


def reads(program: Program) -> dict[str, str]:
    return {each.name: "all" if each.reads is None else " ".join(each.reads) for each in program.sources}


def sql(text: str) -> Callable[[hr.App, Any, Any], Any]:
    return lambda app, bid, auction: [app.sql(text, name="q")]


def counted(stream: Any) -> Any:
    return stream.key_by("auction").window(hr.tumbling("1m")).aggregate(n=hr.count()).named("counted")


READS = [
    (sql("SELECT auction, price FROM bid WHERE bidder > 3"), {"bid": "auction bidder price at"}),
    (sql("SELECT * FROM bid"), {"bid": "all"}),
    (sql("SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction"), {"bid": "auction at"}),
    (sql("SELECT note, MAX(price) FILTER (WHERE bidder > 1) AS m FROM bid GROUP BY note"),
     {"bid": "bidder price at note"}),
    (sql("SELECT b.price, a.item FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.seller > 5"),
     {"bid": "auction price at", "auction": "id seller item at"}),
    (sql("SELECT b.price FROM bid AS b LEFT JOIN auction AS a ON b.auction = a.id AND b.bidder > a.seller"),
     {"bid": "auction bidder price at", "auction": "id seller at"}),
    (sql("SELECT price FROM bid WHERE auction IN (SELECT id FROM auction)"),
     {"bid": "auction price at", "auction": "id at"}),
    (sql("SELECT auction, price FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY bidder) AS place "
         "FROM bid) AS ranked WHERE place <= 3"), {"bid": "auction bidder price at"}),
    (sql("SELECT price FROM bid UNION ALL SELECT seller FROM auction"), {"bid": "price at", "auction": "seller at"}),
    (lambda app, bid, auction: [counted(bid)], {"bid": "auction at"}),
    (lambda app, bid, auction: [counted(bid.where("price > 1"))], {"bid": "auction price at"}),
    (lambda app, bid, auction: [counted(bid), bid.where("bidder > 1").select("url")], {"bid": "auction bidder url at"}),
    (lambda app, bid, auction: [counted(bid), bid], {"bid": "all"}),
    (lambda app, bid, auction: [bid.map(lambda one: one.price, output=int)], {"bid": "all"}),
    (lambda app, bid, auction: [bid.filter(lambda one: one.price > 1).select("url")], {"bid": "all"}),
    (lambda app, bid, auction: [bid.with_columns(twice="2 * price", long="length(url)").key_by("auction")
                                .aggregate(sum=hr.sum("twice")).named("s")], {"bid": "auction price at"}),
    (lambda app, bid, auction: [counted(bid).late],
     {"bid": "all"}),
]  # fmt: skip


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_source_is_asked_for_the_columns_that_the_program_needs(format: str) -> None:
    for number, (say, expected) in enumerate(READS):
        assert reads(program_of(say, format=format)) == expected, f"case {number}"


def test_a_filter_that_has_to_stand_behind_marks_stands_behind_a_projection_too() -> None:
    app = hr.App("columns")
    bid = app.read("bid", hr.source.kafka("bids", bootstrap="localhost:9092"), Bid, time=Bid.at)
    bid.where("price > 1").select("auction").write(hr.sink.discard())
    program = compile_app(app, parallelism=2, key_groups=16)
    assert reads(program) == {"bid": "auction price at"}
    assert [step.verb for step in program.sources[0].prefix] == ["select"]


def test_explain_shows_which_columns_are_read() -> None:
    text = app_of(sql("SELECT auction, price FROM bid WHERE bidder > 3")).explain()
    assert "reads auction, bidder, price, at of 6 columns" in text
    assert "reads" not in app_of(sql("SELECT * FROM bid")).explain()


def test_only_needed_columns_are_in_frames() -> None:
    say = sql("SELECT b.price, a.item FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.seller > 5")
    edges = {" ".join(edge.codec.names) for edge in program_of(say).edges}
    assert edges == {"auction price", "id item"}


def test_steps_that_keep_no_rows_share_an_exchange_as_before() -> None:
    def say(app: hr.App, bid: Any, auction: Any) -> Any:
        keyed = bid.key_by("auction")
        return [
            keyed.aggregate(n=hr.sum("price")).named("sums"),
            keyed.aggregate(n=hr.count_distinct("bidder")).named("people"),
        ]

    (edge,) = program_of(say).edges
    assert edge.codec.names == ["auction", "bidder", "price"]


def kept(program: Program, step: str) -> set[str]:
    """The columns of the rows that a step keeps."""
    names: set[str] = set()
    for edge in program.edges:
        level = program.levels[edge.level - 1]
        if step in {level.ops[target.place].step for target in level.entries[edge.index]}:
            names.update(edge.codec.names)
    return names


JOINED = "SELECT b.price, a.item FROM bid AS b JOIN auction AS a ON b.auction = a.id"


def test_what_a_query_keeps_depends_on_nobody_who_reads_it_or_stands_beside_it() -> None:
    alone = program_of(sql(JOINED))

    def read_in_part(app: hr.App, bid: Any, auction: Any) -> Any:
        return [app.sql(JOINED, name="q").select("item")]

    def beside_another(app: hr.App, bid: Any, auction: Any) -> Any:
        other = "SELECT b.url, a.note FROM bid AS b JOIN auction AS a ON b.auction = a.id"
        return [app.sql(JOINED, name="q"), app.sql(other, name="other")]

    assert kept(alone, "q") == {"auction", "price", "id", "item"}
    for say in (read_in_part, beside_another):
        program = program_of(say)
        assert kept(program, "q") == kept(alone, "q")
        assert program.steps["q"].types == alone.steps["q"].types


def test_a_join_that_python_says_keeps_whole_rows() -> None:
    def say(app: hr.App, bid: Any, auction: Any) -> Any:
        pairs = bid.key_by("auction").join(auction.key_by("id"), within=None).named("q")
        return [pairs.select(price="left.price")]

    assert kept(program_of(say), "q") == {*Bid.__struct_fields__, *Auction.__struct_fields__}


def test_a_program_is_the_same_one_whatever_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    say = sql("SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction")
    narrow = program_of(say)
    monkeypatch.setattr(compiling, "keep_needed_columns", lambda nodes, **options: nodes)
    whole = program_of(say)
    assert reads(whole) == {"bid": "all"}
    assert (narrow.fingerprint, narrow.facts.states) == (whole.fingerprint, whole.facts.states)


def run_once(store: Path, query: str, *rows: tuple[str, Any]) -> list[Any]:
    """A program over one store, which goes on with what another left there."""
    app = hr.App("columns")
    streams = {
        "bid": app.read("bid", hr.source.items([]), Bid, time=Bid.at),
        "auction": app.read("auction", hr.source.items([]), Auction, time=Auction.at),
    }
    out = app.sql(query, name="q")
    out.show()
    with hr.testing.Harness(app, start="2024-01-01", store=store) as h:
        for name, row in rows:
            h.push(streams[name], row)
        h.epoch()
        taken: list[Any] = h.take(out)
    return taken


AT = hr.Timestamp(1_704_103_200_000_000)
BID, FIRST, SECOND = Bid(1, 2, 3, "u", AT), Auction(1, 2, "first", AT), Auction(1, 2, "second", AT)


def test_a_query_that_asks_for_a_column_less_goes_on_and_one_more_is_refused(tmp_path: Path) -> None:
    two, one = JOINED, JOINED.replace("b.price, ", "")
    assert len(run_once(tmp_path, two, ("bid", BID), ("auction", FIRST))) == 1
    assert [row.item for row in run_once(tmp_path, one, ("auction", SECOND))] == ["second"]
    with pytest.raises(hr.HeadraceError, match="field `price` added without a default"):
        run_once(tmp_path, two)


QUERIES = [
    "SELECT auction, COUNT(*) AS n, MAX(price) AS most FROM bid WHERE bidder <> 2 GROUP BY auction",
    "SELECT b.price, a.item FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.seller > 1",
    "SELECT b.price, a.item FROM bid AS b FULL JOIN auction AS a ON b.auction = a.id",
    "SELECT b.price FROM bid AS b LEFT JOIN (SELECT id, COUNT(*) AS n FROM auction GROUP BY id) AS a "
    "ON b.auction = a.id AND b.bidder > a.n",
    "SELECT item FROM auction WHERE id NOT IN (SELECT auction FROM bid WHERE auction IS NOT NULL)",
    "SELECT auction, price FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price, bidder) AS place "
    "FROM bid) AS ranked WHERE place <= 2",
    "SELECT price FROM bid UNION ALL SELECT seller FROM auction",
    "SELECT DISTINCT bidder FROM bid",
]


@pytest.mark.parametrize("query", QUERIES)
def test_results_are_those_of_whole_rows_after_a_crash_and_a_restart_too(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results() -> list[Any]:
        app = hr.App("columns")
        bid = app.read("bid", hr.source.items([]), Bid, time=Bid.at)
        auction = app.read("auction", hr.source.items([]), Auction, time=Auction.at)
        out = app.sql(query, name="q")
        out = out.changes(kind="op") if out.node.kind.rows == "changelog" else out
        taken: list[Any] = []
        with hr.testing.Harness(app, start="2024-01-01") as h:
            for epoch in range(4):
                at = h.at(f"12:0{epoch}")
                h.push(bid, *[Bid(n % 3, (n + epoch) % 4, n * epoch, f"u{n}", at) for n in range(5)])
                h.push(auction, Auction(epoch, epoch, f"item {epoch}", at))
                if epoch == 1:
                    h.crash(at="before_publish")
                if epoch == 2:
                    h.restart()
                h.epoch()
                taken += sorted(h.take(out), key=str)
        return [tuple(getattr(row, name) for name in type(row).__struct_fields__) for row in taken]

    narrow = results()
    monkeypatch.setattr(compiling, "keep_needed_columns", lambda nodes, **options: nodes)
    assert narrow == results() and narrow
