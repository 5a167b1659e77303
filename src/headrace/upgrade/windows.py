"""Windows that a program cuts, fires or keeps in another way: what goes on beside the open ones, and what is refused.

- Partial aggregates in columns go on only where they were cut alike; the cut stands in their tables.
- Windows kept one by one go on as they were until they are over, beside the new ones, if their bounds mean the same to
  both: windows of another clock would never end, and a session takes any open window that it touches for a session.
- Of a window join, or a co-group, windows of two kinds would give a pair twice.
- Where no window is open, anything may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.model.amounts import count_of
from headrace.model.job import VALUE_TABLE, DeclaredState
from headrace.upgrade.lines import Objection
from headrace.upgrade.stored import StoredTables

BothRules = tuple[Mapping[str, str], Mapping[str, str]]
"""What a step does with what it keeps: before, and now."""
SESSION: Final = "session"
"""How the words for sessions begin."""
_PAIRS: Final = ("a window join", "a co-group")
_TOLD: Final = ("fire", "panes", "allow_late")
"""Rules whose change is said, by the words of those who write programs."""


def object_to_windows(
    step: str, former: str, before: DeclaredState, now: DeclaredState, rules: BothRules,
    tables: tuple[str, str], stored: StoredTables,
) -> Objection | None:  # fmt: skip
    """Why the open windows of a step cannot go on, if so. ``rules`` and ``tables``: before and now."""
    if tables[0] and tables[0] != tables[1]:
        if not stored.holds(former, VALUE_TABLE):
            return None
        return _objection(
            f"the step {step!r} would store its windows in another way than before", tables[0], f"{tables[1]}; explain "
            "says why", former, stored
        )  # fmt: skip
    cut = rules[1].get("cut")
    if cut is not None:
        if rules[0].get("cut") == cut or stored.cuts(former, VALUE_TABLE) <= {cut}:
            return None
        others = sorted(stored.cuts(former, VALUE_TABLE) - {cut})
        was, is_now = before.windows or others[0], now.windows if before.windows else cut
        if was == is_now:
            was, is_now = (f"{now.windows}; {_words(each)}" for each in rules)
        return _changed(step, was, is_now, former, stored)
    if rules[0].get("holds", rules[1].get("holds")) != rules[1].get("holds") and stored.holds(former, VALUE_TABLE):
        return _objection(
            f"windows of the step {step!r} hold something else than before, and some are still open",
            rules[0]["holds"], rules[1]["holds"], former, stored,
        )  # fmt: skip
    if _goes_on(before, now, alone=rules[1].get("rows") not in _PAIRS) or not stored.holds(former, VALUE_TABLE):
        return None
    return _changed(step, before.windows or f"windows of {before.clock or 'no'} time", now.windows, former, stored)


def window_notes(before: DeclaredState, now: DeclaredState, rules: BothRules) -> list[str]:
    """What is to be said of windows that go on."""
    notes = []
    if before.windows and before.windows != now.windows:
        notes.append(f"{before.windows} → {now.windows}: open ones end as they were, new ones are cut anew")
    for name in _TOLD:
        old, new = rules[0].get(name), rules[1].get(name)
        if old is not None and new is not None and old != new:
            notes.append(f"{name} {old} → {new}: holds for open windows, too")
    if before.archive is not None and now.archive is None:
        notes.append("windows go to no archive any more; what is there stays, and is read no longer")
    return notes


def _goes_on(before: DeclaredState, now: DeclaredState, *, alone: bool) -> bool:
    """``alone``: windows of two kinds may stand side by side."""
    if before.clock != now.clock:
        return False
    if not before.windows or before.windows == now.windows:
        return True
    were, are = before.windows.startswith(SESSION), now.windows.startswith(SESSION)
    # Sessions of another gap are sessions: their rows keep them open as long as they said when they came.
    return were == are and (are or alone)


def _words(rules: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {rules[name]}" for name in _TOLD if name in rules)


def _changed(step: str, was: str, is_now: str, former: str, stored: StoredTables) -> Objection:
    return _objection(
        f"the windows of the step {step!r} were changed while some are still open", was, is_now, former, stored
    )


def _objection(what: str, was: str, is_now: str, former: str, stored: StoredTables) -> Objection:
    rows = stored.rows(former, VALUE_TABLE)
    return Objection(
        what,
        f"{was}, as stored",
        f"{is_now}, with {count_of(rows, 'stored row')}",
        "take back what changed the windows, and change them when none is open; or name the new step otherwise, and "
        f"drop the old one: --drop {former}; or let the windows begin anew under the old name: --drop {former}",
    )
