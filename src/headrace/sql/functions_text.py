"""The functions on text, by name."""

from __future__ import annotations

import re
from functools import lru_cache

from headrace.sql import types as t
from headrace.sql.calls import Rule, all_of, constant, count_args, fixed, implicit
from headrace.sql.nodes import ExprTree, Unsupported, literal


def _length(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 1, 1, text)
    arg = args[0] if args[0].type == t.BINARY else implicit(args[0], t.STRING, text)
    return ExprTree("length", t.INT, (arg,))


def _concat(args: list[ExprTree], text: str) -> ExprTree:
    if args and all(arg.type == t.BINARY for arg in args):
        return ExprTree("concat", t.BINARY, tuple(args))
    return ExprTree("concat", t.STRING, tuple(implicit(arg, t.STRING, text) for arg in args))


def _concat_ws(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 1, None, text)
    return ExprTree("concat_ws", t.STRING, tuple(implicit(arg, t.STRING, text) for arg in args))


def trim(op: str, args: list[ExprTree], text: str) -> ExprTree:
    """The text and, if they are given, the characters to take away."""
    return ExprTree(op, t.STRING, tuple(implicit(arg, t.STRING, text) for arg in args))


def _trim_call(op: str) -> Rule:
    # The characters come first in ltrim('x', s) and rtrim('x', s), and last in btrim(s, 'x').
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 1, 2, text)
        return trim(op, args if op == "btrim" else args[::-1], text)

    return rule


def _test(op: str) -> Rule:
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 2, 2, text)
        return ExprTree(op, t.BOOLEAN, tuple(implicit(arg, t.STRING, text) for arg in args))

    return rule


def _like(lower: bool) -> Rule:
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 2, 3, text)
        pattern = _constant_text(args[1], text, "pattern")
        escape = _constant_text(args[2], text, "escape character") if len(args) > 2 else "\\"
        subject = implicit(args[0], t.STRING, text)
        if lower:
            subject, pattern = ExprTree("lower", t.STRING, (subject,)), pattern.lower()
        whole = ("full", like_pattern(pattern, escape))
        return _plain_like(subject, pattern, escape) or ExprTree("matches", t.BOOLEAN, (subject,), whole)

    return rule


def _constant_text(node: ExprTree, text: str, what: str) -> str:
    value = constant(node, text, what)
    if not isinstance(value, str):
        raise Unsupported(f"{text} has the {what} {value!r}, which is not text")
    return value


def _plain_like(subject: ExprTree, pattern: str, escape: str) -> ExprTree | None:
    """The most common patterns are a comparison with their fixed part, which is much cheaper than a match."""
    part = pattern.strip("%")
    if escape in pattern or "_" in part or "%" in part:
        return None
    ops = {(False, False): "eq", (False, True): "startswith", (True, False): "endswith", (True, True): "contains"}
    op = ops[pattern.startswith("%"), pattern.endswith("%")]
    return ExprTree(op, t.BOOLEAN, (subject, literal(part, t.STRING)))


def _rlike(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    pattern = java_pattern(_constant_text(args[1], text, "pattern"))
    return ExprTree("matches", t.BOOLEAN, (implicit(args[0], t.STRING, text),), ("search", pattern))


def _regexp_extract(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 3, text)
    pattern = java_pattern(_constant_text(args[1], text, "pattern"))
    group = constant(args[2], text, "group") if len(args) > 2 else 1
    if not isinstance(group, int) or not 0 <= group <= pattern.groups:
        raise Unsupported(f"{text} asks for group {group} of a pattern with {pattern.groups}")
    return ExprTree("regexp_extract", t.STRING, (implicit(args[0], t.STRING, text),), (pattern, group))


def _regexp_replace(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 3, 3, text)
    pattern = java_pattern(_constant_text(args[1], text, "pattern"))
    replacement = java_replacement(constant(args[2], text, "replacement"), pattern.groups)
    return ExprTree("regexp_replace", t.STRING, (implicit(args[0], t.STRING, text),), (pattern, replacement))


def _split(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 3, text)
    pattern = constant(args[1], text, "pattern")
    limit = constant(args[2], text, "limit") if len(args) > 2 else -1
    value = (pattern, java_pattern(pattern), limit)
    return ExprTree("split", t.array(t.STRING), (implicit(args[0], t.STRING, text),), value)


TEXT_FUNCTIONS: dict[str, Rule] = {
    **all_of(_length, "length", "len", "char_length", "character_length"),
    **all_of(fixed("upper", t.STRING, t.STRING), "upper", "ucase"),
    **all_of(fixed("lower", t.STRING, t.STRING), "lower", "lcase"),
    **all_of(fixed("substring", t.STRING, t.STRING, t.INT, t.INT, optional=1), "substring", "substr"),
    "left": fixed("left", t.STRING, t.STRING, t.INT),
    "right": fixed("right", t.STRING, t.STRING, t.INT),
    **{name: _trim_call(name) for name in ("ltrim", "rtrim", "btrim")},
    "trim": _trim_call("btrim"),
    "concat": _concat,
    "concat_ws": _concat_ws,
    "replace": fixed("replace", t.STRING, t.STRING, t.STRING, t.STRING, optional=1),
    **{name: _test(name) for name in ("startswith", "endswith", "contains")},
    "like": _like(lower=False),
    "ilike": _like(lower=True),
    **all_of(_rlike, "rlike", "regexp", "regexp_like"),
    "regexp_extract": _regexp_extract,
    "regexp_replace": _regexp_replace,
    "split": _split,
    "split_part": fixed("split_part", t.STRING, t.STRING, t.STRING, t.INT),
    "lpad": fixed("lpad", t.STRING, t.STRING, t.INT, t.STRING, optional=1),
    "rpad": fixed("rpad", t.STRING, t.STRING, t.INT, t.STRING, optional=1),
    "instr": fixed("instr", t.INT, t.STRING, t.STRING),
    **all_of(fixed("locate", t.INT, t.STRING, t.STRING, t.INT, optional=1), "locate", "position"),
    "repeat": fixed("repeat", t.STRING, t.STRING, t.INT),
    "reverse": fixed("reverse", t.STRING, t.STRING),
}


# --- patterns as Spark understands them (LIKE, and Java's regular expressions), rewritten for Python's ``re``
# Java's classes are ASCII, its dot stops at more line ends, and its groups are named differently; the rest of the
# common language is the same. What has no certain counterpart raises `Unsupported` while the program is built.


_LINE_ENDS = "\\n\\r\\u0085\\u2028\\u2029"
# Escapes that mean the same in both (classes by the ASCII flag), outside of and inside of brackets.
_SAME = frozenset("dDwWsSbBtnrfav")
_SAME_IN_CLASS = frozenset("dDwWsStnrfav")
_POSIX = {
    "Lower": "a-z", "Upper": "A-Z", "Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9", "XDigit": "0-9a-fA-F",
    "Punct": re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"), "Space": " \\t\\n\\x0b\\f\\r", "ASCII": "\\x00-\\x7f",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:(?P<posix>p\{(?P<class>[A-Za-z]+)\})|(?P<hex>x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})|(?P<ref>[1-9])|(?P<one>.))",
    re.DOTALL,
)


@lru_cache(maxsize=512)
def java_pattern(pattern: str) -> re.Pattern[str]:
    """The compiled Python form of a Java pattern."""
    try:
        return re.compile(_translate(pattern), re.ASCII)
    except re.error as error:
        raise Unsupported(f"the pattern {pattern!r} is not one the worker can match ({error})") from None


def _translate(pattern: str) -> str:
    out: list[str] = []
    at, depth = 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            escape = _ESCAPE.match(pattern, at)
            if escape is None:
                raise Unsupported(f"the pattern {pattern!r} ends in a backslash")
            out.append(_escape(escape, depth > 0, pattern))
            at = escape.end()
            continue
        if char == "[":
            depth += 1
            if depth > 1:
                raise Unsupported(f"the pattern {pattern!r} has a class inside a class")
            # A bracket right after the opening one is text in Python and an error or a nested class in Java.
            if pattern[at + 1 : at + 2] == "]" or pattern[at + 1 : at + 3] == "^]":
                raise Unsupported(f"the pattern {pattern!r} has an empty class")
        elif char == "]":
            depth = max(depth - 1, 0)
        elif depth and pattern.startswith("&&", at):
            raise Unsupported(f"the pattern {pattern!r} intersects classes")
        out.append(_plain(char, pattern, at, depth > 0))
        at += 1
    return "".join(out)


def _plain(char: str, pattern: str, at: int, in_class: bool) -> str:
    if in_class:
        return char
    if char == ".":
        return f"[^{_LINE_ENDS}]"
    if char == "$":
        return rf"(?=(?:\r\n|[{_LINE_ENDS}])?\Z)"
    if char == "(" and pattern.startswith("(?", at):
        rest = pattern[at + 2 : at + 4]
        if rest[:1] == "<" and rest[1:2] not in ("=", "!"):
            raise Unsupported(f"the pattern {pattern!r} names a group; groups are taken by number")
        if rest[:1] not in (":", "=", "!", "<", ">"):
            raise Unsupported(f"the pattern {pattern!r} sets flags")
    return char


def _escape(escape: re.Match[str], in_class: bool, pattern: str) -> str:
    if escape["posix"]:
        members = _POSIX.get(escape["class"])
        if members is None:
            raise Unsupported(f"the pattern {pattern!r} uses {escape.group()}")
        return members if in_class else f"[{members}]"
    if escape["hex"]:
        return re.escape(chr(int(escape["hex"][1:], 16)))
    if escape["ref"] and not in_class:
        return escape.group()
    char = escape["one"] or escape["ref"]
    if not char.isalnum():
        return re.escape(char)
    if char == "z" and not in_class:
        return r"\Z"
    if char in (_SAME_IN_CLASS if in_class else _SAME):
        return {"a": r"\x07", "v": r"\n\x0b\f\r\x85\u2028\u2029" if in_class else r"[\n\x0b\f\r\x85\u2028\u2029]"}.get(
            char, "\\" + char
        )
    raise Unsupported(f"the pattern {pattern!r} uses {escape.group()}")


@lru_cache(maxsize=512)
def like_pattern(pattern: str, escape: str = "\\") -> re.Pattern[str]:
    """A LIKE pattern: % is any text, _ any one character; the escape character makes them plain."""
    out: list[str] = []
    chars = iter(pattern)
    for char in chars:
        if char == escape:
            following = next(chars, None)
            if following is None or following not in ("%", "_", escape):
                raise Unsupported(f"in the LIKE pattern {pattern!r} the escape character stands before something else")
            out.append(re.escape(following))
        else:
            out.append({"%": ".*", "_": "."}.get(char) or re.escape(char))
    return re.compile("".join(out), re.DOTALL)


def java_replacement(text: str, groups: int) -> str:
    """A Java replacement (``$1``, ``\\$``) as Python's ``re.sub`` wants it."""
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            at += 1
            out.append(text[at].replace("\\", "\\\\"))
        elif char == "$":
            digits = re.match(r"\d", text[at + 1 :])
            if digits is None or int(digits.group()) > groups:
                raise Unsupported(f"the replacement {text!r} has a $ that names no group")
            number = digits.group()
            while (more := text[at + 1 : at + 2 + len(number)]).isdigit() and len(more) > len(number):
                if int(more) > groups:
                    break
                number = more
            out.append(f"\\g<{number}>")
            at += len(number)
        elif char == "\\":
            raise Unsupported(f"the replacement {text!r} ends in a backslash")
        else:
            out.append(char)
        at += 1
    return "".join(out)
