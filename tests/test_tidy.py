"""Taste as a test: import directions between rooms, one speller of store paths, public names, and a small root.

A failure says in words what goes the wrong way. The rules are the tables at the top; a room that is new gets a line
there before it gets its first import.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headrace"

MAX_LINES = 420
MAX_ROOT_ENTRIES = 19

# What each room may import of ours, besides itself, `errors` and `durable`. "*" is every room but `cli` and `testing`.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "durable": set(),
    "model": set(),
    "sql": {"model"},
    "aggregates": {"model", "sql"},
    "state": {"model", "aggregates"},
    "connectors": {"model", "sql.expr", "ingest.layout", "ingest.needs", "ingest.reading"},
    "operators": {"model", "sql", "aggregates", "state"},
    "windows": {"model", "sql", "aggregates", "state", "operators"},
    "joins": {"model", "sql", "state", "operators", "windows"},
    "patterns": {"model", "sql", "aggregates", "state", "operators"},
    "dataflow": {
        "model",
        "sql",
        "state.handles",
        "aggregates.declare",
        "windows.context",
        "windows.evictors",
        "windows.kinds",
        "windows.settings",
        "windows.spec",
        "windows.triggers",
        "operators.broadcast_spec",
        "operators.changelogs.spec",
        "operators.changelogs.top_spec",
        "operators.horizons.spec",
        "operators.order_spec",
        "joins.spec",
        "operators.spec",
        "patterns.checks",
        "patterns.declare",
        "patterns.measures",
        "patterns.partial",
        "patterns.picture",
        "patterns.plan",
        "patterns.recognize",
        "patterns.rules.rows",
        "patterns.rules.rule",
        "patterns.rules.spec",
        "patterns.spec",
        "connectors.source_contract",
        "connectors.sink_contract",
    },
    "tables": {
        "model",
        "sql",
        "dataflow",
        "aggregates.accumulate",
        "plan.explain",
        "plan.ship",
        "joins.spec",
        "operators.changelogs.top_spec",
        "operators.horizons.spec",
        "connectors",
        "aggregates.declare",
        "patterns",
        "windows.kinds",
        "state.handles",
        "windows.spec",
    },
    "plan": {
        "model",
        "sql",
        "dataflow",
        "aggregates",
        "operators",
        "windows",
        "patterns",
        "state.handles",
        "connectors.source_contract",
        "connectors.sink_contract",
        # A backfill is two sources under one name; the plan makes a program for each.
        "connectors.backfill",
    },
    "runtime": {
        "model",
        "sql",
        "state",
        "operators",
        "plan",
        "connectors.source_contract",
        "connectors.sink_contract",
        "connectors.keyed_target",
        "connectors.staged",
    },
    "upgrade": {"model", "state", "sql.same"},
    "checkpoint": {"model", "state", "upgrade", "connectors.sink_contract", "connectors.source_contract"},
    "read": {"model", "state", "aggregates"},
    "snapshots": {"model", "state", "aggregates", "read"},
    "edit": {
        "model",
        "state",
        "aggregates.accumulate",
        "read",
        "checkpoint",
        "connectors.files.archive",
        "connectors.files.folder",
    },
    "transfer": {
        "model",
        "state",
        "read",
        "aggregates",
        "checkpoint",
        "operators",
        "plan",
        "runtime.fragment",
        "dataflow.app",
    },
    "net": {"model"},
    "serve": {"model", "state", "read", "net", "snapshots", "sql.script"},
    "client": {"model", "read", "state.moments"},
    "ingest": {"model", "net"},
    "spark": {"*"},
    # Runs whole programs, as `spark` and `testing` do.
    "replay": {"*"},
    "cli": {"*", "cli"},
    "testing": {"*", "testing"},
    # Modules that stand beside the rooms (`__init__`, `source`, `sink`, …) are the front of the house; they hand on
    # names.
    "front": {"*"},
}

# The places where calling a function leads into a room that importing the module must not load.
DOORS: dict[str, set[str]] = {
    "read.store": {"snapshots", "transfer"},
    "transfer.bootstrap": {"spark", "plan"},
    "dataflow.app": {"spark", "plan", "foreground", "starting", "upgrade.lines", "tables.program"},
    # DDL makes sources and sinks by the public functions that programs in Python call.
    "tables.connectors": {"source", "sink"},
    "tables.message_options": {"source", "sink"},
    "tables.datagen_options": {"source"},
    "dataflow.app_graph": {"connectors.console.sink", "connectors.files.archive"},
}

ONLY_IN_SPARK = {"pyspark", "py4j"}

STORE_PATH = re.compile(
    r"(^|/)(manifests|runs|staged|fences|savepoints|sweeps|commands)/|(^|/)(store|tick|waiting|unreleased)\.json$"
)
STORE_FILES = {"store.json", "tick.json", "waiting.json", "unreleased.json"}
STORE_FOLDERS = {"manifests", "runs", "staged", "fences", "savepoints", "sweeps", "commands", *STORE_FILES}
STORE_SPELLER = "state.layout"

DURABLE = "durable"
"""The one module that makes files durable and gives them names."""
FILE_NAMING = {"fsync", "fdatasync", "rename", "renames", "replace", "link"}
"""Functions of `os` that only that module calls."""

DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}

# Words that say how a value feels and not what it is. As a whole name they are refused, with underscores or without.
PARTICIPLES = {"told", "found", "made", "kept", "held", "given", "taken", "wanted", "known", "seen", "said"}

# Modules that import each other in a circle, deferred and type-only imports included: at most this many in one knot.
MAX_KNOT = 7

# Classes whose name is one word that ends so are refused, too (ListedFile, not Listed), but for these: nouns, errors,
# and public names.
PARTICIPLE_CLASS = re.compile(
    r"_?(?:[A-Z][a-z]+ed|Heard|Got|Met|Hidden|Lost|Done|Gone|Written|Bound|Cut|Shown|Sent|Sold|Chosen|Begun|Built)"
)
CLASSES_NAMED_SO = {
    "Connected", "Declared", "Dropped", "Failed", "Fenced", "Joined", "Refused", "Unbounded", "Unsupported", "Windowed",
}  # fmt: skip

PLURAL = re.compile(r" (rows|keys|times|requests|epochs)\b(?!/)")
"""Nouns behind a number in a message: ``count_of`` of `model.amounts` knows their singular."""

MACHINE_FACTS = re.compile(
    r"(?<![\w.])/(?:root|work)/"  # folders of one machine
    r"|(?<![\w.])/(?:home|Users)/\w"
    r"|--?(?:extra-)?index-url|--find-links|--trusted-host"
)


class Import(NamedTuple):
    line: int
    name: str
    """Dotted, with the imported name at the end where there is one: `headrace.connectors.sink_contract.Sink`."""
    deferred: bool
    """Inside a function or for type checkers only: loading the module does not load it."""


class Module(NamedTuple):
    name: str
    """Dotted, without `headrace`: `sinks.contract`; empty for the package itself."""
    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        first = self.name.split(".")[0]
        is_room = first in {"errors", "durable", "cli"} or (first != "" and (PACKAGE / first).is_dir())
        return first if is_room else "front"

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


# --- reading the house


def read_module(path: Path) -> Module:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    text = path.read_text(encoding="utf-8")
    return Module(".".join(part for part in parts if part != "__init__"), path, text, ast.parse(text))


@cache
def modules() -> tuple[Module, ...]:
    return tuple(read_module(path) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def repository_files() -> tuple[Path, ...]:
    """What is, or is about to be, under version control."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0 and listing.stdout:
        return tuple(path for line in listing.stdout.splitlines() if (path := ROOT / line).is_file())
    # An unpacked archive has no git; whatever make and Python leave behind is left out by name.
    made = re.compile(
        r"(^|/)(\.venv|\.envs|\.git|site|build|dist|__pycache__|\.\w+_cache|\.hypothesis|\.headrace)(/|$)"
    )
    return tuple(p for p in sorted(ROOT.rglob("*")) if p.is_file() and not made.search(str(p.relative_to(ROOT))))


def imports_of(tree: ast.AST, module: str, is_package: bool) -> Iterator[Import]:
    """Every import of a module, wherever it stands; relative ones are spelled out."""

    def walk(node: ast.AST, deferred: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(child.lineno, alias.name, deferred) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                package = absolute_name(child, module, is_package)
                yield from (Import(child.lineno, f"{package}.{alias.name}", deferred) for alias in child.names)
            else:
                yield from walk(child, deferred or defers(child))

    yield from walk(tree, False)


def defers(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def absolute_name(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = ["headrace", *(module.split(".") if module else [])]
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


# --- the rules


def complaint_about(module_name: str, room: str, found: Import) -> str | None:
    """Why this import goes the wrong way, in words; None when it is fine."""
    top = found.name.split(".")[0]
    if top in ONLY_IN_SPARK and room != "spark":
        return f"imports {top}, which only the room `spark` may do: everything else has to run without a JVM"
    if top != "headrace":
        return None
    target = found.name.removeprefix("headrace").removeprefix(".")
    target_room = target.split(".")[0]
    if is_under(target, "errors") or is_under(target, "durable") or target_room == room:
        return None
    if is_under(target, "cli") and room != "cli":
        return "imports `cli`, which nothing may: the command line is the outermost layer"
    is_public_door = module_name == "front" and found.deferred  # `hr.testing` is there when asked for
    if is_under(target, "testing") and room != "testing" and not is_public_door:
        return "imports `testing`, which nothing that is shipped may: the test kit is for users' tests"
    if room not in MAY_IMPORT:
        return f"is in the room `{room}`, which has no rule yet: add a line to MAY_IMPORT in tests/test_tidy.py"
    if room == "front" and is_under(target, "spark") and not found.deferred:
        return "imports `spark` when it is loaded; `import headrace` must not load pyspark, so do it inside a function"
    allowed = MAY_IMPORT[room]
    if "*" in allowed or any(is_under(target, prefix) for prefix in allowed):
        return None
    doors = DOORS.get(module_name, set())
    if any(is_under(target, prefix) for prefix in doors):
        if found.deferred:
            return None
        return f"imports `{target}` when it is loaded; this door opens only inside a function"
    may = ", ".join(f"`{name}`" for name in sorted(allowed)) or "none of our rooms"
    return f"imports `{target}`, but `{room}` may import {may} (and `errors`)"


def import_complaints() -> Iterator[str]:
    for module in modules():
        for found in imports_of(module.tree, module.name, module.path.name == "__init__.py"):
            if complaint := complaint_about(module.name, module.room, found):
                yield f"{module.at(found.line)}: {module.name or 'headrace'} {complaint}"


def spelled_store_paths(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String literals that spell a path of the store, docstrings left out."""
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            if STORE_PATH.search(node.value):
                yield node.lineno, node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            part = node.right
            if isinstance(part, ast.Constant) and part.value in STORE_FOLDERS - STORE_FILES:
                yield part.lineno, str(part.value)


def participle_names(module: Module) -> Iterator[str]:
    """Functions, methods, classes, and the module itself, whose whole name is a participle."""
    named = [(1, module.name.rpartition(".")[2])]
    named += [
        (node.lineno, node.name)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    yield from (f"{module.at(line)}: {name}" for line, name in named if name.strip("_").lower() in PARTICIPLES)
    classes = [node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    for node in classes:
        word = node.name.strip("_").lower()
        if PARTICIPLE_CLASS.fullmatch(node.name) and node.name not in CLASSES_NAMED_SO and word not in PARTICIPLES:
            yield f"{module.at(node.lineno)}: {node.name}"


def class_names() -> dict[str, set[str]]:
    """Every class name, with the modules that define it."""
    defined: dict[str, set[str]] = {}
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, set()).add(module.name)
    return defined


def import_graph() -> dict[str, set[str]]:
    """Which module imports which, wherever the import stands; the doors of `dataflow` are left out."""
    names = {module.name for module in modules()}

    def module_of(target: str) -> str:
        while target not in names:
            target = target.rpartition(".")[0]
        return target

    graph: dict[str, set[str]] = {}
    for module in modules():
        targets = {
            found.name.removeprefix("headrace").removeprefix(".")
            for found in imports_of(module.tree, module.name, module.path.name == "__init__.py")
            if is_under(found.name, "headrace")
        }
        doors = DOORS.get(module.name, set())
        inside = {target for target in targets if not any(is_under(target, door) for door in doors)}
        graph[module.name] = {module_of(target) for target in inside} - {module.name}
    return graph


def knots_of(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules of which each reaches every other by imports."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        ahead = [start]
        found: set[str] = set()
        while ahead:
            new = graph[ahead.pop()] - found
            found |= new
            ahead.extend(new)
        reached[start] = found
    groups = {frozenset(name for name in reached[start] if start in reached[name]) for start in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def naming_of_files(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Calls that make files durable or give them names: of `os`, and as methods where a module knows paths."""
    knows_paths = any(isinstance(node, ast.ImportFrom) and node.module == "pathlib" for node in ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            if node.attr in FILE_NAMING:
                yield node.lineno, f"os.{node.attr}"
        elif knows_paths and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # Texts are replaced with two arguments, times and structs with named ones; a path with one.
            one = len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred | ast.Dict)
            if node.func.attr == "hardlink_to" or (one and node.func.attr in ("rename", "replace")):
                yield node.lineno, f".{node.func.attr}()"


def counted_without_plural(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """F-strings that put a number before a noun in the plural: one of them would be ``1 rows``.

    Constants are left out, whose values are known to be more than one, and rates such as ``rows/s``.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in pairwise(node.values):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            noun = PLURAL.match(str(text.value))
            constant = any(isinstance(part, ast.Name) and part.id.isupper() for part in ast.walk(value))
            spelled = ast.unparse(value.value)
            if noun and not constant and "words" not in spelled:
                yield node.lineno, f"{{{spelled}}} {noun[1]}"


def says_nothing(value: object, name: str) -> bool:
    """Whether a public class, function or module has no docstring of its own."""
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return False
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    # A dataclass without a docstring is given its own signature as one.
    return not own or own.startswith(f"{name}(")


# --- the claims


def test_imports_between_rooms_go_one_way_only() -> None:
    complaints = list(import_complaints())
    assert not complaints, "\n".join(["imports that go the wrong way:", *complaints])


def test_importing_headrace_and_its_test_kit_loads_no_pyspark() -> None:
    code = "import headrace.testing, sys; sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=False)
    assert done.returncode == 0, "`import headrace` loads pyspark; it has to wait until a program runs"


def test_store_paths_are_spelled_in_one_module_only() -> None:
    found = [
        f'{module.at(line)}: "{text}" is a path of the store; only {STORE_SPELLER} spells those'
        for module in modules()
        if module.name != STORE_SPELLER
        for line, text in spelled_store_paths(module.tree)
    ]
    assert not found, "\n".join(found)


def test_one_module_only_makes_files_durable_and_gives_them_names() -> None:
    found = [
        f"{module.at(line)}: {text}; only {DURABLE} does that, with what has to be synced beside it"
        for module in modules()
        if module.name != DURABLE
        for line, text in naming_of_files(module.tree)
    ]
    assert not found, "\n".join(found)


def test_numbers_in_messages_have_their_noun_from_count_of() -> None:
    found = [
        f"{module.at(line)}: {text}; write count_of(…), which knows the singular"
        for module in modules()
        if module.room != "testing"
        for line, text in counted_without_plural(module.tree)
    ]
    assert not found, "\n".join(found)


def test_every_public_name_can_be_imported_and_says_what_it_is() -> None:
    headrace = importlib.import_module("headrace")
    missing = [name for name in headrace.__all__ if not hasattr(headrace, name)]
    assert not missing, f"in headrace.__all__ but not to be had: {', '.join(missing)}"
    assert len(set(headrace.__all__)) == len(headrace.__all__), "headrace.__all__ names something twice"
    silent = [name for name in headrace.__all__ if says_nothing(getattr(headrace, name), name)]
    assert not silent, f"public names without a docstring: {', '.join(silent)}"


def test_every_module_begins_with_what_it_owns() -> None:
    silent = [str(m.path.relative_to(ROOT)) for m in modules() if m.text.strip() and not ast.get_docstring(m.tree)]
    assert not silent, f"modules without a docstring: {', '.join(silent)}"


def test_no_module_is_a_drawer() -> None:
    drawers = [str(m.path.relative_to(ROOT)) for m in modules() if m.name.split(".")[-1] in DRAWERS]
    assert not drawers, f"a module is named for what it holds, not that it holds things: {', '.join(drawers)}"


def test_no_name_is_a_participle_alone() -> None:
    found = [name for module in modules() for name in participle_names(module)]
    assert not found, "\n".join(["names that do not say what a thing is (predicate_sql, not told):", *found])


def test_a_class_name_occurs_once_in_the_package() -> None:
    shared = {name: defined for name, defined in class_names().items() if len(defined) > 1}
    several = [f"{name}: {', '.join(sorted(defined))}" for name, defined in sorted(shared.items())]
    assert not several, "\n".join(["class names that several modules have:", *several])


def test_no_knot_of_imports_has_more_than_a_handful_of_modules() -> None:
    large = [knot for knot in knots_of(import_graph()) if len(knot) > MAX_KNOT]
    complaints = [f"{len(knot)} modules import each other in circles: {', '.join(knot)}" for knot in large]
    assert not complaints, "\n".join(complaints)


def test_no_two_rooms_need_each_other_by_any_way() -> None:
    rooms: dict[str, set[str]] = {module.room: set() for module in modules() if module.room != "front"}
    room_of = {module.name: module.room for module in modules()}
    for name, targets in import_graph().items():
        # What stands beside the rooms hands on names of all of them.
        if room_of[name] != "front":
            rooms[room_of[name]] |= {room_of[target] for target in targets} - {room_of[name], "front"}
    circles = [" and ".join(knot) for knot in knots_of(rooms)]
    assert not circles, f"rooms that import each other in circles: {', '.join(circles)}"


def test_the_page_on_architecture_names_every_folder_and_no_path_that_is_gone() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))(?:: \w+)?`", page))
    gone = sorted(name for name in named if not any((base / name).exists() for base in (PACKAGE, ROOT)))
    assert not gone, f"ARCHITECTURE.md names what is not there: {', '.join(gone)}"
    folders = {f"{m.path.parent.relative_to(PACKAGE)}/" for m in modules() if m.path.parent != PACKAGE}
    missing = sorted(folder for folder in folders if not any(name.startswith(folder) for name in named))
    assert not missing, f"ARCHITECTURE.md names nothing in these folders: {', '.join(missing)}"


def test_the_page_on_architecture_names_the_imports_that_are_allowed() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    wrong = []
    for name, imports in re.findall(r"^\| `(\w+)(?:/|\.py)` \|.*\| ([^|]+) \|$", page, re.MULTILINE):
        if (allowed := MAY_IMPORT.get(name)) is None or "*" in allowed:
            continue
        rooms = {each.split(".")[0] for each in allowed}
        if (said := set(re.findall(r"\w+", imports)) & MAY_IMPORT.keys()) != rooms:
            wrong.append(f"{name}: the page says {sorted(said)}, MAY_IMPORT {sorted(rooms)}")
    assert not wrong, "\n".join(wrong)


def test_no_source_file_is_longer_than_four_hundred_lines_or_so() -> None:
    lengths = {str(m.path.relative_to(ROOT)): len(m.text.splitlines()) for m in modules()}
    long = [f"{path} has {lines} lines" for path, lines in lengths.items() if lines > MAX_LINES]
    assert not long, "\n".join(long)


def test_the_root_of_the_repository_stays_under_twenty_entries() -> None:
    entries = sorted({path.relative_to(ROOT).parts[0] for path in repository_files()})
    assert len(entries) <= MAX_ROOT_ENTRIES, f"{len(entries)} entries in the root: {', '.join(entries)}"


def test_no_file_tells_of_the_machine_it_was_written_on() -> None:
    found = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path != Path(__file__).resolve() and (match := MACHINE_FACTS.search(text)):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {match.group()}")
    assert not found, "\n".join(["facts of one machine:", *found])


# --- the rules catch what they are for


@pytest.mark.parametrize(
    ("module", "room", "line", "words"),
    [
        (
            "state.run",
            "state",
            "from headrace.operators.keyed import Keyed",
            "`state` may import `aggregates`, `model`",
        ),
        ("state.run", "state", "from ..operators import keyed", "imports `operators.keyed`"),
        (
            "dataflow.graph",
            "dataflow",
            "from headrace.connectors.files.sink import Files",
            "imports `connectors.files.sink.Files`",
        ),
        ("dataflow.graph", "dataflow", "def f():\n    from headrace.spark import driver", "imports `spark.driver`"),
        ("dataflow.app", "dataflow", "from headrace.spark import driver", "opens only inside a function"),
        ("plan.compile", "plan", "from pyspark.sql import SparkSession", "without a JVM"),
        ("runtime.task", "runtime", "if True:\n    import py4j", "only the room `spark`"),
        ("spark.driver", "spark", "import headrace.cli", "outermost layer"),
        ("sources.items", "sources", "from headrace.testing import Harness", "test kit"),
        ("", "front", "from headrace.spark.driver import start", "must not load pyspark"),
        ("attic.box", "attic", "from headrace.model import ids", "no rule yet"),
    ],
)
def test_a_wrong_import_is_told_in_words(module: str, room: str, line: str, words: str) -> None:
    [found] = imports_of(ast.parse(line), module, False)
    complaint = complaint_about(module, room, found)
    assert complaint is not None
    assert words in complaint


@pytest.mark.parametrize(
    ("module", "room", "line"),
    [
        ("state.run", "state", "from headrace.errors import CorruptFile"),
        ("state.run", "state", "from . import layout"),
        ("dataflow.graph", "dataflow", "from headrace.connectors import sink_contract"),
        ("dataflow.app", "dataflow", "if TYPE_CHECKING:\n    from headrace.spark.runner import Run"),
        ("dataflow.app", "dataflow", "def run():\n    from headrace.spark import driver"),
        ("spark.driver", "spark", "import pyspark.sql"),
        ("front", "front", "if TYPE_CHECKING:\n    from headrace import testing"),
        ("testing.harness", "testing", "from headrace.runtime.task import Task"),
        ("model.keys", "model", "import numpy as np"),
    ],
)
def test_a_right_import_passes(module: str, room: str, line: str) -> None:
    [found] = imports_of(ast.parse(line), module, False)
    assert complaint_about(module, room, found) is None


@pytest.mark.parametrize("line", ['x = f"runs/{step}"', 'x = root / "manifests"', 'open("a/store.json")'])
def test_a_store_path_outside_its_speller_is_noticed(line: str) -> None:
    assert list(spelled_store_paths(ast.parse(line)))


@pytest.mark.parametrize("line", ['"""Lies in runs/ of a store."""', 'x = {"runs": 3}', 'x = "it runs / it stands"'])
def test_words_that_are_no_store_path_pass(line: str) -> None:
    assert not list(spelled_store_paths(ast.parse(line)))


def test_a_knot_is_found_through_deferred_imports_and_across_rooms() -> None:
    graph = {"a.x": {"b.y"}, "b.y": {"c.z"}, "c.z": {"a.x", "d.end"}, "d.end": set()}
    assert knots_of(graph) == [["a.x", "b.y", "c.z"]]


def test_a_participle_is_found_behind_underscores_and_in_methods() -> None:
    text = "class _Found:\n    def told(self): ...\nclass Listed: ...\nclass ListedFile: ...\ndef found_rows(): ...\n"
    module = Module("state.kept", PACKAGE / "state" / "kept.py", text, ast.parse(text))
    assert [name.rpartition(" ")[2] for name in participle_names(module)] == ["kept", "_Found", "told", "Listed"]


@pytest.mark.parametrize("line", ["os.fsync(3)", "os.replace(a, b)", "f = os.link", "a.rename(b)", "a.replace(b)"])
def test_making_a_file_durable_elsewhere_is_noticed(line: str) -> None:
    assert list(naming_of_files(ast.parse(f"from pathlib import Path\n{line}")))


@pytest.mark.parametrize("line", ['f"{n} rows"', 'f"up to {limit:,} keys at once"', 'f"{len(x)} times"'])
def test_a_number_before_a_plural_is_noticed(line: str) -> None:
    assert list(counted_without_plural(ast.parse(line)))


@pytest.mark.parametrize("line", ['f"{n} rows/s"', 'f"{_MOST_KEYS} keys"', 'f"{n} rowsets"', 'f"{count_of(n, x)} in"'])
def test_a_rate_a_constant_and_count_of_pass(line: str) -> None:
    assert not list(counted_without_plural(ast.parse(line)))


@pytest.mark.parametrize("line", ['"a".replace("b", "c")', "t.replace(hour=1)", "t.rename({'a': 'b'})", "os.open(a)"])
def test_other_replacing_and_renaming_passes(line: str) -> None:
    assert not list(naming_of_files(ast.parse(f"from pathlib import Path\n{line}")))
