#!/usr/bin/env bash
# Instructions of a write of apps/raft-kv on the leader, on a follower and at the client: three nodes over
# shared memory on one thread, logs in memory, keys of 16 bytes and values of 64 bytes, one write in
# flight. The total is that of the endpoint's passes. Its parts are counted with the same nodes without
# endpoints:
#
#   apply   the entry is decoded and applied to the state machine
#   Raft    the rest of the node without I/O, with the Raft library
#   codec   Raft messages to bytes and back, with the bounded decoder
#   RPC     the rest: transport, protocol, typed services, tasks
#
#   scripts/raft_instructions.sh           prints them
#   scripts/raft_instructions.sh --check   and fails when one is more than 5 % above its budget
#   scripts/raft_instructions.sh --write   and makes them the budget, scripts/raft_instructions.budget
#
# Heartbeats are rare. The counts depend on the compiler, so the budget belongs to the toolchain of CI.
set -euo pipefail
shopt -s inherit_errexit # a count that is missing ends it
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "valgrind is not installed: apt-get install valgrind" >&2; exit 77; }
mode="${1:-}"
case "$mode" in '' | --check | --write) ;; *) echo "usage: $0 [--check | --write]" >&2; exit 2 ;; esac
budget=scripts/raft_instructions.budget
CARGO_INCREMENTAL=0 cargo build --release --locked -q -p courser-raft-kv --example put_instructions
bin="${CARGO_TARGET_DIR:-target}/release/examples/put_instructions"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

run() {
  valgrind --fair-sched=yes --tool=callgrind --callgrind-out-file="$work/$1" \
    --dump-before='put_instructions::begin' --dump-before='put_instructions::end' \
    "$bin" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
}
# Instructions of a run within a function of the example, all that it calls included, for each write.
within() { # run, function
  awk -v ours="$2" -v n="$(awk '/ writes$/ { print $1 }' "$work/log")" '
    match($0, /^c?fn=\([0-9]+\)/) {
      id = substr($0, index($0, "("), RLENGTH - index($0, "(") + 1)
      if (length($0) > RLENGTH) name[id] = substr($0, RLENGTH + 2)
      callee = name[id]
    }
    /^calls=/ { getline; if (callee ~ "put_instructions::" ours "$") total += $2 }
    END {
      if (n > 0 && total > 0) { printf "%.0f", total / n; exit 0 }
      print ours ": " total + 0 " instructions in " n + 0 " writes" >"/dev/stderr"
      exit 1
    }' "$work/$1.2"
}

count=3000
run nodes $count
declare -A of
for side in client leader follower; do of[$side]=$(within nodes "${side}_pass"); done
run parts $count
of[apply]=$(within parts apply)
for side in leader follower; do
  of[${side}_raft]=$(within parts "${side}_raft")
  of[${side}_codec]=$(within parts "${side}_codec")
done
status=0
row() { # name, instructions
  local allowed
  allowed=$(awk -F'\t' -v k="$1" '$1 == k { print $2 }' "$budget" 2>/dev/null || true)
  printf '%-24s %8s %8s\n' "$1" "$2" "${allowed:--}"
  printf '%s\t%s\n' "$1" "$2" >>"$work/measured"
  if [ "$mode" = --check ] && awk -v t="$2" -v a="$allowed" 'BEGIN { exit !(t > a * 1.05) }'; then
    echo "$1: $2 instructions, more than 5 % above the budget of ${allowed:-0}" >&2
    status=1
  fi
}
printf '%-24s %8s %8s\n' "instructions of a PUT" "" budget
row "client" "${of[client]}"
# Both followers are in the counts of their side.
for side in leader follower; do
  nodes=1
  [ "$side" = leader ] || nodes=2
  total=$((${of[$side]} / nodes)) apply=${of[apply]}
  raft=$((${of[${side}_raft]} / nodes - apply)) codec=$((${of[${side}_codec]} / nodes))
  row "$side" "$total"
  row "$side: RPC" $((total - raft - codec - apply))
  row "$side: codec" "$codec"
  row "$side: Raft" "$raft"
  row "$side: apply" "$apply"
done
if [ "$mode" = --write ]; then
  cp "$work/measured" "$budget"
  echo "written to $budget"
fi
exit $status
