"""Files that roll under drivers that die, wake up late or are replaced: every row is seen once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.files import rolls
from headrace.connectors.files.local_folder import LocalFolder
from headrace.errors import SinkFailed
from headrace.model.crash import Crash
from tests.sinks.rolling_sales import GatheringBy, Writing, cents


class Dying:
    """Ends the world at the n-th thing that is done to a folder, before or after it."""

    METHODS = ("put", "publish", "copy", "create", "remove", "settle", "list", "read")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.at: float = -1
        self.dead = False
        for name in self.METHODS:
            monkeypatch.setattr(LocalFolder, name, self._wrapped(getattr(LocalFolder, name)))

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(folder: LocalFolder, *words: Any, **named: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if self.dead or number == self.at:
                self.dead = True
                raise Crash(f"before call {number}")
            if method.__name__ == "remove":
                words = (list(words[0]),)
                for name in words[0]:
                    method(folder, [name])
                    # Between any two files that are taken away, too.
                    number, self.calls = self.calls, self.calls + 1
                    if number == self.at:
                        self.dead = True
                        raise Crash(f"while files were removed, at call {number}")
                return None
            answer = method(folder, *words, **named)
            if number + 0.5 == self.at:
                self.dead = True
                raise Crash(f"after call {number}")
            return answer

        return call

    def live(self, at: float) -> None:
        self.calls, self.at, self.dead = 0, at, False


@pytest.mark.parametrize("settings", [{"roll_epochs": 2, "partition_by": ("shop",)}, {"roll_size": 50}])
def test_a_driver_may_die_anywhere_and_every_row_is_seen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    world = Dying(monkeypatch)

    def run(name: str, dies_at: float) -> int:
        world.live(-1)
        out = Writing(tmp_path / name, format="json", **settings)
        world.live(dies_at)
        epoch = 0
        while epoch < 3:
            try:
                out.release(epoch)
            except Crash:
                calls = world.calls
                world.live(-1)
                seen = out.visible()
                assert len(seen) == len(set(seen)), f"rows twice after a death at {dies_at}"
                assert set(seen) <= set(cents(*range(epoch + 1)))
                out.restart()
                world.calls = calls
                continue
            epoch += 1
        calls = world.calls
        with suppress(Crash):
            out.sink.close()
        world.live(-1)
        out.restart().close()
        assert out.visible() == cents(*range(3)), f"died at {dies_at}"
        assert [path for path in out.hidden() if "making" not in path.parts] == []
        return calls

    total = run("alive", -1)
    assert total > 30
    for number in range(total):
        run(f"before{number}", number)
        if number % 3 == 0:
            run(f"after{number}", number + 0.5)


def test_half_a_released_epoch_never_becomes_visible(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=99)
    out.release(0)
    out.release(1)
    first, second = sorted(path for path in out.hidden() if "-000000000001-" in path.name)
    second.unlink()
    out.restart().close()
    assert out.visible() == cents(0) and first.exists()
    out.restart()
    out.release(1)
    out.sink.close()
    assert out.visible() == cents(0, 1)


# --- several drivers


def test_a_driver_that_wakes_up_in_the_middle_of_a_roll_shows_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolls, "AT_ONCE_BYTES", 0)
    asleep, wake = threading.Event(), threading.Event()
    out = Writing(tmp_path, roll_epochs=2)
    old = out.sink
    gather = old.form.gather  # type: ignore[attr-defined]

    def sleeping(format: str, parts: Any, made: Path) -> None:
        asleep.set()
        assert wake.wait(60)
        gather(format, parts, made)

    old._rolls._aside._form = GatheringBy(sleeping)  # type: ignore[attr-defined]
    out.release(0)
    out.release(1)
    assert asleep.wait(60)
    monkeypatch.setattr(rolls, "AT_ONCE_BYTES", 2**20)
    new = out.restart()
    for epoch in (1, 2, 3, 4):
        out.release(epoch, by=new)
    wake.set()
    with suppress(SinkFailed):
        old.close()
    out.release(5, by=new)
    new.close()
    assert out.visible() == cents(*range(6))


def test_a_driver_that_notes_a_roll_too_late_shows_nothing_twice(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=2)
    old = out.sink
    out.release(0, by=old)
    new = out.restart(roll_epochs=4)
    for epoch in range(4):
        out.release(epoch, by=new)
    assert out.names() == ["part-0-000000000000-000000000003-sales-00000.parquet"]
    for epoch in (0, 1):
        out.release(epoch, by=old)
    old.close()
    assert out.visible() == cents(0, 1, 2, 3)
    out.release(4, by=new)
    out.restart().close()
    assert out.visible() == cents(0, 1, 2, 3, 4)


def test_a_new_timeline_shows_what_the_old_one_left_and_rolls_for_itself(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=2)
    out.release(0, "9")
    out.release(1, "9")
    out.release(2, "9")
    out.restart()
    out.release(0, "10")
    assert out.visible() == cents(0, 1, 2)
    out.release(1, "10")
    assert sorted(out.visible()) == sorted(cents(0, 1, 2) + cents(0, 1))


def test_a_program_may_begin_to_roll_and_stop_to(tmp_path: Path) -> None:
    out = Writing(tmp_path)
    out.release(0)
    out.restart(roll_epochs=3)
    out.release(0)
    out.release(1)
    assert out.visible() == cents(0)
    out.restart(roll_epochs=None)
    out.release(1)
    assert out.visible() == cents(0, 1)
    out.release(2)
    out.sink.close()
    assert out.visible() == cents(0, 1, 2)


def test_a_roll_that_comes_too_late_takes_away_only_what_is_visible(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=99)
    old = out.sink
    for epoch in range(2):
        out.release(epoch, by=old)
    new = out.restart(roll_epochs=2)
    out.release(1, by=new)
    out.restart(roll_epochs=99)
    assert out.visible() == cents(0, 1)
    out.release(2)
    out.release(2, by=old)
    old.close()
    assert out.visible() == cents(0, 1), "it went on with what it remembered, from epoch 0"
    out.sink.close()
    assert out.visible() == cents(0, 1, 2)
