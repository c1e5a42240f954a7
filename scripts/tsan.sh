#!/usr/bin/env bash
# The worker pool, the way back to the endpoint, and whole endpoints with workers under
# ThreadSanitizer. Needs a nightly toolchain with rust-src: the standard library is built along.
#
# ThreadSanitizer knows no fences: where `buf` orders the freeing of an arena by one, it would see
# races that are none (scripts/tsan.suppressions). Those places are tested under miri.
set -euo pipefail
cd "$(dirname "$0")/.."
host=x86_64-unknown-linux-gnu
if ! cargo +nightly --version >/dev/null 2>&1; then
  echo "no nightly toolchain: rustup toolchain install nightly --component rust-src" >&2
  exit 1
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/tsan"
export CARGO_INCREMENTAL=0
export RUSTFLAGS="-Zsanitizer=thread"
export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan.suppressions halt_on_error=1 ${TSAN_OPTIONS:-}"
cargo +nightly test -Zbuild-std --target "$host" -p courser --lib --test workers --test panics "$@"
