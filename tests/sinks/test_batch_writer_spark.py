"""`sink.spark`: any batch writer, fed from staging."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace import sink
from headrace.errors import EnvironmentMissing, ProgramError, SinkFailed
from headrace.model.record import Record
from headrace.model.report import StagedPart
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import Staging, stage_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Sale(Record):
    shop: str
    at: Timestamp
    cents: int
    tags: list[str] = []


SALES = [Sale(f"s{i}", Timestamp(i), i, ["x"]) for i in range(9)]
CODEC = codec_of(Sale)


def read_orc(spark: SparkSession, folder: Path) -> list[Any]:
    if not folder.exists():
        return []
    table = spark.read.schema(CODEC.spark_ddl).orc(str(folder)).toArrow()
    return CODEC.to_objects([column.combine_chunks() for column in table.columns])


@pytest.mark.spark
def test_keeps_every_promise_of_a_sink(spark: SparkSession, tmp_path: Path) -> None:
    numbers = count()

    def new_target() -> SinkTarget:
        folder = tmp_path / f"out{next(numbers)}"
        return SinkTarget(lambda: sink.spark("orc", path=str(folder)), lambda: read_orc(spark, folder))

    # Parts of this machine are read by Spark, all others by us.
    verify_sink(new_target, Sale, SALES, staged=("local", "inline"), spark=spark)


@pytest.mark.spark
def test_files_and_inline_parts_of_one_epoch_are_written_together(spark: SparkSession, tmp_path: Path) -> None:
    out = sink.spark("orc", path=str(tmp_path / "out")).bind(CODEC, "sales")
    (tmp_path / "staged").mkdir()
    staging = Staging(tmp_path / "staged", inline_limit_bytes=0)
    parts = stage_rows(out, CODEC, staging, 0, [SALES[:4]])
    parts += stage_rows(out, CODEC, Staging(tmp_path / "staged"), 0, [SALES[4:]])
    ctx = staging.release(0, "sales")
    ctx.session = spark
    out.release(parts, ctx)
    assert sorted(read_orc(spark, tmp_path / "out"), key=lambda s: s.cents) == SALES


@pytest.mark.spark
def test_what_spark_refuses_is_said_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    out = sink.spark("no_such_format", path=str(tmp_path / "out")).bind(CODEC, "sales")
    staging = Staging(tmp_path)
    ctx = staging.release(3, "sales")
    ctx.session = spark
    with pytest.raises(SinkFailed) as failed:
        out.release(stage_rows(out, CODEC, staging, 3, [SALES]), ctx)
    assert "epoch 3 of output sales" in str(failed.value) and "no_such_format" in failed.value.found
    assert "spark.jars" in failed.value.next_move


def test_without_a_session_it_says_so(tmp_path: Path) -> None:
    out = sink.spark("orc", path="out").bind(CODEC, "sales")
    with pytest.raises(EnvironmentMissing):
        out.release([StagedPart(rows=1, size_bytes=0, format="parquet")], Staging(tmp_path).release(0))


def test_a_mode_that_spark_does_not_have_is_refused_while_building() -> None:
    with pytest.raises(ProgramError, match="no mode 'upsert'"):
        sink.spark("orc", path="out", mode="upsert")


def test_options_are_spelled_as_spark_wants_them() -> None:
    out: Any = sink.spark("jdbc", truncate=True, batchsize=10, missing=None)
    assert out.options == {"truncate": "true", "batchsize": "10"}


@pytest.mark.spark
def test_a_path_that_names_the_epoch_makes_a_repeated_release_harmless(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    by_epoch = sink.spark(
        "orc", path=lambda release: f"{folder}/epoch={release.epoch}", mode="overwrite", guarantee="exactly_once"
    )
    assert by_epoch.guarantee == "exactly once"
    out = by_epoch.bind(CODEC, "sales")
    staging = Staging(tmp_path, session=spark)
    for epoch, rows in ((0, SALES[:4]), (1, SALES[4:])):
        parts = stage_rows(out, CODEC, staging, epoch, [rows])
        for _ in range(2):
            out.release(parts, staging.release(epoch, "sales"))
    assert sorted(read_orc(spark, folder), key=lambda s: s.cents) == SALES


def test_delta_is_told_the_epoch_as_a_number_that_only_goes_up(tmp_path: Path) -> None:
    out: Any = sink.spark("delta", path="out", mergeSchema=True)
    assert out.guarantee == "exactly once"
    staging = Staging(tmp_path)
    numbers = []
    for timeline, epoch in (("0", 0), ("0", 1), ("0", 10**9), ("9", 3), ("10", 0)):
        ctx = staging.release(epoch, "sales")
        ctx.timeline = timeline
        options = out._options(ctx)
        assert options["txnAppId"] == "headrace-staging-sales" and options["mergeSchema"] == "true"
        numbers.append(int(options["txnVersion"]))
    assert numbers == sorted(set(numbers)) and numbers[-1] < 2**63
    own: Any = sink.spark("delta", path="out", txnAppId="me", txnVersion=lambda release: release.epoch)
    assert own._options(staging.release(7, "sales")) == {"txnAppId": "me", "txnVersion": "7"}
    assert own.guarantee == "at least once", "whether the user's own numbers hold is theirs to say"


def test_exactly_once_is_refused_where_nothing_tells_the_format_which_epoch_it_writes() -> None:
    with pytest.raises(ProgramError) as refused:
        sink.spark("orc", path="out", guarantee="exactly_once")
    assert "lambda release" in refused.value.next_move
