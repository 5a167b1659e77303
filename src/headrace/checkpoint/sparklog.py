"""Spark's checkpoint folder, written from a manifest: how a job continues when the folder is lost or says otherwise.

Spark needs its query id, the offsets of the last two epochs and the commit of the last. Its logs per source (which
files were read) are put back from the entries that manifests carry; nothing older than the kept manifests can be
restored that way, so entries already in the folder stay.
"""

from __future__ import annotations

from headrace.checkpoint.facts import RecoveryFacts, StoreRecord
from headrace.errors import Refused
from headrace.state import layout
from headrace.state.manifest import list_epochs, read_manifest
from headrace.state.store import Store

_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def rebuild_spark_log(store: Store, record: StoreRecord, facts: RecoveryFacts) -> None:
    """Makes Spark's folder say exactly what the newest manifest says."""
    state = facts.state
    assert state is not None
    epoch = state.epoch
    if epoch > 0 and facts.previous_offsets is None:
        raise Refused(
            f"Spark's log cannot be rebuilt at epoch {epoch}",
            where=store.url,
            expected=f"the manifest of epoch {epoch - 1} as well",
            found="it is gone",
            next_move="restore the whole store from a copy",
        )
    for folder in (layout.spark_offsets(), layout.spark_commits()):
        for path in store.list(folder):
            store.delete(path)
    store.write(layout.spark_metadata(), record.query.encode())
    if facts.previous_offsets is not None:
        store.write(layout.spark_offset(epoch - 1), facts.previous_offsets.encode())
    store.write(layout.spark_offset(epoch), state.manifest.offsets.encode())
    store.write(layout.spark_commit(epoch), _COMMIT.encode())
    _restore_inputs(store, record.timeline)


def _restore_inputs(store: Store, timeline: int) -> None:
    present = set(store.list(layout.spark_inputs()))
    for epoch in list_epochs(store, timeline):
        for path, text in read_manifest(store, timeline, epoch).inputs.items():
            if path not in present:
                store.write(path, text.encode())
