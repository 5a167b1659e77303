from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from headrace.cli.json_lines import JsonLines
from headrace.foreground import Opening
from tests.cli.calling import call, call_json
from tests.cli.processes import TIMEOUT_S, headrace, run_headrace
from tests.crash.processes import members
from tests.serve.made_store import MadeStore, busy_epoch

PROGRAM = """
import headrace as hr

BROKEN_AT = int(hr.var("broken_at", "-1"))

class Hit(hr.Record):
    page: str
    n: int

class Count(hr.Process[Hit, Hit, str]):
    total: hr.ValueState[int]

    def on_event(self, event, ctx):
        total = self.total.get(0) + event.n
        self.total.set(total)
        yield Hit(ctx.key, 100 // (total - BROKEN_AT))

app = hr.App("hits")
hits = app.read("hits", SOURCE, Hit)
counts = hits.key_by(Hit.page).process(Count())
counts.write(hr.sink.files(hr.var("out", "out")))
"""
BOUNDED = PROGRAM.replace("SOURCE", 'hr.source.items([Hit("a", i) for i in range(1, 5)], per_epoch=2)')
ENDLESS = PROGRAM.replace("SOURCE", 'hr.source.generator(lambda i, rng: Hit(f"p{i % 7}", 1), rate=50)')


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "hits.py"
    path.write_text(BOUNDED)
    return path


# --- without a JVM


def test_explain_shows_steps_state_and_guarantees(program: Path) -> None:
    out = call("explain", program).stdout
    for words in ("app hits", "count: process Count", "total: value of int", "exactly once", "exchange 1 by page"):
        assert words in out
    assert call("explain", program, "--mermaid").stdout.startswith(("graph", "flowchart", "---"))
    told = call_json("explain", program)
    assert told["app"] == "hits"
    assert [step["verb"] for step in told["steps"]] == ["read", "process", "write"]


def test_a_wrong_program_is_told_with_its_line_and_ends_with_one(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(BOUNDED.replace("key_by(Hit.page)", 'key_by("pge")'))
    result = call("run", path)
    assert result.exit_code == 1
    assert "pge" in result.stderr
    assert "wrong.py:" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_setting_is_refused_before_anything_starts(program: Path) -> None:
    result = call("run", program, "--epoch", "soon")
    assert result.exit_code == 1
    assert "epoch" in result.stderr
    assert call("run", program, "--until", "tomorrow").exit_code == 2
    assert call("run", program, "--var", "broken").exit_code == 2


def test_a_secret_that_is_not_set_stops_the_start_and_not_explain(tmp_path: Path) -> None:
    path = tmp_path / "secretive.py"
    path.write_text(BOUNDED.replace('hr.var("out", "out")', 'hr.secret("NO_SUCH_SECRET_HERE")'))
    result = call("run", path)
    assert result.exit_code == 1
    assert "NO_SUCH_SECRET_HERE" in result.stderr
    assert call("explain", path).exit_code == 0


def test_a_run_for_machines_is_a_line_per_event(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeStore(store_path)
    screen = JsonLines(Opening(made.path, 41))
    with screen:
        screen.say("resuming")
        screen(busy_epoch(made))
    screen.end(stopped=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["says", "epoch", "end"]
    assert lines[0]["resumes_at"] == 42
    assert lines[1]["rows_in"] == 1200
    assert lines[2] == {
        "event": "end",
        "stopped": True,
        "epochs": 1,
        "rows_in": 1200,
        "rows_out": 14,
        "waiting": [],
    }


# --- with one


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_program_runs_fails_with_its_own_line_and_resumes_after_the_fix(program: Path, tmp_path: Path) -> None:
    options = ("--store", "state", "--until", "caught_up", "-p", 2, "--plain")
    broken = run_headrace("run", program, *options, "--var", "broken_at=6", cwd=tmp_path)
    assert broken.returncode == 1
    assert "starting in state" in broken.stdout
    assert "epoch 0" in broken.stdout
    line = next(number for number, text in enumerate(BOUNDED.splitlines(), 1) if "yield" in text)
    for words in ("ZeroDivisionError", f"hits.py:{line}", "step count", '"page"'):
        assert words in broken.stderr
    assert "Traceback" not in broken.stderr
    fixed = run_headrace("run", program, "--store", "state", "--until", "caught_up", "-p", 2, "--json", cwd=tmp_path)
    assert fixed.returncode == 0, fixed.stderr
    events = [json.loads(line) for line in fixed.stdout.splitlines()]
    assert events[0]["text"] == "resuming at epoch 1 from state; --fresh starts over"
    assert events[-1]["event"] == "end"
    assert run_headrace("state", "state", "count.total", "a", cwd=tmp_path).stdout == "10\n"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_sigterm_to_all_processes_ends_a_run_that_is_served_after_its_epoch_with_nothing_lost(tmp_path: Path) -> None:
    # That is how systemd and `timeout` end a service. Ctrl-C, which a terminal sends to all of them, ends the demo in
    # test_demo.
    path = tmp_path / "hits.py"
    path.write_text(ENDLESS)
    options = ("--store", "state", "-p", 2, "--serve", 0, "--http-port", 0)
    with headrace("run", path, *options, cwd=tmp_path) as process:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            if line.startswith("state is served: "):
                assert urlopen(line.split()[-1], timeout=20).status == 200
                seen += 1
            seen += line.startswith("epoch 1 ")
            if seen == 2:
                os.killpg(process.pid, signal.SIGTERM)
                break
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert "stopping after this epoch" in out
    assert "stopped: " in out
    assert "Traceback" not in err
    kept = json.loads(run_headrace("state", "state", "count", "--json", cwd=tmp_path).stdout)["entries"]
    counted = sum(entry["value"] for entry in kept)
    epochs = json.loads(run_headrace("epochs", "state", "-n", 0, "--json", cwd=tmp_path).stdout)
    assert counted == sum(epoch["rows_in"] for epoch in epochs)
    assert counted == sum(len(file.read_text().splitlines()) for file in (tmp_path / "out").glob("*.json"))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_killed_jvm_is_replaced_and_the_run_goes_on_from_its_last_epoch(tmp_path: Path) -> None:
    path = tmp_path / "hits.py"
    path.write_text(ENDLESS)
    (tmp_path / "headrace.toml").write_text("restarts = 1\n")
    killed = 0
    with headrace("run", path, "--store", "state", "-p", 2, cwd=tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                killed = next(pid for pid, words in members(process.pid) if "java" in words.split()[0])
                os.kill(killed, signal.SIGKILL)
            if killed and line.startswith("epoch 4 "):
                os.killpg(process.pid, signal.SIGINT)
                break
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out + err
    assert "Spark's JVM died" in err
    assert "SIGKILL" in err
    assert "Traceback" not in err
    kept = json.loads(run_headrace("state", "state", "count", "--json", cwd=tmp_path).stdout)["entries"]
    epochs = json.loads(run_headrace("epochs", "state", "-n", 0, "--json", cwd=tmp_path).stdout)
    assert sum(entry["value"] for entry in kept) == sum(epoch["rows_in"] for epoch in epochs)


def test_a_second_driver_is_refused_with_the_way_to_take_over(program: Path, store_path: Path) -> None:
    from headrace.checkpoint.fence import take_fence
    from headrace.state.store import LocalStore

    fence = take_fence(LocalStore(store_path, durable=False))
    try:
        result = run_headrace("run", program, "--store", store_path, "--until", "caught_up", cwd=program.parent)
    except subprocess.TimeoutExpired:  # pragma: no cover - says more than the bare exception
        pytest.fail("a refused driver must not start Spark")
    finally:
        fence.drop()
    assert result.returncode == 4
    assert "--takeover" in result.stderr
