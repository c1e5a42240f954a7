#!/usr/bin/env bash
# Models under loom: every order in which threads can run, and every value that a weakly ordered
# machine may return. Each model also runs with rules broken on purpose, and must fail then.
#
#   scripts/loom.sh [name of a test ...]
#
#   crates/buf/src/chunk/model.rs   the arena's free stack, the reference count of buffers
#   crates/net/src/shm/model.rs     rings and doorbell of shared memory
#
# A build of its own, because everything is compiled with --cfg loom. Exits with 77 and a reason
# when a tool is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cc >/dev/null || { echo "loom is built with a C compiler: apt-get install gcc"; exit 77; }
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
cargo test --locked -p courser-buf -p courser-net --lib --no-run
# The models take about ten seconds of processor time; on a busy machine more. This ends one that
# does not end.
timeout 180 cargo test --locked -p courser-buf --lib chunk::model:: -- "$@"
timeout 180 cargo test --locked -p courser-net --lib shm::model:: -- "$@"
