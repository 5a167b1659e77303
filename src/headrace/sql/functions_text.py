"""The functions on text, by name."""

from __future__ import annotations

from headrace.sql import types as t
from headrace.sql.calls import Rule, all_of, constant, count_args, fixed, implicit
from headrace.sql.nodes import Node, Unsupported, literal
from headrace.sql.regex import java_pattern, java_replacement, like_pattern


def _length(args: list[Node], text: str) -> Node:
    count_args(args, 1, 1, text)
    arg = args[0] if args[0].type == t.BINARY else implicit(args[0], t.STRING, text)
    return Node("length", t.INT, (arg,))


def _concat(args: list[Node], text: str) -> Node:
    if args and all(arg.type == t.BINARY for arg in args):
        return Node("concat", t.BINARY, tuple(args))
    return Node("concat", t.STRING, tuple(implicit(arg, t.STRING, text) for arg in args))


def _concat_ws(args: list[Node], text: str) -> Node:
    count_args(args, 1, None, text)
    return Node("concat_ws", t.STRING, tuple(implicit(arg, t.STRING, text) for arg in args))


def trim(op: str, args: list[Node], text: str) -> Node:
    """The text and, if they are given, the characters to take away."""
    return Node(op, t.STRING, tuple(implicit(arg, t.STRING, text) for arg in args))


def _trim_call(op: str) -> Rule:
    # The characters come first in ltrim('x', s) and rtrim('x', s), and last in btrim(s, 'x').
    def rule(args: list[Node], text: str) -> Node:
        count_args(args, 1, 2, text)
        return trim(op, args if op == "btrim" else args[::-1], text)

    return rule


def _test(op: str) -> Rule:
    def rule(args: list[Node], text: str) -> Node:
        count_args(args, 2, 2, text)
        return Node(op, t.BOOLEAN, tuple(implicit(arg, t.STRING, text) for arg in args))

    return rule


def _like(lower: bool) -> Rule:
    def rule(args: list[Node], text: str) -> Node:
        count_args(args, 2, 3, text)
        pattern = _constant_text(args[1], text, "pattern")
        escape = _constant_text(args[2], text, "escape character") if len(args) > 2 else "\\"
        subject = implicit(args[0], t.STRING, text)
        if lower:
            subject, pattern = Node("lower", t.STRING, (subject,)), pattern.lower()
        whole = ("full", like_pattern(pattern, escape))
        return _plain_like(subject, pattern, escape) or Node("matches", t.BOOLEAN, (subject,), whole)

    return rule


def _constant_text(node: Node, text: str, what: str) -> str:
    value = constant(node, text, what)
    if not isinstance(value, str):
        raise Unsupported(f"{text} has the {what} {value!r}, which is not text")
    return value


def _plain_like(subject: Node, pattern: str, escape: str) -> Node | None:
    """The most common patterns are a comparison with their fixed part, which is much cheaper than a match."""
    part = pattern.strip("%")
    if escape in pattern or "_" in part or "%" in part:
        return None
    ops = {(False, False): "eq", (False, True): "startswith", (True, False): "endswith", (True, True): "contains"}
    op = ops[pattern.startswith("%"), pattern.endswith("%")]
    return Node(op, t.BOOLEAN, (subject, literal(part, t.STRING)))


def _rlike(args: list[Node], text: str) -> Node:
    count_args(args, 2, 2, text)
    pattern = java_pattern(_constant_text(args[1], text, "pattern"))
    return Node("matches", t.BOOLEAN, (implicit(args[0], t.STRING, text),), ("search", pattern))


def _regexp_extract(args: list[Node], text: str) -> Node:
    count_args(args, 2, 3, text)
    pattern = java_pattern(_constant_text(args[1], text, "pattern"))
    group = constant(args[2], text, "group") if len(args) > 2 else 1
    if not isinstance(group, int) or not 0 <= group <= pattern.groups:
        raise Unsupported(f"{text} asks for group {group} of a pattern with {pattern.groups}")
    return Node("regexp_extract", t.STRING, (implicit(args[0], t.STRING, text),), (pattern, group))


def _regexp_replace(args: list[Node], text: str) -> Node:
    count_args(args, 3, 3, text)
    pattern = java_pattern(_constant_text(args[1], text, "pattern"))
    replacement = java_replacement(constant(args[2], text, "replacement"), pattern.groups)
    return Node("regexp_replace", t.STRING, (implicit(args[0], t.STRING, text),), (pattern, replacement))


def _split(args: list[Node], text: str) -> Node:
    count_args(args, 2, 3, text)
    pattern = constant(args[1], text, "pattern")
    limit = constant(args[2], text, "limit") if len(args) > 2 else -1
    value = (pattern, java_pattern(pattern), limit)
    return Node("split", t.array(t.STRING), (implicit(args[0], t.STRING, text),), value)


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
    "lpad": fixed("lpad", t.STRING, t.STRING, t.INT, t.STRING, optional=1),
    "rpad": fixed("rpad", t.STRING, t.STRING, t.INT, t.STRING, optional=1),
    "instr": fixed("instr", t.INT, t.STRING, t.STRING),
    **all_of(fixed("locate", t.INT, t.STRING, t.STRING, t.INT, optional=1), "locate", "position"),
    "repeat": fixed("repeat", t.STRING, t.STRING, t.INT),
    "reverse": fixed("reverse", t.STRING, t.STRING),
}
