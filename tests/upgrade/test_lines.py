"""Lines about sources, outputs and aggregates, decided from facts alone."""

from __future__ import annotations

import pytest

from headrace.model.job import DeclaredState, JobFacts
from headrace.model.meaning import AggregateMeaning
from headrace.state.manifest import Manifest
from headrace.upgrade.aggregates import compare_aggregates
from headrace.upgrade.surroundings import job_lines, output_lines, source_lines

OFFSETS = 'v1\n{"batchTimestampMs":0}\nhits:{"rows":7}'
JOB = JobFacts("a", "p", parallelism=2, key_groups=128, levels=1, timed=(), step_sources={})


def manifest(**more: object) -> Manifest:
    return Manifest(
        app="a", timeline=0, epoch=4, nonce="n", fence=1, program="p", parallelism=2, key_groups=128, clock_us=0,
        **{"offsets": OFFSETS, "sources": {"hits": "files"}, **more},  # type: ignore[arg-type]
    )  # fmt: skip


def job(**more: object) -> JobFacts:
    return JobFacts("a", "p", parallelism=3, key_groups=128, levels=1, timed=(), step_sources={}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "retired", "fates"),
    [
        ({"hits": "files"}, {}, {"hits": "kept"}),
        ({"hits": "kafka"}, {}, {"hits": "refused"}),
        ({"clicks": "kafka"}, {}, {"clicks": "new", "hits": "gone"}),
        ({"hits": "files", "old": "files"}, {"old": "{}"}, {"hits": "kept", "old": "new"}),
    ],
)
def test_sources_keep_their_offsets_under_their_names(
    kind: dict[str, str], retired: dict[str, str], fates: dict[str, str]
) -> None:
    lines = source_lines(manifest(retired=retired), job(sources=tuple(kind), source_kinds=kind))
    assert {line.name: line.fate for line in lines} == fates


def test_an_output_that_is_gone_says_what_may_still_have_to_go_there() -> None:
    before = manifest(sinks={"out": "files"})
    (line,) = output_lines(before, job(), released=True)
    assert (line.fate, line.notes) == ("gone", ("what it has written stays where it is",))


def test_a_store_that_names_no_outputs_has_none_that_are_new() -> None:
    assert [line.fate for line in output_lines(manifest(sources={}), job(sinks={"out": "files"}), released=True)] == [
        "kept"
    ]


def test_another_number_of_shards_is_remarked_on() -> None:
    (line,) = job_lines(manifest(), job())
    assert line.notes == ("2 shards → 3",)


def declared(**meanings: AggregateMeaning) -> DeclaredState:
    return DeclaredState("aggregate", results={name: [each.kind] for name, each in meanings.items()}, meanings=meanings)


SUM = AggregateMeaning("sum", "n", type="int")


@pytest.mark.parametrize(
    ("now", "refused"),
    [
        (SUM, False),
        (AggregateMeaning("sum", "(n)", type="int"), False),
        (AggregateMeaning("sum", "`n`", type="int"), False),
        (AggregateMeaning("sum", "n", type="float"), False),
        (AggregateMeaning("sum", "n", type="Decimal"), True),
        (AggregateMeaning("sum", "n", where="n > 0", type="int"), True),
        (AggregateMeaning("max", "n", type="int"), True),
        (AggregateMeaning("sum", "n", over_us=1, type="int"), True),
    ],
)
def test_an_aggregate_goes_on_where_it_means_the_same(now: AggregateMeaning, refused: bool) -> None:
    changes = compare_aggregates(declared(total=SUM), declared(total=now), columnar=True)
    assert bool(changes.refused) == refused


def test_a_store_without_meanings_knows_functions_only() -> None:
    before = DeclaredState("aggregate", results={"total": ["sum", 0]})
    assert not compare_aggregates(before, declared(total=AggregateMeaning("sum", "n * 2")), columnar=False).refused
    assert compare_aggregates(before, declared(total=AggregateMeaning("max", "n")), columnar=False).refused
