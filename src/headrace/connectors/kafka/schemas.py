"""The schema that a sink writes its messages under: which one it is, and what goes wrong on the way to it, in words.

It is settled in the driver when a run starts, so that a schema which the registry refuses stops nothing half way; tasks
get it with the program. A task that finds none settled asks for itself: the answer is the same.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connectors.formats.binary import BinaryFormat
from headrace.connectors.formats.messages import RowEncoder
from headrace.connectors.formats.misfits import SchemaMisfit
from headrace.connectors.formats.registry import NoSuchSchema, StoredSchema
from headrace.errors import EpochFailed, HeadraceError, ProgramError, SettingsError, SinkFailed, SinkUnavailable

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_PLACES = ("topic", "record")


@dataclass(frozen=True)
class WrittenSchema:
    binary: BinaryFormat
    subject: str
    """A template over ``{topic}`` and ``{record}``, the schema's own name."""
    register: bool

    def check(self, codec: RowCodec) -> None:
        """While the program is built. Raises ProgramError."""
        try:
            places = [name for _, name, _, _ in string.Formatter().parse(self.subject) if name is not None]
        except ValueError:
            places = ["?"]
        if not self.subject or any(name not in _PLACES for name in places):
            raise ProgramError(
                f"subject={self.subject!r} names no subject",
                where=self.binary.where,
                expected='a name, or a template: "{topic}-value", "{record}", "{topic}-{record}"',
                found=repr(self.subject),
                next_move="correct it, or leave it out",
            )
        self.binary.check_writing(codec, codec.schema.names)

    def settle(self, topic: str, codec: RowCodec) -> StoredSchema:
        """Asks the registry. Raises SinkFailed, or SinkUnavailable where it does not answer."""
        try:
            stored = self.binary.resolve(self.subject, topic, self.register, codec, codec.schema.names)
            self.encoder(stored, codec)
        except EpochFailed as away:
            raise _as(SinkUnavailable, away, away.next_move) from away
        except NoSuchSchema as missing:
            move = "register it first, correct subject=…, or let the sink do it: register=True"
            raise _as(SinkFailed, missing, move) from missing
        except SettingsError as refused:
            raise _as(SinkFailed, refused, refused.next_move) from refused
        return stored

    def encoder(self, stored: StoredSchema, codec: RowCodec) -> RowEncoder:
        try:
            return self.binary.encoder(stored, codec, codec.schema.names)
        except SchemaMisfit as misfit:
            raise SinkFailed(
                "the rows and the schema do not go together",
                where=self.binary.where,
                expected="a schema that has every field of the rows, and defaults for those that the rows lack",
                found=f"{f'schema {stored.id}: ' if stored.id else ''}{misfit}",
                next_move="choose the fields to write with select(…), or write under another schema",
            ) from misfit


def _as(kind: type[SinkFailed], error: HeadraceError, next_move: str) -> SinkFailed:
    return kind(error.what, where=error.where, expected=error.expected, found=error.found, next_move=next_move)
