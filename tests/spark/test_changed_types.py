"""Old values are read by functions of the program in the workers of Spark, and rewritten by folds in the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from headrace.model import migrations

pytestmark = pytest.mark.spark


class Ping(hr.Record):
    host: str
    n: int


class Cents(hr.Record):
    cents: int


class Money(hr.Record):
    euros: float
    coin: str = hr.field(default="EUR", was="currency")


def to_money(old: Cents) -> Money:
    return Money(old.cents / 100)


def no_money(old: Cents) -> Money:
    raise ValueError(f"no rate for {old.cents}")


def app_of(kind: Any, rows: list[Ping], out: list[str]) -> hr.App:
    class Keep(hr.Process[Ping, str, str]):
        held: hr.ValueState[kind]

        def on_event(self, event: Ping, ctx: hr.Context[str]) -> list[str]:
            before = self.held.get()
            self.held.set(Cents(event.n) if kind is Cents else Money(float(event.n)))
            return [str(before)]

    app = hr.App("money")
    pings = app.read("pings", hr.source.items(rows), Ping)
    pings.key_by(Ping.host).process(Keep()).named("keep").write(hr.sink.call(lambda rows, epoch: out.extend(rows)))
    return app


def test_functions_of_the_program_read_old_values_in_the_workers(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "_registered", {})
    store, out = str(tmp_path), list[str]()
    rows = [Ping("a", 250), Ping("b", 100)]
    app_of(Cents, rows, out).run(store=store, until="caught_up", spark=spark, plain=True)
    hr.migrate(Cents, Money, no_money)
    rows = [*rows, Ping("a", 3)]
    with pytest.raises(HeadraceError) as caught:
        app_of(Money, rows, out).run(store=store, until="caught_up", spark=spark, plain=True)
    text = str(caught.value)
    assert "no_money raised ValueError: no rate for 250" in text and "test_changed_types.py" in text
    assert "py4j" not in text
    migrations._registered.clear()
    hr.migrate(Cents, Money, to_money)
    app_of(Money, rows, out).run(store=store, until="caught_up", spark=spark, plain=True)
    assert out == ["None", "None", str(Money(2.5))]
