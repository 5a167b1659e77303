"""Making the reply of ``GET`` for a key of a state, as it goes over the wire: the shortest way that the state allows.

Nothing is kept here; see `headrace.serve.resp.scopes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.model.key_text import text_key
from headrace.read.forms import JSON, json_of
from headrace.read.reader import Reader
from headrace.read.values import ValueReader
from headrace.serve.resp import replies

WRONG_TYPE: Final = replies.error("WRONGTYPE Operation against a key holding the wrong kind of value")

Maker = Callable[[bytes], bytes]
"""From the text of a key, without its address, to the reply of GET."""


def maker_of(table: Reader, form: str, null: bytes) -> Maker:
    """Who makes the replies of a state in a form; ``null``: what is said of a key that is not there."""
    if isinstance(table, ValueReader) and table.plain_json and form == JSON:
        return _plain_maker(table, null)
    if table.kind in ("value", "windows"):
        return _any_maker(table, form, null)
    return _wrong_maker(table, null)


def _plain_maker(table: ValueReader, null: bytes) -> Maker:
    """Values of keys that are text, as JSON: what nearly everybody asks for."""
    raw = table.finder.raw
    ends = (b"l", b'"')

    def make(text: bytes) -> bytes:
        # The end decides for speed: only `null`, in quotes or without, is not written as it is.
        found = raw(b"s" + text if text[-1:] not in ends else text_key(text))
        if found is None:
            return null
        value = json_of(found)
        return b"$%d\r\n%b\r\n" % (len(value), value)

    return make


def _any_maker(table: Reader, form: str, null: bytes) -> Maker:
    def make(text: bytes) -> bytes:
        try:
            value = table.get(table.key_of(text), form)
        except ValueError:
            return null
        return null if value is None else b"$%d\r\n%b\r\n" % (len(value), value)

    return make


def _wrong_maker(table: Reader, null: bytes) -> Maker:
    def make(text: bytes) -> bytes:
        try:
            # A key that is not there is of no kind, so it cannot be of the wrong one.
            return WRONG_TYPE if table.has(table.key_of(text)) else null
        except ValueError:
            return null

    return make
