#!/usr/bin/env bash
# The checks of .ci/run that compile nothing of Courser: format, paths, clocks, sizes of files, words,
# modules, examples of public types. They take seconds. Run them before each commit.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all -- --check
if git grep -nIE '/(work|tmp)/' -- '*.rs' '*.md' '*.toml' ':!.ci' ; then
  echo "a path of somebody's machine is in the tree (see above)" >&2; exit 1
fi
if git grep -nE 'Instant::now|SystemTime|\.elapsed\(|Hash(Map|Set)|getrandom' -- crates/courser/src \
    ':!*/tests.rs' ':!*/tests/*' ':!*/platform.rs' ':!*/src/core.rs' ':!*/core/clock.rs' ':!*/worker/pool.rs' ':!*/worker/queue.rs'; then
  echo "a clock, random bits or a hash table besides the machine's (see above; ADR 23)" >&2; exit 1
fi
long_files=$(git ls-files '*.rs' | xargs wc -l | awk '$2 != "total" && $1 > 800 { print $2 ": " $1 " lines" }')
if [ -n "$long_files" ]; then echo "files over 800 lines: $long_files" >&2; exit 1; fi
scripts/words.sh --self-test
scripts/words.sh
scripts/structure.py --self-test
scripts/structure.py --check
scripts/examples.py --self-test
scripts/examples.py --check
