"""Completion shows public names only: `dir()` of `hr`, of its modules and of its readers."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import ModuleType

import pytest

import headrace as hr

PUBLIC_MODULES = [hr.source, hr.sink, hr.watermarks, hr.testing, hr.types]


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_the_package_shows_its_public_names_and_no_room() -> None:
    assert public(dir(hr)) == set(hr.__all__)


@pytest.mark.parametrize("module", PUBLIC_MODULES, ids=lambda module: str(module.__name__))
def test_a_public_module_shows_its_public_names_only(module: ModuleType) -> None:
    assert public(dir(module)) == set(module.__all__)


def test_every_public_module_is_held_by_these_tests() -> None:
    modules = {name for name in hr.__all__ if isinstance(getattr(hr, name), ModuleType)}
    assert {f"headrace.{name}" for name in modules} == {module.__name__ for module in PUBLIC_MODULES}


def test_watermarks_has_no_names_of_its_implementation() -> None:
    assert not hasattr(hr.watermarks, "pa")
    assert not hasattr(hr.watermarks, "plan_marking")


@pytest.mark.parametrize("first", ["headrace.state.handles", "headrace.state", "headrace"])
def test_state_is_the_function_whatever_was_imported_before(first: str) -> None:
    code = f"import {first}; from headrace import state; import headrace as hr; hr.state(ttl='1h'); state(ttl='1h')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_is_shipped_by_name_as_any_module_is() -> None:
    assert pickle.loads(pickle.dumps(hr)) is hr


@pytest.mark.parametrize("name", ["Joined", "Windowed", "Agg", "Retry"])
def test_a_name_that_moved_to_types_is_told_with_its_new_place(name: str) -> None:
    with pytest.raises(AttributeError, match=f"it is now hr.types.{name}"):
        getattr(hr, name)
    assert not hasattr(hr, name)


def test_a_misspelt_public_name_is_answered_with_the_near_one() -> None:
    with pytest.raises(AttributeError, match=r"did you mean tumbling\?"):
        hr.tumblin  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'$"):
        hr.frobnicate  # type: ignore[attr-defined]
