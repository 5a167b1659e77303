"""Input that only Spark can read, read again for a replay: the rows are those that the stream had."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.model.keys import encode_key
from headrace.read.store import Store, files_of
from headrace.replay.filling import OutputFilling
from headrace.replay.replaying import KeyReplay, find_places
from headrace.spark.query import read_again
from headrace.state.moments import AtEpoch
from tests.spark.test_kafka_source import NOON, Click, clicks, new_topic, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.services.kafka import Broker

pytestmark = pytest.mark.spark


class Sum(hr.Process[Click, Click, str]):
    total: hr.ValueState[int]

    def on_event(self, event: Click, ctx: hr.Context[str]) -> Any:
        self.total.set(self.total.get(0) + event.n)
        yield event


def program(source: Any) -> hr.App:
    app = hr.App("summing")
    rows = app.read("rows", source, Click, time=Click.at)
    rows.where("n > 0").with_columns(Click, n="n * 2").key_by(Click.user).process(Sum()).queryable()
    return app


def replay(app: hr.App, store: Path, session: SparkSession) -> tuple[list[int], bool]:
    """What came for a key in the epochs behind the first, and whether it ends as production ended."""
    files = files_of(Store(store))
    places = find_places(files, AtEpoch(0), None)
    with KeyReplay(
        app, files, "sum", encode_key("u1"), places, read_by_spark=partial(read_again, session)
    ) as run:  # fmt: skip
        return [event.row.n for event in run.run() if event.number], run.verdict().same


def catch_up(app: hr.App, store: Path, session: SparkSession) -> None:
    app.start(until="caught_up", store=store, spark=session, parallelism=2).wait()


def write_files(folder: Path) -> None:
    folder.mkdir()
    for number in range(3):
        rows = clicks(range(number * 6, number * 6 + 6), number)
        lines = [f"{row['user']},{row['n']},{row['at']}" for row in rows]
        file = folder / f"{number}.csv"
        file.write_text("\n".join(["user,n,at", *lines, ""]))
        os.utime(file, (NOON // 10**6 + number,) * 2)


def test_files_that_only_spark_decodes_are_read_again(tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "in"
    write_files(folder)
    app = program(hr.source.files(str(folder), format="csv", max_files_per_epoch=1))
    catch_up(app, tmp_path / "store", spark)
    came, same = replay(app, tmp_path / "store", spark)
    assert same and came == [2 * n for n in range(6, 18) if n % 3 == 1]


def test_what_a_job_gave_out_is_written_again_into_a_new_target(tmp_path: Path, spark: SparkSession) -> None:
    """Expressions in the JVM, partial aggregates before the exchange, and what Spark decoded: the rows are the same."""
    write_files(tmp_path / "in")
    app = program(hr.source.files(str(tmp_path / "in"), format="csv", max_files_per_epoch=1))
    rows = app.read("others", hr.source.files(str(tmp_path / "in"), format="csv", max_files_per_epoch=1), Click,
                    time=Click.at)  # fmt: skip
    positive = rows.where("n > 0").with_columns(Click, n="n * 2")
    sums = positive.key_by(Click.user).window(hr.tumbling("1s")).aggregate(n=hr.sum("n"), rows=hr.count())
    sums.named("sums").write(hr.sink.files(str(tmp_path / "sums"), format="json"), name="sums")
    positive.write(hr.sink.files(str(tmp_path / "rows"), format="json"), name="rows")
    catch_up(app, tmp_path / "store", spark)
    files = files_of(Store(tmp_path / "store"))
    for output in ("sums", "rows"):
        filling = OutputFilling(app, files, output, str(tmp_path / f"{output}-again"), first=0)
        report = filling.run(partial(read_again, spark))
        assert report.agrees and report.rows > 5
        assert lines_in(tmp_path / f"{output}-again") == lines_in(tmp_path / output)


def lines_in(folder: Path) -> list[str]:
    """Rows of all files, told apart by their epoch."""
    return sorted(
        f"{file.name.split('-')[2]} {json.loads(line)}" for file in folder.glob("part-*") for line in file.open()
    )


def test_a_topic_is_read_again_between_the_offsets_of_epochs(
    tmp_path: Path, kafka_spark: SparkSession, kafka: Broker
) -> None:
    topic = new_topic(kafka, 2)
    app = program(hr.source.kafka(topic, brokers=kafka.bootstrap))
    for number in range(3):
        send(kafka, topic, *clicks(range(number * 6, number * 6 + 6), number), partition=number % 2)
        catch_up(app, tmp_path / "store", kafka_spark)
    send(kafka, topic, *clicks(range(100, 106), 9))
    rows, same = replay(app, tmp_path / "store", kafka_spark)
    assert same and rows == [2 * n for n in range(6, 18) if n % 3 == 1]
