"""``headrace new``: a folder to begin with: a program, its test, its settings, and how to go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.exits import Json, Trace, report_errors

PROGRAM: Final = '''\
"""Counts page views per page and minute."""

from __future__ import annotations

import headrace as hr


class View(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1


app = hr.App("NAME")
views = app.read("views", hr.source.files(hr.var("events", "events/")), View, time=View.at, out_of_order="5s")
per_minute = (
    views.where("n > 0")
    .key_by(View.page)
    .window(hr.tumbling("1m"))
    .aggregate(views=hr.sum("n"), last=hr.max("at"))
    .named("per_minute")
    .queryable(keep="1d")
)
per_minute.show()

if __name__ == "__main__":
    app.run()
'''

TEST: Final = """\
from __future__ import annotations

import headrace as hr
from app import View, app, per_minute, views


def test_views_are_summed_per_page_and_minute() -> None:
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(views, View("home", h.at("12:00:10")), View("home", h.at("12:00:50"), 2))
        h.push(views, View("about", h.at("12:00:20")))
        h.epoch(watermark="12:01:00")
        assert {row.page: row.views for row in h.take(per_minute)} == {"home": 3, "about": 1}
"""

SETTINGS: Final = """\
# Settings of every program in this folder; arguments and HEADRACE_* win over them.
store = ".headrace/NAME"
epoch = "1s"
parallelism = 2

[vars]
events = "events/"
"""

README: Final = """\
# NAME
Count page views per page and minute, on [Spark](https://spark.apache.org) with Headrace.
- `headrace run app.py --until drained` reads `events/`; `headrace run app.py --serve` goes on, and answers `redis-cli`.
- `python -m pytest` tests the program in milliseconds, without Spark.
- `headrace explain app.py` shows its steps; `headrace state .headrace/NAME` what it keeps.
"""

EVENTS: Final = """\
{"page": "home", "at": "2024-01-01T12:00:10Z"}
{"page": "about", "at": "2024-01-01T12:00:20Z"}
{"page": "home", "at": "2024-01-01T12:00:50Z", "n": 2}
{"page": "home", "at": "2024-01-01T12:01:30Z"}
"""

STATEMENTS: Final = """\
-- Counts page views per page and minute, of events that are made up.
--   headrace explain FILE     what it does, without running it
--   headrace run FILE         Ctrl-C ends it; the next run goes on from there
--   headrace state .headrace/NAME per_page     what it keeps, also while it runs

CREATE TABLE views (
  page STRING NOT NULL,
  n BIGINT NOT NULL,
  at TIMESTAMP(3) NOT NULL,
  WATERMARK FOR at AS at - INTERVAL '5' SECOND
) WITH (
  'connector' = 'datagen',            -- or 'files', 'kafka', 'postgres', …
  'rows-per-second' = '100',
  'fields.page.values' = 'home, about, blog',
  'fields.n.min' = '1',
  'fields.n.max' = '3'
);

-- State under a name: the totals of each page so far.
CREATE MATERIALIZED VIEW per_page AS SELECT page, sum(n) AS views FROM views GROUP BY page;

-- One row for each page and minute, once the minute is over.
CREATE TABLE minutes (page STRING, minute TIMESTAMP(3), views BIGINT)
WITH ('connector' = 'console');     -- or 'files', 'kafka', 'postgres', …

INSERT INTO minutes
SELECT page, window_start, sum(n)
FROM TABLE(TUMBLE(TABLE views, DESCRIPTOR(at), INTERVAL '1' MINUTE))
GROUP BY page, window_start, window_end;
"""


def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[.sql]", help="Of the folder and of the app: small letters, digits and _; or of a file of SQL."
        ),
    ],
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Make a folder with a program, its test, settings and sample events, or a program in SQL. Nothing is overwritten.

    Example: headrace new views

    Example: headrace new views.sql
    """
    with report_errors(trace=trace, as_json=as_json):
        if name.endswith(".sql"):
            _tell_script(write_script(Path(name)), as_json)
            return
        files = write_project(Path(name))
        if as_json:
            from headrace.cli.show import print_json

            print_json({"folder": name, "files": files})
            return
        print(f"made {name}: {', '.join(files)}")
        print(f"try: cd {name} && python -m pytest -q && headrace run app.py --until drained")


def _tell_script(file: Path, as_json: bool) -> None:
    if as_json:
        from headrace.cli.show import print_json

        print_json({"folder": str(file.parent), "files": [file.name]})
    else:
        print(f"made {file}")
        print(f"try: headrace run {file}")


def write_script(file: Path) -> Path:
    """Writes a program of SQL statements. Raises where anything is in the way."""
    from headrace.dataflow.naming import check_name

    app = check_name(file.stem, "an app", "headrace new")
    if file.exists():
        raise _in_the_way(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(STATEMENTS.replace("NAME", app).replace("FILE", file.name), encoding="utf-8")
    return file


def _in_the_way(path: Path) -> Exception:
    from headrace.errors import SettingsError

    return SettingsError(
        "there is something of this name already",
        where=str(path),
        expected="a name that is free, or an empty folder",
        next_move="choose another name, or move what is there out of the way",
    )


def write_project(folder: Path) -> list[str]:
    """Writes the files of a new program; answers their paths in the folder. Raises where anything is in the way."""
    from headrace.dataflow.naming import check_name

    app = check_name(folder.name, "an app", "headrace new")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise _in_the_way(folder)
    files = {
        "app.py": PROGRAM,
        "test_app.py": TEST,
        "headrace.toml": SETTINGS,
        "README.md": README,
        "events/sample.json": EVENTS,
    }
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("NAME", app), encoding="utf-8")
    return list(files)
