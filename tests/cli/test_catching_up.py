"""How far a job is behind: what the live table, lines of text and `headrace epochs` say while it catches up."""

from __future__ import annotations

import io

from rich.console import Console

from headrace.catching_up import CatchingUp, behind_text
from headrace.model.behind import Behind
from headrace.progress import EpochWatch
from headrace.state.manifest import Manifest


def manifest(epoch: int, **behind: int) -> Manifest:
    told = {name: Behind(left, "files" if name == "archive" else "rows") for name, left in behind.items()}
    return Manifest(
        app="a", timeline=0, epoch=epoch, nonce="", fence=1, program="", parallelism=1, key_groups=1, clock_us=0,
        behind=told,
    )  # fmt: skip


def test_a_source_that_is_behind_is_told_with_percent_rate_and_time_left() -> None:
    now = [0.0]
    catching_up = CatchingUp(lambda: now[0])
    catching_up(manifest(0, orders=2_000_000))
    assert catching_up.now() == ["orders: 2.0 million rows behind"]
    now[0] = 10.0
    catching_up(manifest(1, orders=500_000))
    assert catching_up.now() == ["orders: 500,000 rows behind, 75 %, 150,000 rows/s, 3 s left"]
    catching_up(manifest(2, orders=0))
    assert catching_up.now() == []


def test_what_comes_in_meanwhile_counts_against_the_rate() -> None:
    now = [0.0]
    catching_up = CatchingUp(lambda: now[0])
    for second, left in enumerate((100, 90, 95, 80)):
        now[0] = float(second)
        catching_up(manifest(second, archive=left))
    assert catching_up.now() == ["archive: 80 files behind, 20 %, 7 files/s, 12 s left"]
    now[0] = 4.0
    catching_up(manifest(4, archive=120))
    assert catching_up.now() == ["archive: 120 files behind"], "one that falls behind further has no end to tell"


def test_the_rate_follows_the_last_half_minute() -> None:
    now = [0.0]
    catching_up = CatchingUp(lambda: now[0])
    left = 100_000
    for second in range(120):
        now[0] = float(second)
        left -= 100 if second < 60 else 1000
        catching_up(manifest(second, orders=left))
    assert "1,000 rows/s" in catching_up.now()[0]


def test_the_live_table_and_lines_of_text_show_it() -> None:
    out = io.StringIO()
    with EpochWatch("a", console=Console(file=out, force_terminal=True, width=200, height=40)) as watch:
        watch(manifest(0, orders=1000))
    assert "orders: 1,000 rows behind" in out.getvalue()
    plain = io.StringIO()
    EpochWatch("a", plain=True, console=Console(file=plain, width=500))(manifest(0, orders=1000))
    assert plain.getvalue().rstrip().endswith("orders: 1,000 rows behind")


def test_a_cell_sums_up_what_has_the_same_unit() -> None:
    behind = manifest(0, orders=1000, payments=500, archive=3).behind
    assert behind_text(behind) == "1,500 rows, 3 files"
    assert behind_text({}) == "–"
