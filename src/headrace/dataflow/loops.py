"""Loops: rows that a later step feeds back come again in the next epoch.

``again = app.loop("again", Tx)`` is a stream like any other; ``out.feed(again)`` closes the loop. Its name is its
identity in the store, where the rows between two epochs are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from headrace.dataflow import checks, site
from headrace.dataflow.graph import FeedNode, LoopNode
from headrace.dataflow.site import Site
from headrace.dataflow.stream import Stream
from headrace.errors import ProgramError
from headrace.model.values import type_name

if TYPE_CHECKING:
    from headrace.dataflow.app import App

T = TypeVar("T")


class Loop(Stream[T]):
    """Rows that come back; made by ``app.loop``, and closed by ``stream.feed``.

    >>> import headrace as hr
    >>> class Job(hr.Record):
    ...     name: str
    ...     left: int
    >>> app = hr.App("jobs")
    >>> jobs = app.read("jobs", hr.source.items([]), Job)
    >>> again = app.loop("again", Job)
    >>> tried = jobs.union(again).map(lambda job: job.replace(left=job.left - 1), output=Job)
    >>> tried.where("left > 0").feed(again)
    >>> done = tried.where("left <= 0")
    >>> with hr.testing.Harness(app) as h:
    ...     h.push(jobs, Job("short", 1), Job("long", 3))
    ...     h.epoch()
    ...     first = h.take(done)
    ...     h.drain()
    ...     first, h.take(done)
    ([Job(name='short', left=0)], [Job(name='long', left=0)])
    """


def feed(stream: Stream[Any], loop: Any, at: Site) -> None:
    """Closes a loop: what ``stream.feed`` does."""
    if not isinstance(loop, Loop):
        raise ProgramError(
            "rows can be fed into loops only",
            where=str(at),
            expected='what app.loop("again", Tx) gave',
            found=repr(loop),
            next_move="make the loop first, read it like a stream, and feed it at the end",
        )
    checks.check_same_app(loop, [stream], at)
    node = loop.node
    assert isinstance(node, LoopNode)
    if stream.node.codec is not node.codec:
        raise ProgramError(
            f"the loop {node.name!r} takes rows of another type",
            where=str(at),
            expected=type_name(node.codec.type),
            found=type_name(stream.node.codec.type),
            next_move="bring them to that type with map or select first",
        )
    _replace_feed(loop.app, node, at)
    fed = stream._add(FeedNode, at, node.codec, loop=node)
    assert isinstance(fed, FeedNode)
    node.fed_by = fed


def _replace_feed(app: App, loop: LoopNode, at: Site) -> None:
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
