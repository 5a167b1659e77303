"""On Spark: a changed program is refused before anything runs, and what a person gives up is gone for every task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UpgradeRefused


class Sale(hr.Record):
    shop: str
    n: int = 1


class Said(hr.Record):
    shop: str
    what: str


class Sums(hr.Process[Sale, Said, str]):
    held: hr.ValueState[int]

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Said]:
        self.held.set(self.held.get(0) + event.n)
        yield Said(ctx.key, str(self.held.get()))


class Texts(hr.Process[Sale, Said, str]):
    held: hr.ValueState[str]

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Said]:
        self.held.set(self.held.get("") + "x")
        yield Said(ctx.key, self.held.get(""))


def sales_app(function: Any, rows: int, sink: Any) -> hr.App:
    app = hr.App("sales")
    sales = app.read("sales", hr.source.items([Sale(f"s{i % 4}") for i in range(rows)], per_epoch=4), Sale)
    sales.key_by(Sale.shop).process(function).named("kept").write(sink)
    return app


def run(app: hr.App, spark: Any, store: Path, **settings: Any) -> None:
    app.start(until="caught_up", spark=spark, store=str(store), parallelism=2, epoch="100ms", **settings).wait()


@pytest.mark.spark
def test_a_type_that_is_not_read_is_refused_and_begins_anew_when_it_was_dropped(spark: Any, tmp_path: Path) -> None:
    first, second, third = hr.sink.collect(), hr.sink.collect(), hr.sink.collect()
    run(sales_app(Sums(), 8, first), spark, tmp_path)
    assert sorted(row.what for row in first.rows) == ["1"] * 4 + ["2"] * 4
    with pytest.raises(UpgradeRefused, match="int → str"):
        run(sales_app(Texts(), 16, second), spark, tmp_path)
    assert second.rows == []
    # Two epochs: the first, whose tasks are told what is given up, and one that reads it off the manifest.
    run(sales_app(Texts(), 16, third), spark, tmp_path, drop=["kept.held"])
    assert sorted(row.what for row in third.rows) == ["x"] * 4 + ["xx"] * 4
