"""Python objects that SQL names: ``module:name``, or ``file.py:name`` beside the program."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, ProgramError
from headrace.model.nearest import did_you_mean


def load_object(target: str, error: Callable[..., ProgramError]) -> Any:
    """What ``module:name`` stands for. ``error(what, found=…, expected=…, next_move=…)`` makes what is raised."""
    place, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise error("this names no object of Python", found=target, expected="'module:function', or 'file.py:function'")
    module = _module(place, target, error)
    if hasattr(module, name):
        return getattr(module, name)
    public = [each for each in vars(module) if not each.startswith("_")]
    raise error(
        f"{place} has no {name!r}", found=target, expected="a name at the top of the module",
        next_move=did_you_mean(name, public, f"define {name} there"),
    )  # fmt: skip


def _module(place: str, target: str, error: Callable[..., ProgramError]) -> Any:
    try:
        return _shipped(_from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place))
    except HeadraceError:
        raise
    except ModuleNotFoundError as missing:
        raise error(
            f"the module {missing.name!r} cannot be imported", found=target, expected="a module on the import path",
            next_move="put its file beside the program, or install it",
        ) from missing  # fmt: skip
    except Exception as failed:
        raise error(
            f"the module {place!r} could not be imported", found=f"{type(failed).__name__}: {failed}",
            next_move="correct it; --trace shows the whole way there",
        ) from failed  # fmt: skip


def _from_file(path: Path) -> Any:
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and Path(str(getattr(known, "__file__", ""))).resolve() == path.resolve():
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ModuleNotFoundError(str(path), name=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _shipped(module: Any) -> Any:
    """A module beside the program is shipped by value: workers elsewhere do not have it. Installed packages do not."""
    from headrace.plan.ship import ship_by_value

    file = str(getattr(module, "__file__", None) or "")
    if file and not any(part in file for part in ("site-packages", "dist-packages")) and _is_beside(Path(file)):
        ship_by_value(module)
    return module


def _is_beside(file: Path) -> bool:
    """Whether a file is no part of Python or of Headrace."""
    standard, ours = Path(inspect.__file__).parent, Path(__file__).parents[1]
    return not any(file.is_relative_to(each) for each in (standard, ours))
