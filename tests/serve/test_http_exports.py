"""Whole states over HTTP: read back by pyarrow, of one epoch, with one schema, in bounded pieces."""

from __future__ import annotations

import csv
import io
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.net import http_server as server
from headrace.net.access import Limits
from headrace.read.columns import PIECE_ROWS, Piece, derive_schema, to_batch
from headrace.serve.http.jobs import DOWNLOADS
from tests.serve.made_store import MadeStore, lists, maps, timers, values
from tests.serve.served import Served
from tests.serve.tweets import Tweets, fetch

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")
STATE = "/v1/jobs/tweets/state"
ARROW = "application/vnd.apache.arrow.stream"
MANY = 40_000
BUFFER_BYTES = 4096


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("exports") / "store"
    made = MadeStore(path)
    made.epoch(
        {
            "many": [values("value", [(f"key-{i}", i) for i in range(MANY)])],
            # Types that only the last pieces show, wherever those keys lie.
            "grows": [
                values("value", [(i, {"n": i, **({"x": i / 2} if i % 9_000 == 0 else {})}) for i in range(MANY)])
            ],
            "mixed": [values("value", [(1, {"a": 1}), (2, "text"), (3, {}), (4, [1, "a"]), (5, 2**63)])],
            "records": [values("value", [(("a", 1), {"name": 'ä,"b"', "tags": ["x", "y"], "raw": b"\x00\xff"})])],
            "parts": [
                maps("entries", [("k", f"e{i}", i) for i in range(3)]),
                lists("elements", [("k", i, i * 1.5) for i in range(3)]),
                timers("due", [("k", 1_000_000)]),
            ],
            "gone": [values("value", [("a", None)])],
        }
    )
    with Served(path) as server:
        server.wait_for(0)
        yield server


def arrow(served: Served, address: str, query: str = "") -> pa.Table:
    answer = fetch(served.url, f"{STATE}/{address}?format=arrow{query}")
    assert (answer.status, answer.headers["content-type"]) == (200, ARROW)
    with pa.ipc.open_stream(answer.body) as stream:
        return stream.read_all()


def test_a_state_of_many_pieces_is_read_back_whole(served: Served) -> None:
    assert PIECE_ROWS < MANY
    table = arrow(served, "many")
    assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist())) == {f"key-{i}": i for i in range(MANY)}
    parquet = pq.read_table(io.BytesIO(fetch(served.url, f"{STATE}/many?format=parquet").body))
    assert parquet.equals(table)


def test_all_pieces_have_the_schema_that_all_of_them_fit_into(served: Served) -> None:
    table = arrow(served, "grows")
    assert table.schema.types == [pa.int64(), pa.int64(), pa.float64()] and table.column_names == ["key", "n", "x"]
    by_key = {row["key"]: row for row in table.to_pylist()}
    assert (by_key[9_000]["x"], by_key[9_001]["x"], by_key[9_001]["n"]) == (4_500.0, None, 9_001)


def test_values_without_a_common_type_are_json_text_and_say_so(served: Served) -> None:
    table = arrow(served, "mixed")
    assert table.schema.field("value").metadata == {b"headrace": b"json"}
    found = {key: json.loads(text) for key, text in zip(table["key"].to_pylist(), table["value"].to_pylist())}
    assert found == {1: {"a": 1}, 2: "text", 3: {}, 4: [1, "a"], 5: 2**63}
    parquet = pq.read_table(io.BytesIO(fetch(served.url, f"{STATE}/mixed?format=parquet").body))
    assert parquet.num_rows == 5


def test_entries_elements_and_timers_are_rows_of_their_own(served: Served) -> None:
    assert sorted(arrow(served, "parts.entries").to_pylist(), key=str) == [
        {"key": "k", "entry": f"e{i}", "value": i} for i in range(3)
    ]
    assert arrow(served, "parts.elements")["value"].to_pylist() == [0.0, 1.5, 3.0]
    assert arrow(served, "parts.due").to_pylist() == [{"key": "k", "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}]


def test_a_state_without_keys_is_a_table_without_rows(served: Served) -> None:
    assert arrow(served, "gone").num_rows == 0
    assert fetch(served.url, f"{STATE}/gone?format=json").json == []
    assert pq.read_table(io.BytesIO(fetch(served.url, f"{STATE}/gone?format=parquet").body)).num_rows == 0
    assert fetch(served.url, f"{STATE}/gone?format=csv").body.splitlines() == [b'"key","value"']


def test_csv_spreads_the_fields_of_a_value(served: Served) -> None:
    [header, row] = csv.reader(io.StringIO(fetch(served.url, f"{STATE}/records?format=csv").body.decode()))
    found = dict(zip(header, row))
    assert (found["part_0"], found["part_1"], found["name"]) == ("a", "1", 'ä,"b"')
    assert json.loads(found["tags"]) == ["x", "y"]


def test_json_is_one_list_or_a_row_per_line(served: Served) -> None:
    rows = fetch(served.url, f"{STATE}/many?format=json").json
    lines = [json.loads(line) for line in fetch(served.url, f"{STATE}/many?format=ndjson").body.splitlines()]
    assert rows == lines
    assert len(rows) == MANY


def test_a_prefix_narrows_what_is_exported(served: Served) -> None:
    assert sorted(arrow(served, "many", "&prefix=key-123")["value"].to_pylist())[:2] == [123, 1230]


def test_the_header_asks_for_arrow_as_well_as_the_address(served: Served) -> None:
    answer = fetch(served.url, f"{STATE}/many", Accept=f"{ARROW}, */*;q=0.1")
    assert answer.headers["content-type"] == ARROW
    assert answer.headers["content-disposition"] == 'attachment; filename="tweets-many-0.arrows"'
    assert fetch(served.url, f"{STATE}/many?format=xml").status == 400


def test_windows_are_a_row_per_key_and_window(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets, Served(tmp_path / "store") as served:
        served.wait_for(tweets.push(("a", "12:01", 1), ("a", "13:01", 2), ("b", "12:05", 4)))
        table = arrow(served, "hourly").sort_by([("tweet", "ascending"), ("window_start", "ascending")])
        assert table["impressions"].to_pylist() == [1, 2, 4]
        assert table.schema.field("window_start").type == pa.timestamp("us", "UTC")
        assert arrow(served, "hourly", "&prefix=b")["impressions"].to_pylist() == [4]
        assert arrow(served, "hourly").num_columns == len(
            hr.Store(tmp_path / "store").state("hourly").to_polars().columns
        )


def ask_and_not_read(served: Served) -> socket.socket:
    """A client that asks for a whole state and takes its first bytes only; the buffers do not hold the others."""
    line = socket.socket()
    line.settimeout(60)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    line.connect(("127.0.0.1", served.http_port))
    line.sendall(f"GET {STATE}/many?format=json HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert line.recv(12) == b"HTTP/1.1 200"
    return line


def read_rest(line: socket.socket) -> bytes:
    """What lay in the client's own buffer when it was cut off, if it was."""
    got = bytearray()
    with suppress(ConnectionResetError):
        while part := line.recv(65_536):
            got += part
    return bytes(got)


def test_only_so_many_downloads_run_at_once_and_clients_that_leave_make_room(served: Served) -> None:
    with Served(served.path, held_bytes=BUFFER_BYTES) as small, ExitStack() as lines:
        small.wait_for(0)
        for _ in range(DOWNLOADS):
            lines.enter_context(ask_and_not_read(small))
        refused = fetch(small.url, f"{STATE}/many?format=json")
        assert (refused.status, refused.headers["retry-after"]) == (503, "2")
        assert fetch(small.url, f"{STATE}/many/key-7").json == 7
        lines.close()
        small.until(lambda: small.app.jobs.downloads == 0)
        assert fetch(small.url, f"{STATE}/many?format=json").status == 200


def test_a_client_that_stops_reading_is_cut_off(served: Served) -> None:
    with Served(served.path, held_bytes=BUFFER_BYTES, limits=Limits(unread_s=0.2)) as impatient:
        impatient.wait_for(0)
        with ask_and_not_read(impatient) as line:
            impatient.until(lambda: impatient.app.jobs.downloads == 0)
            assert len(read_rest(line)) < MANY, "an answer has many bytes for each key"


def test_a_server_that_stops_cuts_off_who_does_not_read(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "STOP_S", 0.3)
    with Served(served.path, held_bytes=BUFFER_BYTES) as stopping:
        stopping.wait_for(0)
        line = ask_and_not_read(stopping)
    with line:
        assert len(read_rest(line)) < MANY
    told = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert told == ["the server stops; connections cut off in the middle of an answer: 1"]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([{"v": [1]}, {"v": [None]}, {"v": [2.5]}], pa.float64()),
        ([{"v": [None]}, {"v": [[1]]}, {"v": [[]]}], pa.list_(pa.int64())),
        ([{"v": [{"a": 1}]}, {"v": [{"b": "x"}]}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([{"v": [("a", 1)]}], pa.struct([("part_0", pa.string()), ("part_1", pa.int64())])),
        ([{"v": [1]}, {"v": ["x"]}], pa.string()),
        ([{"v": [{1: 2}]}], pa.string()),
        ([{"v": [{}]}], pa.string()),
        ([{"v": [2**70]}], pa.string()),
        ([{"v": [{str(i): i for i in range(1000)}]}], pa.string()),
    ],
)
def test_one_type_is_found_for_what_pieces_hold(pieces: list[Piece], expected: pa.DataType) -> None:
    schema = derive_schema(pieces)
    assert schema.field("v").type == expected
    assert sum(to_batch(piece, schema).num_rows for piece in pieces) == len(pieces)
