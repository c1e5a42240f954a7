#!/usr/bin/env bash
# Instructions per small RPC, client and server side, in memory (mem) and over shared memory (shm).
# Repeatable: counted between two calls in the middle of a run, so that set-up does not count. Nor does
# periodic work, of which slow machines do more in an RPC; it may be half as much as the rest.
# Two runs differ by 0.3 %. A pause of the machine can split the batches of calls in flight for the rest
# of a run, which then counts more passes for each RPC: a run above its budget is repeated twice.
#
#   scripts/instructions.sh           prints them
#   scripts/instructions.sh --check   and fails when one is more than 3 % above its budget
#   scripts/instructions.sh --write   and makes them the budget, scripts/instructions.budget
#
# The counts depend on the compiler, so the budget belongs to the toolchain that CI uses.
set -euo pipefail
shopt -s inherit_errexit # a count that is missing ends it
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "valgrind is not installed: apt-get install valgrind" >&2; exit 1; }
mode="${1:-}"
case "$mode" in '' | --check | --write) ;; *) echo "usage: $0 [--check | --write]" >&2; exit 2 ;; esac
budget=scripts/instructions.budget
slack=1.03
# Not incremental: that changes what is inlined. With the program selected, so that the dependencies
# have its features and are compiled once for both.
CARGO_INCREMENTAL=0 cargo build --release --locked -q -p courser-bench -p courser-cli --example instructions
bin="${CARGO_TARGET_DIR:-target}/release/examples/instructions"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# Periodic work: polls of the sockets, readings of the system's clock, and scans of the slots whose
# calls have deadlines. In the rows without deadlines no such scan is due.
by_time='::ShmTransport>?::upkeep_when_due|::SystemClock>?::by_the_system|::expiry::.*::expire_timers'

# Runs the example, over `$over`. Dumps what is counted from `begin` to `end`; functions of periodic work
# have the names of their callers.
run() {
  valgrind --fair-sched=yes --tool=callgrind --callgrind-out-file="$work/calls" \
    --dump-before='instructions::begin*' --dump-before='instructions::end*' \
    --separate-callers30='*::upkeep_when_due*' --separate-callers30='*::by_the_system*' \
    --separate-callers30='*::expire_timers*' "$bin" "$over" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
}
# Instructions of that run within functions of the example, for each RPC or pass: a pattern of their names.
within() {
  # `cfn=(number) name` is the callee, with its name only the first time; the line after `calls=` has
  # the instructions of the calls, all that they called included. Callers follow a name, behind a `'`.
  awk -v by_time="$by_time" -v ours="$1" -v n="$(awk '/ (RPCs|passes)$/ { print $1 }' "$work/log")" '
    match($0, /^c?fn=\([0-9]+\)/) {
      id = substr($0, index($0, "("), RLENGTH - index($0, "(") + 1)
      if (length($0) > RLENGTH) name[id] = substr($0, RLENGTH + 2)
      callee = name[id]
    }
    /^calls=/ {
      getline
      if (callee ~ "^instructions::(" ours ")$") total += $2
      split(callee, callers, "\047")
      if (callers[1] ~ by_time && callee ~ "\047instructions::(" ours ")\047") less += $2
    }
    END {
      if (n > 0) printf "%.1f", (total - less) / n
      if (n > 0 && total > less && less <= (total - less) / 2) exit 0
      print ours ": of " total " instructions " less " are left out, of " n " RPCs or passes" >"/dev/stderr"
      exit 1
    }' "$work/calls.2"
}

show='%-66s %8s %8s %10s %8s\n'
# shellcheck disable=SC2059 # the format is ours
printf "$show" "" total without transport budget
status=0
# The budget of a row; empty if it has none.
allowed() { awk -F'\t' -v k="$1" '$1 == k { print $2 }' "$budget" 2>/dev/null || true; }
# True if a total is more than its budget allows: name, total.
exceeds() { awk -v t="$2" -v a="$(allowed "$1")" -v s="$slack" 'BEGIN { exit !(t > a * s) }'; }
# Prints a row and notes its total: name, total, transport's share.
row() {
  local budgeted
  budgeted=$(allowed "$1")
  # shellcheck disable=SC2059
  printf "$show" "$1" "$2" "$(awk -v t="$2" -v x="$3" 'BEGIN { printf "%.1f", t - x }')" "$3" "${budgeted:--}"
  printf '%s\t%s\n' "$1" "$2" >>"$work/measured"
  if [ "$mode" = --check ] && exceeds "$1" "$2"; then
    echo "$1: $2 instructions, more than 3 % above the budget of ${budgeted:-0}" >&2
    status=1
  fi
}
# Runs a load and keeps the totals and the transport's shares of both sides in `totals` and `shares`.
count_load() {
  local side
  run "$@"
  totals=() shares=()
  for side in client server; do
    totals+=("$(within "${side}_(pass|sends)")")
    shares+=("$(within "${side}_(rx|tx|tx_copy)")")
  done
}
# RPCs or passes that are counted, after as many that are not.
count=20000
for over in mem shm; do
  # Calls in flight, and on how many sessions drawn at random: those of many look ahead. Calls with a
  # deadline, and calls after each side has seen a congestion mark, take longer frame headers.
  loads=('60' '60 deadline' '60 marked' '60 deadline marked' '60 4096' '1' '1 deadline marked')
  loads+=('60 messages' '1 messages' '60 futures' '60 typed' '1 futures' '1 typed')
  loads+=('60 typed counted' '1 typed counted')
  # With shared memory there is no congestion control.
  [ "$over" = shm ] || loads+=('60 uncontrolled')
  # Packets of large requests: instructions of a packet. Over shared memory callgrind counts each byte of a
  # string copy. Many sessions, of one client with 16 servers, of which 8 or all have calls.
  [ "$over" = shm ] || loads+=('1 bulk' '60 20000 peers=16 active=8' '60 20000 peers=16')
  for load in "${loads[@]}"; do
    name=
    for word in $load; do
      case "$word" in
        deadline) name+=', deadline' ;;
        marked) name+=', after marks' ;;
        uncontrolled) name+=', no congestion control' ;;
        messages) name+=', messages' ;;
        futures) name+=', futures' ;;
        typed) name+=', typed service' ;;
        counted) name+=', counted' ;;
        bulk) name='8 MiB, each packet of 1 KiB' ;;
        peers=*) name+=" of ${word#*=} peers" ;;
        active=*) name+=", ${word#*=} in use" ;;
        *) if [ -z "$name" ]; then name="$word in flight"; else name+=", $word sessions"; fi ;;
      esac
    done
    for _ in 1 2 3; do
      # shellcheck disable=SC2086 # one argument or several
      count_load $count $load
      exceeds "$over: client, $name" "${totals[0]}" || exceeds "$over: server, $name" "${totals[1]}" || break
    done
    row "$over: client, $name" "${totals[0]}" "${shares[0]}"
    row "$over: server, $name" "${totals[1]}" "${shares[1]}"
  done
  run empty $count
  total=$(within empty_passes)
  transport=$(within client_rx)
  row "$over: pass that finds nothing" "$total" "$transport"
done

# Lone calls of a `Client` whose tasks drive its endpoint, over shared memory; the server is not counted.
# With many in flight the time of polls, and so their number, differs between runs.
over=client
for _ in 1 2 3; do
  run $count 1
  total=$(within client_polls)
  exceeds "shm: Client, other runtime, 1 in flight" "$total" || break
done
row "shm: Client, other runtime, 1 in flight" "$total" 0

# [eRPC section 6.2] pays 9 % for congestion control.
for side in client server; do
  awk -F'\t' -v side="mem: $side, 60 in flight" '
    $1 == side { with = $2 }
    $1 == side ", no congestion control" { without = $2 }
    END { printf "%s: congestion control costs %.1f %%\n", side, 100 * (with / without - 1); exit with > 1.09 * without }
  ' "$work/measured" || status=1
done

if [ "$mode" = --write ]; then
  cp "$work/measured" "$budget"
  echo "written to $budget"
fi
exit $status
