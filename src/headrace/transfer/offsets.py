"""Where the sources of a job begin that starts behind a made epoch: an entry of Spark's log, with what is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import ProgramError
from headrace.model.nearest import did_you_mean
from headrace.model.order import BY_NAME
from headrace.state.spark_offsets import log_offset

if TYPE_CHECKING:
    from headrace.plan.physical import Program


def first_offsets(program: Program, given: Mapping[str, Any], clock_us: int) -> str:
    """The entry of the first epoch. A source that it does not mention begins where the program says."""
    header = {"batchWatermarkMs": 0, "batchTimestampMs": clock_us // 1000, "conf": {BY_NAME: "true"}}
    lines = ["v2", json.dumps(header)]
    known = {source.name: source.log_name for source in program.sources}
    for name, offset in given.items():
        if name not in known:
            raise ProgramError(
                "the program has no such source", where="offsets", expected=" or ".join(known) or "a source",
                found=name, next_move=did_you_mean(name, known, "`headrace explain` lists the sources"),
            )  # fmt: skip
        text = offset if isinstance(offset, str) else json.dumps(offset)
        _check(name, text)
        lines.append(f"{known[name]}:{text}")
    return "\n".join(lines)


def _check(name: str, text: str) -> None:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "\n" in text:
        raise ProgramError(
            f"this is no offset of the source {name!r}",
            where="offsets",
            expected='a JSON object in the words of the source, as {"topic": {"0": 12}} of Kafka',
            found=text[:200],
            next_move="leave it out to begin where the program says",
        )
    if log_offset(text) is not None:
        raise ProgramError(
            f"the source {name!r} goes by the list of files that it has read, which an offset does not hold",
            where="offsets",
            expected="a source that counts, as Kafka's partitions, rows or entries of a stream",
            found=text[:200],
            next_move="move the files that are in the history out of the folder, or choose others with a pattern",
        )
