"""Loads an example as a user's program is loaded, with its data in a folder of the test."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.cli.loading import import_file
from headrace.dataflow.variables import using

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load_program(example: str, data: Path, *, file: str = "app.py", **variables: str) -> ModuleType:
    """The module of a program, anew for each test: its folders and other variables are read while it is imported."""
    path = EXAMPLES / example / file
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(path):
            del sys.modules[name]
    with using({"data": str(data), **variables}):
        return import_file(path)


def load_maker(example: str) -> Any:
    """The module of ``make_data.py``."""
    path = EXAMPLES / example / "make_data.py"
    spec = importlib.util.spec_from_file_location(f"make_data_of_{example}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """All rows of a folder of JSON lines, as a reader that knows nothing of Headrace sees them."""
    files = sorted(
        path for path in folder.rglob("*.json*") if not any(p.startswith((".", "_")) for p in path.parts[-2:])
    )
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]
