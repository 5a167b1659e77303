"""A pattern in words, and its automaton as a picture: for ``explain``, errors and docs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.model.time import format_span
from headrace.patterns.automaton import COMPLETE, START

if TYPE_CHECKING:
    from headrace.patterns.automaton import Automaton, Edge
    from headrace.patterns.declare import EventPattern, Stage
    from headrace.patterns.row_pattern import RowProgram

END: Final = "the end"
"""Where a match is complete."""
_LINKS: Final = {"next": "next", "then": "then", "then_any": "then any"}


def pattern_text(pattern: EventPattern) -> str:
    """A pattern in one line, without its conditions."""
    words = []
    for position, stage in enumerate(pattern.stages):
        link = f"not {_LINKS[stage.link]} " if stage.absent else f"{_LINKS[stage.link]} " if position else ""
        words.append(f"{link}{_stage_text(stage)}")
    if pattern.within_us is not None:
        words.append(f"within {format_span(pattern.within_us)}")
    if pattern.step_within_us is not None:
        words.append(f"each step within {format_span(pattern.step_within_us)}")
    if pattern.skip != "none":
        words.append(f"after a match {pattern.skip.replace('_', ' ')} {pattern.skip_stage}".rstrip())
    return ", ".join(words)


def _stage_text(stage: Stage) -> str:
    name = f"({pattern_text(stage.group)})" if stage.group is not None else stage.name
    count = ""
    if stage.is_loop:
        high = "" if stage.high is None else str(stage.high)
        count = {"1,": "+"}.get(f"{stage.low},{high}", f"{{{stage.low},{high}}}")
        count = f"{{{stage.low}}}" if high == str(stage.low) else count
    marks = [
        "?" if stage.skippable else "",
        " greedy" if stage.is_greedy else "",
        {"next": " consecutive", "then_any": " in all combinations"}.get(stage.inner, ""),
        " until its end" if stage.ends_on is not None else "",
        f" within {format_span(stage.gap_us)}" if stage.gap_us is not None else "",
        f" at steps of {format_span(stage.inner_gap_us)}" if stage.inner_gap_us is not None else "",
    ]
    return f"{name}{count}{''.join(marks)}"


def automaton_lines(automaton: Automaton) -> list[str]:
    """The automaton in words: behind which row which rows may come."""
    lines = []
    for number, place in enumerate(automaton.places):
        if ">" in place.name:
            continue
        ways = []
        for edge in place.edges:
            target = END if edge.target == COMPLETE else automaton.elements[edge.target].name
            label = _label(edge, start=number == START)
            ways.append(f"{target} ({label})" if label else target)
        lines.append(f"{place.name or 'start'} → {', '.join(ways)}")
    ends = ", ".join(automaton.elements[each].name for each in sorted(automaton.final))
    return [*lines, f"a match is complete behind {ends}"] if ends else lines


def automaton_arrows(automaton: Automaton) -> Iterator[tuple[str, str, str]]:
    """From which row to which, by their elements, and what may lie between; "" is the start."""
    for number, place in enumerate(automaton.places):
        if ">" in place.name:
            continue
        for edge in place.edges:
            target = END if edge.target == COMPLETE else automaton.elements[edge.target].name
            yield place.name, target, _label(edge, start=number == START)
    for each in sorted(automaton.final):
        yield automaton.elements[each].name, END, ""


def row_pattern_arrows(program: RowProgram) -> Iterator[tuple[str, str, str]]:
    """As `automaton_arrows`, of a row pattern, preferred ways first. A variable that stands there again is numbered."""
    names = {program.end: END}
    for at, instruction in enumerate(program.instructions):
        if instruction.variable >= 0:
            name = program.variables[instruction.variable]
            again = sum(each.split(" ")[0] == name for each in names.values())
            names[at] = f"{name} {again + 1}" if again else name
    for source, behind in [("", 0), *((name, at + 1) for at, name in names.items() if at != program.end)]:
        for target in program.reached[behind] if behind < program.end else (program.end,):
            yield source, names[target], ""


def mermaid(automaton: Automaton) -> str:
    """The automaton as a state diagram: an arrow is a row that is taken, its label what may lie before it."""
    lines = ["stateDiagram-v2", "    direction LR"]
    for source, target, label in automaton_arrows(automaton):
        ends = ["[*]" if name in ("", END) else name.replace("#", "_") for name in (source, target)]
        lines.append(f"    {' --> '.join(ends)}{f': {label}' if label else ''}")
    return "\n".join(lines)


def _label(edge: Edge, *, start: bool) -> str:
    words = [] if start else [_LINKS[edge.link]]
    if edge.target == COMPLETE:
        words = ["when time is over" if edge.link == "then_any" else "next"]
    words += ["unless refused"] if edge.refusals else []
    words += ["unless stopped"] if edge.stops else []
    words += [f"within {format_span(edge.gap_us)}"] if edge.gap_us is not None else []
    return ", ".join(words)
