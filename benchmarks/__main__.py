"""Runs all benchmarks, prints their tables and writes docs/benchmarks.md.

    python -m benchmarks                       everything; the better part of an hour
    python -m benchmarks --quick               rough figures, sooner
    python -m benchmarks --only epoch_floor    one of them; the page keeps the last results of the others

Results lie under benchmarks/.results/, one JSON object each; the page is written from them, and with `--page` without
measuring anything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.page import write_page
from benchmarks.lib.progress import say
from benchmarks.lib.results import show

HERE = Path(__file__).resolve().parent
RESULTS = HERE / ".results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
BENCHMARKS = (
    "keyed_process",
    "exchange",
    "patterns",
    "windows",
    "sessions",
    "joins",
    "nexmark",
    "epoch_floor",
    "epoch_policy",
    "state_growth",
    "savepoints",
    "transfer",
    "serving",
    "snapshot_sql",
    "impressions",
    "end_to_end",
)


def main() -> None:
    options = parse()
    failed = [] if options.page else [name for name in options.only if not measure(name, quick=options.quick)]
    known = {name: RESULTS / f"{name}.json" for name in BENCHMARKS}
    results = [json.loads(file.read_text()) for file in known.values() if file.exists()]
    if results and not failed:
        write_page(PAGE, results)
        say(f"wrote {PAGE.relative_to(HERE.parent)}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; the page was left as it is")


def measure(name: str, *, quick: bool) -> bool:
    """Runs one benchmark, shows its tables and keeps its result; whether it came to its end."""
    say(f"{name}: starting")
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return False
    result = {**json.loads(done.stdout), "quick": quick}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    show(result)
    return True


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: rough figures, sooner")
    parser.add_argument("--only", type=lambda text: text.split(","), default=BENCHMARKS, help=", ".join(BENCHMARKS))
    parser.add_argument("--page", action="store_true", help="write the page from the last results, measure nothing")
    options = parser.parse_args()
    if unknown := set(options.only) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    return options


if __name__ == "__main__":
    main()
