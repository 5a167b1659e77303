"""Loops: rows that a later step feeds back come again in the next epoch.

``again = app.loop("again", Tx)`` is a stream like any other; ``out.feed(again)`` closes the loop. Its name is its
identity in the store, where the rows between two epochs are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.dataflow import checks, site
from headrace.dataflow.graph import FeedNode, LoopNode
from headrace.dataflow.site import Site
from headrace.dataflow.update_kinds import refuse_updates
from headrace.errors import ProgramError
from headrace.model.values import type_name

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph, OnGraph


def feed(stream: OnGraph, loop: Any, at: Site) -> None:
    """Closes a loop: what ``stream.feed`` does."""
    node = getattr(loop, "node", None)
    if not isinstance(node, LoopNode):
        raise ProgramError(
            "feed takes a loop",
            where=str(at),
            expected='what app.loop("again", Tx) gave',
            found=repr(loop),
            next_move='make the loop first: again = app.loop("again", Tx), read it like a stream, and feed it last',
        )
    checks.check_same_app(loop, [stream], at)
    if stream.node.codec is not node.codec:
        raise ProgramError(
            f"the loop {node.name!r} takes rows of another type",
            where=str(at),
            expected=type_name(node.codec.type),
            found=type_name(stream.node.codec.type),
            next_move="bring them to that type with map or select first",
        )
    refuse_updates(stream.node, "feed", at, does="bring back")
    _replace_feed(loop.app, node, at)
    fed = stream.app._add(FeedNode, at, node.codec, inputs=(stream.node,), loop=node)
    assert isinstance(fed, FeedNode)
    node.fed_by = fed


def _replace_feed(app: AppGraph, loop: LoopNode, at: Site) -> None:
    """A loop is fed once; in a notebook a later cell feeds it anew."""
    old = loop.fed_by
    if old is None or old not in app.nodes:
        return
    cell = site.current_cell()
    if cell is None or old.cell == cell:
        raise ProgramError(
            f"the loop {loop.name!r} is fed twice",
            where=str(at),
            expected="one stream that feeds it",
            found=f"another one at {old.site}",
            next_move="feed their union: one.union(other).feed(loop)",
        )
    app._forget(old)
