"""What of a program runs, and what is said about the rest."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.dataflow.checks import reachable
from headrace.errors import ProgramError


class Tx(hr.Record):
    card: str
    cents: int = 0


class Alert(hr.Record):
    card: str


def to_alert(row: Tx) -> Alert:
    return Alert(row.card)


@pytest.fixture
def tx() -> hr.Stream[Tx]:
    return hr.App("fraud").read("tx", hr.source.items([]), Tx)


def test_what_runs_is_what_outputs_lead_back_to(tx: hr.Stream[Tx]) -> None:
    read_nobody = tx.where("cents < 0")
    alerts = tx.map(to_alert)
    alerts.write(hr.sink.collect())
    with pytest.warns(hr.HeadraceWarning, match=r"test_reach.py:\d+: nobody reads where at") as caught:
        nodes = reachable(tx.app)
    assert read_nobody.node not in nodes
    assert [node.verb for node in nodes] == ["read", "map", "write"]
    assert caught[0].filename.endswith("test_reach.py")


def test_nodes_asked_for_besides_run_too(tx: hr.Stream[Tx]) -> None:
    alerts = tx.map(to_alert)
    assert reachable(tx.app, also=[alerts.node]) == (tx.node, alerts.node)


def test_a_program_without_outputs_is_refused(tx: hr.Stream[Tx]) -> None:
    with pytest.raises(ProgramError, match="has no outputs"):
        reachable(tx.app)


def test_a_source_that_nobody_reads_is_a_warning(tx: hr.Stream[Tx]) -> None:
    tx.app.read("other", hr.source.items([]), Tx)
    tx.write(hr.sink.collect())
    with pytest.warns(hr.HeadraceWarning, match="nobody reads other"):
        reachable(tx.app)
