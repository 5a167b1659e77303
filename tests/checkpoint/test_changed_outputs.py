"""An output that changes while rows of it are published and not released: they are let out as meant, or refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoint.facts import read_facts
from headrace.checkpoint.release import Releaser
from headrace.connectors.sink_contract import Sink
from headrace.errors import Refused, SinkFailed
from headrace.model.rows import codec_of
from headrace.state.store import open_store
from headrace.testing import Harness
from headrace.testing.staging import Staging, stage_rows


class Sale(hr.Record):
    id: int
    shop: str = "a"


def run(store: Path, sinks: dict[str | None, Sink], *ids: int, feed: bool = True) -> None:
    """A program that writes its rows to some sinks, by output; one epoch, if there are rows."""
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale)
    for name, sink in sinks.items():
        sales.write(sink, name=name)
    with Harness(app, store=store, sinks=feed) as h:
        if ids:
            h.push(sales, *map(Sale, ids))
            h.epoch()


def down(rows: list[Sale], epoch: int) -> None:
    raise RuntimeError("down")


def written(folder: Path) -> list[int]:
    """The ids in a folder of JSON lines; other files are no lines."""
    return sorted(int(n) for p in folder.glob("*") for n in re.findall(r'"id":(\d+)', p.read_text(errors="replace")))


def leave_unreleased(store: Path, folder: Path) -> None:
    """Two epochs to a folder, of which the second is published and cannot be released. Their output is not named."""
    run(store, {None: hr.sink.files(folder)}, 1)
    (taken,) = folder.glob("part-*")
    (folder / taken.name.replace("-000000000000-", "-000000000001-")).write_text("somebody else's\n")
    with pytest.raises(SinkFailed, match="is there already, with other content") as failed:
        run(store, {None: hr.sink.files(folder)}, 2)
    assert "under the name of their output: with another folder, keep it by write(…, name=…)" in failed.value.next_move


def forget_release(store: Path) -> None:
    """As if the driver had died before it could say that the newest epoch is out."""
    for note in (*store.glob("spark/*/commits/*"), store / "released.json"):
        note.unlink()


def test_rows_of_an_output_that_is_renamed_wait_until_its_name_is_given_again(store_path: Path, tmp_path: Path) -> None:
    leave_unreleased(store_path, tmp_path / "old")
    moved = hr.sink.files(tmp_path / "new")
    for _ in range(2):
        with pytest.raises(Refused, match="epoch 1 .* with 1 row for the output sales_files_old, which") as refused:
            run(store_path, {None: moved}, 3)
        assert refused.value.found == "the outputs sales_files_new"
        assert 'name="sales_files_old"' in refused.value.next_move
    assert written(tmp_path / "new") == []
    run(store_path, {"sales_files_old": moved}, 3)
    assert (written(tmp_path / "old"), written(tmp_path / "new")) == ([1], [2, 3])


def test_rows_of_an_output_that_is_gone_are_dropped_only_where_the_program_says_so(
    store_path: Path, tmp_path: Path
) -> None:
    leave_unreleased(store_path, tmp_path / "old")
    kept = hr.sink.files(tmp_path / "new")
    with pytest.raises(Refused, match=r'write\(hr\.sink\.discard\(\), name="sales_files_old"\)'):
        run(store_path, {None: kept}, 3)
    run(store_path, {None: kept, "sales_files_old": hr.sink.discard()}, 3)
    run(store_path, {None: kept}, 4)
    assert (written(tmp_path / "old"), written(tmp_path / "new")) == ([1], [3, 4])


def test_an_output_whose_rows_are_all_out_may_go_without_a_word(
    store_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(store_path, {None: hr.sink.files(tmp_path / "old"), "calls": hr.sink.call(lambda rows, epoch: None)}, 1)
    with caplog.at_level(logging.DEBUG, "headrace"):
        run(store_path, {None: hr.sink.files(tmp_path / "new")}, 2)
    assert (written(tmp_path / "old"), written(tmp_path / "new")) == ([1], [2])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_rows_for_a_function_are_no_file_of_a_folder(store_path: Path, tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match="down"):
        run(store_path, {"out": hr.sink.call(down)}, 1)
    with pytest.raises(Refused, match="epoch 0 .* with 1 row for the output out, staged for another kind") as refused:
        run(store_path, {"out": hr.sink.files(tmp_path / "a")}, 2)
    assert refused.value.found == "rows as arrow"
    assert list((tmp_path / "a").iterdir()) == []
    got: list[int] = []
    again = hr.sink.call(lambda rows, epoch: got.extend(row.id for row in rows))
    run(store_path, {"out": again, "files": hr.sink.files(tmp_path / "a")}, 2)
    assert (got, written(tmp_path / "a")) == ([1, 2], [2])


def test_files_are_no_rows_for_a_function(store_path: Path, tmp_path: Path) -> None:
    leave_unreleased(store_path, tmp_path / "old")
    got: list[Any] = []
    with pytest.raises(Refused, match="with 1 row for the output sales_files_old, staged for another kind of sink"):
        run(store_path, {"sales_files_old": hr.sink.call(lambda rows, epoch: got.extend(rows))}, 2)
    assert got == []


def test_a_function_may_take_the_place_of_another(store_path: Path) -> None:
    with pytest.raises(SinkFailed, match="down"):
        run(store_path, {"out": hr.sink.call(down)}, 1)
    got = hr.sink.collect()
    run(store_path, {"out": got}, 2)
    assert [row.id for row in got.rows] == [1, 2]


def test_rows_that_were_only_counted_are_not_missed(store_path: Path, tmp_path: Path) -> None:
    """A harness that does not feed sinks leaves nothing for those of the next, also where it dies in an epoch."""
    run(store_path, {"out": hr.sink.files(tmp_path / "a")}, 1, feed=False)
    forget_release(store_path)
    run(store_path, {"out": hr.sink.files(tmp_path / "a")}, 2)
    assert written(tmp_path / "a") == [2]


FAMILIES: dict[str, list[Callable[[], Sink]]] = {
    "rows": [lambda: hr.sink.call(down), hr.sink.collect, hr.sink.console, lambda: hr.sink.delta("d")],
    "lines": [lambda: hr.sink.files("f"), lambda: hr.sink.files("f", format="csv")],
    "parquet": [
        lambda: hr.sink.files("f", format="parquet"),
        lambda: hr.sink.spark("parquet", path="f"),
    ],
    "parquet by value": [lambda: hr.sink.files("f", format="parquet", partition_by=("shop",))],
    "messages": [lambda: hr.sink.kafka("sales", brokers="localhost:1")],
    "copies": [lambda: hr.sink.postgres("sales", dsn="postgresql://localhost:1/none")],
    "packs": [lambda: hr.sink.redis(key="sale:{id}", url="redis://localhost:1")],
}
READS = {
    "files": {"lines", "parquet", "parquet by value"},
    "spark": {"parquet"},
    "call": {"rows"}, "collect": {"rows"}, "console": {"rows"}, "delta": {"rows"},
    "kafka": {"messages"}, "postgres": {"copies"}, "redis": {"packs"},
}  # fmt: skip


def test_a_sink_takes_what_it_can_read_and_nothing_else(tmp_path: Path) -> None:
    codec = codec_of(Sale)
    bound = {name: [make().bind(codec, "out") for make in makers] for name, makers in FAMILIES.items()}
    wrong = []
    for family, stagers in bound.items():
        for stager in stagers:
            parts = stage_rows(stager, codec, Staging(tmp_path), 0, [[Sale(1), Sale(2, "b")]])
            assert sum(part.rows for part in parts) == 2 and hr.sink.discard().takes(parts[0])
            for reader in (each for readers in bound.values() for each in readers):
                if all(map(reader.takes, parts)) != (family in READS[reader.kind]):
                    wrong.append((stager.describe(), reader.describe()))
    assert wrong == []


def test_a_run_that_ends_leaves_word_that_all_is_out(store_path: Path) -> None:
    """Also where Spark was stopped between the release of its last epoch and its own note of that."""
    run(store_path, {"out": hr.sink.collect()}, 1)
    forget_release(store_path)
    store = open_store(store_path)
    facts = read_facts(store)
    assert facts.state is not None and facts.committed is None
    sinks = {output: hr.sink.discard() for output in facts.state.manifest.outputs}
    releaser = Releaser(store, sinks)
    releaser.release(facts.state.manifest)
    assert read_facts(store).committed is None
    releaser.close()
    assert read_facts(store).committed == 0
    run(store_path, {}, 2)
