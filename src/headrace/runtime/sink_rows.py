"""What a sink with a key of its own shows, off the rows that are kept for it (`SinkRowsSpec`), as rows of its output.

Several rows of a stream may hold for one key of the sink. The operator decides which one is shown, as in an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.keys import hash_encoded
from headrace.operators.changelogs.top import ROWS_TABLE, TopOperator
from headrace.runtime.state_rows import KEYS_AT_ONCE, StateRows

if TYPE_CHECKING:
    from headrace.model.batch import Int64s, Rows, UInt64s
    from headrace.state.lookup import Layers
    from headrace.state.manifest import JobState


class SinkRows(StateRows):
    """The rows of one output with a key of its own."""

    def rows(self, state: JobState, groups: range, *, after: int = -1, since: int = -1) -> Iterator[tuple[int, Rows]]:
        layers = self._layers(state, groups, self._refs(state))
        wanted = layers if since < 0 else self._layers(state, groups, [r for r in self._refs(state) if r.epoch > since])
        found = [batch.column("key") for batch in wanted.scan(ROWS_TABLE)]
        keys = pc.unique(pa.chunked_array(found, pa.binary()))
        hashes = hash_encoded(keys)
        order = np.argsort(hashes, kind="stable")
        if after >= 0:
            order = order[hashes[order] > np.uint64(after)]
        sorted_hashes, start = hashes[order], 0
        while start < len(order):
            end = min(start + KEYS_AT_ONCE, len(order))
            # Keys of one hash stay together: where the last one was is known by its hash.
            end = int(np.searchsorted(sorted_hashes, sorted_hashes[end - 1], side="right"))
            part = keys.take(pa.array(order[start:end]))
            yield int(sorted_hashes[end - 1]), self._rows_of(state, layers, sorted_hashes[start:end], part)
            start = end

    def _results(self, state: JobState, layers: Layers, hashes: UInt64s, keys: pa.BinaryArray, places: Int64s) -> Rows:
        operator = cast("TopOperator", self._fragment.operators[0])
        # A table gives what epochs before the task's own left.
        task = self._task(state)
        operator.begin(replace(task, epoch=task.epoch + 1), self._shard(layers))
        return operator.first_rows(hashes[places], keys.take(pa.array(places)))
