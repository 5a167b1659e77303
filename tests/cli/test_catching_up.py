"""How far a job is behind: what the live table, lines of text and machines are told while it catches up."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.cli.epochs import _figures, summary
from headrace.model.behind import Behind, Pursuit
from headrace.progress import CatchingUp, behind_text
from headrace.screens import EpochLines, EpochTable, TablesScreen
from headrace.state.manifest import Manifest

MB = 1_000_000


def manifest(epoch: int, clock_s: float = 0, **behind: Behind | tuple[int, int]) -> Manifest:
    """Sources by what is left and done of them."""
    told = {name: each if isinstance(each, Behind) else Behind(each[0], done=each[1]) for name, each in behind.items()}
    return Manifest(
        app="a", timeline=0, epoch=epoch, nonce="", fence=1, program="", parallelism=1, key_groups=1,
        clock_us=int(clock_s * 1e6), behind=told,
    )  # fmt: skip


def files(left: int, done: int, left_bytes: int, done_bytes: int) -> Behind:
    return Behind(left, "files", done=done, left_bytes=left_bytes, done_bytes=done_bytes)


def follow(*told: tuple[float, Behind | tuple[int, int]]) -> CatchingUp:
    now = [0.0]
    catching_up = CatchingUp(lambda: now[0])
    for epoch, (at_s, behind) in enumerate(told):
        now[0] = at_s
        catching_up(manifest(epoch, orders=behind))
    return catching_up


def test_a_source_that_is_behind_is_told_with_percent_rate_and_time_left() -> None:
    first = (0.0, (2_000_000, 0))
    assert follow(first).now() == ["orders: 2.0 million rows behind, 0 %"]
    then = (10.0, (500_000, 1_500_000))
    assert follow(first, then).now() == ["orders: 500,000 rows behind, 75 %, 150,000 rows/s, 3 s left"]
    assert follow(first, then, (11.0, Behind(0))).now() == []


def test_what_comes_in_meanwhile_counts_for_the_percent_and_against_the_time_left() -> None:
    # A hundred were there; 40 were read, and 20 have come.
    told = follow((0.0, (100, 0)), (4.0, (80, 40)))
    assert told.now() == ["orders: 80 rows behind, 33 %, 10 rows/s, 16 s left"]
    assert follow((0.0, (100, 0)), (4.0, (120, 40))).now() == ["orders: 120 rows behind, 25 %, 10 rows/s"], (
        "one that falls behind further has no end to tell"
    )


def test_the_rate_follows_the_last_half_minute() -> None:
    done, told = 0, []
    for second in range(120):
        done += 100 if second < 60 else 1000
        told.append((float(second), (100_000 - done, done)))
    assert "1,000 rows/s" in follow(*told).now()[0]


def test_files_are_measured_by_their_bytes() -> None:
    told = follow((0.0, files(100, 0, 1000 * MB, 0)), (10.0, files(10, 90, 900 * MB, 100 * MB)))
    assert told.now() == ["orders: 10 files (900.0 MB) behind, 10 %, 10.0 MB/s, 1 min 30 s left"]
    empty = follow((0.0, files(3, 1, 0, 0)))
    assert empty.now() == ["orders: 3 files (0 B) behind, 25 %"]


def test_a_folder_that_is_being_listed_is_told_so() -> None:
    told = follow((0.0, Behind(120_000, "files", counting=True)))
    assert told.now() == ["orders: listing its files, 120,000 so far"]


@pytest.mark.parametrize("left", [(1, 10**9), (10**9, 1), (1, 0), (7, 13)])
def test_percent_stay_between_nothing_and_all(left: tuple[int, int]) -> None:
    percent = Behind(left[0], done=left[1]).percent
    assert percent is not None and 0 <= percent < 100


# --- when a source is behind


def test_a_run_that_goes_on_counts_from_its_own_beginning() -> None:
    resumed = Pursuit()
    assert resumed.tell(100, 300).percent == 25
    assert resumed.tell(200, 100).percent == 75
    assert resumed.tell(100, 0) == Behind(0)


def test_a_source_keeps_up_while_only_what_has_just_come_is_left() -> None:
    steady = Pursuit()
    assert steady.tell(1000, 0).done is None
    assert steady.tell(1000, 900).done is None, "900 have come while the epoch ran"
    assert steady.tell(950, 950).done is None


def test_one_that_falls_behind_later_counts_from_then_on() -> None:
    stalled = Pursuit()
    for _ in range(3):
        stalled.tell(1_000_000, 0)
    assert stalled.tell(0, 10_000).done is None
    assert stalled.tell(2_000, 8_010) == Behind(8_010, done=2_000)


# --- where it is shown


def screens(*manifests: Manifest) -> list[str]:
    """What stands on either screen at last, as text."""
    shown = []
    for screen in (
        EpochTable("a", Console(file=io.StringIO(), force_terminal=True)),
        TablesScreen(Console(file=io.StringIO())),
    ):
        for each in manifests:
            screen(each)
        console = Console(file=io.StringIO(), width=130)
        console.print(screen._frame())
        shown.append(console.file.getvalue())  # type: ignore[attr-defined]
    return shown


def test_a_screen_has_a_bar_for_a_source_that_is_behind_and_none_for_one_that_has_caught_up() -> None:
    for text in screens(manifest(0, orders=(250, 750))):
        line = next(line for line in text.splitlines() if line.startswith("orders"))
        assert "━━━━━━━━" in line and "75 %" in line and "250 rows behind" in line
    for text in screens(manifest(0, orders=(250, 750)), manifest(1, orders=Behind(0))):
        assert "orders" not in text


def test_a_line_of_text_ends_with_it() -> None:
    plain = io.StringIO()
    EpochLines(Console(file=plain, width=500))(manifest(0, orders=(1000, 0)))
    assert plain.getvalue().rstrip().endswith("orders: 1,000 rows behind, 0 %")


def test_machines_get_the_figures_as_fields() -> None:
    epochs = [
        manifest(0, 0, orders=files(9, 1, 90 * MB, 10 * MB), clicks=Behind(7)),
        manifest(1, 10, orders=files(5, 5, 50 * MB, 50 * MB), clicks=(400, 600)),
    ]
    told = [summary(each, figures=figures)["behind"] for each, figures in zip(epochs, _figures(epochs), strict=True)]
    nothing = dict.fromkeys(("left_bytes", "done", "percent", "rows_per_s", "bytes_per_s", "eta_s"))
    assert told[0]["clicks"] == {**nothing, "left": 7, "unit": "rows", "counting": False}
    assert told[0]["orders"]["eta_s"] is None, "after one epoch no rate is known"
    assert told[1]["orders"] == {
        **nothing, "left": 5, "unit": "files", "counting": False, "left_bytes": 50 * MB, "done": 5, "percent": 50,
        "bytes_per_s": 4 * MB, "eta_s": 12.5,
    }  # fmt: skip
    assert told[1]["clicks"]["percent"] == 60


def test_a_cell_sums_up_what_has_the_same_unit() -> None:
    behind = manifest(0, orders=Behind(1000), payments=Behind(500), archive=Behind(3, "files")).behind
    assert behind_text(behind) == "1,500 rows, 3 files"
    assert behind_text({}) == "–"
