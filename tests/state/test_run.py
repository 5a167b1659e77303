from __future__ import annotations

import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from headrace.errors import CorruptFile, MissingFile, StoreError
from headrace.state.format import MAGIC, TableData, hash_bounds
from headrace.state.lookup import Layers
from headrace.state.run import clear_open_runs, describe_run, encode_run, open_ref, open_run, run_crc
from headrace.state.store import LocalStore
from tests.state.rundata import GROUPS, due_table, entries_table, layers_of, needles, small_batches, value_table


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    clear_open_runs()
    return LocalStore(tmp_path, durable=False)


def encoded(*tables: TableData) -> pa.Buffer:
    return encode_run(tables, lo=0, hi=GROUPS, groups=GROUPS)


def test_rows_come_back_from_all_kinds_of_tables() -> None:
    run = open_run(
        encoded(
            value_table({b"a": (b"1", None), b"b": (None, None)}),
            entries_table({(b"a", b"x"): (b"2", 7)}),
            due_table([(5, b"a", 1)]),
        )
    )
    assert {name: (table.kind, table.rows) for name, table in run.tables.items()} == {
        "v": ("value", 2),
        "m": ("entries", 1),
        "!event": ("due", 1),
    }
    assert run.rows == 4
    assert not run.tables["v"].has_expires
    assert run.tables["m"].has_expires


def test_a_run_without_rows_is_a_run() -> None:
    run = open_run(encoded())
    assert (run.rows, run.tables) == (0, {})
    assert open_run(encoded(value_table({}))).tables == {}


def test_sections_are_arrow_streams_that_any_library_reads() -> None:
    with small_batches(3):
        data = encoded(value_table({b"%d" % i: (b"v%d" % i, None) for i in range(10)}))
    entry = open_run(data).tables["v"]._entry
    assert entry.offset % 64 == 0
    table = pa.ipc.open_stream(data.slice(entry.offset, entry.length)).read_all()
    assert table.num_rows == 10
    assert len(table.to_batches()) > 1
    assert table.column("hash").to_pylist() == sorted(table.column("hash").to_pylist())


def test_the_same_rows_give_the_same_bytes_in_whatever_order_they_come() -> None:
    rows = {b"key %d" % i: (b"%d" % i, None) for i in range(50)}
    assert encoded(value_table(rows)) == encoded(value_table(dict(reversed(rows.items()))))


def test_hashes_stay_together_in_a_batch_of_a_value_table() -> None:
    with small_batches(2):
        run = open_run(encoded(value_table({b"%d" % i: (b"", None) for i in range(40)})))
    table = run.tables["v"]
    assert len(table) > 1
    assert all(np.diff(table.first_array) > 0)
    blocks = [table.block(index) for index in range(len(table))]
    assert all(before.hash[-1] < after.hash[0] for before, after in pairwise(blocks))


def test_large_values_make_small_batches() -> None:
    values = {b"%d" % i: (bytes(1000), None) for i in range(20)}
    table = value_table(values).batch.set_column(0, "hash", pa.array(np.arange(20, dtype=np.uint64)))
    with small_batches(1000, batch_bytes=4000):
        run = open_run(encoded(TableData("v", "value", table)))
    assert len(run.tables["v"]) > 5


def test_two_rows_of_one_key_are_refused() -> None:
    batch = value_table({b"a": (b"1", None)}).batch
    with pytest.raises(StoreError, match="two rows of one key"):
        encoded(TableData("v", "value", pa.concat_tables([batch, batch])))
    entries = entries_table({(b"a", None): (None, None)}).batch
    with pytest.raises(StoreError, match="two rows of one key and sub"):
        encoded(TableData("m", "entries", pa.concat_tables([entries, entries])))


def test_a_row_of_another_shard_is_refused() -> None:
    table = value_table({b"%d" % i: (b"", None) for i in range(20)})
    with pytest.raises(StoreError, match="does not belong to this shard"):
        encode_run([table], lo=2, hi=4, groups=GROUPS)
    due = due_table([(1, b"%d" % i, 0) for i in range(20)])
    with pytest.raises(StoreError, match="does not belong to this shard"):
        encode_run([due], lo=2, hi=4, groups=GROUPS)


def test_a_missing_hash_is_refused() -> None:
    batch = pa.table({"hash": pa.array([None], pa.uint64()), "key": [b"a"], "value": [b"b"]})
    with pytest.raises(StoreError, match="hash"):
        encoded(TableData("v", "value", batch))


def test_key_group_bounds_meet_without_gap() -> None:
    bounds = [hash_bounds(lo, lo + 1, 128) for lo in range(128)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == 2**64 - 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(bounds))
    with pytest.raises(ValueError, match="power of two"):
        hash_bounds(0, 1, 100)
    with pytest.raises(ValueError, match="range"):
        hash_bounds(4, 4, 8)


def test_a_reference_describes_its_file(store: LocalStore) -> None:
    data = encoded(value_table({b"a": (b"1", None)}))
    ref = describe_run(data, epoch=3, file="runs/x/y.run", lo=2, hi=4)
    assert (ref.lo, ref.hi, ref.rows, ref.size_bytes, ref.crc) == (2, 4, 1, len(data), zlib.crc32(data))
    inline = describe_run(data, epoch=3)
    assert inline.inline == bytes(data)
    assert run_crc(data) == inline.crc
    assert open_ref(store, inline) is open_ref(store, inline)


def test_an_open_file_is_shared_by_name(store: LocalStore) -> None:
    data = encoded(value_table({b"a": (b"1", None)}))
    store.write("runs/x/1.run", data)
    ref = describe_run(data, epoch=1, file="runs/x/1.run")
    assert open_ref(store, ref) is open_ref(store, replace(ref, lo=1, hi=2))
    path = store.local_path("runs/x/1.run")
    assert path is not None
    assert open_run(path) is open_run(path)


def test_a_run_stays_readable_after_its_file_is_swept(store: LocalStore) -> None:
    data = encoded(value_table({b"a": (b"1", None)}))
    store.write("runs/x/1.run", data)
    ref = describe_run(data, epoch=1, file="runs/x/1.run")
    layers = layers_of([(ref, open_ref(store, ref))])
    store.delete("runs/x/1.run")
    assert layers.get_many("v", *needles([b"a"]))[0].to_pylist() == [b"1"]


def test_a_missing_file_is_named(store: LocalStore, tmp_path: Path) -> None:
    ref = describe_run(encoded(), epoch=1, file="runs/x/gone.run")
    with pytest.raises(MissingFile, match=r"runs/x/gone\.run") as caught:
        open_ref(store, ref)
    assert caught.value.next_move
    with pytest.raises(MissingFile, match=r"none\.run"):
        open_run(tmp_path / "none.run")


def test_every_damaged_byte_that_matters_is_noticed() -> None:
    with small_batches(4):
        data = bytes(encoded(value_table({b"%d" % i: (b"v", 3) for i in range(10)}), due_table([(1, b"a", 0)])))
    wanted = [b"%d" % i for i in range(10)]

    def read(content: bytes) -> object:
        try:
            return answer(content)
        except CorruptFile as error:
            return error

    def answer(content: bytes) -> object:
        layers = layers_of([(describe_run(data, epoch=0), open_run(content, name="a.run"))])
        return layers.get_many("v", *needles(wanted))[0].to_pylist(), layers.due("!event", 0, 9).to_pylist()

    truth = read(data)
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 0x41
        found = read(bytes(damaged))
        if isinstance(found, CorruptFile):
            assert found.where == "a.run"
            assert found.next_move
        else:
            assert found == truth, f"byte {place} changed the answer unnoticed"


def test_a_file_cut_short_is_noticed(store: LocalStore) -> None:
    data = bytes(encoded(value_table({b"a": (b"1", None)})))
    for length in (0, 10, 30, len(data) - 1):
        with pytest.raises(CorruptFile):
            open_run(data[:length])
    store.write("runs/x/1.run", bytes(encoded()))
    with pytest.raises(CorruptFile, match="bytes"):
        open_ref(store, describe_run(data, epoch=1, file="runs/x/1.run"))


def test_a_newer_version_is_refused_by_name() -> None:
    footer = b"\x85\xa7version\x63\xa2lo\x00\xa2hi\x01\xa6groups\x01\xa6tables\x90"
    trailer = len(footer).to_bytes(4, "little") + zlib.crc32(footer).to_bytes(4, "little") + MAGIC
    with pytest.raises(CorruptFile, match="version 99"):
        open_run(MAGIC + footer + trailer)


def test_a_damaged_file_is_not_kept_open(store: LocalStore) -> None:
    data = bytearray(encoded(value_table({b"a": (b"1", None)})))
    ref = describe_run(bytes(data), epoch=1, file="runs/x/1.run")
    batch = open_run(bytes(data)).tables["v"]._entry.batches[0]
    data[batch.offset + batch.length - 1] ^= 1
    store.write("runs/x/1.run", bytes(data))
    run = open_ref(store, ref)
    with pytest.raises(CorruptFile, match="checksum"):
        run.tables["v"].block(0)
    assert open_ref(store, ref) is not run


def test_a_reference_beyond_its_file_is_refused() -> None:
    data = encode_run([], lo=2, hi=4, groups=GROUPS)
    ref = describe_run(data, epoch=0, lo=0, hi=4)
    with pytest.raises(StoreError, match="does not fit"):
        Layers([(ref, open_run(data))], lo=0, hi=GROUPS, groups=GROUPS)
