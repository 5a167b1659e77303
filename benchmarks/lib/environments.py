"""Virtual environments of the peers, made on first use under `benchmarks/.envs/`.

A peer either has an environment of its own, or one *on top of* the environment that runs the benchmarks: then it sees
exactly the same `pyspark` and `pyarrow`, and only what is missing is installed. An environment is finished when its
marker file holds what was asked for; anything else is made again, so an installation that was interrupted leaves
nothing half done behind.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lib.progress import say

ENVIRONMENTS = Path(__file__).resolve().parent.parent / ".envs"


@dataclass(frozen=True)
class Environment:
    name: str
    requirements: tuple[str, ...]
    on_top: bool
    """Whether packages of the environment that runs the benchmarks are visible too."""


FLINK = Environment("flink", ("apache-flink==2.3.*",), on_top=False)
TWS = Environment("tws", ("protobuf>=6",), on_top=True)
STORES = Environment("stores", ("lmdb", "rocksdict"), on_top=True)


def python_of(environment: Environment) -> Path:
    """The interpreter of an environment, which is made first where it is missing or out of date."""
    folder = ENVIRONMENTS / environment.name
    python = folder / "bin" / "python"
    marker = folder / "finished.txt"
    wanted = "\n".join((sys.version, str(environment.on_top), *environment.requirements))
    if marker.exists() and marker.read_text() == wanted:
        return python
    say(f"making the environment of {environment.name}, once: {', '.join(environment.requirements)}")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if environment.on_top:
        library = _ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))")
        # A line that begins with `import` is run, and so the .pth files of the environment below are read too.
        below = sysconfig.get_path("purelib")
        Path(library, "_below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *environment.requirements], check=True)
    marker.write_text(wanted)
    say(f"the environment of {environment.name} is ready")
    return python


def _ask(python: Path, program: str) -> str:
    return subprocess.run([str(python), "-c", program], check=True, capture_output=True, text=True).stdout.strip()
