"""How a command ends: the exit codes, and errors told in their four parts.

====  ==========================================================================================================
code  meaning
====  ==========================================================================================================
0     done; also a run that was asked to stop and has stopped after its epoch
1     the program, a setting, a row or a key is at fault, or something that should not have happened; also what
      ``headrace diff``, ``headrace replay`` or ``headrace verify`` compared differs
2     the command was written wrongly; nothing was done
3     the machine lacks something: Java, a package, memory (Spark's JVM died, and could not be replaced)
4     the store is at fault: none there, in use by another driver, damaged, not resumable
5     the program has changed so that it does not fit what is stored: ``headrace plan`` says what and why
130   interrupted (a second Ctrl-C, or one while Spark starts): what is not published is replayed at the next start
====  ==========================================================================================================
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from headrace.errors import EnvironmentMissing, HeadraceError, JvmDied, StoreError, UpgradeRefused


class Exit(IntEnum):
    OK = 0
    WRONG = 1
    DIFFERENT = 1
    """Of what compares, as diff(1) does."""
    USAGE = 2
    ENVIRONMENT = 3
    STORE = 4
    REFUSED = 5
    INTERRUPTED = 130


Json = Annotated[bool, typer.Option("--json", help="Machine-readable output: JSON on standard output.")]
Trace = Annotated[bool, typer.Option("--trace", help="Show Python's traceback when something goes wrong.")]


def exit_code(error: BaseException) -> Exit:
    """The code a command ends with after this error; decided by type."""
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, EnvironmentMissing | JvmDied):
        return Exit.ENVIRONMENT
    if isinstance(error, UpgradeRefused):
        return Exit.REFUSED
    return Exit.STORE if isinstance(error, StoreError) else Exit.WRONG


@contextlib.contextmanager
def report_errors(*, trace: bool = False, as_json: bool = False) -> Iterator[None]:
    """Turns whatever is raised inside into words on standard error and an exit code."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter, SystemExit):
        raise
    except BrokenPipeError:
        # The reader of our output has seen enough (`headrace epochs … | head`).
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.close()
        raise typer.Exit(Exit.OK) from None
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    except ModuleNotFoundError as error:
        missing = _missing(error)
        tell(missing, trace=trace, as_json=as_json)
        raise typer.Exit(exit_code(missing)) from None
    except Exception as error:
        tell(error, trace=trace, as_json=as_json)
        raise typer.Exit(exit_code(error)) from None


def _missing(error: ModuleNotFoundError) -> Exception:
    """A package that ours needs and that is not there, as it can be after a broken install."""
    if not error.name:
        return error
    package = error.name.partition(".")[0]
    missing = EnvironmentMissing(
        f"the package {package} cannot be imported",
        where=sys.executable,
        found=str(error),
        next_move=f"install it beside headrace: {sys.executable} -m pip install {package}",
    )
    return missing.with_traceback(error.__traceback__)


def tell(error: Exception, *, trace: bool = False, as_json: bool = False) -> None:
    """Says what went wrong, on standard error."""
    if trace:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        print(json.dumps({"error": describe(error)}), file=sys.stderr)
        return
    if isinstance(error, UpgradeRefused) and error.plan is not None:
        from headrace.cli.show import print_plan

        print_plan(error.plan, stderr=True)
        for each in error.plan.errors():
            tell(each)
        return
    Console(stderr=True, soft_wrap=True).print(error_text(error, traced=trace))


def tell_interrupted(left: str) -> None:
    """Says, on standard error, what Ctrl-C has left behind and how to go on."""
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("interrupted; ", "bold"), left))


def describe(error: Exception) -> dict[str, str]:
    """An error for machines."""
    if isinstance(error, HeadraceError):
        parts = {
            "what": error.what,
            "where": error.where,
            "expected": error.expected,
            "found": error.found,
            "next": error.next_move,
        }
        return {"type": type(error).__name__, **{name: text for name, text in parts.items() if text}}
    return {"type": type(error).__name__, "what": str(error)}


def error_text(error: Exception, *, traced: bool = False) -> Text:
    """An error for people: what and where, expected, found, and the next move, each in its colour."""
    if not isinstance(error, HeadraceError):
        text = Text.assemble(("error ", "bold red"), f"{type(error).__name__}: {error}")
        if not traced:
            text.append("\n  next      ", "green").append("run it again with --trace to see where, and report it")
        return text
    text = Text.assemble(("error ", "bold red"), (error.what, "bold"))
    for label, part, style in (
        ("where", error.where, "cyan"),
        ("expected", error.expected, "blue"),
        ("found", error.found, "yellow"),
        ("next", error.next_move, "green"),
    ):
        if part:
            # Further lines of a part (a row, a trace) stand under its first.
            text.append(f"\n  {label:<10}", style).append(part.replace("\n", "\n" + " " * 12))
    return text
