"""Results of a key, off what is stored under it, as the manifest says (`DeclaredState.results`): without the program.

How an accumulator becomes a result says `headrace.aggregates.results.finish_of`; kind ``row`` is a whole row, which
stands in place of all results. Where nothing was added there is no accumulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from headrace.aggregates.results import finish_of
from headrace.model.keys import decode_key

Accumulators = dict[str, Any]
"""Name of an aggregate → what is stored of it; names with a mark in front are notes of the operator."""

ROW: Final = "row"
KEY: Final = "key"


class Finisher:
    """Makes the row of results that a step gives out, from the key and what is stored under it."""

    def __init__(self, results: Mapping[str, Sequence[Any]], key: Sequence[str]) -> None:
        """``key``: names of the columns that hold the key; empty where the whole stream is one."""
        self.names_of_key = tuple(key)
        self._row = next((name for name, (kind, *_) in results.items() if kind == ROW), None)
        self._finish = [(name, finish_of(*told)) for name, told in results.items()]
        self.own = tuple(name for name, told in results.items() if told[0] == "own")
        """Results that only the program can finish."""
        self.tells = bool(results)
        """Whether anything is known of results."""

    def finish(self, key: bytes, accs: Accumulators, key_type: Any = None) -> dict[str, Any]:
        """The key's columns, then the results."""
        if self._row is not None:
            row = accs.get(self._row)
            return row if isinstance(row, dict) else {self._row.lstrip("!"): row}
        made = self.key_columns(key, key_type)
        for name, finish in self._finish:
            made[name] = finish(accs.get(name))
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a row of results, as far as they are known beforehand."""
        return self.names_of_key if self._row is not None else (*self.names_of_key, *(name for name, _ in self._finish))

    def key_columns(self, key: bytes, key_type: Any = None) -> dict[str, Any]:
        """The columns of a result that hold its key."""
        return key_columns(self.names_of_key, key, key_type) if self.names_of_key else {}


def key_columns(names: Sequence[str], key: bytes, key_type: Any) -> dict[str, Any]:
    """A key by the names of its columns."""
    value = column_key(key, key_type)
    return {names[0]: value} if len(names) == 1 else dict(zip(names, value))


def column_key(key: bytes, key_type: Any) -> Any:
    """A key as columns of results hold it: a member of an enumeration as its value."""
    value = decode_key(key, key_type)
    if isinstance(value, tuple):
        return tuple(part.value if isinstance(part, Enum) else part for part in value)
    return value.value if isinstance(value, Enum) else value
