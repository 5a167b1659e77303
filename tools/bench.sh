#!/usr/bin/env bash
# Runs every benchmark with the given Python, shows its tables, and writes them to docs/benchmarks.md. The page is
# replaced only when all of them came to their end.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${1:-.venv/bin/python}"
page=docs/benchmarks.md
draft=$(mktemp)
trap 'rm -f "$draft"' EXIT

cpu() {
  { sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null || sysctl -n machdep.cpu.brand_string; } | head -n 1
}

{
  echo "# Benchmarks"
  echo
  echo "Written by \`make bench\` on $(date -u +%Y-%m-%d): $(cpu), $("$python" -c 'import os; print(os.cpu_count())') cores,"
  echo "$(uname -s), Python $("$python" -c 'import platform; print(platform.python_version())'),"
  echo "PySpark $("$python" -c 'from importlib.metadata import version; print(version("pyspark"))')."
  echo "Peers ran in the same run, on the same rows and the same machine; compare ratios rather than absolute numbers."
} >"$draft"

shopt -s nullglob
for file in benchmarks/[a-z]*.py; do
  # Files without a main part are what the benchmarks share.
  grep -q '__main__' "$file" || continue
  name=$(basename "$file" .py)
  echo "• $name"
  { echo; echo "## ${name//_/ }"; echo; echo '```text'; } >>"$draft"
  COLUMNS=120 "$python" -m "benchmarks.$name" | tee -a "$draft"
  echo '```' >>"$draft"
done
mv "$draft" "$page"
trap - EXIT
chmod 644 "$page"
echo "• wrote $page"
