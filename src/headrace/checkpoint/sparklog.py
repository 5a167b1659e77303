"""Spark's checkpoint folder, made from a manifest.

Every run of the query gets a folder of its own, made from the newest manifest: its query id, the offsets of the last
two epochs, the commit of the last, and our durable copies of Spark's logs per source. So nothing depends on what Spark
left behind, flushed or not, and an older driver that wakes up writes into a folder that nobody reads.

Spark writes into its folder by path. In a local store it lies among the other files; a remote store has a folder on
the driver's machine for it, which is worth nothing after the run: Spark needs no way to write where the store is.

What Spark had planned beyond the manifest is dropped: it never happened, and planning it anew is always safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.state import layout
from headrace.state.checked import decode_checked
from headrace.state.manifest import Manifest
from headrace.state.record import StoreRecord
from headrace.state.spark_offsets import entry_number, log_offset, source_offsets
from headrace.state.store import StoreFiles

_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'


def write_spark_log(
    store: StoreFiles,
    run: str,
    record: StoreRecord,
    manifest: Manifest | None,
    previous: str | None,
    sources: Iterable[str],
    planned: str | None = None,
) -> None:
    """Makes Spark's folder for a new run say exactly what the newest manifest says.

    ``planned``: offsets up to which the next epoch reads. Spark runs an entry without a commit as it is.
    """
    folder = store.scratch()
    folder.write(layout.spark_metadata(run), record.query.encode())
    if manifest is not None:
        epoch = manifest.epoch
        if previous is not None:
            folder.write(layout.spark_offset(run, epoch - 1), previous.encode())
        offsets = with_returning(manifest.offsets, manifest.retired, sources)
        folder.write(layout.spark_offset(run, epoch), offsets.encode())
        folder.write(layout.spark_commit(run, epoch), _COMMIT)
        if planned is not None:
            folder.write(layout.spark_offset(run, epoch + 1), planned.encode())
    for path in store.list(layout.INPUTS):
        name = path.removeprefix(f"{layout.INPUTS}/")
        folder.write(f"{layout.spark_inputs(run)}/{name}", store.read(path))


def drop_spark_logs(store: StoreFiles, keep: str) -> None:
    """Deletes the folders of earlier runs."""
    folder = store.scratch()
    for path in folder.list(layout.SPARK):
        if layout.spark_run_of(path) != keep:
            folder.delete(path)


def derive_retired(manifest: Manifest, sources: Iterable[str]) -> dict[str, str]:
    """Last offsets of sources that are not in the program (any more), in case they come back."""
    known = {**manifest.retired, **source_offsets(manifest.offsets)}
    present = set(sources)
    return {name: offset for name, offset in known.items() if name not in present}


def with_returning(offsets: str, retired: Mapping[str, str], sources: Iterable[str]) -> str:
    """An entry of the log in which a source that comes back goes on where it once ended."""
    known = source_offsets(offsets)
    lines = [f"{name}:{retired[name]}" for name in sources if name in retired and name not in known]
    return "\n".join([offsets, *lines])


def oldest_offsets(store: StoreFiles) -> list[str]:
    """The offsets of the oldest epoch of each timeline: none that is kept has read less."""
    oldest: dict[int, int] = {}
    for path in store.list(layout.MANIFESTS):
        if (name := layout.parse_manifest(path)) is not None:
            oldest[name.timeline] = min(name.epoch, oldest.get(name.timeline, name.epoch))
    return [_read_offsets(store, layout.manifest(*name)) for name in oldest.items()]


class _Offsets(msgspec.Struct):
    """Of a manifest only its offsets; a record that seals a timeline has none."""

    offsets: str = ""


def _read_offsets(store: StoreFiles, path: str) -> str:
    return decode_checked(store.read(path), _Offsets).offsets


def sweep_inputs(store: StoreFiles, offsets: Iterable[str]) -> None:
    """Deletes copies of log entries that a later compacted entry has taken in, if every kept epoch has read that one.

    ``offsets``: those of the oldest epochs that are kept.
    """
    reached: dict[str, int] = {}
    for text in offsets:
        for source, offset in source_offsets(text).items():
            if (number := log_offset(offset)) is not None:
                reached[source] = min(number, reached.get(source, number))
    paths = store.list(layout.INPUTS)
    for source, limit in reached.items():
        prefix = layout.input_entry(f"{source}/")
        entries = {path: number for path in paths if (number := entry_number(path, prefix)) is not None}
        compacted = [number for path, number in entries.items() if path.endswith(".compact") and number <= limit]
        for path, number in entries.items():
            if number < max(compacted, default=0):
                store.delete(path)
