#!/usr/bin/env bash
# Checks that the workspace compiles with the oldest Rust that it promises: `rust-version` in Cargo.toml.
# The router promises a later one of its own.
# Exits with 77 and a reason when that toolchain is missing; installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
[ -n "$oldest" ] || { echo "Cargo.toml names no rust-version" >&2; exit 1; }
for toolchain in "$oldest" "$oldest.0"; do
  # `rustup run` installs nothing, where `cargo +VERSION` may.
  if rustup run "$toolchain" cargo --version >/dev/null 2>&1; then
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/msrv"
    exec rustup run "$toolchain" cargo check --workspace --exclude courser-router --locked
  fi
done
echo "the oldest promised Rust is not installed: rustup toolchain install $oldest.0 --profile minimal"
exit 77
