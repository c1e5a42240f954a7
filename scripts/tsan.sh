#!/usr/bin/env bash
# The worker pool, the way back to the endpoint, and whole endpoints with workers under
# ThreadSanitizer. Needs a nightly toolchain with rust-src: the standard library is built along,
# which takes some minutes. ThreadSanitizer knows no fences; the code that uses them (`buf`'s free
# lists, the in-memory transport) has other tests, under miri.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo +nightly --version >/dev/null 2>&1; then
  echo "no nightly toolchain: rustup toolchain install nightly --component rust-src" >&2
  exit 1
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/tsan"
export CARGO_INCREMENTAL=0
export RUSTFLAGS="-Zsanitizer=thread"
export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}"
cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu -p courser \
  --lib --test workers --test panics "$@"
