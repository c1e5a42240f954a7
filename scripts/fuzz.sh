#!/usr/bin/env bash
# Builds the fuzz targets and runs each on its kept corpus and on what grows out of it.
#
#   scripts/fuzz.sh [seconds per target, default 60] [target ...]
#
# Plain cargo, with the flags that `cargo fuzz` would pass: nothing has to be installed but a
# nightly toolchain and a C++ compiler (for libFuzzer). Without them it says so and exits with 77.
# New inputs are kept in fuzz/growing (not in the repository), what fails in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
[[ "$seconds" =~ ^[0-9]+$ ]] || { echo "usage: scripts/fuzz.sh [seconds per target] [target ...]" >&2; exit 2; }
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(frame control codecs text endpoint control_live shm_ring shm_meeting)

if ! cargo +nightly --version >/dev/null 2>&1; then
  echo "fuzzing needs a nightly toolchain: rustup toolchain install nightly --profile minimal"; exit 77
fi
if ! command -v c++ >/dev/null; then
  echo "libFuzzer is built with a C++ compiler: apt-get install g++"; exit 77
fi

host=$(rustc +nightly -vV | sed -n 's/^host: //p')
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
flags+=" -Zsanitizer=address --cfg fuzzing"
bins=()
for t in "${targets[@]}"; do bins+=(--bin "$t"); done
# For a short run optimised code costs more than it gains, as compiling takes three times as long, but for
# the protocol.
profile=()
if [ "$seconds" -lt 30 ]; then
  profile=(--config 'profile.release.package."*".opt-level=0')
  for crate in buf proto; do profile+=(--config "profile.release.package.courser-$crate.opt-level=1"); done
fi
# `--target` keeps build scripts and macros free of these flags.
CARGO_ENCODED_RUSTFLAGS=$(tr ' ' '\037' <<<"$flags" | tr -d '\n') \
  cargo +nightly build --manifest-path fuzz/Cargo.toml --locked --release --target "$host" "${profile[@]}" "${bins[@]}"
out=${CARGO_TARGET_DIR:-fuzz/target}/$host/release

failed=()
for t in "${targets[@]}"; do
  printf '\n--> %s, %s s\n' "$t" "$seconds"
  mkdir -p "fuzz/growing/$t" "fuzz/artifacts/$t" "fuzz/corpus/$t"
  dict=()
  [ -f "fuzz/dict/$t.dict" ] && dict=("-dict=fuzz/dict/$t.dict")
  # The first directory takes what is new; the kept corpus is only read.
  log=$(mktemp)
  if "$out/$t" "fuzz/growing/$t" "fuzz/corpus/$t" "${dict[@]}" -max_total_time="$seconds" \
    -artifact_prefix="fuzz/artifacts/$t/" -max_len=4096 -timeout=20 -rss_limit_mb=2048 \
    -print_final_stats=1 >"$log" 2>&1; then
    grep -E '^(Done|stat::(number_of_executed|average_exec|peak_rss))|DONE' "$log"
  else
    grep -A2 -m3 -E "panicked at|ERROR: " "$log" || true
    tail -n 12 "$log"
    failed+=("$t")
  fi
  rm -f "$log"
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}; the inputs are in fuzz/artifacts" >&2; exit 1; }
