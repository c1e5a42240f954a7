#!/usr/bin/env bash
# Checks that the book lists its chapters, and builds it with mdbook, which is optional: exit code 77
# without it.
set -euo pipefail
cd "$(dirname "$0")/../docs/book"

for chapter in *.md; do
  [ "$chapter" = SUMMARY.md ] || grep -qF "($chapter)" SUMMARY.md || {
    echo "docs/book/SUMMARY.md does not list $chapter" >&2
    exit 1
  }
done
command -v mdbook >/dev/null || { echo "mdbook is not installed (cargo install mdbook)"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mdbook build --dest-dir "$out"
