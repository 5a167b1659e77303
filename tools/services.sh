#!/usr/bin/env bash
# Installs the Debian packages that tests talk to. A test that needs one adds it here, skips without it on a laptop and
# fails without it in CI.
set -euo pipefail
packages=(chromium libpostgresql-jdbc-java maven postgresql redis-server redis-tools)

command -v javac >/dev/null || packages+=(openjdk-17-jdk-headless) # a client of JDBC is compiled

missing=()
for package in ${packages[@]+"${packages[@]}"}; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done

if [ ${#missing[@]} = 0 ]; then
  echo "• services: nothing to install"
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "• services: installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
else
  echo "services: missing ${missing[*]}; on Debian or Ubuntu: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
