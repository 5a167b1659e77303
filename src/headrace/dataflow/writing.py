"""What ``stream.write`` settles: the name of an output, and whether its sink can take such rows.

The name of an output is its identity in the store: rows staged under a name are released under it, also after a
restart. A name that nobody gave is made of the step and the sink's own name (its folder, its table), never of the place
among other writes, so that one more output renames none. Two that would then have one name are refused. Sinks without a
name of their own (console, collect) keep nothing that a restart could mix up, and are numbered.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from headrace.connectors.sink_contract import Sink
from headrace.dataflow.graph import Node, TapNode, WriteNode
from headrace.dataflow.naming import slug
from headrace.dataflow.site import Site
from headrace.dataflow.update_kinds import check_written, updating_step
from headrace.errors import ProgramError

_MAX_LENGTH: Final = 80
"""Of a name that is made here; what is longer is cut, and told apart by a checksum."""


def output_stem(node: Node, sink: Sink, given: str | None) -> str:
    """What outputs that replace each other in a notebook have in common."""
    return given or _fitting(f"{_nearest_name(node)}_{slug(sink.kind)}")


def output_name(node: Node, sink: Sink, given: str | None, outputs: Iterable[WriteNode], at: Site) -> str:
    """The name of a new output beside those there are. Raises ProgramError where another one has it."""
    taken = {each.name: each for each in outputs}
    own = slug(sink.own_name())
    if sink.own_name() and not own:
        # Nothing of it can stand in a name, and still it must tell one from the other.
        own = _checksum(sink.own_name())
    name = given or _fitting("_".join(filter(None, (output_stem(node, sink, None), own))))
    if name not in taken:
        return name
    if given is None and not own:
        return next(each for each in _numbered(name) if each not in taken)
    named, move = "are named", "give one of them another name"
    if given is None:
        named, move = "would be named", 'give one of them a name: write(…, name="…")'
    raise ProgramError(
        f"two outputs {named} {name!r}",
        where=str(at),
        expected="a name of its own for each output",
        found=f"{name!r} at {taken[name].site} too",
        next_move=move,
    )


def check_updates(node: Node, sink: Sink, at: Site) -> None:
    """A sink that only appends cannot take rows that replace earlier ones; one that knows no deletes none that go."""
    if node.kind.rows == "changelog" and sink.accepts_updates and not sink.accepts_changelog:
        raise ProgramError(
            f"{sink.kind} cannot take back rows, and these may go",
            where=str(at),
            expected="rows that stay or are replaced, or a sink that takes rows back: console, collect, postgres, "
            "delta and kafka with key=, redis, call with kinds=True",
            found=f"rows of {updating_step(node).label}, which withdraws rows, too",
            next_move=f'write all that comes and goes: .changes(kind="op").write(hr.sink.{sink.kind}(…))',
        )
    check_written(node, sink, at)
    if node.kind.corrects and not sink.accepts_updates:
        raise ProgramError(
            f"{sink.kind} can only append rows, and these are updates",
            where=str(at),
            expected="rows that each stand for themselves, or a sink that takes updates: console, collect, call, "
            "redis, or kafka and postgres with key=",
            found=f"{updating_step(node).label}, which gives the row of a key anew whenever it changes",
            next_move=f"write every version as a row of its own: .changes().write(hr.sink.{sink.kind}(…))",
        )


def _nearest_name(node: Node) -> str:
    """The name of the step that rows come from, with the way they left it: ``fraud``, ``fraud_late``."""
    name = node.name or node.default_name
    if name is not None or not node.inputs:
        return name or "rows"
    before = _nearest_name(node.inputs[0])
    return f"{before}_{node.verb}" if isinstance(node, TapNode) else before


def _fitting(name: str) -> str:
    return name if len(name) <= _MAX_LENGTH else f"{name[: _MAX_LENGTH - 9]}_{_checksum(name)}"


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode(errors='replace')):08x}"


def _numbered(stem: str) -> Iterator[str]:
    n = 2
    while True:
        yield f"{stem}_{n}"
        n += 1
