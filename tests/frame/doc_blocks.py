"""Reads the Python blocks of a page of documentation, with the marks that say what a test does with them.

A mark is a comment on its own line, anywhere between the last text and the block it belongs to:

    <!-- test: run -->               executed (also what happens without a mark)
    <!-- test: compile -->           type-checked with the rest of the page, not executed
    <!-- test: skip it needs Kafka -->   left alone; the reason is required

and `<!-- test: spark -->` anywhere on a page says that running it starts a JVM. Code between a line `<!-- test: setup`
and a line `-->` is executed, too, and no reader sees it.

The blocks of a page are one program: later ones see the names of earlier ones. It is laid out so that each line keeps
its number, so an error in line 42 of the program is an error in line 42 of the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, cast

Mark = Literal["run", "compile", "skip"]

FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)(?P<rest>.*)$")
MARK = re.compile(r"^\s*<!--\s*test:\s*(?P<word>\w+)\s*(?P<reason>.*?)\s*-->\s*$")
SETUP = re.compile(r"^\s*<!--\s*test:\s*setup\s*$")


class Block(NamedTuple):
    line: int
    """Number of its first line of code in the page, from 1."""
    code: tuple[str, ...]
    mark: Mark
    reason: str = ""


class Page(NamedTuple):
    path: Path
    blocks: tuple[Block, ...]
    needs_spark: bool

    def program(self, *marks: Mark) -> str:
        """The blocks with these marks as one module, every line at its place in the page."""
        lines: list[str] = []
        for block in self.blocks:
            if block.mark in marks:
                lines += [""] * (block.line - 1 - len(lines))
                lines += block.code
        return "\n".join(lines) + "\n"

    def has(self, mark: Mark) -> bool:
        return any(block.mark == mark for block in self.blocks)


class BadMark(ValueError):
    """A mark that nobody understands; a misspelt one must not quietly mean `run`."""


def read_page(path: Path) -> Page:
    lines = path.read_text(encoding="utf-8").splitlines()
    blocks = tuple(_blocks(lines, path.name))
    return Page(path, blocks, any((m := MARK.match(line)) and m["word"] == "spark" for line in lines))


def _blocks(lines: list[str], page: str) -> Iterator[Block]:
    mark: Mark = "run"
    reason = ""
    at = 0
    while at < len(lines):
        line = lines[at]
        if SETUP.match(line):
            end = _end_of(lines, at + 1, "-->")
            yield Block(at + 2, tuple(lines[at + 1 : end]), "run")
            at = end
        elif found := MARK.match(line):
            if found["word"] != "spark":
                mark, reason = _meaning(found["word"], found["reason"], f"{page}:{at + 1}")
        elif fence := FENCE.match(line):
            end = _end_of(lines, at + 1, fence["ticks"])
            if fence["language"] in ("python", "py"):
                yield Block(at + 2, _dedented(lines[at + 1 : end], fence["indent"]), mark, reason)
            mark, reason, at = "run", "", end
        elif line.strip():
            mark, reason = "run", ""
        at += 1


def _meaning(word: str, reason: str, where: str) -> tuple[Mark, str]:
    if word not in ("run", "compile", "skip"):
        raise BadMark(f"{where}: a mark is run, compile, skip or spark, not {word!r}")
    if word == "skip" and not reason:
        raise BadMark(f"{where}: say why this block is skipped: <!-- test: skip REASON -->")
    return cast(Mark, word), reason


def _end_of(lines: list[str], start: int, closing: str) -> int:
    return next((at for at in range(start, len(lines)) if lines[at].strip().startswith(closing)), len(lines))


def _dedented(lines: list[str], indent: str) -> tuple[str, ...]:
    # A block inside a list item or a tab is indented with it.
    return tuple(line.removeprefix(indent) for line in lines)
