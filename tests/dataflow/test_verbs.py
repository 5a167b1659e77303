"""Verbs that are not there: what is said to those who know them from Flink, pandas or Spark."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.checks import reachable
from headrace.dataflow.verbs import KEYED_VERBS, STREAM_VERBS, WINDOW_VERBS, UnknownVerb


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int = 0


@pytest.fixture
def tx() -> hr.Stream[Tx]:
    return hr.App("fraud").read("tx", hr.source.items([]), Tx, time=Tx.at)


def next_move(stream: Any, name: str) -> str:
    with pytest.raises(UnknownVerb) as caught:
        getattr(stream, name)
    assert "test_verbs.py:" in caught.value.where
    assert name in caught.value.what
    return caught.value.next_move


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("print", ".show()"),
        ("group_by", ".key_by(Tx.card)"),
        ("groupBy", ".key_by(Tx.card)"),
        ("keyBy", ".key_by(Tx.card)"),
        ("collect", "hr.sink.collect()"),
        ("window_all", ".window(hr.tumbling(…))"),
        ("withColumn", ".with_columns("),
        ("sum", '.key_by(…).aggregate(sum=hr.sum("n"))'),
        ("wher", "did you mean where?"),
        ("windw", "did you mean window?"),
        ("flatMap", "did you mean flat_map?"),
    ],
)
def test_a_verb_of_another_system_is_answered_with_ours(tx: hr.Stream[Tx], name: str, words: str) -> None:
    assert words in next_move(tx, name)


@pytest.mark.parametrize("name", ["frobnicate", "xyz", "pivot"])
def test_a_name_that_is_near_to_nothing_gets_no_guess(tx: hr.Stream[Tx], name: str) -> None:
    assert next_move(tx, name) == ""
    assert next_move(tx.key_by("card"), name) == ""
    assert next_move(tx.key_by("card").window(hr.tumbling("1h")), name) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("agg", '.aggregate(total=hr.sum("n"))'),
        ("sum", '.aggregate(sum=hr.sum("n"))'),
        ("count", ".aggregate(n=hr.count())"),
        ("mean", '.aggregate(mean=hr.avg("n"))'),
        ("where", "write .where(…) before key_by, or after the keyed step"),
        ("errors", "write .errors before key_by, or after the keyed step"),
        ("proces", "did you mean process?"),
    ],
)
def test_an_aggregate_as_a_verb_of_a_key_is_answered_with_aggregate(tx: hr.Stream[Tx], name: str, words: str) -> None:
    assert words in next_move(tx.key_by("card"), name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sum", '.window(…).aggregate(sum=hr.sum("n"))'),
        ("count", ".window(…).aggregate(n=hr.count())"),
        ("named", '.window(…).aggregate(total=hr.sum("n")).named(…)'),
        ("write", '.window(…).aggregate(total=hr.sum("n")).write(…)'),
        ("reduc", "did you mean reduce?"),
    ],
)
def test_a_verb_that_windows_do_not_have_is_answered_in_words(tx: hr.Stream[Tx], name: str, words: str) -> None:
    windows = tx.key_by("card").window(hr.tumbling("1h"))
    assert words in next_move(windows, name)
    assert not hasattr(windows, "_repr_html_")


def test_every_verb_that_is_offered_is_there(tx: hr.Stream[Tx]) -> None:
    stream: Any = hr.Stream
    assert [name for name in STREAM_VERBS if not hasattr(stream, name) and name != "late"] == []
    assert [name for name in KEYED_VERBS if not hasattr(hr.KeyedStream, name)] == []
    assert [name for name in WINDOW_VERBS if not hasattr(hr.types.Windowed, name)] == []


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (lambda windows: windows.aggregate(n=hr.count()), '.window(…).aggregate(…).named("…")'),
        (lambda windows: windows.reduce(lambda a, b: a), '.window(…).reduce(…).named("…")'),
    ],
)
def test_a_window_without_a_name_is_answered_with_a_call_that_exists(tx: hr.Stream[Tx], make: Any, call: str) -> None:
    make(tx.key_by("card").window(hr.tumbling("1h"))).write(hr.sink.collect())
    with pytest.raises(hr.ProgramError) as caught:
        reachable(tx.app)
    assert caught.value.next_move == f"write {call}"
