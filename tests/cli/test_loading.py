from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.loading import load_app, parse_vars
from headrace.errors import HeadraceError, ProgramError

PROGRAM = """
import headrace as hr

class Hit(hr.Record):
    page: str

{name} = hr.App("{app}")
hits = {name}.read("hits", hr.source.items([Hit("a")]), Hit)
hits.write(hr.sink.collect())

if __name__ == "__main__":
    raise SystemExit("must not run")
"""


@pytest.fixture(autouse=True)
def _clean_imports(tmp_path: Path) -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        # Packages that were first needed here stay: imported once more, they would be there twice.
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_app_called_app_is_found_and_main_does_not_run(tmp_path: Path) -> None:
    path = write(tmp_path, PROGRAM.format(name="app", app="hits"))
    assert load_app(str(path)).name == "hits"


def test_the_only_app_is_found_under_any_name(tmp_path: Path) -> None:
    path = write(tmp_path, PROGRAM.format(name="job", app="hits"))
    assert load_app(str(path)).name == "hits"


def test_of_several_apps_one_is_picked_by_name(tmp_path: Path) -> None:
    text = PROGRAM.format(name="a", app="first") + 'b = hr.App("second")\n'
    path = write(tmp_path, text)
    assert load_app(f"{path}:b").name == "second"
    with pytest.raises(ProgramError, match=r"say which: program\.py:a"):
        load_app(str(path))
    with pytest.raises(ProgramError, match="one of a, b"):
        load_app(f"{path}:c")


def test_a_function_that_makes_an_app_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, 'import headrace as hr\n\ndef make():\n    return hr.App("made")\n')
    assert load_app(f"{path}:make").name == "made"


def test_modules_beside_the_program_can_be_imported(tmp_path: Path) -> None:
    write(tmp_path, 'NAME = "beside"\n', "neighbour_of_program.py")
    path = write(tmp_path, "import headrace as hr\nfrom neighbour_of_program import NAME\napp = hr.App(NAME)\n")
    assert load_app(str(path)).name == "beside"


def test_a_program_named_like_a_known_module_does_not_take_its_place(tmp_path: Path) -> None:
    import json

    path = write(tmp_path, PROGRAM.format(name="app", app="hits"), "json.py")
    assert load_app(str(path)).name == "hits"
    assert sys.modules["json"] is json


def test_classes_of_the_program_travel_by_value(tmp_path: Path) -> None:
    from headrace.plan.ship import dump_program

    path = write(tmp_path, PROGRAM.format(name="app", app="hits"), "shipped_program.py")
    load_app(str(path))
    payload = dump_program(sys.modules["shipped_program"].Hit)
    assert b"page" in payload


def test_variables_are_in_place_while_the_program_is_imported(tmp_path: Path) -> None:
    path = write(tmp_path, 'import headrace as hr\napp = hr.App(hr.var("name_for_test", "nobody"))\n')
    assert load_app(str(path), variables={"name_for_test": "given"}).name == "given"


def test_an_exception_while_importing_is_told_with_the_programs_own_line(tmp_path: Path) -> None:
    path = write(tmp_path, "import headrace as hr\n\nx = 1 / 0\n")
    with pytest.raises(ProgramError, match=r"program\.py:3: .*\n.*ZeroDivisionError"):
        load_app(str(path))


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "import headrace as hr\n\ndef broken(:\n")
    with pytest.raises(ProgramError, match=r"program\.py:3: this is not valid Python"):
        load_app(str(path))


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "import no_such_package_here\n")
    with pytest.raises(ProgramError, match="install no_such_package_here"):
        load_app(str(path))


def test_a_mistake_in_the_program_keeps_its_own_four_parts(tmp_path: Path) -> None:
    path = write(
        tmp_path, PROGRAM.format(name="app", app="hits").replace("hits.write", 'hits.where("pagee = 1").write')
    )
    with pytest.raises(HeadraceError, match="pagee"):
        load_app(str(path))


def test_a_file_without_an_app_a_folder_and_no_file_are_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path, PROGRAM.format(name="app", app="hits"))
    empty = write(tmp_path, "x = 1\n", "empty.py")
    with pytest.raises(ProgramError, match="makes no app"):
        load_app(str(empty))
    with pytest.raises(ProgramError, match=f"did you mean {path}"):
        load_app(str(tmp_path))
    with pytest.raises(ProgramError, match=f"did you mean {path}"):
        load_app(str(tmp_path / "progam.py"))


def test_a_program_that_exits_while_it_is_imported_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "import sys\n\nsys.exit(3)\n")
    with pytest.raises(ProgramError, match="ended its own process") as told:
        load_app(str(path))
    assert told.value.where == f"{path}:3"
    assert "__main__" in told.value.expected


def test_a_function_that_makes_no_app_or_raises_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "def make():\n    return 1 / 0\n\n\ndef needs(n):\n    return n\n")
    with pytest.raises(ProgramError, match="ZeroDivisionError") as told:
        load_app(f"{path}:make")
    assert told.value.where == f"{path}:2"
    with pytest.raises(ProgramError, match="function without arguments"):
        load_app(f"{path}:needs")


def test_variables_are_written_name_equals_value() -> None:
    import typer

    assert parse_vars(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(typer.BadParameter):
        parse_vars(["a"])


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ('App = hr.App("a").read("hits", hr.source.items([]), Hit).where(Hit.n > 0)', 'hr.col("n") > 0'),
        ("class Count(hr.Process[Hit, Hit, str]):\n    seen = hr.ValueState()", "seen: hr.ValueState[int]"),
        ("class Count(hr.Process[Hit, Hit, str]):\n    seen = hr.MapState[str, int]()", "seen: hr.ValueState[int]"),
        ("class Full(hr.Record):\n    a: list[int] = [1]", "msgspec.field(default_factory="),
        ("1 + 'a'", "correct it"),
    ],
    ids=["a field compared", "a state made", "a typed state made", "a default that rows would share", "any other"],
)
def test_slips_that_python_tells_in_words_of_our_insides_come_with_what_to_write(
    tmp_path: Path, line: str, advice: str
) -> None:
    program = write(tmp_path, f"import headrace as hr\n\nclass Hit(hr.Record):\n    n: int\n\n{line}\n")
    with pytest.raises(ProgramError) as caught:
        load_app(str(program))
    assert advice in caught.value.next_move
    assert caught.value.where.startswith(f"{program}:")


def test_a_field_without_a_default_behind_one_with_is_told_with_its_class_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, "import headrace as hr\n\nclass Hit(hr.Record):\n    n: int = 1\n    page: str\n")
    with pytest.raises(ProgramError) as told:
        load_app(str(path))
    assert told.value.what == "the field 'page' has no default and stands behind a field that has one"
    assert told.value.where == f"{path}:3"
    assert told.value.found == "class Hit(hr.Record):"
