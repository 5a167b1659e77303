"""A program as a picture for notebooks: its steps as boxes, left to right, in one piece of HTML with inline SVG.

It needs nothing but a browser: no script, no style sheet, no package. Everything that a user named is escaped. The
picture shows the graph as it was said; what runs where is told by ``app.explain()``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from headrace.dataflow.graph import LoopNode, Node, WriteNode, carrying_nodes
from headrace.model.values import type_name

_WIDTH, _HEIGHT = 168, 44
_GAP_X, _GAP_Y = 44, 16
_MARGIN: Final = 8
_LONGEST: Final = 24
_FILL: Final = {"read": "#e3f0fb", "write": "#e7f6e7"}
_STATE, _PLAIN = "#fdf1da", "#f5f5f5"


def draw_graph(title: str, nodes: Iterable[Node], *, mark: Node | None = None) -> str:
    """The picture of some nodes, in the order they were said. ``mark``: drawn with a strong border."""
    hidden = carrying_nodes(nodes := list(nodes))
    shown = [node for node in nodes if node not in hidden]
    if not shown:
        return f"<div><b>{escape(title)}</b>: no steps yet</div>"
    places = _place(shown)
    right = max(x for x, _ in places.values()) + _WIDTH + _MARGIN
    bottom = max(y for _, y in places.values()) + _HEIGHT + _MARGIN
    lines = [_line(places[before], places[node]) for node in shown for before in node.inputs if before in places]
    lines += [
        _line(places[node.fed_by], places[node], dashed=True)
        for node in shown
        if isinstance(node, LoopNode) and node.fed_by in places
    ]
    boxes = [_box(node, places[node], marked=node is mark) for node in shown]
    return (
        f'<div><b>{escape(title)}</b><br/><svg xmlns="http://www.w3.org/2000/svg" width="{right}" height="{bottom}" '
        f'viewBox="0 0 {right} {bottom}" font-family="sans-serif" font-size="12">{"".join(lines)}{"".join(boxes)}'
        "</svg></div>"
    )


def _place(nodes: Sequence[Node]) -> dict[Node, tuple[int, int]]:
    """Each node one column right of the last of its inputs, below those that are there already."""
    column: dict[Node, int] = {}
    used: dict[int, int] = {}
    places = {}
    for node in nodes:
        column[node] = at = max((column[before] + 1 for before in node.inputs if before in column), default=0)
        row = used.get(at, 0)
        used[at] = row + 1
        places[node] = (_MARGIN + at * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y))
    return places


def _line(start: tuple[int, int], end: tuple[int, int], *, dashed: bool = False) -> str:
    x1, y1, x2, y2 = start[0] + _WIDTH, start[1] + _HEIGHT // 2, end[0], end[1] + _HEIGHT // 2
    bend = max(_GAP_X, abs(x2 - x1)) // 2
    dash = ' stroke-dasharray="4"' if dashed else ""
    return f'<path d="M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}" fill="none" stroke="#888"{dash}/>'


def _box(node: Node, place: tuple[int, int], *, marked: bool) -> str:
    x, y = place
    fill = _FILL.get(node.verb, _STATE if node.stateful else _PLAIN)
    kind = node.sink.describe() if isinstance(node, WriteNode) else type_name(node.codec.type)
    upper = node.name or node.verb
    lower = f"{node.verb} · {kind}" if node.name else kind
    whole = escape(f"{node.label}: {kind}\n{node.site}")
    border = 'stroke="#333" stroke-width="2.5"' if marked else 'stroke="#999"'
    return (
        f'<g><title>{whole}</title><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{fill}" '
        f'{border}/><text x="{x + 10}" y="{y + 19}" font-weight="bold" fill="#222">{_short(upper)}</text>'
        f'<text x="{x + 10}" y="{y + 35}" fill="#555">{_short(lower)}</text></g>'
    )


def _short(text: str) -> str:
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
