"""Row patterns of SQL: the text of PATTERN, and the program of instructions that it comes to.

A row pattern is a regular expression over variables: ``A DOWN+? (UP | FLAT){2,3}``. Rows follow each other at once. Of
all ways to match from a row the preferred one counts: earlier alternatives before later ones, more rows before fewer
where a quantifier is greedy, and fewer before more where it is reluctant. The program keeps that order
(`headrace.patterns.recognizer`).

What this module deliberately does not do: know conditions or rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.errors import ExpressionError

MAX_COPIES: Final = 1000
"""How often a variable may stand in the program, quantifiers spelled out."""
_WORDS: Final = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<sign>\{[^}]*\}|\{-|-\}|[()|*+?^$]))")
_BOUNDS: Final = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")


@dataclass(frozen=True)
class RowVariable:
    """One row."""

    name: str


@dataclass(frozen=True)
class RowChain:
    """Parts one behind the other."""

    parts: tuple[RowPart, ...]


@dataclass(frozen=True)
class RowChoice:
    """One of several parts, the earlier ones preferred."""

    parts: tuple[RowPart, ...]


@dataclass(frozen=True)
class RowRepeat:
    """A part several times."""

    part: RowPart
    low: int
    high: int | None
    reluctant: bool = False


RowPart = RowVariable | RowChain | RowChoice | RowRepeat


class Instruction(NamedTuple):
    """A row for a variable; or, where it has none, a fork to other instructions, the preferred first."""

    variable: int = -1
    forks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RowProgram:
    """A row pattern as instructions. Behind the last of them a match is complete."""

    variables: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    reached: tuple[tuple[int, ...], ...]
    """Instruction → those that take a row and are reached from it, in the order of preference; the number behind the
    last stands for the end, and nothing behind it is wanted."""

    @property
    def end(self) -> int:
        return len(self.instructions)


def parse_row_pattern(text: str) -> RowPart:
    """The tree of what stands in PATTERN (…)."""
    return _PatternReader(text).whole()


class _PatternReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.words: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            match = _WORDS.match(text, at)
            if match is None:
                raise self.error(f"{text[at:].strip()[:1]!r} is not expected here")
            self.words.append(match["name"] or match["sign"])
            at = match.end()
        self.at = 0

    def error(self, what: str) -> ExpressionError:
        return ExpressionError(
            f"this is not a row pattern: {what}", expected="PATTERN (A B+ (C | D)? E{2,3})", found=self.text.strip()
        )

    def peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def take(self) -> str:
        self.at += 1
        return self.words[self.at - 1]

    def whole(self) -> RowPart:
        node = self.choice()
        if self.peek():
            raise self.error(f"{self.peek()!r} is not expected here")
        return node

    def choice(self) -> RowPart:
        parts = [self.chain()]
        while self.peek() == "|":
            self.take()
            parts.append(self.chain())
        return parts[0] if len(parts) == 1 else RowChoice(tuple(parts))

    def chain(self) -> RowPart:
        parts: list[RowPart] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.repeat())
        if not parts:
            raise self.error("a part of it is empty")
        return parts[0] if len(parts) == 1 else RowChain(tuple(parts))

    def repeat(self) -> RowPart:
        word = self.take()
        if word == "(":
            node = self.choice()
            if self.peek() != ")":
                raise self.error("a ) is missing")
            self.take()
        elif word.upper() == "PERMUTE" or not (word[0].isalpha() or word[0] == "_"):
            raise self.error(f"{word} is not supported, or not expected here")
        else:
            node = RowVariable(word)
        sign = self.peek()
        if sign not in ("*", "+", "?") and not sign.startswith("{"):
            return node
        low, high = self.bounds(self.take())
        reluctant = self.peek() == "?"
        if reluctant:
            self.take()
        return RowRepeat(node, low, high, reluctant)

    def bounds(self, sign: str) -> tuple[int, int | None]:
        if sign in ("*", "+", "?"):
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        match = _BOUNDS.fullmatch(sign)
        if match is None or not (match[1] or match[3]):
            raise self.error(f"{sign} is no quantifier")
        low = int(match[1] or 0)
        high = low if not match[2] else int(match[3]) if match[3] else None
        if high is not None and (high < low or high == 0):
            raise self.error(f"{sign} leaves nothing to take")
        return low, high


def compile_row_pattern(node: RowPart) -> RowProgram:
    """The program of a row pattern; refuses one that would match no rows."""
    names: list[str] = []
    instructions: list[Instruction] = []

    def add(instruction: Instruction) -> int:
        instructions.append(instruction)
        if len(instructions) > MAX_COPIES * 4:
            raise ExpressionError(
                "the row pattern is too large", expected=f"at most about {MAX_COPIES} rows, quantifiers spelled out",
                found="a larger one",
            )  # fmt: skip
        return len(instructions) - 1

    def put(node: RowPart) -> None:
        match node:
            case RowVariable(name):
                key = name.upper()
                if key not in names:
                    names.append(key)
                add(Instruction(names.index(key)))
            case RowChain(parts):
                for part in parts:
                    put(part)
            case RowChoice(parts):
                put_choice(parts)
            case RowRepeat():
                put_repeat(node)

    def put_choice(parts: Sequence[RowPart]) -> None:
        fork = add(Instruction())
        begins, jumps = [], []
        for part in parts:
            begins.append(len(instructions))
            put(part)
            jumps.append(add(Instruction()))
        instructions[fork] = Instruction(forks=tuple(begins))
        for jump in jumps:
            instructions[jump] = Instruction(forks=(len(instructions),))

    def put_repeat(node: RowRepeat) -> None:
        for _ in range(node.low):
            put(node.part)
        if node.high is None:
            fork = add(Instruction())
            put(node.part)
            add(Instruction(forks=(fork,)))
            instructions[fork] = _fork(fork + 1, len(instructions), reluctant=node.reluctant)
            return
        forks = []
        for _ in range(node.high - node.low):
            forks.append(add(Instruction()))
            put(node.part)
        for fork in forks:
            instructions[fork] = _fork(fork + 1, len(instructions), reluctant=node.reluctant)

    put(node)
    reached = tuple(_reached(instructions, each) for each in range(len(instructions) + 1))
    if len(instructions) in reached[0]:
        raise ExpressionError(
            "the row pattern matches without any row", expected="a variable at least that has to come",
            found="every part of it may be left out", next_move="write + for *, or add a variable",
        )  # fmt: skip
    return RowProgram(tuple(names), tuple(instructions), reached)


def _fork(inside: int, behind: int, *, reluctant: bool) -> Instruction:
    return Instruction(forks=(behind, inside) if reluctant else (inside, behind))


def _reached(instructions: Sequence[Instruction], start: int) -> tuple[int, ...]:
    order: list[int] = []
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if at == len(instructions) or instructions[at].variable >= 0:
            order.append(at)
        else:
            waiting += reversed(instructions[at].forks)
    return tuple(order)
