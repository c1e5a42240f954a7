#!/usr/bin/env bash
# Tests under a sanitizer: scripts/sanitize.sh asan|tsan|miri [quick]
#
#   asan  AddressSanitizer with leak detection: drop orders, message memory, transports, and
#         the rest of the library's tests. `quick`: drop orders and message memory only.
#   tsan  ThreadSanitizer: what several threads share, that is mailboxes, the control thread,
#         worker queues, message buffers. Needs the component rust-src.
#   miri  the message memory's unsafe code. Needs the components miri and rust-src.
#
# Exits with 77 and a reason when a tool is missing; installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
usage() { echo "usage: scripts/sanitize.sh asan|tsan|miri [quick]" >&2; exit 2; }
missing() { echo "$1"; exit 77; }
[ $# -ge 1 ] || usage
quick=${2:-}

cargo +nightly --version >/dev/null 2>&1 ||
  missing "sanitizers need a nightly toolchain: rustup toolchain install nightly --profile minimal"
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
sysroot=$(rustc +nightly --print sysroot)
# `--target` keeps build scripts and macros free of the sanitizer.
run() { cargo +nightly test --locked --target "$host" "$@"; }

case "$1" in
asan)
  export RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1"
  # A directory of its own: other flags would rebuild everything each time.
  export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/asan"
  run -p courser --test drop_order
  run -p courser-buf --lib
  if [ "$quick" != quick ]; then
    run -p courser-net --lib
    run -p courser-proto --lib --test protocol
    run -p courser --lib
    run -p courser --test api -- calls:: failures:: connecting:: transports::
  fi
  ;;
tsan)
  [ -d "$sysroot/lib/rustlib/src/rust/library" ] ||
    missing "ThreadSanitizer needs the standard library's source: rustup component add rust-src --toolchain nightly"
  export RUSTFLAGS="-Zsanitizer=thread" CARGO_INCREMENTAL=0
  # ThreadSanitizer knows no fences: where `buf` orders the freeing of an arena by one, it would
  # see races that are none. Those places are tested under miri.
  export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan.suppressions halt_on_error=1 ${TSAN_OPTIONS:-}"
  export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/tsan"
  # The standard library with the same instrumentation, or its synchronisation would be invisible.
  # One test at a time: ThreadSanitizer does not see memory go back to the system and come from
  # there (system calls without the C library), and would compare one test's bytes with another's.
  run -Zbuild-std -p courser --lib --test drop_order -- --test-threads=1
  run -Zbuild-std -p courser --test api -- --test-threads=1 workers:: panics:: driving::
  ;;
miri)
  cargo +nightly miri --version >/dev/null 2>&1 ||
    missing "miri is not installed: rustup component add miri rust-src --toolchain nightly"
  export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-strict-provenance"
  # Debug information and optimisation cost compile time and miri interprets without either.
  export CARGO_PROFILE_TEST_OPT_LEVEL=0 CARGO_PROFILE_TEST_DEBUG=line-tables-only
  export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"
  # These tests compute with sizes only and allocate nothing.
  safe=(--skip classes_are_dense_and_tight --skip a_buffer_has_room_for_all_its_headers)
  safe+=(--skip handles_have_the_intended_sizes)
  miri() { cargo +nightly miri test --locked -p courser-buf --lib -- "${safe[@]}" "$@"; }
  miri --list >/dev/null # compiled once, and then two halves on a core each
  miri --skip arena:: >"$log" 2>&1 &
  other=$!
  status=0
  miri arena:: || status=$?
  wait "$other" || status=$?
  cat "$log"
  exit "$status"
  ;;
*) usage ;;
esac
