#!/usr/bin/env bash
# Prints the JAVA_HOME of a Java that Spark runs on; everything else it says goes to stderr. Where there is none, a root
# shell on Debian or Ubuntu (as in a container) installs one, and anyone else is told the line to run. Where Java is
# looked for is spelled once, in src/headrace/spark/java.py.
set -euo pipefail
cd "$(dirname "$0")/.."

find_java() { .venv/bin/python -m headrace.spark.java; }

if home=$(find_java 2>/dev/null); then
  echo "$home"
  exit
fi
if [ "$(id -u)" = 0 ] && grep -qsE '^ID(_LIKE)?=.*(debian|ubuntu)' "${OS_RELEASE:-/etc/os-release}"; then
  echo "• no Java 17 or newer here; installing openjdk-17-jre-headless" >&2
  {
    apt-get update -qq
    # Slim images lack this folder, and the package's links to its manual pages fail without it.
    mkdir -p /usr/share/man/man1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless
  } >&2
fi
find_java
