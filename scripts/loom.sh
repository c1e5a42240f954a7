#!/usr/bin/env bash
# The rings and the doorbell of shared memory under loom: every order in which two threads can run, and
# every value that a weakly ordered machine may let them see. Also with rules broken on purpose,
# which must be found (crates/net/src/shm/model.rs).
#
#   scripts/loom.sh [name of a test ...]
#
# A build of its own, because everything is compiled with --cfg loom. Exits with 77 and a reason
# when a tool is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cc >/dev/null || { echo "loom is built with a C compiler: apt-get install gcc"; exit 77; }
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
test=(cargo test --locked -p courser-net --lib)
"${test[@]}" --no-run
# The models take about ten seconds of processor time; on a busy machine more. This ends one that
# does not end.
exec timeout 180 "${test[@]}" shm::model:: -- "$@"
