"""Taking back: what a folder shows of a timeline behind the epoch where the timeline ends.

Files behind it go, the newest first, so that a reader who looks meanwhile sees what an earlier epoch showed. A file
that was put together of epochs on both sides is replaced by one of the same name, in one step, without the rows behind.
What waits to be put together goes as well, and is taken out of rolls that are noted.

Everything is found by names and `FileSpans`, so all of it may be repeated, by another process, after a death anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from headrace.connectors.files.folder import Folder
from headrace.connectors.files.gathering import FileSpans, Gathering
from headrace.connectors.files.roll_plan import Roll
from headrace.errors import SinkFailed
from headrace.model.crash import reach
from headrace.model.part_names import (
    HIDDEN,
    VisibleName,
    hidden_folder,
    parse_plan,
    parse_visible,
    parse_waiting,
    spans_name,
)


def cut_behind(folder: Folder, output: str, form: Gathering, timeline: int, epoch: int) -> None:
    """Takes back what an output shows of a timeline behind an epoch; −1: all of it."""
    below_hidden = [listed.name for listed in folder.list(hidden_folder(output), below=True)]
    rolls = _cut_rolls(folder, below_hidden, timeline, epoch)
    reach("forgetting", epoch)
    buckets = set()
    for path, told in sorted(_visible(folder, output, timeline), key=_order, reverse=True):
        if told.last <= epoch:
            continue
        buckets.add(path.rpartition("/")[0])
        if told.first > epoch:
            _remove(folder, output, path)
        else:
            _cut(folder, output, form, path, epoch)
        reach("forgetting", epoch)
    folder.remove(path for path in below_hidden if _waits_behind(path, timeline, epoch))
    reach("forgetting", epoch)
    # Last: until then the next start knows which of the parts are in files already.
    folder.remove(rolls)
    for bucket in filter(None, buckets):
        folder.drop_empty(bucket)
    folder.drop_empty(hidden_folder(output))
    folder.settle()


def check_cut(folder: Folder, output: str, form: Gathering, timeline: int, epoch: int) -> None:
    """Raises SinkFailed where rows of several epochs lie in one file, and nobody knows which are whose."""
    if not form.needs_spans:
        return
    for path, told in _visible(folder, output, timeline):
        if told.first <= epoch < told.last and _read_spans(folder, output, path) is None:
            raise SinkFailed(
                f"{path} cannot be cut between its epochs",
                where=f"sink.files({folder.where!r})",
                expected=f"{spans_name(output, path)}, which says where the rows of each epoch end",
                found="no such file: an earlier version of Headrace put the rows together, or it was deleted",
                next_move=f"go back to before epoch {told.first} or to epoch {told.last}, or hold the output: "
                f"--hold {output}",
            )


def _visible(folder: Folder, output: str, timeline: int) -> Iterator[tuple[str, VisibleName]]:
    for path, *_ in folder.list("", below=True):
        told = parse_visible(path.rpartition("/")[2])
        if told is not None and (told.output, told.timeline) == (output, timeline) and not _is_hidden(path):
            yield path, told


def _order(visible: tuple[str, VisibleName]) -> tuple[int, int, str]:
    path, told = visible
    return told.last, told.place, path


def _is_hidden(path: str) -> bool:
    return path.startswith(f"{HIDDEN}/")


def _waits_behind(path: str, timeline: int, epoch: int) -> bool:
    told = parse_waiting(path.rpartition("/")[2])
    return told is not None and told.timeline == timeline and told.epoch > epoch


def _cut_rolls(folder: Folder, paths: Iterable[str], timeline: int, epoch: int) -> list[str]:
    """Takes parts behind the end out of rolls that are noted; gives back the notes of which nothing is left."""
    empty = []
    for path in paths:
        told = parse_plan(path.rpartition("/")[2])
        if told is None or told.timeline != timeline:
            continue
        roll = msgspec.json.decode(memoryview(folder.read(path)), type=Roll)
        left = roll.until(epoch)
        if left is None:
            empty.append(path)
        elif left != roll:
            folder.replace(path, msgspec.json.encode(left))
    return empty


def _cut(folder: Folder, output: str, form: Gathering, path: str, epoch: int) -> None:
    spans = _read_spans(folder, output, path)
    with folder.making() as made:
        left = form.cut(path.rpartition(".")[2], folder.read(path), epoch, spans, made)
        if left:
            folder.swap(made, path)
            reach("forgetting", epoch)
    if left is False:
        _remove(folder, output, path)
    elif left and spans is not None:
        folder.replace(spans_name(output, path), msgspec.json.encode(spans.until(epoch)))


def _remove(folder: Folder, output: str, path: str) -> None:
    folder.remove([path, spans_name(output, path)])


def _read_spans(folder: Folder, output: str, path: str) -> FileSpans | None:
    try:
        return msgspec.json.decode(memoryview(folder.read(spans_name(output, path))), type=FileSpans)
    except FileNotFoundError:
        return None
