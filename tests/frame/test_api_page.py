"""The reference is complete: public names, their methods and settings are all on its pages, and no other names are."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.dataflow.serve_settings import Serving

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def named(text: str) -> set[str]:
    """Names that a page spells as ``hr.name``."""
    return set(re.findall(r"\bhr\.(\w+)", text))


def public_of(cls: type) -> list[str]:
    return sorted(name for base in cls.__mro__[:-1] for name in vars(base) if not name.startswith("_"))


@pytest.mark.parametrize("name", sorted(hr.__all__))
def test_every_public_name_is_on_the_page(name: str) -> None:
    assert name in named(page("api.md")), f"add hr.{name} to docs/reference/api.md, with one line about it"


def test_the_page_names_nothing_that_is_not_public() -> None:
    assert named(page("api.md")) <= set(hr.__all__)


@pytest.mark.parametrize("cls", [hr.App, hr.Stream, hr.KeyedStream, hr.types.StepStream, hr.Run, hr.Process])
def test_every_method_is_on_the_page(cls: type) -> None:
    # `app`, `node`, `key` and `nodes` are for tools and the test kit, as their own texts say.
    for_tools = {"app", "node", "nodes", "key"}
    missing = [name for name in public_of(cls) if name not in for_tools and f"`{name}" not in page("api.md")]
    assert not missing, f"add {missing} of {cls.__name__} to docs/reference/api.md"


@pytest.mark.parametrize("name", sorted(hr.types.__all__))
def test_every_type_for_annotations_is_on_the_page(name: str) -> None:
    assert f"`hr.types.{name}`" in page("api.md")


@pytest.mark.parametrize("name", [*hr.source.__all__, *hr.sink.__all__])
def test_every_source_and_sink_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in page("api.md")


@pytest.mark.parametrize("field", msgspec.structs.fields(hr.Settings), ids=lambda field: field.name)
def test_every_setting_is_on_its_page_with_its_default(field: msgspec.structs.FieldInfo) -> None:
    row = re.search(rf"^\| `{field.name}` \| (?P<default>[^|]*) \|", page("settings.md"), re.MULTILINE)
    assert row is not None, f"add {field.name} to the table of docs/reference/settings.md"
    default_text = row["default"].strip().strip("`")
    if field.default_factory is not msgspec.NODEFAULT:
        assert default_text in ("empty", "cores, at most 4")
    elif field.name == "serve":
        assert default_text == str(field.default.on).lower()
    elif isinstance(field.default, bool):
        assert default_text == str(field.default).lower()
    else:
        assert default_text == (str(field.default) or "empty")


def test_the_page_of_settings_names_no_other() -> None:
    tables = page("settings.md").split("## The file")[0].split("| in `serve` |")
    found = [
        set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| ([^|]*) \|", each, re.MULTILINE)))) for each in tables
    ]
    assert found == [set(hr.Settings.__struct_fields__), set(Serving.__struct_fields__)]


def test_words_of_the_glossary_are_sorted_and_stand_there_once() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\*", page("glossary.md"), re.MULTILINE)
    assert words == sorted(set(words), key=lambda word: (word.lower().replace(" ", ""), word))
