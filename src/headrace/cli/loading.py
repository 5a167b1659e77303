"""From ``app.py``, ``app.py:name`` or ``pipeline.sql`` to the App in it.

The file is imported as a module under its own name, not as ``__main__``: what stands under
``if __name__ == "__main__"`` does not run, and its globals are a module's. Its folder comes first on the import path,
as it does for ``python app.py``. Its functions and classes are shipped by value: workers elsewhere do not have it.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import xxhash

from headrace.errors import HeadraceError, ProgramError
from headrace.model.nearest import nearest
from headrace.model.user_line import short_path
from headrace.program_mistakes import import_failure, place_in

if TYPE_CHECKING:
    from headrace.dataflow.app import App

SQL: Final = ".sql"
_PROGRAM: Final = "a Python file that makes an hr.App, or a file of SQL statements"


def load_app(spec: str, *, variables: Mapping[str, str] | None = None, profile: str | None = None) -> App:
    """The app of a file. Variables and profile are in place while it is imported: ``hr.var`` reads them then."""
    from headrace.dataflow.variables import using

    path, name = split_spec(spec)
    with using(variables, profile):
        if path.suffix == SQL:
            return load_script(path)
        module = import_file(path)
        return find_app(module, name, path)


def load_script(path: Path) -> App:
    """The app of a file of SQL statements. Modules that it names lie beside it, as those of a Python program do."""
    from headrace.tables.script_app import script_app

    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ProgramError(
            "this is no text", where=str(path), expected="statements of SQL in UTF-8", found=str(error)
        ) from error
    return script_app(text, short_path(str(path)), lambda line: print(line, file=sys.stderr))


def split_spec(spec: str) -> tuple[Path, str | None]:
    """``app.py:name`` → file and name; a file whose own name ends so is taken as it is."""
    head, colon, tail = spec.rpartition(":")
    if colon and tail.isidentifier() and not Path(spec).exists():
        path, name = Path(head), tail
    else:
        path, name = Path(spec), None
    if path.is_file():
        return path.resolve(), name
    if path.is_dir():
        raise ProgramError("this is a folder", where=spec, expected=_PROGRAM, next_move=_suggest_in(path))
    near = nearest(path.name, [each.name for each in _program_files(path.parent)])
    raise ProgramError(
        "there is no such file",
        where=spec,
        expected=_PROGRAM,
        next_move=f"did you mean {path.with_name(near[0])}?" if near else "give the path of the program",
    )


def _suggest_in(folder: Path) -> str:
    files = [
        file
        for file in _program_files(folder)
        if file.suffix == SQL or "App(" in file.read_text(encoding="utf-8", errors="replace")
    ]
    return f"did you mean {files[0]}?" if files else "give the path of the program inside it"


def _makes_app(file: Path) -> bool:
    return "App(" in file.read_text(encoding="utf-8", errors="replace")


def _program_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.py"), *folder.glob(f"*{SQL}")]) if folder.is_dir() else []


def import_file(path: Path) -> ModuleType:
    """Imports a file by its path. A mistake in it is reported with its own line, not with ours."""
    name = re.sub(r"\W", "_", path.stem)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) != str(path):
        # A program called json.py must not take the place of json, nor one app.py that of another.
        name = f"{name}_{xxhash.xxh64_hexdigest(str(path).encode())}"
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProgramError("this is not a Python file", where=str(path), expected="a file that ends with .py",
                           next_move="give the path of the program: headrace run app.py")  # fmt: skip
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        del sys.modules[name]
        raise
    except SystemExit as error:
        del sys.modules[name]
        raise ProgramError(
            "the program ended its own process while it was imported",
            where=place_in(path, error),
            expected='a module that makes an hr.App; what only a script does stands under if __name__ == "__main__":',
            found=f"SystemExit: {error}",
            next_move="move the call of sys.exit, or of what calls it, under that line",
        ) from error
    except Exception as error:
        del sys.modules[name]
        raise import_failure(path, error) from error
    from headrace.plan.ship import ship_by_value

    ship_by_value(module)
    return module


def find_app(module: ModuleType, name: str | None, path: Path) -> App:
    """The app that was named; else ``app``; else the only one there is."""
    from headrace.dataflow.app import App

    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name is not None:
        return _named(module, name, apps, path)
    found: Any = apps.get("app")
    distinct = list({id(value): value for value in apps.values()}.values())
    if found is None and len(distinct) == 1:
        found = distinct[0]
    if found is None:
        raise ProgramError(
            "the program makes several apps" if apps else "the program makes no app",
            where=str(path),
            expected='one hr.App, called app or the only one: app = hr.App("name")',
            found=", ".join(sorted(apps)) or "none at the top of the file",
            next_move=f"say which: {path.name}:{min(apps)}" if apps else "make one, outside of functions",
        )
    return found  # type: ignore[no-any-return]


def _named(module: ModuleType, name: str, apps: Mapping[str, Any], path: Path) -> App:
    from headrace.dataflow.app import App

    if name in apps:
        return apps[name]  # type: ignore[no-any-return]
    made = getattr(module, name, None)
    if callable(made):
        made = _call(made, name, path)
        if isinstance(made, App):
            return made
    raise ProgramError(
        f"{name!r} is no app",
        where=str(path),
        expected=f"one of {', '.join(sorted(apps))}" if apps else "an hr.App, or a function that returns one",
        found="no such name" if not hasattr(module, name) else type(made).__name__,
        next_move=f"use {path.name}:{min(apps)}" if apps else "make an hr.App at the top of the file",
    )


def _call(make: Any, name: str, path: Path) -> Any:
    """What a function that was named in place of an app returns."""
    try:
        return make()
    except HeadraceError:
        raise
    except Exception as error:
        raise ProgramError(
            f"{name}() could not be called to make the app",
            where=place_in(path, error),
            expected="an hr.App, or a function without arguments that returns one",
            found=f"{type(error).__name__}: {error}",
            next_move="correct it; --trace shows the whole way there",
        ) from error


def parse_vars(given: list[str]) -> dict[str, str]:
    """``["a=1", "b=2"]`` as a dict."""
    variables = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            import typer

            raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--var")
        variables[name.strip()] = value
    return variables
