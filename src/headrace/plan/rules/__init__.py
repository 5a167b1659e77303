"""Every decision about what runs where, as a list of rules.

A rule rewrites a Program: it takes the program and the nodes of its graph, and returns a program that gives the same
results. Whoever runs or shows a program reads what the rules wrote into it and decides nothing again.

The order matters: a worker decodes a source only where it can evaluate the expressions that have become its prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.plan.rules.columns import read_needed_columns
from headrace.plan.rules.combining import combine_before_exchange
from headrace.plan.rules.decoding import decode_in_workers
from headrace.plan.rules.expressions import evaluate_where_decoded

if TYPE_CHECKING:
    from headrace.dataflow.graph import Node
    from headrace.plan.physical import Program

    Nodes = Mapping[int, Node]
    Rule = Callable[[Program, Nodes], Program]

RULES: Final[tuple[Rule, ...]] = (
    combine_before_exchange,
    evaluate_where_decoded,
    read_needed_columns,
    decode_in_workers,
)
