"""Which published epochs a job keeps readable, as the setting ``retain`` says: so many, or those of a span of time.

Forms of the setting:

- ``10``: the newest ten;
- ``"24h"``: all of the last hour, and of the day before it the last one of each hour;
- ``"24h every 2h"``: the last one of every two hours; ``"24h all"``: every epoch of the span;
- ``"2h all, 7d every 1h, 90d every 1d"``: what any of the rules keeps.

Invariants
- The newest `RETAIN_AT_LEAST` epochs are kept, whatever the rules say.
- Spans count back from the newest epoch by the clock of the job, so a job that is stopped loses nothing.
- What is kept of an hour is its last epoch. Hours begin where the clock says so, and not where somebody looks, so that
  thinning today and thinning tomorrow leave the same epochs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from headrace.errors import ProgramError, SettingsError
from headrace.model.time import span_us

RETAIN_AT_LEAST: Final = 2
"""Spark's log is rebuilt from the last two manifests."""

_FORMS: Final = 'a number of epochs (10), a span ("24h"), or rules such as "2h all, 7d every 1h"'
_RULE: Final = re.compile(r"(?P<span>\S+)(?:\s+(?P<all>all)|\s+every\s+(?P<every>\S+))?")
_HOUR_US: Final = 3_600_000_000


class EpochTime(NamedTuple):
    epoch: int
    clock_us: int
    """When it was published, by the clock of the job."""


class SpanRule(NamedTuple):
    """Keeps one epoch of every ``every_us`` of a span; 0: all of them."""

    span_us: int
    every_us: int = 0


class Retention(NamedTuple):
    """What ``retain`` says. An epoch is kept that is among so many of the newest or that any of the rules keeps."""

    newest: int = RETAIN_AT_LEAST
    rules: tuple[SpanRule, ...] = ()


def parse_retention(value: int | str) -> Retention:
    """The setting ``retain`` as rules. Raises SettingsError.

    >>> parse_retention(10)
    Retention(newest=10, rules=())
    >>> parse_retention("24h").rules
    (SpanRule(span_us=3600000000, every_us=0), SpanRule(span_us=86400000000, every_us=3600000000))
    """
    text = str(value).strip()
    if re.fullmatch(r"[+-]?[0-9]+", text):
        if (count := int(text)) < 0:
            raise SettingsError(
                "the setting 'retain' cannot be below zero",
                expected=_FORMS,
                found=text,
                next_move='write retain=10, or retain="24h"',
            )
        return Retention(count)
    return Retention(rules=tuple(rule for part in text.split(",") for rule in _parse_rule(part.strip(), text)))


def derive_retained(epochs: Iterable[EpochTime], retention: Retention) -> frozenset[int]:
    """Which of these epochs, those of one timeline, are kept."""
    newest_first = sorted(epochs, reverse=True)
    kept = {epoch for epoch, _ in newest_first[: max(retention.newest, RETAIN_AT_LEAST)]}
    if newest_first:
        for rule in retention.rules:
            kept |= _kept_by(rule, newest_first)
    return frozenset(kept)


def _kept_by(rule: SpanRule, newest_first: list[EpochTime]) -> set[int]:
    since_us = newest_first[0].clock_us - rule.span_us
    inside = [each for each in newest_first if each.clock_us >= since_us]
    if not rule.every_us:
        return {epoch for epoch, _ in inside}
    last_of: dict[int, int] = {}
    for epoch, clock_us in inside:
        last_of.setdefault(clock_us // rule.every_us, epoch)
    return set(last_of.values())


def _parse_rule(part: str, whole: str) -> tuple[SpanRule, ...]:
    match = _RULE.fullmatch(part)
    if match is None:
        raise _no_rule(part, whole)
    span = _span_us(match["span"], whole)
    if match["all"]:
        return (SpanRule(span),)
    if match["every"]:
        return (SpanRule(span, _span_us(match["every"], whole)),)
    return (SpanRule(min(span, _HOUR_US)), SpanRule(span, _HOUR_US)) if span > _HOUR_US else (SpanRule(span),)


def _span_us(text: str, whole: str) -> int:
    try:
        span = span_us(text, what="a span of the setting 'retain'")
    except ProgramError as error:
        raise _no_rule(text, whole) from error
    if span <= 0:
        raise _no_rule(text, whole)
    return span


def _no_rule(part: str, whole: str) -> SettingsError:
    return SettingsError(
        "the setting 'retain' has the wrong form",
        expected=_FORMS,
        found=repr(whole) if part == whole else f"{part!r} in {whole!r}",
        next_move='write retain=10, or retain="24h": all epochs of the last hour and one of each hour of the day',
    )
