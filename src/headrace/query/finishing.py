"""From accumulators to results, as the manifest says it (`DeclaredState.results`): without the program.

====================  =======================================  =====================================================
result                accumulator as stored                    finished
====================  =======================================  =====================================================
``count``             a number                                 the number, 0 where there is none
``sum``, zero         a number, a Decimal as text              it, or the zero given
``avg``               [sum, rows]                              their quotient
``min``, ``max``      a value                                  it
``min``, ``by``       [what rows are compared by, value]       the value; ``max``, ``by`` likewise
``first``, ``last``   [time, value]                            the value
``count_distinct``    a list of values                         how many
``collect``           a list of values                         it
``top``               a list of [compared by, value]           the values
``quantile``, q       bucket → how many                        the number at that rank
``row``               a whole row                              it, in place of all results
anything else         of the user's own                        as it is stored
====================  =======================================  =====================================================

Where nothing was added there is no accumulator: results are then what `headrace.operators.aggregates` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.model.keys import decode_key
from headrace.model.sketches import quantile_of

Accumulators = dict[str, Any]
"""Name of an aggregate → what is stored of it; names with a mark in front are notes of the operator."""

ROW: Final = "row"
KEY: Final = "key"

_SECOND: Final = frozenset({"first", "last"})


class Finisher:
    """Makes the row of results that a step gives out, from the key and what is stored under it."""

    def __init__(self, results: Mapping[str, Sequence[Any]], key: Sequence[str]) -> None:
        """``key``: names of the columns that hold the key; empty where the whole stream is one."""
        self.names_of_key = tuple(key)
        self._row = next((name for name, (kind, *_) in results.items() if kind == ROW), None)
        self._finish = [(name, _finish_of(*told)) for name, told in results.items()]
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

    def key_columns(self, key: bytes, key_type: Any = None) -> dict[str, Any]:
        """The columns of a result that hold its key."""
        if not self.names_of_key:
            return {}
        value = decode_key(key, key_type)
        if len(self.names_of_key) == 1:
            return {self.names_of_key[0]: value}
        return dict(zip(self.names_of_key, value))


def _finish_of(kind: str, *more: Any) -> Callable[[Any], Any]:
    if kind == "count":
        return lambda acc: acc or 0
    if kind == "sum":
        zero = more[0] if more else 0
        return lambda acc: zero if acc is None else acc
    if kind == "avg":
        return lambda acc: None if acc is None else acc[0] / acc[1]
    if kind in _SECOND or more[:1] == ("by",):
        return lambda acc: None if acc is None else acc[1]
    if kind == "count_distinct":
        return lambda acc: len(acc or ())
    if kind == "collect":
        return lambda acc: acc or []
    if kind == "top":
        return lambda acc: [value for _, value in acc or ()]
    if kind == "quantile":
        q = float(more[0]) if more else 0.5
        return lambda acc: None if acc is None else quantile_of(acc, q)
    return lambda acc: acc
