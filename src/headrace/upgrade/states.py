"""The states of a step that is in the store and in the program: what becomes of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.model.amounts import count_of
from headrace.model.job import ROW, VALUE_TABLE, WAITING_ROWS, DeclaredState
from headrace.model.meaning import KEPT_TABLE
from headrace.model.time import format_span
from headrace.model.type_adapt import MOST_EXACT
from headrace.model.type_change import TypeChange, compare_keys
from headrace.model.type_history import derive_change, value_part
from headrace.model.type_shape import TypeShape
from headrace.upgrade.aggregates import compare_aggregates
from headrace.upgrade.lines import Objection, UpgradeLine
from headrace.upgrade.match import Declared, Matches, is_named, match_states
from headrace.upgrade.sample import try_migration
from headrace.upgrade.stored import StoredTables
from headrace.upgrade.types import BY_KEY, OldTypes, are_alike, fits_state, kind_words, text_of

_OTHER_WORDS: Final = (
    "give the new aggregate another name, and its expression other words (name the column otherwise, say): the others "
    "go on, and it begins with the next row"
)
"""The way out for an aggregate over a horizon: rows are kept for it by the words of its expression."""
_KEPT_NOTE: Final = "the columns of expressions have other names or types"


class StateMatcher:
    """The states of one step. ``step``: as the program names it; ``former``: as the store does."""

    def __init__(
        self, step: str, former: str, before: Declared, now: Declared, stored: StoredTables,
        old: OldTypes, *, columnar: bool,
    ) -> None:  # fmt: skip
        self.step = step
        self.former = former
        self.before = before
        self.now = now
        self.stored = stored
        self.old = old
        self.columnar = columnar
        self.matches: Matches = match_states(before, now)

    def lines(self) -> Iterator[UpgradeLine]:
        for name, former in self.matches.former.items():
            if former is None:
                yield self._new(name)
            else:
                yield self._matched(name, former)
        for name, state in self.now.items():
            if not is_named(name, state) and name in self.before:
                yield from self._beside(name, self.before[name], state)
        for name in self.matches.unread:
            yield from self._unread(name)
        for name in self.before:
            if name.startswith(WAITING_ROWS) and name not in self.now:
                yield from self._left_waiting(name)

    def address(self, name: str) -> str:
        """Of a state of the program: ``step.state``, or the step alone for what nobody named."""
        return _address(self.step, name, self.now.get(name))

    def former_address(self, name: str) -> str:
        """The same of a state of the store."""
        return _address(self.former, name, self.before.get(name))

    # --- one state

    def _new(self, name: str) -> UpgradeLine:
        vain = self.matches.vain.get(name)
        if vain is None:
            return UpgradeLine("state", self.address(name), "new", (kind_words(self.now[name].kind),))
        there = ", ".join(state for state in self.before if is_named(state, self.before[state]))
        return self._refused(
            name,
            Objection(
                f"the state {self.address(name)!r} is to go on with {vain!r}, and the store has no such state",
                f"a state that the step {self.former!r} keeps in the store: {there or 'it keeps none'}",
                f'was="{vain}"',
                "correct was=, or leave it out, and the state starts empty",
            ),
        )

    def _matched(self, name: str, former: str) -> UpgradeLine:
        before, now = self.before[former], self.now[name]
        was = "" if former == name else self.former_address(former)
        objection = self._object(name, former, before, now)
        if objection is not None:
            return self._refused(name, objection, former)
        change = self.old.change(name)
        notes = [*change.words, *_ttl_notes(before, now)]
        if now.results:
            notes += compare_aggregates(before, now, columnar=self.columnar).notes
        if before.kind != now.kind:
            notes.insert(0, f"{before.kind} → {now.kind}")
        if change.direct:
            return UpgradeLine("state", self.address(name), "renamed" if was else "kept", tuple(notes), was=was)
        return self._migrated(name, former, tuple(notes), self.former_address(former))

    def _beside(self, name: str, before: DeclaredState, now: DeclaredState) -> Iterator[UpgradeLine]:
        """Whole rows that a join or a window keeps."""
        change = self._change(name, before, now)
        if change.kind == "refused" and self.stored.rows(self.former, name):
            what = f"what the step {self.step!r} keeps"
            yield self._refused(name, self._type_objection(what, name, before, now, change))
            return
        words = (_KEPT_NOTE,) if change.words and name == KEPT_TABLE else change.words
        if change.direct and words:
            yield UpgradeLine("state", self.address(name), "kept", words)
        elif words:
            yield self._migrated(name, name, words, self.former)

    def _migrated(self, name: str, former: str, notes: tuple[str, ...], drop: str) -> UpgradeLine:
        """A state whose values are adapted, which is tried on some. ``drop``: what a person would give up."""
        trial = try_migration(self.old.adapters, name, self.stored, (self.former, former), drop)
        if trial.objection is not None:
            return self._refused(name, trial.objection, former)
        was = self.former_address(former) if former != name else ""
        rows = self.stored.rows(self.former, former, self.old.older(name))
        return UpgradeLine(
            "state", self.address(name), "migrated", notes, was=was, rows=rows, by_key=self.now[name].kind in BY_KEY,
            cost_s=trial.cost_s(rows),
        )  # fmt: skip

    def _unread(self, name: str) -> Iterator[UpgradeLine]:
        """A state of the store that the program's step lacks."""
        if not self.stored.holds(self.former, name):
            return
        address, before = self.former_address(name), self.before[name]
        rows = self.stored.rows(self.former, name)
        free = [each for each, former in self.matches.former.items() if former is None]
        fitting = [each for each in free if fits_state(before, self.now[each])]
        advice = "".join(f'`{name}` fits the new state `{each}`: say hr.state(was="{name}"); or ' for each in fitting)
        yield UpgradeLine(
            "state", address, "refused", rows=rows,
            objection=Objection(
                f"the state {address!r} is stored, and the step {self.step!r} of the program has no such state",
                f"a state {name!r} of that step ({kind_words(before.kind)}), or one that says was={name!r}",
                f"{count_of(rows, 'stored row')} that nobody would read",
                f"{advice}drop it: --drop {address}",
            ),
        )  # fmt: skip

    def _left_waiting(self, name: str) -> Iterator[UpgradeLine]:
        """Rows that wait for their time, in a step whose rows do not wait any more."""
        rows = self.stored.waiting(self.former, name)
        if not rows:
            return
        address = self.former_address(name)
        yield UpgradeLine(
            "state", address, "refused", rows=rows,
            objection=Objection(
                f"rows wait in the step {self.former!r} to be handled in the order of their time, and the program "
                "handles rows as they come",
                'order="time", as before, or no rows that wait',
                f"{count_of(rows, 'row')} that nobody would handle",
                'leave order="time" in process(…); or let the program of before read its input to the end, '
                f"until='drained'; or give the waiting rows up: --drop {self.former}",
            ),
        )  # fmt: skip

    # --- why not

    def _object(self, name: str, former: str, before: DeclaredState, now: DeclaredState) -> Objection | None:
        if not are_alike(before.kind, now.kind):
            what = f"{self._what(name)} was stored as another kind of state"
            return self._if_stored(former, what, kind_words(before.kind), kind_words(now.kind))
        if now.results and (objection := self._object_to_aggregates(former, before, now)) is not None:
            return objection
        change = self._change(name, before, now)
        if change.kind == "refused":
            return self._type_objection(self._what(name), former, before, now, change)
        if now.kind == "broadcast" and compare_keys(before.key_type, now.key_type).kind == "refused":
            what = f"the keys of {self._what(name)} have another type than those that are stored"
            return self._if_stored(former, what, text_of(before.key_type), text_of(now.key_type))
        return None

    def _object_to_aggregates(self, former: str, before: DeclaredState, now: DeclaredState) -> Objection | None:
        aggregates = compare_aggregates(before, now, columnar=self.columnar)
        if not self.stored.holds(self.former, former):
            return None
        if aggregates.misnamed:
            return self._misnamed_objection(before, now, aggregates.misnamed[0])
        if aggregates.refused:
            return self._mean_objection(former, aggregates.refused)
        if aggregates.required:
            return self._null_objection(former, aggregates.required)
        for name, stored_as in aggregates.widened:
            largest = self.stored.largest_integer(self.former, former, stored_as)
            if largest > MOST_EXACT:
                return self._wide_objection(former, name, largest)
        if self.columnar and (again := self.stored.aggregates(self.former, former) & {*aggregates.added}):
            return self._again_objection(former, sorted(again))
        return None

    def _change(self, name: str, before: DeclaredState, now: DeclaredState) -> TypeChange:
        """What becomes of values; also of those whose type is the same, but for former names that contradict it."""
        change = self.old.change(name)
        if change.kind == "same" and before.type is not None and now.type is not None and before.type != now.type:
            renamed = derive_change(now.kind, (before.type, now.type))
            return renamed if renamed.kind == "refused" else change
        return change

    def _what(self, name: str) -> str:
        address = self.address(name)
        return f"what the step {self.step!r} keeps" if address == self.step else f"the state {address!r}"

    def _if_stored(self, former: str, what: str, was: str, is_now: str) -> Objection | None:
        if not self.stored.holds(self.former, former):
            return None
        address = self.former_address(former)
        return Objection(
            what, f"{was}, as stored", is_now,
            f"declare the new state under a new name, and drop the old one: --drop {address}; or let it begin anew "
            f"under its name: --drop {address}",
        )  # fmt: skip

    def _type_objection(
        self, what: str, former: str, before: DeclaredState, now: DeclaredState, change: TypeChange
    ) -> Objection:
        drop = self.former_address(former) if is_named(former, before) else self.former
        shapes = value_part(before.kind, before.type), value_part(now.kind, now.type)
        if shapes[0] is not None and shapes[0].open and shapes[1] is not None:
            return self._accumulator_objection(shapes[0], shapes[1], now, drop)
        old, new = map(text_of, shapes)
        if former == KEPT_TABLE:
            return Objection(
                f"rows that the step {self.step!r} keeps for its horizons cannot be read as their new type",
                "expressions of the types that they were stored with",
                change.text,
                f"{_OTHER_WORDS}; or let the step begin anew: --drop {drop}",
            )
        return Objection(
            f"{what} cannot be read as its new type",
            f"{old}, as stored, or a type that values of it are read as",
            change.text or new,
            f"give what is new a default; or write a function that leads there, hr.migrate({old}, {new}); or let it "
            f"begin anew: --drop {drop}",
        )

    def _accumulator_objection(self, old: TypeShape, new: TypeShape, now: DeclaredState, drop: str) -> Objection:
        """Of what a step keeps for its aggregates, or for one reduced row, those that cannot be read."""
        changes = [each for each in _common_fields(old, new) if derive_change(ROW, each[1:]).kind == "refused"]
        own = [each for each in changes if (means := now.meanings.get(each[0])) is None or means.kind == "own"]
        names = ", ".join(f"`{name}`" for name, *_ in changes if name in now.meanings)
        ways = [f"hr.migrate({text_of(was)}, {text_of(is_now)})" for _, was, is_now in own]
        advice = [f"write a function that leads there, {', '.join(ways)}"] if ways else []
        if names:
            moving = any(name in now.meanings and now.meanings[name].over_us is not None for name, *_ in changes)
            other_name = "give the new aggregate another name: the others go on, and it begins with the next row"
            advice.append(_OTHER_WORDS if moving else other_name)
        return Objection(
            f"{names or 'what'} {'of the step' if names else 'the step'} {self.step!r}{'' if names else ' keeps'} "
            "cannot be read as its new type",
            "; ".join(_typed(name, was) for name, was, _ in changes) + ", as stored",
            "; ".join(_typed(name, is_now) for name, _, is_now in changes),
            "; or ".join([*advice, f"let it begin anew: --drop {drop}"]),
        )

    def _mean_objection(self, former: str, refused: Sequence[tuple[str, str, str]]) -> Objection:
        names = ", ".join(f"`{name}`" for name, _, _ in refused)
        means = "means something else" if len(refused) == 1 else "mean something else"
        return Objection(
            f"{names} of the step {self.step!r} {means} than what is stored under that name",
            "; ".join(f"{name}={was}" for name, was, _ in refused) + ", as stored",
            "; ".join(f"{name}={is_now}" for name, _, is_now in refused),
            "give the new aggregate another name: the others go on, and it begins with the next row; or let the whole "
            f"step begin anew: --drop {self.former_address(former)}",
        )  # fmt: skip

    def _null_objection(self, former: str, added: Sequence[str]) -> Objection:
        names = ", ".join(f"`{name}`" for name in added)
        return Objection(
            f"windows of the step {self.step!r} that are open have no {names}, which must not be null",
            "results in which a new aggregate may be null, while windows are open that were begun without it",
            f"{names} added, typed as never null",
            f"give the results a Record with {added[0]}: … | None, aggregate(Hourly, {added[0]}=…); or add it when "
            f"none is open; or let the windows begin anew: --drop {self.former_address(former)}",
        )  # fmt: skip

    def _misnamed_objection(self, before: DeclaredState, now: DeclaredState, name: str) -> Objection:
        was = " or ".join(f"`{each}`" for each in now.meanings[name].formers)
        return Objection(
            f"`{name}` of the step {self.step!r} is to go on with {was}, and no aggregate that is stored has that name",
            f"an aggregate of the step: {', '.join(before.results)}",
            f"was={', '.join(now.meanings[name].formers)}",
            "correct was=, or leave it out: the aggregate begins with the next row",
        )

    def _wide_objection(self, former: str, name: str, largest: int) -> Objection:
        return Objection(
            f"open windows of the step {self.step!r} hold an integer of `{name}` that no float can hold",
            "integers up to 2**53 where int became float",
            f"{largest}",
            "keep the type int until the windows that hold it are closed; or give the aggregate another name: it "
            f"begins anew then; or let the windows begin anew: --drop {self.former_address(former)}",
        )

    def _again_objection(self, former: str, names: Sequence[str]) -> Objection:
        """Of aggregates that were taken out and come back: what they once counted is in the columns of open windows."""
        what = ", ".join(f"`{name}`" for name in names)
        return Objection(
            f"{what} of the step {self.step!r} was taken out, and windows that are open still hold a part of it",
            "a name that no open window has anything stored under",
            f"{what} added, which would go on with that part",
            "give it another name, or add it again when those windows are closed; or let the windows begin anew: "
            f"--drop {self.former_address(former)}",
        )

    def _refused(self, name: str, objection: Objection, former: str = "") -> UpgradeLine:
        address, old = self.address(name), self.former_address(former or name)
        return UpgradeLine("state", address, "refused", was="" if old == address else old, objection=objection)


def _ttl_notes(before: DeclaredState, now: DeclaredState) -> Iterator[str]:
    old, new = _lifetime(before), _lifetime(now)
    if old == new or (before.clock and not before.ttl_us):
        return
    if not old:
        yield f"ttl {new}: what is stored gets an expiry with its next touch"
    elif not new:
        yield f"ttl {old} taken away: what is stored stays, but for what has expired"
    else:
        other = "; what is stored is judged by the new clock" if before.clock != now.clock else ""
        yield f"ttl {old} → {new}: what is stored keeps its expiry until its next touch{other}"


def _lifetime(state: DeclaredState) -> str:
    """How long entries live, in words; empty where they do for ever, or where the store does not know."""
    if not state.ttl_us:
        return ""
    since = {"create": " from the first write", "read": " from the last read or write"}.get(state.refresh, "")
    return f"{format_span(state.ttl_us)} by the {state.clock} clock{since}"


def _common_fields(old: TypeShape, new: TypeShape) -> Iterator[tuple[str, TypeShape, TypeShape]]:
    """Name → its type in both; all of them may be absent, which is nothing to tell."""
    types = {field.name: field.type for field in old.fields}
    yield from (
        (each.name, _present(types[each.name]), _present(each.type)) for each in new.fields if each.name in types
    )


def _present(shape: TypeShape) -> TypeShape:
    members = [each for each in shape.members if each.kind != "none"]
    return members[0] if len(members) == 1 else shape


def _typed(name: str, shape: TypeShape) -> str:
    return text_of(shape) if name.startswith("!") else f"{name}: {text_of(shape)}"


def _address(step: str, name: str, state: DeclaredState | None) -> str:
    nameless = name == VALUE_TABLE and state is not None and state.kind in ("row", "aggregate", "windows")
    return step if nameless else f"{step}.{name}"
