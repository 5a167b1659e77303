"""What one edit makes of one key: a function for each kind of state, over the cell of the key.

Each answers what was there and what is there now, as every door shows values, for a person to look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.edit.cells import EntriesCell, Stored, ValueCell, is_over
from headrace.edit.edits import Edit
from headrace.edit.targets import EditTarget
from headrace.errors import ProgramError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.job import ROW
from headrace.model.key_text import key_text
from headrace.model.keys import decode_key
from headrace.model.time import format_time, parse_time, span_us
from headrace.model.time_shape import time_writer
from headrace.model.type_json import type_in_words, value_encoder
from headrace.model.type_shape import TypeShape
from headrace.read.finishing import Finisher
from headrace.read.opening import AGGREGATE
from headrace.state.subs import LIST_SUB, TIME_SUB

_unpack = msgspec.msgpack.Decoder().decode
_pack = msgspec.msgpack.Encoder().encode
_NIL = _pack(None)
"""What stands under the time of a timer."""


class BeforeAfter(NamedTuple):
    """Plain values, their times as text; None where nothing is."""

    before: Any
    after: Any


class Changing:
    """Edits of one state. ``now_us``: when they are made, which is what spans count from."""

    def __init__(self, target: EditTarget, epoch: int, now_us: int) -> None:
        """``epoch``: the one that the edits become true in."""
        self._target = target
        self._epoch = epoch
        self._now_us = now_us
        self._show = time_writer(target.value_times, format_time) or (lambda value: value)
        self._finisher = Finisher(target.declared.results, target.declared.key) if target.kind == AGGREGATE else None
        self.times: dict[bytes, set[int]] = {}
        """Key → timers that were set."""

    # --- one value per key

    def change_value(self, cell: ValueCell, edit: Edit) -> BeforeAfter:
        before = self._shown_value(cell.key, cell.stored)
        if edit.entry_text is not None or edit.verb == "append":
            what = "entries" if edit.entry_text is not None else "a list"
            raise self._refuse(edit, f"the state keeps one value for each key, not {what}", "set, patch or delete it")
        if edit.verb == "delete" or (edit.set is None and self._is_optional):
            cell.stored = None
        elif self._finisher is not None:
            cell.stored = self._with_results(cell.stored, edit), None if cell.stored is None else cell.stored[1]
        else:
            given = edit.set if edit.verb == "set" else self._patch(cell.stored, edit)
            raw = self._encode(given, edit)
            self._check_key(cell.key, _unpack(raw), edit)
            cell.stored = raw, self._expiry(edit, cell.stored)
            if self._target.due_table is not None:
                self._note_timer(cell.key, _unpack(cell.stored[0]), edit)
        return BeforeAfter(before, self._shown_value(cell.key, cell.stored))

    @property
    def _is_optional(self) -> bool:
        """Whether None is a value of the state; then it means that there is none."""
        shape = self._target.value_shape
        return shape is not None and shape.optional

    def _shown_value(self, key: bytes, stored: Stored | None) -> Any:
        if stored is None:
            return None
        value = _unpack(stored[0])
        if self._finisher is not None:
            value = self._finisher.finish(key, value)
        return self._show(value)

    def _check_key(self, key: bytes, row: Any, edit: Edit) -> None:
        """A row of reduce or latest holds its key; one that held another would stop the job at the next row."""
        columns = self._target.declared.key
        if self._target.kind != ROW or not isinstance(row, dict):
            return
        decoded = decode_key(key)
        parts = decoded if len(columns) > 1 else (decoded,)
        fields = () if self._target.value_shape is None else self._target.value_shape.fields
        stored = {each.name: each.stored_name for each in fields}
        for column, part in zip(columns, parts):
            found = row.get(stored.get(column, ""), part)
            if type(found) is type(part) and found != part:
                raise self._misfit(edit, f"a row whose {column} is {part!r}, as its key is", f"{found!r}")

    def _with_results(self, stored: Stored | None, edit: Edit) -> bytes:
        """Accumulators with some of them replaced by the results that they are."""
        given = edit.set if edit.verb == "set" else edit.patch
        if not isinstance(given, Mapping) or not given:
            raise self._misfit(edit, "an object with results", "no object")
        accumulators: dict[str, Any] = {} if stored is None else _unpack(stored[0])
        missing = [name for name in self._target.declared.results if name not in given]
        if edit.verb == "set" and missing:
            raise self._misfit(edit, f"all results: {', '.join(self._target.declared.results)}",
                               f"nothing for {', '.join(missing)}; patch leaves the others as they are")  # fmt: skip
        for name, value in given.items():
            shape = self._target.check_result(name, edit)
            try:
                accumulators[name] = _unpack(value_encoder(shape)(value))
            except ValueError as error:
                raise self._misfit(edit, f"{name} as {type_in_words(shape)}", str(error)) from error
        return _pack({name: each for name, each in accumulators.items() if each is not None})

    # --- entries of a key

    def change_entries(self, cell: EntriesCell, edit: Edit) -> BeforeAfter:
        if edit.entry_text is not None:
            return self._change_entry(cell, edit)
        whole = cell.entries()
        match edit.verb:
            case "delete":
                cell.clear()
            case "set":
                entries = self._given_entries(cell, edit.set, edit)
                cell.clear()
                for sub, stored in entries:
                    cell.put(sub, stored)
            case "append" if self._target.kind == "map":
                raise self._refuse(edit, "nothing can be appended to a map", "patch it, or set an entry")
            case "patch" if self._target.kind != "map":
                raise self._refuse(edit, f"{self._target.kind} have no fields", "set an entry, or append one")
            case _:
                given = [edit.append] if edit.verb == "append" else edit.patch
                for sub, stored in self._given_entries(cell, given, edit):
                    cell.put(sub, stored)
        return BeforeAfter(self._shown_entries(whole), self._shown_entries(cell.entries()))

    def _change_entry(self, cell: EntriesCell, edit: Edit) -> BeforeAfter:
        sub = self._sub_of(cell, edit)
        stored = cell.find(sub)
        match edit.verb:
            case "delete":
                cell.put(sub, None)
            case "append":
                raise self._refuse(edit, "nothing can be appended to an entry", "set it")
            case _ if self._target.kind == "timers":
                cell.put(sub, (_NIL, None))
                self._note_timer(cell.key, TIME_SUB.decode(sub), edit)
            case _:
                given = edit.set if edit.verb == "set" else self._patch(stored, edit)
                cell.put(sub, (self._encode(given, edit), self._expiry(edit, stored)))
        return BeforeAfter(self._shown_entry(sub, stored), self._shown_entry(sub, cell.find(sub)))

    def _sub_of(self, cell: EntriesCell, edit: Edit) -> bytes:
        assert edit.entry_text is not None
        kind = self._target.kind
        if kind == "map":
            return self._target.entry(edit)
        if kind == "timers":
            return TIME_SUB.encode(self._time(edit.entry, edit))
        places = list(cell.entries())
        try:
            return places[int(edit.entry_text)]
        except (ValueError, IndexError):
            many = f"0 to {len(places) - 1}" if places else "none: the list is empty"
            raise self._misfit(edit, f"the number of an element: {many}", edit.entry_text) from None

    def _given_entries(self, cell: EntriesCell, given: Any, edit: Edit) -> Iterable[tuple[bytes, Stored | None]]:
        """Entries by their stored names; of a map None where one is taken away."""
        kind = self._target.kind
        if kind == "map":
            if not isinstance(given, Mapping):
                raise self._misfit(edit, "an object: key of the map → value", f"{given!r:.80}")
            parts = [msgspec.structs.replace(edit, entry=name) for name in given]
            subs = [self._target.entry(part) for part in parts]
            return [(sub, self._given_entry(cell, sub, part, given[part.entry])) for sub, part in zip(subs, parts)]
        if not isinstance(given, list):
            raise self._misfit(edit, "a list", f"{given!r:.80}")
        if kind == "timers":
            times = [self._time(each, edit) for each in given]
            for time_us in times:
                self._note_timer(cell.key, time_us, edit)
            return [(TIME_SUB.encode(time_us), (_NIL, None)) for time_us in times]
        place = cell.next_place(self._epoch)
        expires = self._expiry(edit, None)
        return [(LIST_SUB.encode(place + i), (self._encode(each, edit), expires)) for i, each in enumerate(given)]

    def _given_entry(self, cell: EntriesCell, sub: bytes, part: Edit, value: Any) -> Stored | None:
        if value is None and part.verb == "patch":
            return None
        return self._encode(value, part), self._expiry(part, cell.find(sub))

    def _shown_entries(self, entries: Mapping[bytes, Stored]) -> Any:
        if not entries:
            return None
        if self._target.kind == "map":
            return {self._entry_name(sub): self._shown_entry(sub, stored) for sub, stored in entries.items()}
        return [self._shown_entry(sub, stored) for sub, stored in entries.items()]

    def _entry_name(self, sub: bytes) -> str:
        return key_text(decode_key(sub), self._target.entry_type)

    def _shown_entry(self, sub: bytes, stored: Stored | None) -> Any:
        if stored is None:
            return None
        if self._target.kind == "timers":
            return format_time(TIME_SUB.decode(sub))
        return self._show(_unpack(stored[0]))

    # --- values and times

    def _encode(self, given: Any, edit: Edit) -> bytes:
        try:
            return self._target.encode(given)
        except ValueError as error:
            raise self._misfit(edit, type_in_words(self._target.value_shape), str(error)) from error

    def _patch(self, stored: Stored | None, edit: Edit) -> Any:
        """The JSON of what is stored, with the fields that the edit names."""
        value = None if stored is None else _unpack(stored[0])
        if not isinstance(value, dict) or not isinstance(edit.patch, Mapping):
            found = "nothing is stored" if value is None else f"{'a value' if value else value!r} without fields"
            raise self._misfit(edit, "an object of fields, for a stored Record or mapping", found)
        shape = self._target.value_shape
        names = _field_names(shape)
        # A field that the program has no longer would be refused; it is left out, as reading leaves it out.
        kept = {name: each for name, each in value.items() if names is None or name in names}
        merged = {**msgspec.to_builtins(kept, str_keys=True), **edit.patch}
        if names is None:
            return {name: each for name, each in merged.items() if each is not None}
        return merged

    def _expiry(self, edit: Edit, stored: Stored | None) -> int | None:
        """When what is set expires."""
        declared = self._target.declared
        if edit.expires and not declared.clock:
            raise self._refuse(edit, "values of this state do not expire", "leave out expires")
        if edit.expires == "never" or not declared.clock:
            return None
        if edit.expires:
            expires_us = self._expiry_of(edit)
            if is_over(self._target, expires_us):
                raise self._misfit(edit, "a time that has not passed on the clock of the state", edit.expires)
            return expires_us
        before = None if stored is None else stored[1]
        if before is not None and (declared.refresh == "create" or not declared.ttl_us):
            return before
        base = self._base_us
        return None if not declared.ttl_us or base is None else min(base + declared.ttl_us, MAX_TIME)

    @property
    def _base_us(self) -> int | None:
        """What a TTL counts from: now, on the clock of the state."""
        if self._target.declared.clock == "wall":
            return self._now_us
        return None if self._target.watermark_us <= MIN_TIME else self._target.watermark_us

    def _expiry_of(self, edit: Edit) -> int:
        try:
            return parse_time(edit.expires)
        except ProgramError:
            base = self._base_us
        if base is None:
            raise self._misfit(edit, "a time: no event time is known that a span could count from", edit.expires)
        try:
            return min(base + span_us(edit.expires), MAX_TIME)
        except ProgramError as error:
            raise self._misfit(edit, "a time (2024-05-01T12:00), a span (7d) or never", edit.expires) from error

    def _time(self, given: Any, edit: Edit) -> int:
        try:
            return int(_unpack(self._target.encode(given)))
        except ValueError as error:
            raise self._misfit(edit, "a time: ISO text, or microseconds since 1970", str(error)) from error

    def _note_timer(self, key: bytes, time_us: int, edit: Edit) -> None:
        after = self._target.due_after_us
        if time_us <= after:
            clock = "the wall clock" if self._target.kind == "wall_timer" else "the watermark"
            raise self._misfit(edit, f"a time after {format_time(after)}, where {clock} of the step is",
                               f"{format_time(time_us)}, which counts as fired")  # fmt: skip
        self.times.setdefault(key, set()).add(time_us)

    # --- errors

    def _misfit(self, edit: Edit, expected: str, found: str) -> ProgramError:
        return ProgramError(
            "this does not fit the state", where=edit.describe(), expected=expected, found=found,
            next_move="nothing was changed: mend the edit",
        )  # fmt: skip

    def _refuse(self, edit: Edit, what: str, way_out: str) -> ProgramError:
        return ProgramError(
            what, where=edit.describe(), expected=f"an edit of a {self._target.kind.replace('_', ' ')} state",
            found=edit.verb, next_move=way_out,
        )  # fmt: skip


def _field_names(shape: TypeShape | None) -> set[str] | None:
    """The names under which the fields of a Record are stored; None where any name may stand."""
    if shape is None or shape.kind not in ("record", "union"):
        return None
    records = [each for each in (shape, *shape.members) if each.kind == "record"]
    if not records:
        return None
    names = {each.stored_name for record in records for each in record.fields}
    return names | {record.tag[0] for record in records if record.tag is not None}
