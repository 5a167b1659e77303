"""The words of one statement, read one after another: what statements of our own grammar are parsed with.

Words are told apart by their text, without regard to case; a name in backticks is never a keyword. What is not as the
grammar wants it is refused at its character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import ExpressionError
from headrace.model.nearest import did_you_mean
from headrace.tables.dialect import ParsedStatement

if TYPE_CHECKING:
    from headrace.tables.dialect import StatementPiece

_QUOTES: Final = ("'", '"', "`")
_PARTS: Final = re.compile(r">|[^\s>]+")
_OPENERS: Final = ("(", "[", "{")
_CLOSERS: Final = (")", "]", "}")


class Word(NamedTuple):
    start: int
    end: int
    """The last of its characters."""
    text: str


def _words(piece: StatementPiece) -> Iterator[Word]:
    """The words of a piece, where the dialect knows several as one, too: ``PRIMARY KEY``, and the ``>>`` of types."""
    for token in piece.tokens:
        written = piece.script[token.start : token.end + 1]
        if written[0] in _QUOTES:
            yield Word(token.start, token.end, token.text)
            continue
        for part in _PARTS.finditer(written):
            yield Word(token.start + part.start(), token.start + part.end() - 1, part[0])


class Words:
    """A place between the words of a statement."""

    def __init__(self, piece: StatementPiece, origin: str = "", site: str = "") -> None:
        self.piece = piece
        self._tokens = list(_words(piece))
        self._at = 0
        self._statement = ParsedStatement(None, piece.text, piece.offset, piece.script, origin)
        self._site = site

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._tokens)

    @property
    def offset(self) -> int:
        """Where the next word begins in the script."""
        return self._end if self.at_end else int(self._tokens[self._at].start)

    @property
    def _end(self) -> int:
        return self.piece.offset + len(self.piece.text)

    @property
    def next_word(self) -> str:
        """The next word as it was written; empty at the end."""
        return "" if self.at_end else self._text(self._tokens[self._at])

    def _text(self, token: Word) -> str:
        return self.piece.script[token.start : token.end + 1]

    def sees(self, *words: str) -> bool:
        """Whether these are the next words."""
        ahead = self._tokens[self._at : self._at + len(words)]
        return len(ahead) == len(words) and all(
            self._text(token).upper() == word for token, word in zip(ahead, words, strict=True)
        )

    # -- taking -------------------------------------------------------------------------------------------------------

    def accept(self, *words: str) -> bool:
        """Steps over these words, if they come next."""
        seen = self.sees(*words)
        self._at += len(words) * seen
        return seen

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            raise self.unexpected(" ".join(words))

    def name(self, what: str) -> str:
        """A name, plain or in backticks."""
        if not self.at_end:
            text = self.next_word
            if text.startswith("`") and text.endswith("`"):
                self._at += 1
                return text[1:-1].replace("``", "`")
            if text.replace("$", "_").isidentifier():
                self._at += 1
                return text
        raise self.unexpected(what)

    def literal(self, what: str) -> str:
        """A text in quotes."""
        if self.at_end or not self.is_literal:
            raise self.unexpected(what)
        token = self._tokens[self._at]
        self._at += 1
        return self.piece.literal(token)

    @property
    def is_literal(self) -> bool:
        return self.next_word[:1] in _QUOTES[:2]

    def number(self, what: str) -> int:
        text = self.next_word
        if not text.isdecimal():
            raise self.unexpected(what)
        self._at += 1
        return int(text)

    def skip(self) -> str:
        """The next word, whatever it is."""
        text = self.next_word
        self._at += 1
        return text

    def names(self, what: str) -> tuple[str, ...]:
        """Names in parentheses."""
        self.expect("(")
        names = [self.name(what)]
        while self.accept(","):
            names.append(self.name(what))
        self.expect(")")
        return tuple(names)

    def expression(self, what: str, *ends: str) -> str:
        """The text up to a comma, a closing parenthesis or one of these words, outside of all parentheses."""
        begin, depth = self.offset, 0
        first = self._at
        while not self.at_end:
            word = self.next_word.upper()
            if depth == 0 and (word in (",", ")") or word in ends):
                break
            depth += (word in _OPENERS) - (word in _CLOSERS)
            self._at += 1
        if self._at == first:
            raise self.unexpected(what)
        return self.piece.script[begin : int(self._tokens[self._at - 1].end) + 1]

    def rest(self, what: str) -> tuple[str, int]:
        """All that is left, and where it begins."""
        if self.at_end:
            raise self.unexpected(what)
        begin = self.offset
        self._at = len(self._tokens)
        return self.piece.script[begin : self._end], begin

    def finish(self) -> None:
        if not self.at_end:
            raise self.unexpected("the end of the statement, a semicolon")

    # -- refusing -----------------------------------------------------------------------------------------------------

    def unexpected(self, wanted: str) -> ExpressionError:
        found = self.next_word
        what = f"{found!r} is not expected here" if found else "the statement ends too early"
        return self.error(what, self.offset, expected=wanted)

    def error(
        self,
        what: str,
        at: int,
        *,
        expected: str = "",
        next_move: str = "",
        known: tuple[str, ...] = (),
        name: str = "",
    ) -> ExpressionError:
        """A mistake at a character; ``known``: the names among which the one that was meant may be."""
        return ExpressionError(
            what,
            where=self._statement.where(at, self._site),
            expected=expected,
            found=self._statement.point(at),
            next_move=did_you_mean(name, known, next_move) if name else next_move,
        )
