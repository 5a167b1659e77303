"""The dialect of streaming SQL: from the text of a script to syntax trees, and from a part of a tree back to text.

It is sqlglot's dialect of Spark with three additions, made where the text is only words yet: ``TABLE t`` as an argument
of a function, with ``PARTITION BY`` behind it, and ``SESSION`` as the name of a function. Every character keeps its
place, so errors can point at it; literals are read by the rules of `headrace.sql.parse`.

What this module deliberately does not do: know tables, columns or types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from headrace.errors import ExpressionError
from headrace.sql.parse import literal_pieces, point_at, quote_text

_FIRST_MARK: Final = 0xF0000
"""Literals are single characters from here on while sqlglot reads the text, padded to the length they had."""
_ARRAY: Final = "arr\ue000y"
"""Stands for the name ``array``, which sqlglot takes for a type; as long as that."""
PARTITIONS: Final = "\ue001partitions"
"""The function that holds what stood behind ``PARTITION BY`` in an argument ``TABLE t PARTITION BY …``."""

WITHIN: Final = "\ue002within"
"""The variable whose definition holds what stood behind ``WITHIN`` in MATCH_RECOGNIZE."""
SUBSET: Final = "\ue003"
"""Begins the names of variables whose definitions are the variables that ``SUBSET`` puts together."""

_COMMENTS: Final = re.compile(r"--[^\n]*|(?P<hint>/\*\+)|/\*.*?\*/", re.DOTALL)

_SELECT_BEFORE: Final = re.compile(r"\bselect\s*\Z", re.IGNORECASE)

Statement = Callable[["StatementPiece"], Any]


@dataclass(frozen=True)
class ParsedStatement:
    """One statement of a script: its tree, whose parts know where they stand in the script."""

    tree: Any = field(repr=False)
    text: str
    """The statement alone, without the semicolon."""
    offset: int = 0
    """Where it begins in the script."""
    script: str = field(default="", repr=False)
    origin: str = ""
    """The file that the script is in; empty for a text of a program."""

    def part(self, tree: Any) -> ParsedStatement:
        """A query inside this statement, as a statement."""
        return ParsedStatement(tree, self.text, self.offset, self.script, self.origin)

    def place(self, tree: Any) -> int:
        """Where a part of the tree begins in the script."""
        starts = [node.meta["start"] for node in tree.walk() if "start" in node.meta] if tree is not None else []
        return min(starts, default=self.offset)

    def line(self, at: int) -> int:
        return self.script.count("\n", 0, at) + 1

    def column(self, at: int) -> int:
        return at - self.script.rfind("\n", 0, at)

    def point(self, at: int) -> str:
        """The line around a character, with a mark under it."""
        begin = self.script.rfind("\n", 0, at) + 1
        end = self.script.find("\n", at)
        return point_at(self.script[begin : len(self.script) if end < 0 else end], at - begin)

    def where(self, at: int, site: str) -> str:
        if self.origin:
            return f"{self.origin}:{self.line(at)}:{self.column(at)}"
        lines = f", line {self.line(at)} of the query" if "\n" in self.script.strip() else ""
        return f"{site}{lines}"


@dataclass(frozen=True)
class StatementPiece:
    """The words of one statement, as somebody with a grammar of his own reads them."""

    tokens: Sequence[Any]
    text: str
    offset: int
    script: str
    masked: str = field(repr=False)

    def literal(self, token: Any) -> str:
        """The text that a quoted literal stands for."""
        return _literals_of(self.script).get(token.start, str(token.text))


def parse_script(
    text: str, *, where: str = "", origin: str = "", statements: Sequence[Statement] = ()
) -> list[ParsedStatement]:
    """The statements of a script. ``statements`` are asked first, one by one: each gives a tree, or None."""
    pieces = list(_pieces(text, where, origin))
    _check_hints(text, _masked(text), where, origin)
    return [_parsed(piece, where, origin, statements) for piece in pieces]


def parse_query(text: str, *, where: str = "") -> ParsedStatement:
    """The one query that a text is."""
    found = parse_script(text, where=where)
    if len(found) == 1:
        return found[0]
    raise ExpressionError(
        "this is not one query",
        where=where,
        expected="one query, such as SELECT card, cents FROM tx",
        found="nothing" if not found else text[: found[1].offset].strip() + " …",
        next_move="give each query to app.sql alone" if found else "write a query",
    )


def render(tree: Any) -> str:
    """The text of an expression, in Spark SQL."""
    return str(tree.sql(dialect=_dialect(), normalize_functions=False, comments=False))


def is_call(tree: Any, *names: str) -> bool:
    """Whether a part of a tree calls a function of one of these names."""
    return type(tree).__name__ == "Anonymous" and str(tree.this).lower() in names


# --- how it is read


def _pieces(text: str, where: str, origin: str) -> Iterator[StatementPiece]:
    from sqlglot.errors import SqlglotError
    from sqlglot.tokenizer_core import TokenType

    masked = _masked(text)
    try:
        tokens = _dialect()().tokenize(masked)
    except SqlglotError as error:
        raise _syntax_error(text, len(text.rstrip()), "a quote is open to the end", where, origin) from error
    begin = 0
    mine: list[Any] = []
    for token in [*tokens, None]:
        if token is not None and token.token_type != TokenType.SEMICOLON:
            mine.append(token)
            continue
        if mine:
            begin, end = mine[0].start, mine[-1].end + 1
            yield StatementPiece(mine, text[begin:end], begin, text, masked)
        mine = []


def _parsed(piece: StatementPiece, where: str, origin: str, statements: Sequence[Statement]) -> ParsedStatement:
    for read in statements:
        tree = read(piece)
        if tree is not None:
            return ParsedStatement(tree, piece.text, piece.offset, piece.script, origin)
    return ParsedStatement(_tree(piece, where, origin), piece.text, piece.offset, piece.script, origin)


def _tree(piece: StatementPiece, where: str, origin: str) -> Any:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        (tree,) = (
            _dialect()()
            .parser()
            .parse(list(_with_table_arguments(list(_with_recognized_rows(piece.tokens)))), piece.masked)
        )
    except SqlglotError as error:
        detail = (getattr(error, "errors", None) or [{}])[0]
        at, reason = _stop(piece, detail)
        raise _syntax_error(piece.script, at, reason, where, origin) from None
    _place_hints(tree, piece)
    literals = _literals_of(piece.script)
    for clause in tree.find_all(exp.MatchRecognize):
        # Without DEFINE sqlglot could not write the clause down again.
        clause.set("define", clause.args.get("define") or [])
    for node in tree.find_all(exp.Literal, exp.Anonymous, exp.RawString):
        if isinstance(node, exp.Anonymous):
            if node.this == _ARRAY:
                node.set("this", "array")
        elif node.this and len(str(node.this)) and ord(str(node.this)[0]) >= _FIRST_MARK:
            node.set(
                "this", literals[node.meta["start"]] if "start" in node.meta else _by_mark(piece.script, node.this)
            )
    for node in tree.find_all(exp.In):
        # sqlglot reads VALUES here as a list of one value.
        if len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Values):
            node.set("query", exp.Subquery(this=node.expressions[0]))
            node.set("expressions", None)
    return tree


def _place_hints(tree: Any, piece: StatementPiece) -> None:
    """Hints are read as texts of their own, so their parts are told where those stand."""
    from sqlglot import exp
    from sqlglot.tokenizer_core import TokenType

    begins = [token.start for token in piece.tokens if token.token_type == TokenType.HINT]
    for begin, hint in zip(begins, tree.find_all(exp.Hint, bfs=False), strict=False):
        for node in hint.walk():
            if "start" in node.meta:
                node.meta["start"] += begin + len("/*+")


def _with_table_arguments(tokens: Sequence[Any]) -> Iterator[Any]:
    """Words as sqlglot's grammar knows them: an argument ``TABLE t PARTITION BY a`` as ``t, partitions(a)``."""
    from sqlglot.tokenizer_core import Token, TokenType

    def like(token: Any, kind: Any, text: str) -> Any:
        return Token(kind, text, token.line, token.col, token.start, token.end)

    openers = (TokenType.L_PAREN, TokenType.COMMA, TokenType.FARROW)
    closers = (TokenType.COMMA, TokenType.R_PAREN)
    in_argument = one_partition = False
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        kind, next_kind = token.token_type, None if after is None else after.token_type
        if kind in closers:
            if one_partition:
                yield like(token, TokenType.R_PAREN, ")")
            in_argument = one_partition = False
        opened = before is not None and before.token_type in openers
        if kind == TokenType.TABLE and opened and next_kind != TokenType.L_PAREN:
            in_argument = True
        elif in_argument and kind == TokenType.PARTITION_BY:
            in_argument, one_partition = False, next_kind != TokenType.L_PAREN
            yield like(token, TokenType.COMMA, ",")
            yield like(token, TokenType.VAR, PARTITIONS)
            if one_partition:
                yield like(token, TokenType.L_PAREN, "(")
        elif kind == TokenType.SESSION and next_kind == TokenType.L_PAREN:
            yield like(token, TokenType.VAR, token.text)
        else:
            yield token


def _with_recognized_rows(tokens: Sequence[Any]) -> Iterator[Any]:
    """MATCH_RECOGNIZE as sqlglot's grammar knows it: WITHIN and SUBSET become definitions, the first in DEFINE."""
    from sqlglot.tokenizer_core import Token, TokenType

    words = list(tokens)
    inside, depth = False, 0
    at = 0
    while at < len(words):
        token = words[at]
        text = token.text.upper()
        if text == "MATCH_RECOGNIZE" and at + 1 < len(words) and words[at + 1].token_type == TokenType.L_PAREN:
            inside, depth = True, 0
            yield Token(TokenType.MATCH_RECOGNIZE, token.text, token.line, token.col, token.start, token.end)
            at += 1
            continue
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0) if inside else 0
        inside = inside and (depth > 0 or token.token_type != TokenType.R_PAREN)
        if inside and depth == 1 and text in ("WITHIN", "SUBSET"):
            made, at = _definitions(words, at)
            define = at < len(words) and words[at].text.upper() == "DEFINE"
            yield Token(TokenType.VAR, "DEFINE", token.line, token.col, token.start, token.end)
            yield from made if define else made[:-1]
            at += define
            continue
        yield token
        at += 1


def _definitions(words: Sequence[Any], at: int) -> tuple[list[Any], int]:
    """The clauses from here to DEFINE as definitions, a comma behind each; and where they end."""
    from sqlglot.tokenizer_core import Token, TokenType

    made: list[Any] = []
    clause, depth = "", 0
    while at < len(words):
        token, text = words[at], words[at].text.upper()
        if depth == 0 and (text == "DEFINE" or token.token_type == TokenType.R_PAREN):
            break
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)

        def like(kind: Any, text: str, token: Any = token) -> Any:
            return Token(kind, text, token.line, token.col, token.start, token.end)

        if depth == 0 and text in ("WITHIN", "SUBSET"):
            made += [like(TokenType.COMMA, ",")] if made else []
            clause = text
            made += [like(TokenType.VAR, WITHIN), like(TokenType.ALIAS, "AS")] if text == "WITHIN" else []
        elif clause == "SUBSET" and depth == 0 and token.token_type == TokenType.COMMA:
            made.append(token)
        elif clause == "SUBSET" and depth == 0 and token.token_type == TokenType.EQ:
            made.append(like(TokenType.ALIAS, "AS"))
        elif clause == "SUBSET" and depth == 0 and token.token_type == TokenType.VAR:
            made.append(like(TokenType.VAR, SUBSET + token.text))
        else:
            made.append(token)
        at += 1
    last = words[at - 1]
    made.append(Token(TokenType.COMMA, ",", last.line, last.col, last.start, last.end))
    return made, at


def _masked(text: str) -> str:
    """The text with a mark for what stands in quotes; every character keeps its place."""
    parts, last = [], 0
    for number, (begin, end, value) in enumerate(literal_pieces(text)):
        if value is None:
            mark = _ARRAY
        elif end - begin < 3:
            continue
        else:
            mark = "'" + chr(_FIRST_MARK + number) + " " * (end - begin - 3) + "'"
        parts += [text[last:begin], mark]
        last = end
    return "".join([*parts, text[last:]])


@cache
def _literals_of(text: str) -> dict[int, str]:
    """What each literal of a script stands for, by where it begins."""
    return {begin: value for begin, _, value in literal_pieces(text) if value is not None}


def _by_mark(text: str, marked: str) -> str:
    pieces = list(literal_pieces(text))
    return pieces[ord(marked[0]) - _FIRST_MARK][2] or ""


@cache
def _dialect() -> Any:
    from sqlglot.dialects.spark import Spark

    def literal_sql(self: Any, tree: Any) -> str:
        return quote_text(tree.this) if tree.is_string else str(tree.this)

    # Functions stay calls by the name that was written, as in `headrace.sql.parse`.
    parser: Any = type("StreamParser", (Spark.Parser,), {"FUNCTIONS": {}})
    generator: Any = type("StreamGenerator", (Spark.Generator,), {"literal_sql": literal_sql})
    # No statement is a command whose rest is not looked at, and names such as t$errors are one word.
    words: Any = type("StreamTokenizer", (Spark.Tokenizer,), {"COMMANDS": set(), "VAR_SINGLE_TOKENS": {"$"}})
    return type("StreamSql", (Spark,), {"Tokenizer": words, "Parser": parser, "Generator": generator})


# --- what is wrong with a text


def _check_hints(text: str, masked: str, where: str, origin: str) -> None:
    """A hint is no comment: what it asks for would not be done, and nobody would know."""
    for found in _COMMENTS.finditer(masked):
        if found["hint"] and not _SELECT_BEFORE.search(masked, 0, found.start()):
            place = ParsedStatement(None, text, 0, text, origin)
            raise ExpressionError(
                "a hint stands right behind SELECT",
                where=place.where(found.start(), where),
                expected="SELECT /*+ STATE_TTL('o' = '1d') */ …",
                found=place.point(found.start()),
                next_move="options of a table stand in WITH (…) of CREATE TABLE, how long state is kept in SET",
            )


def _stop(piece: StatementPiece, detail: dict[str, Any]) -> tuple[int, str]:
    """Where the parser stopped, and why: it calls things by the names of its own classes."""
    end = piece.offset + len(piece.text)
    before, highlight = str(detail.get("start_context", "")), str(detail.get("highlight", ""))
    line, col = detail.get("line"), detail.get("col")
    if line is None or col is None:
        return end, "it ends too early"
    starts = [0] + [i + 1 for i, char in enumerate(piece.script) if char == "\n"]
    at = starts[line - 1] + col - len(highlight) if line <= len(starts) else end
    if at + len(highlight) >= end and not before.strip().endswith(highlight) and detail.get("end_context") == "":
        words = "it ends too early, or this is not expected here"
        return min(max(at, piece.offset), end), words
    word = piece.script[at : at + len(highlight)]
    return min(max(at, piece.offset), end), f"{word!r} is not expected here" if word.strip() else "it ends too early"


def _syntax_error(text: str, at: int, reason: str, where: str, origin: str) -> ExpressionError:
    place = ParsedStatement(None, text, 0, text, origin)
    return ExpressionError(
        f"this is not streaming SQL: {reason}",
        where=place.where(at, where),
        expected="a query or a statement; a table or column named like a SQL word stands in `backticks`",
        found=place.point(at),
        next_move="see the guide Streaming SQL for what can be said",
    )
