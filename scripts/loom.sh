#!/usr/bin/env bash
# Models under loom: every order in which threads can run, and every value that a weakly ordered
# machine may return. Each model also runs with rules broken on purpose, and must fail then.
#
#   scripts/loom.sh [name of a test ...]
#
#   crates/buf/src/chunk/model.rs   the arena's free stack, the reference count of buffers
#   crates/net/src/shm/model.rs     rings and doorbell of shared memory
#   crates/net/src/mem/queue/model.rs   the queue of an endpoint in memory
#   model.rs below crates/courser/src   where a thread or a task is woken from another thread: mailbox,
#                                   calls of clients, tasks of an endpoint, worker threads, commands and
#                                   cancellations of a server, streams, turns of large requests
#
# A build of its own, because everything is compiled with --cfg loom. Exits with 77 and a reason
# when a tool is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cc >/dev/null || { echo "loom is built with a C compiler: apt-get install gcc"; exit 77; }
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/plain"
# Not optimised but for loom: compiling takes longer than the models. scripts/visited.sh uses the same
# directory and flags.
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_TEST_OPT_LEVEL=0
export CARGO_PROFILE_DEV_DEBUG=line-tables-only CARGO_PROFILE_TEST_DEBUG=line-tables-only
export CARGO_PROFILE_TEST_LTO=off CARGO_PROFILE_TEST_CODEGEN_UNITS=16
tests=(cargo test --locked --lib --config profile.test.package.loom.opt-level=2)
tests+=(--config profile.test.package.courser-buf.opt-level=0)
tests+=(-p courser-buf -p courser-net -p courser) # always all: one alone has other features
filters=("$@")
[ $# -gt 0 ] || filters=(model:: --skip tests::)
"${tests[@]}" --no-run
# The models take about fifteen seconds of processor time; on a busy machine more. This ends one that
# does not end.
exec timeout 240 "${tests[@]}" -- "${filters[@]}"
