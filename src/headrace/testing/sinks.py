"""Tries to break a sink: `verify_sink`.

The contract of `headrace.connectors.sink_contract.Sink`, made executable. Nothing is visible before the release; a
release can be repeated, by the same process and by the next; one that failed or died between any two parts is completed
by the next one; a driver that was thought dead and wakes up changes nothing any more; epochs of another store are not
taken for those that are there; and what a rewind abandons is gone for good. Each promise is a function of
`headrace.testing.sink_promises`, `headrace.testing.sink_rivals` or `headrace.testing.sink_rewinds`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from headrace.model.rows import codec_of
from headrace.testing import sink_promises as promises
from headrace.testing import sink_rewinds as rewinds
from headrace.testing import sink_rivals as rivals
from headrace.testing.sink_trial import SinkTarget, SinkTrial
from headrace.testing.staging import Staging

__all__ = ["SinkTarget", "verify_sink"]

Staged = Literal["local", "remote", "inline"]
"""How parts reach a release: as files of this machine, as files elsewhere, or inside the manifest."""


def verify_sink(
    new_target: Callable[[], SinkTarget],
    row_type: Any,
    rows: Sequence[Any],
    *,
    versions: tuple[Any, Any] | None = None,
    staged: Sequence[Staged] = ("local", "remote", "inline"),
    spark: Any = None,
) -> None:
    """Stages and releases rows in every way an engine may, and raises AssertionError at the first broken promise.

    `rows` are at least six different rows of `row_type`; where the sink keeps one row per key, of different keys.
    `versions` are two different rows of one key for such a sink, the older first: a driver that wakes up too late must
    not bring the older one back. `staged` says how parts lie there: a sink that only calls ``ctx.read`` cannot tell the
    ways apart, so one of them is enough where every release takes its time. `spark` is a session, where the sink asks
    for one.

    What a sink that is *exactly once* has to do to pass:

    - `open_writer` may be called in a pickled copy, by two attempts of one task at the same time, and by attempts that
      never finish. Only the parts that `release` is given count; nothing is visible before.
    - `release` shows each row of the parts once. Called again with the same (timeline, epoch), by this sink or by one
      that was made, bound and started anew, it changes nothing.
    - A release that ends in the middle, by a crash (`Crash`, a BaseException), by `SinkUnavailable` or by any other
      error out of ``ctx.read``, leaves either nothing visible or a part that the next call completes. The error is not
      swallowed, and `SinkUnavailable` stays `SinkUnavailable`. The same sink can be called again at once: it leaves no
      transaction open and connects anew.
    - Timelines are numbers in text: "10" comes after "9". In a newer timeline epoch numbers may come again, with other
      rows, which are shown. What comes of an older timeline or, in the same timeline, of an older epoch than the newest
      that is visible, is skipped, or refused with an error of Headrace. Comparing and writing have to be one step (one
      transaction): another driver may release the same and the next epoch while this release is under way.
    - Another store (``ctx.job``) counts its epochs from the same number: another job, or this one after its store was
      deleted. Its rows are shown too, or refused with an error of Headrace; never taken for rows that are there.
    - `release` may come on another thread than `start`; never two at a time in one driver.
    - A sink whose `rewinds` has ``repeat`` forgets what an abandoned timeline showed: `forget` may be called again,
      also when the new timeline has begun, and nothing that the abandoned one releases afterwards is shown. (Sinks that
      are `in_process` keep nothing, and are not asked.)
    - While the system behind is away, `release` raises `SinkUnavailable` (and so may `start`) within a reasonable time.

    A sink that is *at least once* may show rows again in all of these cases, never fewer and never others.

    >>> import headrace as hr
    >>> class Hit(hr.Record):
    ...     page: str
    >>> def new_target() -> SinkTarget:
    ...     kept = hr.sink.collect()
    ...     return SinkTarget(lambda: kept, lambda: list(kept.rows))
    >>> verify_sink(new_target, Hit, [Hit(f"/{i}") for i in range(6)])
    """
    assert len(rows) >= 6, "the suite needs a few rows"
    ways = {"local": (0, True), "remote": (0, False), "inline": (2**20, True)}
    for way in staged:
        inline_limit_bytes, local = ways[way]
        with tempfile.TemporaryDirectory() as folder:
            staging = Staging(Path(folder), inline_limit_bytes=inline_limit_bytes, local=local, session=spark)
            trial = SinkTrial(new_target, codec_of(row_type), rows, staging)
            _try_where_parts_lie(trial)
            if way == staged[0]:
                _try_the_rest(trial)
                if versions is not None:
                    rivals.an_older_version_does_not_come_back(trial, *versions)


def _try_where_parts_lie(trial: SinkTrial) -> None:
    """What depends on where parts lie."""
    promises.an_epoch_is_visible_when_released(trial)
    promises.an_epoch_without_rows_has_no_parts(trial)
    parts = promises.a_release_can_be_repeated(trial)
    for at in range(parts):
        promises.a_release_that_died_is_completed(trial, at)
    promises.a_release_that_died_between_files_is_completed(trial)


def _try_the_rest(trial: SinkTrial) -> None:
    """What does not."""
    promises.two_attempts_of_a_task_do_not_meet(trial)
    for cut in range(1, 5):
        promises.a_restart_changes_nothing(trial, cut)
    for at in range(2):
        promises.a_release_that_failed_is_completed(trial, at)
    rivals.a_new_timeline_begins_anew(trial)
    rivals.a_driver_that_wakes_up_late_changes_nothing(trial)
    rivals.another_driver_may_overtake_a_release(trial)
    rivals.another_store_is_shown_or_refused(trial)
    if rewinds.forgets(trial):
        rewinds.what_is_abandoned_is_forgotten(trial)
        rewinds.all_of_a_timeline_can_be_forgotten(trial)
        rewinds.two_timelines_are_looked_at_before_either_is_forgotten(trial)
        rewinds.an_abandoned_driver_that_wakes_up_changes_nothing(trial)
        rewinds.forgetting_again_leaves_the_new_timeline(trial)
        rewinds.a_death_while_forgetting_is_made_good(trial)
    promises.a_system_that_was_away_gets_everything(trial)
    promises.every_call_may_fail(trial)
