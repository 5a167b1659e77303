"""A pattern as text: ``small [cents < 100], not then pin [kind = 'pin'], then large [cents > 50000], within 1m``.

Parts stand one behind the other, parted by commas or ends of lines. A stage is a name, what its rows must fit in square
brackets (several brackets: all of it; ``or [...]``: or this), how often it comes (``{2,4}``, ``+``, ``*``, ``?``) and
words about it; a whole pattern in round brackets stands where a name stands. What is written is what
`headrace.patterns.notation.form` holds; this module owns nothing but how it looks.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, NoReturn

from headrace.errors import ProgramError
from headrace.patterns.declare import SKIPS, EventPattern
from headrace.patterns.notation.form import Path, PatternForm, Place, StageForm, pattern_of
from headrace.sql.parse import blank_quoted

_LINKS: Final = {
    ("not", "next"): "not_next",
    ("not", "then"): "not_then",
    ("then", "any"): "then_any",
    ("next",): "next",
    ("then",): "then",
}
_MARKS: Final = ("optional", "greedy", "consecutive", "combinations")
_WORDS: Final = frozenset(("next", "then", "any", "not", "or", *_MARKS, "until", "within", "each", "steps", "after"))
"""A stage that is called like one of these stands in double quotes."""
_TOKEN: Final = re.compile(
    r"""(?P<part>[,\n][,\s]*) | (?P<space>\s+) | (?P<word>\w[\w.]*) | "(?P<quoted>[^"\n]*)"
      | (?P<count>\{\s*\d*\s*(?:,\s*\d*\s*)?\}|[+*?]) | (?P<bracket>[()]) | (?P<condition>\[)""",
    re.VERBOSE,
)
_COUNTS: Final = {"+": (1, None), "*": (0, None), "?": (0, 1)}


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def to_text(form: PatternForm) -> str:
    """The text of a form, in one line as far as its conditions are."""
    parts = [_stage_text(stage, first=number == 0) for number, stage in enumerate(form.stages)]
    parts += [f"within {form.within}"] if form.within else []
    parts += [f"each step within {form.step_within}"] if form.step_within else []
    if form.after_match != "none":
        needed = " needed" if form.needed else ""
        parts.append(f"after match {form.after_match} {_name(form.stage)}".rstrip() + needed)
    return ", ".join(parts)


def _stage_text(stage: StageForm, *, first: bool) -> str:
    words = [] if first else [stage.link.replace("_", " ")]
    inner = ", ".join(_stage_text(each, first=number == 0) for number, each in enumerate(stage.group))
    words.append(f"({inner})" if stage.group else _name(stage.stage))
    words += _conditions(stage.where)
    for each in stage.or_where:
        words += ["or", *_conditions(each)]
    words[-1] += _count(stage)
    words += [mark for mark in _MARKS if getattr(stage, mark)]
    words += [f"until [{stage.until}]"] if stage.until else []
    words += [f"within {stage.within}"] if stage.within else []
    words += [f"steps within {stage.step_within}"] if stage.step_within else []
    return " ".join(words)


def _conditions(texts: str | list[str]) -> list[str]:
    return [f"[{text}]" for text in ([texts] if isinstance(texts, str) else texts)]


def _name(name: str) -> str:
    return f'"{name}"' if name in _WORDS else name


def _count(stage: StageForm) -> str:
    if not isinstance(stage.times, tuple):
        return "" if stage.times == 1 else f"{{{stage.times}}}"
    low, high = stage.times
    return "+" if stage.times == (1, None) else f"{{{low},{'' if high is None else high}}}"


def parse_text(text: str, source: str) -> EventPattern:
    """The pattern of a text. ``source``: what errors call it."""
    reader = _NotationReader(text, source)
    return pattern_of(reader.whole(), reader.place)


class _NotationReader:
    """Reads a text from left to right, and remembers where each stage stands."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.starts: dict[Path, int] = {}
        self._tokens = self._cut()
        self._next = 0

    @property
    def place(self) -> Place:
        return lambda path: self.source if path is None else self._where(self.starts[path])

    def _where(self, at: int) -> str:
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        lines = f"line {line}, " if "\n" in self.text else ""
        return f"{self.source}, {lines}character {column}"

    def _refuse(self, what: str, expected: str, at: int, next_move: str = "") -> NoReturn:
        rest = self.text[at : at + 40].split("\n")[0]
        found = repr(rest) if rest else "the end of the text"
        raise ProgramError(what, where=self._where(at), expected=expected, found=found, next_move=next_move)

    # --- pieces

    def _cut(self) -> list[_Token]:
        """All pieces, conditions whole: what stands in quotes inside of them closes no bracket."""
        blank, tokens, at = blank_quoted(self.text), [], 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            if match is None:
                self._refuse("this belongs to no pattern", "stages, conditions in [ ], commas", at)
            kind, end = str(match.lastgroup), match.end()
            if kind == "condition":
                end = self._condition_end(blank, at)
                tokens.append(_Token(kind, self.text[at + 1 : end - 1].strip(), at))
            elif kind != "space":
                tokens.append(_Token(kind, match[kind], at))
            at = end
        while tokens and tokens[-1].kind == "part":
            tokens.pop()
        return [*tokens[1 if tokens and tokens[0].kind == "part" else 0 :], _Token("end", "", len(self.text))]

    def _condition_end(self, blank: str, start: int) -> int:
        depth = 0
        for at in range(start, len(blank)):
            depth += (blank[at] == "[") - (blank[at] == "]")
            if depth == 0:
                return at + 1
        return self._refuse("a condition has no end", "a ] behind it", start, "quotes in SQL are closed, too")

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, kind: str, *texts: str) -> str | None:
        """The text of the next piece, if it is of this kind and one of these."""
        token = self._token
        if token.kind != kind or (texts and token.text not in texts):
            return None
        self._next += 1
        return token.text

    def _take_words(self, *words: str) -> bool:
        following = self._tokens[self._next : self._next + len(words)]
        if [(each.kind, each.text) for each in following] != [("word", word) for word in words]:
            return False
        self._next += len(words)
        return True

    # --- a pattern

    def whole(self) -> PatternForm:
        form = PatternForm(stages=self._stages(()))
        while self._token.kind != "end":
            self._part_of_whole(form)
            if self._token.kind != "end" and self._take("part") is None:
                self._refuse("parts of a pattern are parted", "a comma or the end of the line before this",
                             self._token.at)  # fmt: skip
        return form

    def _part_of_whole(self, form: PatternForm) -> None:
        at = self._token.at
        if self._take_words("within"):
            form.within = self._span()
        elif self._take_words("each", "step", "within"):
            form.step_within = self._span()
        elif self._take_words("after", "match"):
            form.after_match = self._after_match()
            quoted = self._take("quoted") or (None if self._token.text == "needed" else self._take("word"))
            form.stage = quoted or ""
            form.needed = self._take_words("needed")
        else:
            self._refuse(
                "this is no part of a pattern", "next, then, then any, not next or not then with a stage; within; "
                "each step within; after match", at,
                "the first part is a stage; each one behind it says how it follows" if form.stages else "",
            )  # fmt: skip

    def _after_match(self) -> str:
        at, word = self._token.at, self._take("word") or ""
        if word not in SKIPS:
            self._refuse("there is no such way to go on after a match", f"one of {', '.join(SKIPS)}", at)
        return word

    def _span(self) -> str:
        word = self._take("word")
        return word if word is not None else self._refuse(
            "a time is missing", "a span such as 10s, 1m or 2h30m", self._token.at
        )  # fmt: skip

    def _stages(self, above: Path) -> list[StageForm]:
        stages: list[StageForm] = []
        while True:
            at = self._token.at
            link: Any = next((name for words, name in _LINKS.items() if self._take_words(*words)), None)
            if link is None and stages:
                return stages
            path = (*above, len(stages))
            self.starts[path] = at
            stages.append(self._stage(path, link or "then"))
            closes = self._token == _Token("bracket", ")", self._token.at)
            if self._token.kind == "end" or closes:
                return stages
            if self._take("part") is None:
                self._refuse(
                    "this does not belong to a stage", "conditions in [ ], +, *, ?, {2,4}, optional, greedy, "
                    "consecutive, combinations, until, within, steps within; or a comma before the next part",
                    self._token.at,
                )  # fmt: skip

    def _stage(self, path: Path, link: Any) -> StageForm:
        form = StageForm(link=link)
        at = self._token.at
        if self._take("bracket", "("):
            self._take("part")
            form.group = self._stages(path)
            self._take("part")
            if self._take("bracket", ")") is None:
                self._refuse("a group has no end", "a ) behind its stages", self._token.at)
        else:
            form.stage = self._stage_name(at)
        form.where = self._all_conditions()
        while self._take_words("or"):
            at = self._token.at
            form.or_where.append(self._all_conditions() or self._refuse("a condition is missing", "or [cents > 5]", at))
        self._repeat(form)
        return form

    def _stage_name(self, at: int) -> str:
        quoted = self._take("quoted")
        if quoted is not None:
            return quoted
        if self._token.text in _WORDS:
            self._refuse(
                "a stage is missing", "a name; or a pattern in ( )", at,
                f'a stage that is called like this word stands in quotes: "{self._token.text}"',
            )  # fmt: skip
        return self._take("word") or self._refuse("a stage is missing", "a name; or a pattern in ( )", at)

    def _all_conditions(self) -> list[str]:
        texts = []
        while self._token.kind == "condition":
            texts.append(str(self._take("condition")))
        return texts

    def _repeat(self, form: StageForm) -> None:
        count = self._take("count")
        if count is not None:
            low, high = _COUNTS.get(count) or self._numbers(count)
            times = (max(low, 1), high)
            form.times, form.optional = 1 if times == (1, 1) else times, low == 0
        while True:
            mark = next((mark for mark in _MARKS if self._take_words(mark)), None)
            if mark is not None:
                setattr(form, mark, True)
            elif self._take_words("until"):
                at = self._token.at
                form.until = self._take("condition") or self._refuse("a condition is missing", "until [cents < 0]", at)
            elif self._take_words("steps", "within"):
                form.step_within = self._span()
            elif self._take_words("within"):
                form.within = self._span()
            else:
                return

    def _numbers(self, count: str) -> tuple[int, int | None]:
        low, comma, high = (each.strip() for each in count.strip("{}").partition(","))
        least = int(low) if low else 0
        if not low and not high:
            self._refuse("nothing says how often", "{3}, {2,4}, {2,} or {,4}", self._tokens[self._next - 1].at)
        return least, (int(high) if high else None) if comma else least
