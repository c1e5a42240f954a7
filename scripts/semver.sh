#!/usr/bin/env bash
# Compares the public interfaces of the libraries with those of the last published version: the last tag
# vX.Y.Z in the history. Exits with 77 and a reason while there is none, or without cargo-semver-checks.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! published=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null); then
  echo "no version is published: there is no tag vX.Y.Z in the history"; exit 77
fi
if ! cargo semver-checks --version >/dev/null 2>&1; then
  echo "cargo-semver-checks is not installed (cargo install cargo-semver-checks --locked)"; exit 77
fi
# Crates that are not published are left out by the tool, and so is what has no library.
exec cargo semver-checks --workspace --baseline-rev "$published"
