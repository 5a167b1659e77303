"""Tables as input, against a real server."""

from __future__ import annotations

from enum import Enum, Flag
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from psycopg.conninfo import make_conninfo

import headrace as hr
from headrace.connectors.source_contract import BadRows, SplitReader
from headrace.errors import EnvironmentMissing, InputLost, ProgramError
from headrace.model.rows import codec_of
from headrace.testing.sources import verify_source
from tests.sources.tables import BAD_BOXES, PLAIN, ROW, Box, Color, Everything, Shop, query, write


def rows(reader: SplitReader, type: Any, start: dict[str, Any] | None = None) -> list[Any]:
    start = reader.initial() if start is None else start
    end = reader.latest(start, None)
    codec = codec_of(type)
    batches = [batch for split in reader.splits(start, end) for batch in reader.read(split)]
    return [row for batch in batches for row in codec.to_objects(list(batch.columns))]  # type: ignore[union-attr]


def open_table(folder: Path, text: str, dsn: str, type: Any, **how: Any) -> SplitReader:
    source = hr.source.table(text, dsn=dsn, **how)
    return source.bind(codec_of(type)).placed_in(str(folder)).reader(codec_of(type))


@pytest.mark.parametrize("how", [{}, {"partitions": 3}, {"partitions": 3, "split_by": Shop.id}], ids=str)
def test_it_keeps_the_promises_of_a_source(shops: str, tmp_path: Path, how: dict[str, Any]) -> None:
    made = 0

    def make() -> SplitReader:
        nonlocal made
        made += 1
        query(shops, f"DELETE FROM shops WHERE id = {made}; UPDATE shops SET name = 'changed {made}'")
        return open_table(tmp_path, "shops", shops, Shop, **how)

    assert verify_source(make, codec_of(Shop).schema, limit=7, epochs=20) == 39


def test_a_snapshot_holds_each_row_once_however_it_is_copied(shops: str, tmp_path: Path) -> None:
    query(shops, "INSERT INTO shops SELECT i, 'same', 'city' FROM generate_series(100, 130) i")
    expected = sorted(query(shops, "SELECT id, name, city FROM shops"))
    for number, by in enumerate((None, "id", "name", "city")):
        found = rows(open_table(tmp_path / str(number), "shops", shops, Shop, partitions=4, split_by=by), Shop)
        assert sorted((row.id, row.name, row.city) for row in found) == expected


def test_a_restart_goes_on_in_the_copy_of_the_first_start(shops: str, tmp_path: Path) -> None:
    first = open_table(tmp_path, "shops", shops, Shop, per_epoch=10)
    middle = first.latest(first.initial(), None)
    query(shops, "TRUNCATE shops")
    later = open_table(tmp_path, "shops", make_conninfo(shops, port=1), Shop)
    assert later.remaining(middle) == 30
    assert len(rows(later, Shop, middle)) == 30
    assert later.latest(later.latest(middle, None), None) == later.latest(middle, None)


def test_a_job_stays_with_the_copy_it_began_with(shops: str, tmp_path: Path) -> None:
    old = open_table(tmp_path / "old", "shops", shops, Shop, per_epoch=10)
    query(shops, "DELETE FROM shops WHERE id > 20")
    new = open_table(tmp_path / "new", "shops", shops, Shop)
    for file in (tmp_path / "old").iterdir():
        file.rename(tmp_path / "new" / file.name)
    middle = old.latest(old.initial(), None)
    both = open_table(tmp_path / "new", "shops", shops, Shop)
    assert len(rows(both, Shop, middle)) == 30
    assert len(rows(new, Shop)) == 20


def test_a_copy_that_was_not_finished_is_made_anew(shops: str, tmp_path: Path) -> None:
    query(shops, "INSERT INTO shops SELECT i, 'more' FROM generate_series(100, 60000) i")
    text = "SELECT id, name, (1 / (id - 60000))::text AS city FROM shops"
    with pytest.raises(ProgramError, match="refused the query") as raised:
        open_table(tmp_path, text, shops, Shop)
    assert "division by zero" in raised.value.found
    assert list(tmp_path.iterdir()) == []
    query(shops, "DELETE FROM shops WHERE id = 60000")
    assert len(rows(open_table(tmp_path, text, shops, Shop), Shop)) == 40 + 59900


@pytest.mark.parametrize("how", [{}, {"partitions": 3, "split_by": Box.id}], ids=str)
def test_rows_that_do_not_decode_are_bad_rows_among_the_others(boxes: str, tmp_path: Path, how: dict[str, Any]) -> None:
    reader = open_table(tmp_path, "boxes", boxes, Box, **how)
    end = reader.latest(reader.initial(), None)
    batches = [batch for split in reader.splits(reader.initial(), end) for batch in reader.read(split)]
    texts = [text for each in batches if isinstance(each, BadRows) for text in each.texts]
    assert isinstance(batches[0], BadRows), "a job that reads no errors stops at once, not after hours"
    found = {msgspec.json.decode(each["text"])["id"]: each for each in map(msgspec.json.decode, texts)}
    assert {id: each["reason"][: len(BAD_BOXES[id])] for id, each in found.items()} == BAD_BOXES
    assert {each["where"] for each in found.values()} == {"the copy of source.table('boxes')"}
    assert msgspec.json.decode(found[7]["text"]) == {
        "id": 7,
        "name": "box 7",
        "size": {"wide": "very"},
        "price": "7",
        "at": "2024-01-01T12:00:00Z",
    }
    assert '"at":"infinity"' in found[1000]["text"]
    good = [id for each in batches if not isinstance(each, BadRows) for id in each.column(0).to_pylist()]
    assert sorted(good) == [id for id in range(1, 1001) if id not in BAD_BOXES]
    again = verify_source(lambda: open_table(tmp_path, "boxes", boxes, Box, **how), codec_of(Box).schema, limit=300)
    assert again == 1000, "bad rows count"


class Level(Enum):
    LOW = 1
    HIGH = 2


class Access(Flag):
    READ = 1
    WRITE = 2


class Words(hr.Record):
    id: int
    color: Color
    level: Level = Level.LOW
    colors: list[Color] = []
    maybe: Color | None = None
    kind: Literal["a", "b"] = "a"
    access: Access = Access.READ


def test_words_of_an_enum_are_read_from_text_and_numbers_and_others_are_bad_rows(dsn: str, tmp_path: Path) -> None:
    query(dsn, "CREATE TYPE colour AS ENUM ('red', 'blue')")
    query(
        dsn,
        "CREATE TABLE words "
        "(id int, color colour, level int, colors colour[], maybe text, kind varchar(3), access int)",
    )
    query(
        dsn,
        "INSERT INTO words VALUES (1, 'red', 2, '{red,red}', NULL, 'a', 3), (2, 'red', 1, '{}', 'red', 'b', 2), "
        "(3, 'blue', 1, '{}', NULL, 'a', 1), (4, 'red', 7, '{}', NULL, 'a', 1), "
        "(5, 'red', 1, '{red,blue}', NULL, 'a', 1), (6, 'red', 1, '{}', 'green', 'a', 1), "
        "(7, 'red', 1, '{}', NULL, 'z', 1)",
    )
    reader = open_table(tmp_path, "words", dsn, Words)
    end = reader.latest(reader.initial(), None)
    bad, good = [batch for split in reader.splits(reader.initial(), end) for batch in reader.read(split)]
    assert isinstance(bad, BadRows) and not isinstance(good, BadRows)
    assert codec_of(Words).to_objects(list(good.columns)) == [
        Words(1, Color.RED, Level.HIGH, [Color.RED, Color.RED], None, "a", Access.READ | Access.WRITE),
        Words(2, Color.RED, Level.LOW, [], Color.RED, "b", Access.WRITE),
    ]
    told = {msgspec.json.decode(each["text"])["id"]: each["reason"] for each in map(msgspec.json.decode, bad.texts)}
    assert {id: reason.partition(": ")[2] for id, reason in told.items()} == {
        3: "'blue' is not a valid Color",
        4: "7 is not a valid Level",
        5: "'blue' is not a valid Color",
        6: "'green' is not a valid Color",
        7: "'z' is none of 'a', 'b'",
    }


def test_a_copy_that_is_lost_is_told(shops: str, tmp_path: Path) -> None:
    reader = open_table(tmp_path, "shops", shops, Shop)
    end = reader.latest(reader.initial(), None)
    for file in tmp_path.glob("*.arrow"):
        file.unlink()
    with pytest.raises(InputLost, match="is gone"):
        rows(reader, Shop)
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(InputLost, match="is gone"):
        open_table(tmp_path, "shops", shops, Shop).latest(end, None)


def test_another_table_under_the_same_name_is_refused(shops: str, tmp_path: Path) -> None:
    open_table(tmp_path, "shops", shops, Shop)
    with pytest.raises(ProgramError, match="made for another table"):
        open_table(tmp_path, "SELECT * FROM shops", shops, Shop)


def test_an_empty_table_has_no_rows(shops: str, tmp_path: Path) -> None:
    query(shops, "TRUNCATE shops")
    reader = open_table(tmp_path, "shops", shops, Shop, partitions=2, split_by="id")
    assert reader.latest(reader.initial(), None) == reader.initial()
    assert rows(reader, Shop) == []


def test_every_type_that_the_sink_writes_is_read_back(dsn: str, tmp_path: Path) -> None:
    write(dsn, tmp_path, "all_of_it", [ROW, PLAIN])
    query(dsn, "ALTER TABLE all_of_it DROP COLUMN absent")
    assert rows(open_table(tmp_path / "copy", "all_of_it", dsn, Everything), Everything) == [ROW, PLAIN]


def test_the_server_settings_change_nothing(dsn: str, tmp_path: Path) -> None:
    name = dsn.rpartition("/")[2]
    for setting in (
        "timezone = 'Asia/Tokyo'",
        "datestyle = 'SQL, DMY'",
        "extra_float_digits = -5",
        "bytea_output = 'escape'",
    ):
        query(dsn, f"ALTER DATABASE {name} SET {setting}")
    write(dsn, tmp_path, "all_of_it", [ROW])
    assert rows(open_table(tmp_path / "copy", "all_of_it", dsn, Everything), Everything) == [ROW]


def test_a_query_is_read_as_a_table_is(shops: str, tmp_path: Path) -> None:
    text = "SELECT id, upper(name) AS name FROM shops WHERE id <= 2 ORDER BY id DESC;"
    assert rows(open_table(tmp_path, text, shops, Shop), Shop) == [Shop(2, "SHOP 2"), Shop(1, "SHOP 1")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", 'relation "nothing" does not exist'),
        ("SELECT nothing FROM shops", 'column "nothing" does not exist'),
        ("SELECT name AS id FROM shops", '"id" is text, rows have bigint\n- "name" is missing'),
    ],
)
def test_what_cannot_be_read_is_told_at_start(shops: str, tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ProgramError) as raised:
        open_table(tmp_path, text, shops, Shop)
    assert said in raised.value.found


def test_a_server_that_is_not_there_is_told_without_the_dsn(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing, match="cannot be read just now") as raised:
        open_table(tmp_path, "shops", "postgresql://u:sesame@127.0.0.1:1/x", Shop)
    assert "sesame" not in str(raised.value)
