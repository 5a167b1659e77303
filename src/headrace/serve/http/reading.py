"""Reading state by key: one key, many keys, windows of a key, pages of keys. All of one request is of one epoch.

What takes microseconds is answered in the loop; what may walk over many keys goes to a thread, a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import msgspec
from starlette.responses import Response

from headrace.errors import FunctionFailed, HeadraceError
from headrace.model.keys import hash_key
from headrace.model.window import Window
from headrace.net.problems import Problem, bad_parameter, problem_of, shorten
from headrace.read.forms import PACKED, encode
from headrace.read.paging import Page, with_values
from headrace.read.patterns import Pattern
from headrace.read.ranges import MOST_WINDOWS, Range, RangePage, between, parse_place, place_text
from headrace.read.reader import Reader
from headrace.read.windows import WindowReader
from headrace.serve.http.asking import TIMES, AskedRequest, parse_key, parse_written_key
from headrace.serve.http.job import TYPES, answer, key_json, many, time_json, version_headers
from headrace.serve.http.jobs import EPOCH_PARAMETERS, Jobs, RequestedState

FEW_KEYS: Final = 64
"""Up to this many are looked up in the loop."""
MAX_PAGE: Final = 10_000
PAGE_KEYS: Final = 100
SCAN_ROWS: Final = 200_000
"""So many rows are looked at for one page; one that found nothing yet says where to go on."""
STEP_KEYS: Final = 4096
RANGE_PARAMETERS: Final = ("from", "to", "order", "limit", "after")
"""Each of them makes a question for windows one for a range of time."""
PAGE_BYTES: Final = 64 * 2**20
"""A page ends before its values are larger than this; whole states are streamed instead."""


async def read_key(jobs: Jobs, asked: AskedRequest) -> Response:
    """``GET …/state/{address}/{key}``: the value itself."""
    asked.only("window", TIMES, *EPOCH_PARAMETERS)
    found = await jobs.find(asked)
    if found.unchanged is not None:
        return found.unchanged
    key = parse_written_key(found.table, asked.names["key"])
    if asked.has("window"):
        wanted = asked.window()
        windows = _windows(found.table, key)
        if wanted not in windows:
            raise missing_key(found.table, f"{asked.names['key']} in {asked.text('window')}")
        headers = found.headers | version_headers(found.table, key)
        return answer(found.table.shown(windows[wanted], asked.form), asked.form, headers)
    raw = found.table.get(key, asked.form)
    if raw is None:
        raise missing_key(found.table, asked.names["key"])
    headers = found.headers if found.table.types is None else found.headers | version_headers(found.table, key)
    return Response(raw, 200, headers, TYPES[asked.form])


async def read_windows(jobs: Jobs, asked: AskedRequest) -> Response:
    """``GET …/state/{address}/{key}/windows``: every window of a key that is kept, those that end earlier first.

    With ``from`` and ``to`` a page of those that lie between, whether they are still kept or archived.
    """
    asked.only(TIMES, *RANGE_PARAMETERS, *EPOCH_PARAMETERS)
    found = await jobs.find(asked)
    if found.unchanged is not None:
        return found.unchanged
    if asked.has(*RANGE_PARAMETERS):
        return await _read_range(jobs, asked, found)
    key = parse_written_key(found.table, asked.names["key"])
    windows = _windows(found.table, key)
    if not windows:
        raise missing_key(found.table, asked.names["key"])
    headers = found.headers | version_headers(found.table, key)
    return answer(_shown_windows(found.table, windows, asked.form), asked.form, headers)


async def _read_range(jobs: Jobs, asked: AskedRequest, found: RequestedState) -> Response:
    table, key = _windowed(found.table), parse_written_key(found.table, asked.names["key"])
    order, after = asked.text("order", "asc"), asked.text("after")
    if order not in ("asc", "desc"):
        raise bad_parameter("order", order, "asc or desc")
    try:
        behind = parse_place(after) if after else None
    except ValueError:
        raise bad_parameter("after", after, "what `next` of the page before says") from None
    wanted = between(asked.moment("from"), asked.moment("to"))._replace(reverse=order == "desc", behind=behind)
    limit = asked.number("limit", PAGE_KEYS, least=1, most=MOST_WINDOWS)
    try:
        if table.reads_archive(wanted):
            page = await jobs.in_thread(_range, table, key, wanted, limit, asked.form)
        else:
            page = _range(table, key, wanted, limit, asked.form)
    except FunctionFailed:
        raise
    except HeadraceError as error:
        # The archive: what is in state is open already. Half an answer would look like a whole.
        raise problem_of(error, 502) from error
    made = [_shown(window, msgspec.Raw(raw), asked.form) for window, raw in page.windows]
    more = None if page.next is None else place_text(page.next)
    headers = found.headers | version_headers(table, key)
    return many({**_place(found, asked.form), "windows": made, "next": more}, asked.form, headers)


def _range(table: WindowReader, key: bytes, wanted: Range, limit: int, form: str) -> RangePage:
    return table.range(key, wanted, limit).encoded(lambda value: encode(table.shown(value, form), form))


async def read_keys(jobs: Jobs, asked: AskedRequest) -> Response:
    """``POST …/state/{address}/get``: many keys, in the order asked."""
    asked.only(TIMES, *EPOCH_PARAMETERS)
    wanted = await asked.keys(jobs.limits.request_bytes, jobs.limits.keys)
    found = await jobs.find(asked)
    keys = [parse_key(found.table, key) for key in wanted.keys]
    limit = jobs.limits.reply_bytes
    if wanted.windows:
        values: list[Any] = await jobs.in_thread(_all_windows, found.table, keys, asked.form, limit)
    elif len(keys) <= FEW_KEYS:
        values = _values(found.table, keys, asked.form, limit)
    else:
        values = await jobs.in_thread(_values, found.table, keys, asked.form, limit)
    versions = {} if found.table.types is None else await jobs.in_thread(_versions, found.table, keys)
    return many({**_place(found, asked.form), "values": values, **versions}, asked.form, found.headers)


async def read_page(jobs: Jobs, asked: AskedRequest, found: RequestedState) -> Response:
    """``GET …/state/{address}?prefix=…&limit=…&after=…``: keys and values in the order of their hashes."""
    prefix, after = asked.text("prefix"), _cursor(asked)
    limit = asked.number("limit", PAGE_KEYS, least=1, most=MAX_PAGE)
    keys, entries, at = await jobs.in_thread(
        _page, found.table, prefix, after, limit, asked.form, jobs.limits.reply_bytes
    )
    more = None if at is None else f"{at:016x}"
    versions = {} if found.table.types is None else await jobs.in_thread(_versions, found.table, keys)
    return many({**_place(found, asked.form), "entries": entries, "next": more, **versions}, asked.form, found.headers)


def _place(found: RequestedState, form: str) -> dict[str, Any]:
    place: dict[str, Any] = {"state": found.table.address, "epoch": found.snapshot.epoch}
    return place if form != PACKED else {**place, "kind": found.table.kind}


# --- windows


def _windows(table: Reader, key: bytes) -> dict[Window, Any]:
    return _windowed(table).windows(key)


def _windowed(table: Reader) -> WindowReader:
    if not isinstance(table, WindowReader):
        raise Problem(
            400,
            "this state has no windows",
            where=table.address,
            expected="a windowed state",
            found=f"a {table.kind} per key",
            next_move="ask for the key alone",
        )
    return table


def _shown(window: Window, value: Any, form: str) -> Any:
    if form == PACKED:
        return [int(window.start), int(window.end), value]
    return {"start": time_json(int(window.start), form), "end": time_json(int(window.end), form), "value": value}


def _shown_windows(table: Reader, windows: dict[Window, Any], form: str) -> list[Any]:
    return [_shown(window, table.shown(value, form), form) for window, value in windows.items()]


def _all_windows(table: Reader, keys: list[bytes], form: str, limit: int) -> list[Any]:
    made = (msgspec.Raw(encode(_shown_windows(table, _windows(table, key), form), form)) for key in keys)
    return _bounded(made, limit)


# --- values


def _values(table: Reader, keys: list[bytes], form: str, limit: int) -> list[Any]:
    return _bounded((None if raw is None else msgspec.Raw(raw) for raw in table.each_of(keys, form)), limit)


def _bounded(values: Iterable[msgspec.Raw | None], limit: int) -> list[Any]:
    """All of them, as long as one answer may hold them."""
    held = []
    size = 0
    for value in values:
        held.append(value)
        size += 1 if value is None else len(memoryview(value))
        if size > limit:
            raise Problem(
                413,
                f"the values have more than {limit} bytes together",
                expected=f"up to {limit} bytes",
                next_move="ask for fewer keys at a time, or take the whole state with ?format=arrow",
            )
    return held


def _versions(table: Reader, keys: list[bytes]) -> dict[str, Any]:
    """Of values that are of an older type, in the order asked, the version they were written in; nothing if none is."""
    stored = [table.stored_version(key) for key in keys]
    newest = next((each.newest for each in stored if each is not None), None)
    if newest is None:
        return {}
    return {"versions": [None if each is None else each.version for each in stored], "newest_version": newest}


# --- pages


def _cursor(asked: AskedRequest) -> int:
    found = asked.text("after", "0")
    try:
        at = int(found, 16) if found.isalnum() and len(found) <= 16 else -1
    except ValueError:
        at = -1
    if at < 0:
        raise bad_parameter("after", found, "what `next` of the page before says")
    return at


def _page(
    table: Reader, prefix: str, after: int, limit: int, form: str, most_bytes: int
) -> tuple[list[bytes], list[Any], int | None]:
    page = find_keys(table, prefix, after, limit)
    # A value that is larger by itself is a page of its own: by its key it can be asked for as well.
    found, at = with_values(page, partial(table.each_of, form=form), min(PAGE_BYTES, most_bytes))
    keys = [key for key, _ in found]
    if form == PACKED:
        return keys, [[key, msgspec.Raw(raw)] for key, raw in found], at
    return keys, [{"key": key_json(table, key, form), "value": msgspec.Raw(raw)} for key, raw in found], at


def find_keys(table: Reader, prefix: str, after: int, limit: int) -> Page:
    """Up to ``limit`` keys from a hash on whose text starts so."""
    pattern = Pattern(_literally(table.quoted(prefix)) + "*") if prefix else None
    keys: list[bytes] = []
    at: int | None = after
    looked_at = 0
    while at is not None and len(keys) < limit and looked_at < SCAN_ROWS:
        wanted = limit - len(keys)
        found = table.page(at, wanted if pattern is None else max(wanted, STEP_KEYS), pattern)
        keys += found.keys
        at = found.next_hash
        looked_at += max(1, found.looked_at)
    if len(keys) <= limit:
        return Page(keys, at)
    cut = limit
    # Keys of one hash stand on one page, because the next one begins at a hash.
    while cut < len(keys) and hash_key(keys[cut]) == hash_key(keys[cut - 1]):
        cut += 1
    return Page(keys[:cut], hash_key(keys[cut]) if cut < len(keys) else at)


def _literally(prefix: str) -> str:
    return "".join(f"\\{char}" if char in "*?[\\" else char for char in prefix)


def missing_key(table: Reader, key: str) -> Problem:
    return Problem(
        404,
        "there is no such key in this epoch",
        where=table.address,
        found=shorten(key),
        next_move="wait for the epoch that writes it with ?wait_epoch=…, or look at the keys with ?limit=10",
    )
