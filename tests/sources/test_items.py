"""`source.items`: rows in the program, read exactly again."""

from __future__ import annotations

import pytest

from headrace import source
from headrace.connectors.source_contract import SplitReader
from headrace.errors import ProgramError
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.testing.sources import verify_source


class Click(Record):
    user: str
    at: Timestamp
    n: int = 1


class Left(Record, tag=True):
    a: int


class Right(Record, tag=True):
    b: str


CLICKS = [Click(f"u{i}", Timestamp(i * 1_000_000), i) for i in range(40)]


def reader_of(rows: list[Click], **settings: int) -> SplitReader:
    return source.items(rows, **settings).reader(codec_of(Click))


def read_all(reader: SplitReader, start: int, end: int) -> list[Click]:
    codec = codec_of(Click)
    splits = reader.splits({"i": start}, {"i": end})
    return [row for split in splits for batch in reader.read(split) for row in codec.to_objects(batch.columns)]


def test_keeps_every_promise_of_a_source() -> None:
    assert verify_source(lambda: reader_of(CLICKS), codec_of(Click).schema, epochs=20) == 40


def test_keeps_every_promise_in_several_partitions_and_small_epochs() -> None:
    made = lambda: reader_of(CLICKS, per_epoch=6, partitions=4)  # noqa: E731
    assert verify_source(made, codec_of(Click).schema, epochs=20, limit=None) == 40


def test_rows_come_back_as_they_were_given() -> None:
    assert read_all(reader_of(CLICKS), 0, 40) == CLICKS


def test_per_epoch_bounds_an_epoch_and_the_end_is_reached() -> None:
    reader = reader_of(CLICKS, per_epoch=30)
    assert reader.latest({"i": 0}, None) == {"i": 30}
    assert reader.latest({"i": 0}, 10) == {"i": 10}
    assert reader.latest({"i": 30}, None) == {"i": 40}
    assert reader.latest({"i": 40}, None) == {"i": 40}


def test_a_list_that_became_shorter_does_not_move_the_position_back() -> None:
    assert reader_of(CLICKS[:10]).latest({"i": 40}, None) == {"i": 40}


def test_partitions_hold_each_row_once_and_none_is_empty() -> None:
    splits = reader_of(CLICKS, partitions=3).splits({"i": 0}, {"i": 2})
    assert [(s.start["i"], s.end["i"]) for s in splits] == [(0, 1), (1, 2)]


def test_slices_of_one_sequence_share_their_split_id() -> None:
    assert {split.id for split in reader_of(CLICKS, partitions=3).splits({"i": 0}, {"i": 40})} == {""}


def test_an_empty_list_is_a_bounded_source_without_rows() -> None:
    empty = source.items([])
    assert empty.bounded
    assert empty.reader(codec_of(Click)).latest({"i": 0}, None) == {"i": 0}


def test_a_union_of_tagged_records_can_be_given() -> None:
    codec = codec_of(Left | Right)
    rows = [Left(1), Right("x")]
    reader = source.items(rows).bind(codec).reader(codec)
    batches = [batch for split in reader.splits({"i": 0}, {"i": 2}) for batch in reader.read(split)]
    assert [row for batch in batches for row in codec.to_objects(batch.columns)] == rows


def test_a_row_of_another_type_is_refused_while_building() -> None:
    with pytest.raises(ProgramError, match="row 1 of source.items"):
        source.items([CLICKS[0], Left(1)]).bind(codec_of(Click))


@pytest.mark.parametrize("settings", [{"per_epoch": 0}, {"partitions": 0}, {"per_epoch": True}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ProgramError, match="at least 1"):
        source.items(CLICKS, **settings)
