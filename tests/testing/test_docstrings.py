"""The examples in docstrings run, of every module that loads without a JVM."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent


def modules() -> list[str]:
    """Modules with examples, by name."""
    files = (path.relative_to(ROOT) for path in sorted(ROOT.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8"))
    names = [".".join(("headrace", *file.with_suffix("").parts)).removesuffix(".__init__") for file in files]
    return [name for name in names if not name.startswith("headrace.spark.")]


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    # Examples are programs of their own: without the module's future annotations, which would be looked up in it.
    names = {key: value for key, value in vars(module).items() if key != "annotations"}
    assert doctest.testmod(module, globs=names).failed == 0
