from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.examples.programs import load_maker, load_program, read_lines


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("shapes", tmp_path)


def push(h: hr.testing.Harness, program: Any, *shapes: str) -> None:
    """Shapes told as ``12:00 red box``."""
    for shape in shapes:
        at, color, kind = shape.split()
        h.push(program.shapes, program.Shape(color, kind, h.at(at)))


def told(rows: list[Any]) -> list[tuple[str, str]]:
    return sorted((row.rule, row.color) for row in rows)


def test_a_shape_is_matched_with_the_one_that_began_the_pair_in_its_color(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        push(h, program, "12:00 red box", "12:01 blue disc", "12:02 red star")
        h.push(program.rules, program.Rule("pair", "box", "disc"))
        h.epoch()
        assert h.take(program.matches) == []
        push(h, program, "12:03 red disc", "12:04 red disc")
        h.epoch()
        assert h.take(program.matches) == [program.Match("pair", "red", h.at("12:00"), h.at("12:03"))]


def test_rules_of_an_epoch_come_before_its_shapes(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00", parallelism=3) as h:
        push(h, program, "12:00 red star", "12:01 red star", "12:02 blue star", "12:03 blue star")
        h.push(program.rules, program.Rule("stars", "star", "star"))
        h.epoch()
        assert told(h.take(program.matches)) == [("stars", "blue"), ("stars", "red")]


def test_a_changed_rule_gives_up_what_began_under_the_old_one_in_every_color(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00", parallelism=3) as h:
        h.push(program.rules, program.Rule("pair", "box", "disc"), program.Rule("stars", "star", "star"))
        push(h, program, "12:00 red box", "12:00 blue box", "12:00 green star", "12:00 yellow disc")
        h.epoch()
        h.push(program.rules, program.Rule("pair", "disc", "box"))
        push(h, program, "12:01 red disc", "12:01 green star")
        h.epoch()
        assert told(h.take(program.given_up)) == [("pair", "blue"), ("pair", "red")]
        assert told(h.take(program.matches)) == [("stars", "green")]
        push(h, program, "12:02 red box", "12:02 blue disc")
        h.epoch()
        assert told(h.take(program.matches)) == [("pair", "red")]


def test_a_withdrawn_rule_matches_no_more(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.rules, program.Rule("pair", "box", "disc"))
        push(h, program, "12:00 red box")
        h.epoch()
        h.push(program.rules, program.Rule("pair"))
        push(h, program, "12:01 red disc")
        h.epoch()
        assert h.take(program.matches) == []
        assert h.state(program.matches, program.Pairs.rules) == {}
        assert h.state(program.matches, program.Pairs.begun, "red") is None


@pytest.mark.parametrize("point", ["before_publish", "outputs_staged", "published"])
def test_a_crash_while_a_rule_changes_leaves_all_colors_on_one_rule(program: Any, tmp_path: Path, point: str) -> None:
    store = tmp_path / "store"
    with hr.testing.Harness(program.app, start="2024-01-01T12:00", store=store, parallelism=2) as h:
        h.push(program.rules, program.Rule("pair", "box", "disc"))
        push(h, program, "12:00 red box", "12:00 blue box", "12:00 green box")
        h.epoch()
        h.push(program.rules, program.Rule("pair", "disc", "box"))
        push(h, program, "12:01 red disc", "12:01 blue disc", "12:01 green disc")
        h.crash(at=point)
        if point != "published":
            h.epoch()
        assert len(h.take(program.given_up)) == 3
    with hr.testing.Harness(program.app, start="2024-01-01T12:00", store=store, parallelism=5) as h:
        assert h.state(program.matches, program.Pairs.rules)["pair"].first == "disc"
        push(h, program, "12:02 red box", "12:02 blue box", "12:02 green box")
        h.epoch()
        assert told(h.take(program.matches)) == [("pair", "blue"), ("pair", "green"), ("pair", "red")]


def expected(shapes: list[dict[str, str]], rules: Any) -> list[tuple[str, str, str]]:
    """Matches as a reader of all shapes in their order would find them."""
    began: dict[tuple[str, str], str] = {}
    found = []
    for shape in shapes:
        for rule in rules:
            at = (rule["name"], shape["color"])
            if at in began and shape["kind"] == rule["then"]:
                del began[at]
                found.append((*at, shape["at"]))
            elif shape["kind"] == rule["first"]:
                began[at] = shape["at"]
    return sorted(found)


def test_matches_of_the_sample_data_are_those_of_a_plain_loop(program: Any) -> None:
    maker = load_maker("shapes")
    shapes = maker.make_shapes(300) + maker.make_shapes(300, seed=2)
    with hr.testing.Harness(program.app, start="2024-01-01T00:00", parallelism=3) as h:
        h.push(program.rules, *(program.Rule(**rule) for rule in maker.RULES))
        for start in range(0, len(shapes), 70):
            rows = shapes[start : start + 70]
            h.push(program.shapes, *(program.shapes.node.codec.from_json(json.dumps(row).encode()) for row in rows))
            h.epoch()
        found = sorted((row.rule, row.color, row.at) for row in h.take(program.matches))
    wanted = [(rule, color, hr.timestamp(at)) for rule, color, at in expected(shapes, maker.RULES)]
    assert found == wanted
    assert len(wanted) > 50


@pytest.mark.spark
def test_on_spark_a_rule_of_the_second_run_replaces_that_of_the_first(tmp_path: Path, spark: Any) -> None:
    maker = load_maker("shapes")
    maker.write_rules(maker.RULES, tmp_path / "rules")
    shapes = maker.make_shapes(300)
    maker.write_file(shapes, tmp_path / "shapes", "shapes-1")
    program = load_program("shapes", tmp_path)
    program.app.run(until="caught_up", spark=spark, store=tmp_path / "store", parallelism=2)
    first = read_lines(tmp_path / "matches")
    assert sorted((row["rule"], row["color"], row["at"]) for row in first) == expected(shapes, maker.RULES)
    maker.write_rules([{"name": "pair"}, {"name": "stars"}], tmp_path / "rules")
    maker.write_file(maker.make_shapes(300, seed=2), tmp_path / "shapes", "shapes-2")
    program = load_program("shapes", tmp_path)
    program.app.run(until="drained", spark=spark, store=tmp_path / "store", parallelism=3)
    assert len(read_lines(tmp_path / "matches")) == len(first)
    assert read_lines(tmp_path / "given-up")
    assert dict(hr.Store(tmp_path / "store").state("pairs.rules", program.Rule)) == {}
