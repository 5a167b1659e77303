"""``hr.var`` and ``hr.secret``: values that differ from place to place, read while the program is built.

A variable is plain text by the time the program uses it, so it must be known before the program's file is imported:
``headrace run`` and `using` put arguments and the profile in place first. A run that is later started with other
values for a variable that was already read is refused, because the program was built with the old one.

A secret is never stored: it hides in ``repr``, and pickled on its own it is only its name. A secret that is not set
does not stop the program from being built, explained or tested; it stops it from being started.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from headrace.dataflow.settings import VAR_PREFIX, file_layers
from headrace.errors import SettingsError

_given: ContextVar[tuple[Mapping[str, str], str | None]] = ContextVar("_given", default=({}, None))
_used: dict[str, str] = {}
SECRETS_DIR: Final = "HEADRACE_SECRETS_DIR"


def var(name: str, default: str | None = None) -> str:
    """A value from outside: ``--var``, ``HEADRACE_VAR_<NAME>``, the table ``vars`` of headrace.toml, or the default.

    >>> var("brokers", "localhost:9092")
    'localhost:9092'
    """
    vars_given, profile = _given.get()
    found = _look_up(name, vars_given, profile)
    if found is None:
        found = default
    if found is None:
        raise SettingsError(
            f"the variable {name!r} is not set",
            expected=f"--var {name}=…, {VAR_PREFIX}{name.upper()}=…, or {name} in the table [vars] of headrace.toml",
            found="nothing",
            next_move=f'set it, or give a default: hr.var("{name}", "…")',
        )
    _used[name] = found
    return found


def _look_up(name: str, given: Mapping[str, str], profile: str | None) -> str | None:
    if name in given:
        return given[name]
    from_environment = os.environ.get(VAR_PREFIX + name.upper())
    if from_environment is not None:
        return from_environment
    for layer in reversed(file_layers(profile, os.environ)):
        table = layer.values.get("vars", {})
        if name in table:
            return str(table[name])
    return None


@contextmanager
def using(variables: Mapping[str, str] | None = None, profile: str | None = None) -> Iterator[None]:
    """Put variables and a profile in place while a program is imported."""
    token = _given.set((dict(variables or {}), profile))
    try:
        yield
    finally:
        _given.reset(token)


def check_variables(variables: Mapping[str, str]) -> None:
    """Refuse to run with values that differ from those the program was built with."""
    for name, value in variables.items():
        if _used.get(name, value) != value:
            raise SettingsError(
                f"the variable {name!r} was read before its value was given",
                expected=f"{value!r}, as this run says",
                found=f"{_used[name]!r}, when the program was built",
                next_move=f"give it before the program is built: headrace run --var {name}={value}, or "
                f"{VAR_PREFIX}{name.upper()}={value}",
            )


class Secret(str):
    """Text that is not to be seen or stored."""

    name: str
    missing: bool

    def __new__(cls, name: str, value: str | None) -> Secret:
        made = super().__new__(cls, f"<secret {name} is not set>" if value is None else value)
        made.name = name
        made.missing = value is None
        return made

    def __repr__(self) -> str:
        return f"<secret {self.name}>"

    def __str__(self) -> str:
        # Stays what it is where somebody makes sure that an option is text.
        return self

    def __reduce__(self) -> Any:
        return secret, (self.name,)

    def reveal(self) -> str:
        """The value as plain text; a SettingsError when it is not set."""
        if self.missing:
            raise missing_secret(self.name)
        return str.__str__(self)


def secret(name: str) -> str:
    """A password, token or DSN, from the environment variable of this name, or a file of this name in a folder.

    The folder is the one that ``HEADRACE_SECRETS_DIR`` names, as container platforms mount them. The value is never
    part of a store, and its repr hides it.

    >>> secret("PG_DSN")
    <secret PG_DSN>
    """
    value = os.environ.get(name)
    folder = os.environ.get(SECRETS_DIR)
    if value is None and folder:
        file = Path(folder) / name
        value = file.read_text(encoding="utf-8").strip() if file.is_file() else None
    return Secret(name, value)


def missing_secret(name: str) -> SettingsError:
    return SettingsError(
        f"the secret {name!r} is not set",
        expected=f"the environment variable {name}, or a file {name} in the folder that {SECRETS_DIR} names",
        found="nothing",
        next_move=f"export {name}=… before the start",
    )


def find_missing(holder: Any, depth: int = 4) -> list[str]:
    """Names of secrets without a value inside a source's or sink's description."""
    if isinstance(holder, Secret):
        return [holder.name] if holder.missing else []
    if depth == 0 or isinstance(holder, str | bytes | type):
        return []
    if isinstance(holder, Mapping):
        parts: Any = holder.values()
    elif isinstance(holder, list | tuple | set):
        parts = holder
    else:
        parts = getattr(holder, "__dict__", {}).values()
    return [name for part in parts for name in find_missing(part, depth - 1)]
