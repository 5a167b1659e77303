"""The steps of a store and a program: which goes on as which, and what forbids that a whole step goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from headrace.model.amounts import count_of
from headrace.model.job import DeclaredState, JobFacts, derive_states
from headrace.model.type_change import compare_keys
from headrace.state.manifest import JobState
from headrace.upgrade.lines import Objection, UpgradeLine
from headrace.upgrade.match import Declared, Matches, fits, has_runs, is_named, match_steps
from headrace.upgrade.states import StateMatcher
from headrace.upgrade.stored import StoredTables
from headrace.upgrade.types import OldTypes, kind_words, text_of
from headrace.upgrade.windows import BothRules, object_to_windows, window_notes

_ROLLING: Final = ("reduce", "latest")
"""Verbs that keep one row per key, and go on from each other."""
_ROW_NOTES: Final = {
    "within": "rows that are kept stay as long as they were to be",
    "how": "holds for the rows from now on",
    "keep": "holds for the rows from now on",
    "tolerance": "rows that were let go are not there",
    "ttl": "rows that are kept expire when they were to",
    "key": "taken for the same keys",
    "order": "holds for the rows from now on, and for those that wait",
}
"""Rules whose change is allowed, and what it means for what is stored."""


class StepMatcher:
    """All steps of a store and of a program."""

    def __init__(self, before: JobState, job: JobFacts, stored: StoredTables, store: str) -> None:
        self.before = before
        self.job = job
        self.stored = stored
        self.states = derive_states(job.states, before.manifest.states, job.was)
        """Of the program, with the types that they had."""
        self.store = store
        self.matches: Matches = match_steps(before, job)

    def lines(self) -> Iterator[UpgradeLine]:
        for step, former in self.matches.former.items():
            if former is None:
                yield self._new(step)
            else:
                yield from self._matched(step, former)
        for step in self.matches.unread:
            if has_runs(self.before, step):
                yield self._unread(step)

    # --- one step

    def _new(self, step: str) -> UpgradeLine:
        vain = self.matches.vain.get(step)
        if vain is None:
            kinds = [kind_words(state.kind) for name, state in self.job.states[step].items() if is_named(name, state)]
            return UpgradeLine("step", step, "new", tuple(dict.fromkeys(kinds)))
        there = ", ".join(self.matches.former.get(each) or each for each in self._stored_steps())
        return UpgradeLine(
            "step", step, "refused",
            objection=Objection(
                f"the step {step!r} is to go on with {vain!r}, and the store has no such step",
                f"a step of the store: {there or 'it has none'}",
                f'was="{vain}"',
                "correct was=, or leave it out, and the step starts empty",
            ),
        )  # fmt: skip

    def _stored_steps(self) -> list[str]:
        return sorted({*self.matches.unread, *(each for each in self.matches.former.values() if each is not None)})

    def _matched(self, step: str, former: str) -> Iterator[UpgradeLine]:
        objection = self._object(step, former)
        if objection is not None:
            yield UpgradeLine("step", step, "refused", was=_was(step, former), objection=objection)
            return
        yield UpgradeLine(
            "step", step, "kept" if step == former else "renamed", tuple(self._notes(step, former)),
            was=_was(step, former),
        )  # fmt: skip
        yield from StateMatcher(
            step, former, self._declared(former), self.job.states[step], self.stored,
            OldTypes(step, self.states[step], self.stored.versions(former), self.job),
            columnar="cut" in self.job.rules.get(step, {}),
        ).lines()  # fmt: skip

    def _unread(self, step: str) -> UpgradeLine:
        declared = self._declared(step)
        tables = self.stored.tables(step)
        rows = sum(self.stored.rows(step, table) for table in tables)
        new = {each: self.job.states[each] for each, former in self.matches.former.items() if former is None}
        advice = "".join(
            f'`{step}` fits the new step `{each}`: say .named("{each}", was="{step}"); or '
            for each, states in new.items()
            if fits(declared, states)
        )
        names = ", ".join(
            f"{name} ({kind_words(state.kind)})" for name, state in declared.items() if is_named(name, state)
        )
        return UpgradeLine(
            "step", step, "refused", rows=rows,
            objection=Objection(
                f"the state of the step {step!r} is stored, and the program has no such step",
                f"a step named {step!r}, or one that says was={step!r}",
                f"{names or 'its state'}: {count_of(rows, 'stored row')} that nobody would read",
                f"{advice}drop it: --drop {step}",
            ),
        )  # fmt: skip

    # --- why a whole step cannot go on

    def _object(self, step: str, former: str) -> Objection | None:
        if not has_runs(self.before, former):
            return None
        before, now = self._declared(former), self.job.states[step]
        return (
            self._object_to_rows(step, former)
            or self._object_to_key(step, former, before, now)
            or self._object_to_windows(step, former, before, now)
        )

    def _object_to_rows(self, step: str, former: str) -> Objection | None:
        """A step that keeps whole rows, and means something else by them."""
        was, is_now = self._rules(former).get("rows"), self.job.rules.get(step, {}).get("rows")
        if was is None or is_now is None or was == is_now or (was in _ROLLING and is_now in _ROLLING):
            return None
        return Objection(
            f"the step {step!r} was something else, and its state means nothing to what it is now",
            f"{was}, as stored",
            is_now,
            f"give the new step a name of its own, and drop the old one: --drop {former}; or let it begin anew under "
            f"its name: --drop {former}",
        )

    def _object_to_key(self, step: str, former: str, before: Declared, now: Declared) -> Objection | None:
        old, new = _key_type(before), _key_type(now)
        change = compare_keys(None if old is None else old.key_type, None if new is None else new.key_type)
        if change.kind != "refused" or old is None or new is None:
            return None
        return Objection(
            f"the keys of the step {step!r} have another type than those that are stored",
            f"{text_of(old.key_type)}, as stored",
            "; ".join(change.words) or text_of(new.key_type),
            f"rewrite the store for the new keys: headrace rewrite {self.store} --to NEW --key {former}=…; or let the "
            f"step begin anew: --drop {former}",
        )

    def _object_to_windows(self, step: str, former: str, before: Declared, now: Declared) -> Objection | None:
        old, new = before.get("value"), now.get("value")
        if old is None or new is None or old.kind != "windows" or new.kind != "windows":
            return None
        tables = self.before.manifest.tables.get(former, ""), self.job.tables.get(step, "")
        return object_to_windows(step, former, old, new, self._both_rules(step, former), tables, self.stored)

    # --- what is to be said of one that goes on

    def _notes(self, step: str, former: str) -> Iterator[str]:
        was, is_now = self._both_rules(step, former)
        for name, meaning in _ROW_NOTES.items():
            if was and was.get(name) != is_now.get(name):
                yield f"{name} {was.get(name, 'none')} → {is_now.get(name, 'none')}: {meaning}"
        old, new = self._declared(former).get("value"), self.job.states[step].get("value")
        if old is not None and new is not None and old.kind == new.kind == "windows":
            yield from window_notes(old, new, (was, is_now))

    def _declared(self, former: str) -> Declared:
        return self.before.manifest.states.get(former, {})

    def _rules(self, former: str) -> Mapping[str, str]:
        return self.before.manifest.rules.get(former, {})

    def _both_rules(self, step: str, former: str) -> BothRules:
        return self._rules(former), self.job.rules.get(step, {})


def _was(step: str, former: str) -> str:
    return "" if step == former else former


def _key_type(states: Declared) -> DeclaredState | None:
    """Any state that tells the type of the step's keys; those of a broadcast mapping are its own."""
    return next((each for each in states.values() if each.key_type is not None and each.kind != "broadcast"), None)
