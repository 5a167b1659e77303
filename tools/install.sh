#!/usr/bin/env bash
# Creates the environment (first argument) with a Python that is new enough, and installs Headrace into it, editable and
# with the versions of constraints.txt. An environment that exists already is kept and brought up to date.
set -euo pipefail
venv="$1"

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  # A name may be there and still not start (the shim of a version manager), so each candidate is tried.
  local name
  for name in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 python; do
    if new_enough "$name"; then echo "$name"; return; fi
  done
  {
    echo "Headrace needs Python 3.11 or newer; found: $(python3 --version 2>/dev/null || echo no python3)."
    echo "Install one (Debian, Ubuntu: apt-get install python3.11-venv; macOS: brew install python@3.11),"
    echo "or name it: make test PYTHON=/path/to/python3.11"
  } >&2
  return 1
}

if ! new_enough "$venv/bin/python"; then
  python=$(find_python)
  echo "• creating $venv with $("$python" --version)"
  if ! "$python" -m venv --clear "$venv"; then
    echo "$python has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
  fi
fi

echo "• installing Headrace and what it needs into $venv (the first time this fetches about 700 MB, mostly Spark)"
"$venv/bin/python" -m pip install --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
echo "• installed"
