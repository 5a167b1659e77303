from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.settings import load_settings
from headrace.dataflow.variables import check_variables, using
from headrace.errors import SettingsError

TOML = """
epoch = "1s"
parallelism = 2
[vars]
brokers = "top:9092"
topic = "tx"
[spark]
"sql.shuffle.partitions" = 8
[profiles.prod]
store = "s3://bucket/{app}"
parallelism = 16
[profiles.prod.vars]
brokers = "prod:9092"
[profiles.prod.spark]
master = "spark://host:7077"
sql.ansi.enabled = true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "headrace.toml").write_text(TOML)
    return tmp_path


def load(folder: Path, profile: str | None = None, env: dict[str, str] | None = None, **given: Any) -> hr.Settings:
    return load_settings("tweets", given, profile=profile, environment=env or {}, folder=folder)


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.store == "./.headrace/tweets"
    assert (settings.epoch, settings.key_groups, settings.master) == ("500ms", 128, "local[*]")
    assert 1 <= settings.parallelism <= 4


def test_arguments_beat_the_environment_which_beats_the_profile_which_beats_the_file(folder: Path) -> None:
    assert load(folder).parallelism == 2
    assert load(folder, "prod").parallelism == 16
    assert load(folder, "prod", {"HEADRACE_PARALLELISM": "4"}).parallelism == 4
    assert load(folder, "prod", {"HEADRACE_PARALLELISM": "4"}, parallelism=8).parallelism == 8
    assert load(folder, "prod", parallelism=None).parallelism == 16
    assert load(folder, "prod").epoch == "1s"


def test_the_profile_may_come_from_the_environment(folder: Path) -> None:
    assert load(folder, env={"HEADRACE_PROFILE": "prod"}).store == "s3://bucket/tweets"


def test_the_file_is_found_above_the_working_folder_or_where_it_is_said_to_be(folder: Path, tmp_path: Path) -> None:
    below = folder / "a" / "b"
    below.mkdir(parents=True)
    assert load(below).epoch == "1s"
    other = tmp_path / "other.toml"
    other.write_text('epoch = "2s"')
    assert load(below, env={"HEADRACE_CONFIG": str(other)}).epoch == "2s"


def test_tables_are_merged_name_by_name(folder: Path) -> None:
    settings = load(folder, "prod", {"HEADRACE_VAR_TOPIC": "t2"}, spark={"spark.ui.enabled": False})
    assert settings.vars == {"brokers": "prod:9092", "topic": "t2"}
    assert settings.master == "spark://host:7077"
    assert settings.spark == {
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.ansi.enabled": "true",
        "spark.ui.enabled": "false",
    }
    assert load(folder, "prod", {"HEADRACE_MASTER": "local[1]"}).master == "local[1]"
    assert load(folder, env={"HEADRACE_SPARK": '{"a.b": 1}'}).spark["spark.a.b"] == "1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('epochs = "1s"', "did you mean epoch"),
        ('[profiles.prod]\nstoer = "x"', "did you mean store"),
        ('epoch = "soon"', "'epoch'"),
        ('epoch = "0s"', "must be greater than zero"),
        ("epoch = 5", "the setting 'epoch' has no unit"),
        ("sink_patience = 300", "the setting 'sink_patience' has no unit"),
        ("parallelism = 0", "out of range"),
        ("parallelism = 500", "1 to 128"),
        ("key_groups = 100", "power of two"),
        ('parallelism = "many"', "'parallelism' has the wrong form"),
        ("vars = 3", "vars is no table"),
        ('store = " "', "'store' is empty"),
        ("retain = -1", "below zero"),
        ("epoch = ", "cannot be read"),
    ],
)
def test_wrong_settings_are_errors_that_name_them(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "headrace.toml").write_text(text)
    with pytest.raises(SettingsError, match=words):
        load(tmp_path, "prod" if "prod" in text else None)


def test_an_unknown_profile_suggests_the_nearest(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean prod"):
        load(folder, "prd")
    (tmp_path / "headrace.toml").unlink()
    with pytest.raises(SettingsError, match=r"\[profiles.prod\]"):
        load(tmp_path, "prod")


def test_slips_in_the_environment_are_errors_and_strangers_are_not(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean parallelism"):
        load(tmp_path, env={"HEADRACE_PARALELISM": "3"})
    assert load(tmp_path, env={"HEADRACE_SOMETHING_ELSE": "3"})
    with pytest.raises(SettingsError, match="no table"):
        load(tmp_path, env={"HEADRACE_SPARK": "a=b"})


def test_switches_read_words(tmp_path: Path) -> None:
    assert load(tmp_path, env={"HEADRACE_FRESH": "true"}).fresh
    assert not load(tmp_path, env={"HEADRACE_FRESH": "0"}).fresh
    with pytest.raises(SettingsError, match="'fresh'"):
        load(tmp_path, env={"HEADRACE_FRESH": "perhaps"})


def test_a_store_may_be_a_path(tmp_path: Path) -> None:
    assert load(tmp_path, store=tmp_path / "s").store == str(tmp_path / "s")


# -- variables and secrets -----------------------------------------------------------------------------------------


def test_a_variable_comes_from_the_nearest_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert hr.var("nowhere", "default") == "default"
    assert hr.var("brokers", "default") == "top:9092"
    with using(profile="prod"):
        assert hr.var("brokers") == "prod:9092"
        monkeypatch.setenv("HEADRACE_VAR_BROKERS", "env:9092")
        assert hr.var("brokers") == "env:9092"
    with using({"brokers": "given:9092"}, "prod"):
        assert hr.var("brokers") == "given:9092"
    assert type(hr.var("brokers")) is str


def test_a_variable_that_nobody_sets_says_where_it_could_be_set() -> None:
    with pytest.raises(SettingsError, match="HEADRACE_VAR_HR_UNSET"):
        hr.var("hr_unset")


def test_a_value_that_comes_too_late_is_refused() -> None:
    hr.var("hr_late", "old")
    check_variables({"hr_late": "old", "other": "x"})
    with pytest.raises(SettingsError, match="read before its value was given"):
        check_variables({"hr_late": "new"})


def test_a_secret_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_PASSWORD", "hunter2")
    password = hr.secret("HR_PASSWORD")
    assert password == "hunter2"
    assert repr(password) == "<secret HR_PASSWORD>"
    assert repr(str(password)) == "<secret HR_PASSWORD>"
    assert "".join(password) == f"{password}" == "hunter2"
    assert repr({"password": password}) == "{'password': <secret HR_PASSWORD>}"
    assert b"hunter2" not in pickle.dumps(password)
    assert pickle.loads(pickle.dumps(password)) == "hunter2"


def test_a_secret_may_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "HR_FILE_SECRET").write_text("hunter3\n")
    monkeypatch.setenv("HEADRACE_SECRETS_DIR", str(tmp_path))
    assert hr.secret("HR_FILE_SECRET") == "hunter3"


def test_settings_made_by_hand_name_the_setting_that_nobody_knows() -> None:
    with pytest.raises(SettingsError, match="there is no setting 'paralelism'") as raised:
        hr.Settings(paralelism=2)  # type: ignore[call-arg]
    assert raised.value.next_move == "did you mean parallelism?"
    assert "test_settings.py:" in raised.value.where
    assert hr.Settings(parallelism=2).parallelism == 2
