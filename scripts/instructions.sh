#!/usr/bin/env bash
# Instructions per small RPC, client and server side, over the in-memory transport.
# Exact and repeatable: the difference of two runs, so that set-up does not count.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "valgrind is not installed: apt-get install valgrind" >&2; exit 1; }
cargo build --release --locked -q -p courser --example instructions
bin="${CARGO_TARGET_DIR:-target}/release/examples/instructions"
few=20000 many=60000
count() { # function, rpcs
  valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
    --toggle-collect="instructions::$1*" "$bin" "$2" 2>&1 |
    awk '/Collected :/ { print $4 }'
}
printf '%-8s %s\n' side "instructions per RPC"
for side in client server; do
  a=$(count "${side}_pass" "$few"); b=$(count "${side}_pass" "$many")
  awk -v a="$a" -v b="$b" -v n=$((many - few)) -v s="$side" 'BEGIN { printf "%-8s %.1f\n", s, (b - a) / n }'
done
