"""Rolling: rows of several epochs become one file, which appears whole when it is large or old enough.

A folder cannot swap several files for one in a single step, so small files are put together *before* anybody sees
them. Parts of released epochs wait in a hidden folder inside of the target; a roll makes one file of them, lets it
appear, and then takes the parts away. Each bucket (folder by value) rolls for itself.

====  ===================================================  ==========================================================
step  what a roll does                                     what a restart sees if the process dies right after it
====  ===================================================  ==========================================================
1     notes which parts go into which files, only if       the note: the roll is carried out as it says
      nobody has noted another roll of these parts
2     looks whether they are visible already               the same
3     makes each file, and lets it appear                  the note: files that are there are left, others are made
4     takes the parts away                                 the note: nothing is left to make; the rest is taken away
5     takes the note away                                  nothing
====  ===================================================  ==========================================================

Because of the note, a driver that was thought dead and the one that took over from it come to the same files, whatever
each of them finds due. An epoch that comes again is skipped where its rows are visible or noted.

What this module deliberately does not do: decide what is due (`RollPolicy` of `roll_policy`), or know what is in a file
(`gathering`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from headrace.connectors.files.claims import Claims
from headrace.connectors.files.cutting import cut_behind
from headrace.connectors.files.folder import Folder
from headrace.connectors.files.gathering import Gathering, spans_of
from headrace.connectors.files.roll_plan import Bucket, Roll, RolledFile, RollPart
from headrace.errors import SinkFailed
from headrace.model.part_names import (
    PLAN,
    hidden_folder,
    parse_plan,
    parse_visible,
    parse_waiting,
    plan_name,
    spans_name,
)


class RollFolder:
    """The hands: what a roll reads and writes. One instance per thread."""

    def __init__(self, folder: Folder, output: str, form: Gathering, claims: Claims) -> None:
        self._folder = folder
        self._output = output
        self._form = form
        self._claims = claims

    def find(self) -> tuple[dict[tuple[int, str], Bucket], list[Roll]]:
        """What a run before this one left: parts that wait, and rolls that were noted and not finished."""
        buckets: dict[tuple[int, str], Bucket] = {}
        rolls = []
        top = hidden_folder(self._output)
        for path, size_bytes, modified_s in self._folder.list(top, below=True):
            folder, _, name = path.removeprefix(top).strip("/").rpartition("/")
            if name.endswith(PLAN) and parse_plan(name) is not None:
                rolls.append(self._read(path))
            told = parse_waiting(name)
            if told is not None:
                bucket = buckets.setdefault((told.timeline, folder), Bucket(told.timeline, folder))
                bucket.waiting[name] = RollPart(name, told.epoch, told.place, told.shape, told.ext, size_bytes)
                bucket.since_s = min(bucket.since_s or modified_s or 0.0, modified_s or 0.0)
        for roll in rolls:
            mine = buckets.get((roll.timeline, roll.bucket), Bucket(roll.timeline, roll.bucket))
            for name in roll.parts:
                # These are in the hands of their roll, of which some files may be visible already.
                mine.waiting.pop(name, None)
        for bucket in buckets.values():
            self.look(bucket)
        return buckets, rolls

    def look(self, bucket: Bucket) -> None:
        """Learns what of a bucket is visible, and forgets parts that are."""
        single = set(bucket.single)
        for path, *_ in self._folder.list(bucket.folder):
            told = parse_visible(path.rpartition("/")[2])
            if told is None or (told.output, told.timeline) != (self._output, bucket.timeline):
                continue
            if told.gathered:
                bucket.covered = max(bucket.covered, told.last)
            else:
                single.add(told.first)
        bucket.single = frozenset(single)
        stale = [name for name, part in bucket.waiting.items() if part.epoch <= bucket.covered]
        self._folder.remove(f"{self._hidden(bucket.folder)}/{name}" for name in stale)
        for name in stale:
            del bucket.waiting[name]

    def is_complete(self, timeline: int, epoch: int, buckets: Iterable[Bucket]) -> bool:
        """Whether a release of this epoch, the newest that is waiting, came to its end."""
        names = [name for bucket in buckets if bucket.timeline == timeline for name in bucket.waiting]
        mine = [held for name in names if (held := parse_waiting(name)) is not None and held.epoch == epoch]
        if len({held.place for held in mine}) >= mine[0].parts:
            return True
        # Or parts of it are visible in other buckets: that comes after the end of its release, too.
        for path, *_ in self._folder.list("", below=True):
            told = parse_visible(path.rpartition("/")[2])
            ours = told is not None and told.gathered and (told.timeline, told.output) == (timeline, self._output)
            if told is not None and ours and told.last >= epoch:
                return True
        return False

    def note(self, roll: Roll) -> Roll:
        """Notes a roll; gives back the one that counts, which somebody else may have noted before."""
        path = f"{self._hidden(roll.bucket)}/{plan_name(roll.timeline, roll.first)}"
        if self._folder.create(path, msgspec.json.encode(roll)):
            return roll
        return self._read(path)

    def carry_out(self, roll: Roll) -> None:
        """Lets the files of a noted roll appear, and takes away what they are made of. May be repeated."""
        end = self._claims.end_of(roll.timeline)
        left = roll if end is None else roll.until(end)
        if left is not None:
            self._let_appear(left)
        now = self._claims.end_of(roll.timeline)
        if now is not None and now != end:
            # The timeline was abandoned meanwhile.
            cut_behind(self._folder, self._output, self._form, roll.timeline, now)

    def _let_appear(self, roll: Roll) -> None:
        hidden = self._hidden(roll.bucket)
        there = {path.rpartition("/")[2] for path, *_ in self._folder.list(roll.bucket)}
        done = list(roll.parts)
        if any(self._is_other(roll, name) for name in there):
            # What goes beyond the visible files still waits, for whoever made those.
            shown = Bucket(roll.timeline, roll.bucket)
            self.look(shown)
            done = [name for name in done if (told := parse_waiting(name)) is None or told.epoch <= shown.covered]
        else:
            for file in roll.files:
                if file.name not in there:
                    self._make(file, hidden, f"{roll.bucket}/{file.name}" if roll.bucket else file.name)
            self._folder.settle()
        self._folder.remove(f"{hidden}/{part}" for part in done)
        self._folder.remove([f"{hidden}/{plan_name(roll.timeline, roll.first)}"])
        self._folder.drop_empty(hidden)

    def _is_other(self, roll: Roll, name: str) -> bool:
        """Whether a visible file has these rows by another roll: a driver that woke up too late noted them again."""
        told = parse_visible(name)
        if told is None or not told.gathered or (told.timeline, told.output) != (roll.timeline, self._output):
            return False
        return told.first <= roll.first <= told.last and (told.first, told.last) != (roll.first, roll.last)

    def _make(self, file: RolledFile, hidden: str, target: str) -> None:
        ext = file.name.rpartition(".")[2]
        try:
            parts = [self._folder.read(f"{hidden}/{name}") for name in file.parts]
            self._note_spans(ext, file, parts, target)
            if len(parts) == 1:
                self._folder.copy(f"{hidden}/{file.parts[0]}", target)
                return
        except FileNotFoundError as missing:
            if any(path == target for path, *_ in self._folder.list(target.rpartition("/")[0])):
                return  # Another driver was faster with the same roll.
            raise SinkFailed(
                "rows that wait to be put together are gone",
                where=f"sink.files({self._folder.where!r})",
                expected=f"the parts of {file.name} in {hidden}",
                found=f"no {missing.filename or missing}",
                next_move="restore the folder from a copy; nobody but Headrace may take files out of .headrace",
            ) from missing
        with self._folder.making() as made:
            self._form.gather(ext, parts, made)
            self._folder.publish(made, target)

    def _note_spans(self, ext: str, file: RolledFile, parts: list[pa.Buffer], target: str) -> None:
        """Before the file appears: so it never lies there without them."""
        if self._form.needs_spans:
            epochs = [told.epoch for name in file.parts if (told := parse_waiting(name)) is not None]
            spans = spans_of(ext, list(zip(epochs, parts, strict=True)))
            self._folder.create(spans_name(self._output, target), msgspec.json.encode(spans))

    def _read(self, path: str) -> Roll:
        return msgspec.json.decode(memoryview(self._folder.read(path)), type=Roll)

    def _hidden(self, bucket: str) -> str:
        return hidden_folder(self._output, bucket)
