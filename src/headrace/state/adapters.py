"""Values of older versions of a step, made values of its newest where they leave the runs.

The types of states change with programs; runs do not. Each says in which version of its step it was written
(`RunRef.version`), and the manifest which type a state had in which version. `Adapters` is asked for a table once per
run; what it gives adapts values in bulk where they are looked up, walked over or folded, before anybody decodes them.

Invariants
- Where the decoder of the newest type reads the bytes as they are, nothing is done with them: there is no adapter.
- What is done is decided by `headrace.model.type_history`, the same that says whether a program may start.
- A fold leaves nothing old behind: its values are the bytes that the program would have written.

What this module deliberately does not do: decide what is read (`headrace.model.type_change`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError, StoreError
from headrace.model.job import COLUMNS, DeclaredState, derive_version
from headrace.model.key_text import key_phrase
from headrace.model.keys import decode_key
from headrace.model.migrations import FunctionRaised, Migration
from headrace.model.row_adapter import RowAdapter
from headrace.model.time import encode_span
from headrace.model.type_adapt import Adapt, same_value
from headrace.model.type_change import TypeChange
from headrace.model.type_history import derive_reading
from headrace.model.type_shape import type_text
from headrace.model.values import value_codec
from headrace.state.rows.format import FIELD

Rewrite = Callable[[bytes], bytes]

_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=encode_span)
_DECODER: Final = msgspec.msgpack.Decoder()


class ValueAdapter:
    """Makes stored values of one version of one state values of the newest."""

    def __init__(self, where: str, change: TypeChange, rewrite: Rewrite | None = None) -> None:
        """``rewrite``: gives values the bytes that the program would write."""
        self._where = where
        self._adapt: Adapt = change.adapt or same_value
        self._rewrite = rewrite

    def one(self, raw: bytes, key: bytes) -> bytes:
        """A stored value; ``key``: the encoded key it was stored for."""
        try:
            made = _ENCODER.encode(self._adapt(_DECODER.decode(raw)))
            return made if self._rewrite is None else self._rewrite(made)
        except FunctionRaised as failed:
            raise failed.store_error(self._where, key_phrase(decode_key(key))) from failed.error
        except (HeadraceError, msgspec.MsgspecError, TypeError, ValueError, OverflowError, LookupError) as error:
            raise self._misfit(error, key) from error

    def array(self, values: pa.BinaryArray, keys: pa.BinaryArray) -> pa.BinaryArray:
        """The same of many; null where there is none."""
        raws = zip(values.to_pylist(), keys.to_pylist())
        return pa.array([None if raw is None else self.one(raw, key) for raw, key in raws], pa.binary())

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same of rows of a run."""
        index = rows.schema.get_field_index("value")
        values = self.array(rows.column(index), rows.column("key"))
        return rows.set_column(index, rows.schema.field(index), values)

    def _misfit(self, error: Exception, key: bytes) -> StoreError:
        ours = error if isinstance(error, HeadraceError) else None
        return StoreError(
            "a stored value cannot be read as the type that its state has now" if ours is None else ours.what,
            where=self._where,
            expected="" if ours is None else ours.expected,
            found=f"{key_phrase(decode_key(key))}: {error if ours is None else ours.found}",
            next_move="say with hr.migrate what becomes of such values, or take the old type back"
            if ours is None
            else ours.next_move,
        )


class Adapters:
    """How what one step stored in older versions is read, table by table."""

    def __init__(
        self,
        step: str,
        states: Mapping[str, DeclaredState],
        migrations: Sequence[Migration] = (),
        annotations: Mapping[str, Any] | None = None,
        *,
        rewrites: bool = False,
        lenient: bool = False,
    ) -> None:
        """``annotations``: state → Python type of a stored value, where it is known.

        ``rewrites``: for those who write what they read, as a fold, which leaves nothing old behind.
        ``lenient``: what cannot be read is left to whoever decodes it.
        """
        self.version = derive_version(states)
        self._step = step
        self._states = states
        self._migrations = migrations
        self._annotations = annotations or {}
        self._rewrites = rewrites
        self._lenient = lenient
        self._known: dict[tuple[str, int], ValueAdapter | RowAdapter | None] = {}

    @property
    def states(self) -> Mapping[str, DeclaredState]:
        """What the step declares, with the names and types that its states had."""
        return self._states

    def of(self, table: str, version: int) -> ValueAdapter | RowAdapter | None:
        """What has to be done with a table of a run of this version; None: nothing. Refuses what cannot be read."""
        if version >= self.version or table not in self._states:
            return None
        known = self._known.get((table, version), self)
        if isinstance(known, Adapters):
            known = self._known[table, version] = self._derive(table, version)
        return known

    def _derive(self, table: str, version: int) -> ValueAdapter | RowAdapter | None:
        state = self._states[table]
        annotation, where = self._annotations.get(table), f"step {self._step}, state {table!r}"
        # Without the type itself, what is written must have the defaults of its new fields from here.
        fill = self._rewrites and annotation is None
        change = derive_reading(state, version, self._migrations, fill=fill)
        if change.kind == "refused" and not self._lenient:
            raise self._refusal(table, version, change.text)
        if change.kind in ("same", "refused"):
            return None
        if state.kind == COLUMNS and annotation is None:
            if self._rewrites:
                raise self._refusal(table, version, change.text)
            return None
        if state.kind == COLUMNS:
            return RowAdapter(where, state.types_since(version), change, annotation, prefix=FIELD)
        if self._rewrites:
            return ValueAdapter(where, change, None if annotation is None else _rewrite_of(annotation))
        return None if change.direct else ValueAdapter(where, change)

    def _refusal(self, table: str, version: int, reason: str) -> StoreError:
        old, new = self._states[table].type_in(version), self._states[table].type
        assert old is not None and new is not None, "types that are not known are never refused"
        return StoreError(
            f"stored values of {table!r} cannot be read as the present type",
            where=f"step {self._step}",
            expected=type_text(old),
            found=f"{type_text(new)}: {reason}",
            next_move="say with hr.migrate how the old type becomes the new one; or take the old type back"
            if self._annotations or self._migrations
            else "run the job for a while: its program knows how to read them, and folds rewrite them",
        )


def _rewrite_of(annotation: Any) -> Rewrite:
    codec = value_codec(annotation)
    return lambda raw: codec.encode(codec.decode(raw))
