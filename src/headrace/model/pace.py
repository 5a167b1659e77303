"""How often epochs begin, as the setting ``epoch`` says: at a fixed interval, or as often as their own cost allows.

Forms of the setting: ``"500ms"``, and ``"adaptive(latency=1s, spend=20%)"``, which is what ``hr.adaptive`` writes. When
an epoch begins under the second one is decided by `headrace.checkpoint.pacing`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

import msgspec

from headrace.errors import ProgramError, SettingsError
from headrace.model.time import Span, format_span, span_us
from headrace.model.user_line import user_line

DEFAULT_SPEND: Final = "20%"
_EXAMPLES: Final = '"500ms", or "adaptive(latency=1s, spend=20%)"'
_WORDS: Final = ("latency", "spend", "min_pause")
_CALL: Final = re.compile(r"adaptive\s*\((?P<words>.*)\)")


class FixedPace(NamedTuple):
    """An epoch begins every so often, where input flows."""

    every_us: int


class Adaptive(NamedTuple):
    """Epochs are as short as what they cost by themselves allows. Its text is the form of the setting."""

    latency_us: int
    """No row waits longer until it is out."""
    spend: float
    """At most this share of the time goes into what epochs cost by themselves."""
    min_pause_us: int = 0
    """Between the end of an epoch and the beginning of the next."""

    def __str__(self) -> str:
        pause = f", min_pause={format_span(self.min_pause_us)}" if self.min_pause_us else ""
        return f"adaptive(latency={format_span(self.latency_us)}, spend={percent_text(self.spend)}{pause})"


Pace: TypeAlias = FixedPace | Adaptive


class EpochCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the time of an epoch went, from its beginning to that of the next one."""

    own_us: int
    """What it cost by itself: planning, opening state, writing, publishing, release."""
    work_us: int
    """What its rows cost: reading them, operators and functions, on the longest way through the tasks."""
    period_us: int
    """Until the next epoch began, waiting included."""

    @property
    def share(self) -> float:
        """Of the whole time, what went into the epoch itself."""
        return min(1.0, self.own_us / max(1, self.period_us))


def adaptive(latency: Span, *, spend: str | float = DEFAULT_SPEND, min_pause: Span = "0s") -> Adaptive:
    """Epochs as short as possible, for ``epoch=``: ``app.run(epoch=hr.adaptive(latency="1s", spend="20%"))``.

    ``latency``: no row waits longer until it is out; where that cannot be held, the run says so. ``spend``: at most
    this share of the time goes into what epochs cost by themselves; latency wins where both cannot be had.
    ``min_pause``: so long nothing is done between two epochs.

    >>> str(adaptive("1s")), str(adaptive("2s", spend=0.125, min_pause="100ms"))
    ('adaptive(latency=1s, spend=20%)', 'adaptive(latency=2s, spend=12.5%, min_pause=100ms)')
    """
    return _adaptive(latency, spend, min_pause, user_line())


def parse_pace(text: str) -> Pace:
    """The setting ``epoch``. Raises SettingsError.

    >>> parse_pace("500ms")
    FixedPace(every_us=500000)
    >>> parse_pace("adaptive(latency=1s, spend=20%)")
    Adaptive(latency_us=1000000, spend=0.2, min_pause_us=0)
    """
    call = _CALL.fullmatch(text.strip())
    try:
        if call is not None:
            return _parse_words(call["words"], text)
        every_us = span_us(text, what="the setting 'epoch'")
    except ProgramError as error:
        raise SettingsError(
            error.what, expected=_EXAMPLES, found=error.found or repr(text), next_move=error.next_move
        ) from error
    if every_us <= 0:
        raise SettingsError(
            "the setting 'epoch' must be greater than zero",
            expected=f"a span such as {_EXAMPLES}",
            found=repr(text),
            next_move='write epoch="500ms"',
        )
    return FixedPace(every_us)


def percent_text(share: float) -> str:
    """A share for people.

    >>> percent_text(0.2), percent_text(0.125)
    ('20%', '12.5%')
    """
    return f"{share * 100:.4g}%"


def _parse_words(text: str, whole: str) -> Adaptive:
    words: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in _WORDS or name in words:
            raise SettingsError(
                "the setting 'epoch' has the wrong form",
                expected=f"{_EXAMPLES}; the words are {', '.join(_WORDS)}",
                found=f"{part!r} in {whole!r}",
            )
        words[name] = value.strip("\"'")
    if "latency" not in words:
        raise SettingsError(
            "adaptive epochs need a latency", expected=_EXAMPLES, found=repr(whole),
            next_move="say how long a row may wait until it is out: latency=1s",
        )  # fmt: skip
    return _adaptive(words["latency"], words.get("spend", DEFAULT_SPEND), words.get("min_pause", "0s"), "")


def _adaptive(latency: Span, spend: str | float, min_pause: Span, where: str) -> Adaptive:
    latency_us = span_us(latency, what="latency of adaptive epochs", where=where)
    pause_us = span_us(min_pause, what="min_pause of adaptive epochs", where=where)
    if latency_us <= 0:
        raise ProgramError(
            "latency of adaptive epochs must be greater than zero", where=where, expected="a span such as 1s",
            found=format_span(latency_us), next_move='write hr.adaptive(latency="1s")',
        )  # fmt: skip
    if not 0 <= pause_us < latency_us:
        raise ProgramError(
            "min_pause of adaptive epochs leaves no time for an epoch",
            where=where,
            expected=f"at least zero, and less than latency={format_span(latency_us)}",
            found=format_span(pause_us),
            next_move="make the pause shorter, or allow more latency",
        )
    return Adaptive(latency_us, _share(spend, where), pause_us)


def _share(spend: str | float, where: str) -> float:
    text = str(spend).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ProgramError(
            "spend of adaptive epochs is no share of the time",
            where=where,
            expected='more than 0 and at most 100%: "20%", or 0.2',
            found=repr(spend),
            next_move=f'write spend="{DEFAULT_SPEND}"',
        )
    return share
