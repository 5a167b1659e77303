from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.doctor import check_java, check_python, check_spark, check_store
from headrace.errors import EnvironmentMissing
from tests.cli.calling import call


def test_what_is_there_is_found() -> None:
    assert check_python(".").ok
    assert check_spark(".").found


def test_a_folder_that_can_hold_a_store_is_left_as_it_was(tmp_path: Path) -> None:
    assert check_store(str(tmp_path)).ok
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_told_with_the_way_out(tmp_path: Path) -> None:
    finding = check_store(str(tmp_path / "nowhere"))
    assert not finding.ok
    assert "--store" in finding.next_move


def test_a_machine_without_java_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def find_no_java() -> Path:
        raise EnvironmentMissing("Spark needs Java", found="no Java", next_move="apt-get install java")

    monkeypatch.setattr("headrace.spark.java.find_java", find_no_java)
    assert check_java(".") == ("java", False, "no Java", "apt-get install java")
    result = call("doctor", "--store", tmp_path)
    assert result.exit_code == 3
    assert "apt-get install java" in result.stdout


def test_an_object_store_is_tried_out_in_place_and_left_as_it_was(bucket: str) -> None:
    from headrace.state.store import open_store

    url = f"s3://{bucket}/store"
    assert check_store(url).ok
    assert open_store(url).list() == []
    finding = check_store("s3://no-such-bucket-anywhere/store")
    assert not finding.ok
    assert "bucket" in finding.found and "make the bucket" in finding.next_move
