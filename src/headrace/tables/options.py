"""TableOptions of ``WITH (…)`` and of SET: text that is read as the kind of value its connector wants.

A connector says which options it knows, as a table of `Option`. A name that no table has is refused, with the nearest.
Secrets stay secrets: they are looked up here, and travel as `headrace.dataflow.variables.Secret`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from headrace.dataflow.variables import secret, var
from headrace.errors import HeadraceError, ProgramError
from headrace.model.nearest import did_you_mean
from headrace.tables.statements import JoinedOption, OptionText, OptionValue, SecretOption, VariableOption

Kind = Literal["text", "int", "number", "bool", "span", "list", "json", "size"]
Side = Literal["source", "sink", "both"]


@dataclass(frozen=True)
class Option:
    """One option of a connector: the argument of its function that it fills, and the names it goes by."""

    argument: str
    names: tuple[str, ...]
    """The first is the one that is shown; those of Flink's come among the others."""
    kind: Kind = "text"
    side: Side = "both"
    convert: Callable[[Any], Any] | None = None


def opt(argument: str, *names: str, kind: Kind = "text", side: Side = "both", convert: Any = None) -> Option:
    return Option(argument, (argument.replace("_", "-").strip("-"), *names), kind, side, convert)


def plain_value(value: OptionValue) -> str:
    """The text of a value; a secret stays one."""
    if isinstance(value, SecretOption):
        return secret(value.name)
    if isinstance(value, VariableOption):
        return var(value.name, value.default)
    if isinstance(value, JoinedOption):
        return "".join(map(plain_value, value.parts))
    return value


@dataclass
class TableOptions:
    """The options of one table while they are read."""

    given: Mapping[str, OptionText]
    error: Callable[..., ProgramError]
    """Makes an error at a place of the script: ``error(what, at, expected=…, next_move=…)``."""
    used: set[str] = field(default_factory=set)

    def arguments(self, table: Sequence[Option], side: Side) -> dict[str, Any]:
        """The arguments of a connector's function."""
        found: dict[str, Any] = {}
        for option in table:
            for name in option.names:
                if name not in self.given:
                    continue
                self.used.add(name)
                if side in (option.side, "both") or option.side == "both":
                    found[option.argument] = self._read(name, option)
        return found

    def text(self, name: str) -> str | None:
        """A plain option, or None."""
        if name not in self.given:
            return None
        self.used.add(name)
        return plain_value(self.given[name].value)

    def starting(self, prefix: str) -> dict[str, str]:
        """All options whose names begin so, without that beginning."""
        names = [name for name in self.given if name.startswith(prefix)]
        self.used.update(names)
        return {name.removeprefix(prefix): plain_value(self.given[name].value) for name in names}

    def rest(self) -> dict[str, str]:
        """All that nobody has asked for."""
        names = [name for name in self.given if name not in self.used]
        self.used.update(names)
        return {name: plain_value(self.given[name].value) for name in names}

    def check_all_used(self, connector: str, known: Sequence[str]) -> None:
        """Refuses an option that nobody knows."""
        for name, text in self.given.items():
            if name in self.used:
                continue
            raise self.error(
                f"the connector {connector!r} has no option {name!r}",
                text.at,
                expected=f"options such as {', '.join(sorted(known)[:12])}",
                next_move=did_you_mean(name, known, f"leave {name!r} out"),
            )

    def _read(self, name: str, option: Option) -> Any:
        text = self.given[name]
        try:
            value = read_value(plain_value(text.value), option.kind)
            return value if option.convert is None else option.convert(value)
        except HeadraceError as error:
            raise self.error(
                f"the option {name!r} cannot be {str(text.value)!r}",
                text.at,
                expected=error.expected or _WANTED[option.kind],
                next_move=error.next_move,
            ) from error
        except (ValueError, TypeError) as error:
            raise self.error(
                f"the option {name!r} cannot be {str(text.value)!r}", text.at, expected=_WANTED[option.kind]
            ) from error


_WANTED: Final[dict[Kind, str]] = {
    "text": "text",
    "int": "a whole number, such as 1000",
    "number": "a number, such as 0.5",
    "bool": "true or false",
    "span": "a span of time, such as 5s, 10 min or 1h",
    "list": "names with commas between them",
    "json": "JSON",
    "size": "a size, such as 128MB",
}
_TRUTH: Final = {"true": True, "false": False}
_UNITS: Final = {
    "ms": "ms", "milli": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms",
    "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "m": "m", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
    "h": "h", "hour": "h", "hours": "h", "d": "d", "day": "d", "days": "d",
}  # fmt: skip


def read_value(text: str, kind: Kind) -> Any:
    """A text as a value of a kind; ValueError where it is none."""
    match kind:
        case "int":
            return int(text)
        case "number":
            return float(text)
        case "bool":
            if text.lower() not in _TRUTH:
                raise ValueError(text)
            return _TRUTH[text.lower()]
        case "span":
            return read_span(text)
        case "list":
            return [part.strip() for part in text.replace(";", ",").split(",") if part.strip()]
        case "json":
            return json.loads(text)
    return text


def read_span(text: str) -> str:
    """A span as Flink writes it, in our words: ``10 min`` → ``10m``.

    >>> read_span("5 min"), read_span("1s"), read_span("2 days")
    ('5m', '1s', '2d')
    """
    from headrace.model.time import span_us

    stripped = text.strip()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = stripped[len(number) :].strip().lower()
    short = f"{number.strip()}{_UNITS[unit]}" if number and unit in _UNITS else stripped
    span_us(short)
    return short
