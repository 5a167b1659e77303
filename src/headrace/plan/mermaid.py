"""A program as a Mermaid flowchart: its steps, what moves between them, and the automata of its patterns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.patterns.picture import END, automaton_arrows, row_pattern_arrows
from headrace.patterns.recognize import RowPatternSpec
from headrace.patterns.spec import PatternSpec
from headrace.plan.explain import Step, outline, place_words

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph

_SHAPES = {
    "read": ('[("', '")]'),
    "write": ('[/"', '"/]'),
    "keyed": ('[["', '"]]'),
    "tap": ('(["', '"])'),
    "step": ('["', '"]'),
}


def explain_mermaid(app: AppGraph) -> str:
    """The program as a Mermaid flowchart."""
    told = outline(app)
    moved = {(each.after, step): each for each in told.exchanges for step in each.steps}
    lines = ["flowchart LR"]
    for step in told.steps:
        opening, closing = _SHAPES[_shape(step)]
        lines.append(f"    n{step.id}{opening}{'<br/>'.join(map(_escaped, _box(step)))}{closing}")
    for step in told.steps:
        for before in step.inputs:
            exchange = moved.get((before, step.id))
            if exchange is not None:
                label = f"exchange {exchange.number} by {exchange.key}"
                lines.append(f'    n{before} ==>|"{_escaped(label)}"| n{step.id}')
            else:
                lines.append(f"    n{before} --> n{step.id}")
        if step.feeds is not None:
            lines.append(f'    n{step.id} -.->|"next epoch"| n{step.feeds}')
    for node in app.nodes:
        spec = getattr(node, "spec", None)
        if not any(step.id == node.id for step in told.steps):
            continue
        if isinstance(spec, PatternSpec):
            lines += _automaton_lines(f"n{node.id}", list(automaton_arrows(spec.plan.automaton)))
        elif isinstance(spec, RowPatternSpec):
            lines += _automaton_lines(f"n{node.id}", list(row_pattern_arrows(spec.plan.program)))
    return "\n".join(lines) + "\n"


def _automaton_lines(step: str, arrows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """The automaton of a pattern: a box for each row that is taken, an arrow for each way on."""
    names = {"": f"{step}_start", END: f"{step}_end"}
    for name in (name for source, target, _ in arrows for name in (source, target)):
        names.setdefault(name, f"{step}_s{len(names)}")
    yield f'    subgraph {step}_pattern["the pattern"]'
    for name, box in names.items():
        words = _escaped(name) or "start"
        yield f'        {box}(("{words}"))' if name in ("", END) else f'        {box}["{words}"]'
    for source, target, label in arrows:
        words = f'|"{_escaped(label)}"|' if label else ""
        yield f"        {names[source]} -->{words} {names[target]}"
    yield "    end"
    yield f"    {step} -.- {step}_pattern"


def _shape(step: Step) -> str:
    if step.verb in ("read", "write"):
        return step.verb
    if step.verb in ("loop", "feed"):
        return "read" if step.verb == "loop" else "write"
    if step.state or step.verb in ("process", "reduce", "latest", "aggregate", "top", "window", "join", "connect"):
        return "keyed"
    return "tap" if step.title in ("errors", "late") or step.title.startswith("side ") else "step"


def _box(step: Step) -> Iterator[str]:
    if step.name:
        yield step.name
    yield step.title
    if step.runs and step.verb in ("where", "select", "with_columns"):
        yield place_words(step)
    yield from step.notes
    yield from step.state
    if step.guarantee:
        yield step.guarantee
    if step.queryable:
        yield "queryable"


def _escaped(text: str) -> str:
    for plain, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("\n", " ")):
        text = text.replace(plain, code)
    return text
