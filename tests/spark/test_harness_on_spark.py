"""The harness with a session: expressions that only Spark knows."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ExpressionError

pytestmark = pytest.mark.spark


class Hit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1


def program() -> tuple[hr.App, hr.Stream[Hit], hr.Stream[Hit]]:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.items([]), Hit, time=Hit.at)
    some = hits.where("crc32(CAST(page AS BINARY)) % 2 = 0").with_columns(n="n * 10")
    totals = some.key_by(Hit.page).reduce(lambda a, b: a.replace(n=a.n + b.n)).named("totals")
    totals.write(hr.sink.discard())
    return app, hits, totals


def test_what_only_spark_knows_is_evaluated_by_spark(spark: Any) -> None:
    app, hits, totals = program()
    pages = [f"page-{i}" for i in range(6)]
    with hr.testing.Harness(app, spark=spark) as h:
        h.push(hits, *[Hit(page, h.at("12:00:00")) for page in pages for _ in range(2)])
        h.epoch()
        even = [page for page in pages if zlib.crc32(page.encode()) % 2 == 0]
        assert sorted((row.page, row.n) for row in h.take(totals)) == sorted(
            (page, n) for page in even for n in (10, 20)
        )


def test_without_a_session_the_error_names_the_way_out() -> None:
    app, _, _ = program()
    with pytest.raises(ExpressionError, match="spark=session"):
        hr.testing.Harness(app)
