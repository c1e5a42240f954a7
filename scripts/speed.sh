#!/usr/bin/env bash
# The benchmarks over shared memory and UDP behind docs/performance.md, one after another on this
# machine, which should have nothing else to do. Needs two cores, no privileges, and python3 for the
# tables.
#
#   scripts/speed.sh OUTDIR           about 10 minutes
#   scripts/speed.sh --quick OUTDIR   about 90 seconds: a look, not a claim
#   scripts/speed.sh --against COMMIT this tree beside an older one, by runs in turns; --help has its options
#
# Writes OUTDIR/<transport>-<what>.json, a report each, and OUTDIR/tables.md, which is also printed: a
# table for each. `scripts/speed_tables.py OUTDIR` makes the tables again. A benchmark that fails is
# named and leaves its error in OUTDIR/<transport>-<what>.log; the others go on, and the exit status
# is 1 at the end. COURSER_BIN names a program to run in place of the one that is built here.
set -euo pipefail

usage() { echo "usage: $0 [--quick] OUTDIR | --against COMMIT ... | --help" >&2; exit 2; }
quick=no
for argument in "$@"; do
  case "$argument" in
    --against | --against=* | --help | -h) exec python3 "$(dirname "$0")/speed_against.py" "$@" ;;
  esac
done
if [ "${1:-}" = --quick ]; then quick=yes; shift; fi
[ $# = 1 ] || usage
case "$1" in -*) usage ;; esac
mkdir -p "$1"
out="$(cd "$1" && pwd)"
case "${COURSER_BIN:-}" in */*) COURSER_BIN="$(realpath "$COURSER_BIN")" ;; esac
cd "$(dirname "$0")/.."
command -v python3 >/dev/null || { echo "python3 is not installed; the tables need it" >&2; exit 1; }

if [ -z "${COURSER_BIN:-}" ]; then
  cargo build --release --locked -q -p courser-cli
  COURSER_BIN="${CARGO_TARGET_DIR:-target}/release/courser"
fi

# Pairs of windows: `few` where the windows of a round make 200 pairs take minutes. The
# longest time matters on machines whose cores move between near and far, where one of the two may
# occur too rarely to have its pairs; a series may take six times that.
if [ "$quick" = yes ]; then
  many=(--quick --pairs 20 --max-time 1s)
  few=(--quick --pairs 8 --max-time 1s)
else
  many=(--pairs 200 --max-time 12s)
  few=(--pairs 80 --max-time 10s)
fi

failed=()
# run NAME TRANSPORT FLAGS...
run() {
  local name="$2-$1" transport="$2" start=$SECONDS
  shift 2
  if timeout 300 "$COURSER_BIN" bench "$@" --transport "$transport" --json "$out/$name.json" \
    >"$out/$name.log" 2>&1; then
    echo "$name: $((SECONDS - start)) s" >&2
  else
    failed+=("$name")
    rm -f "$out/$name.json"
    echo "$name: FAILED after $((SECONDS - start)) s: $(tail -n 1 "$out/$name.log")" >&2
  fi
}

run latency shm latency "${many[@]}"
run rate shm rate --batch 1,3,5,8,11 "${many[@]}"
run rate-symmetric shm rate --batch 3 --symmetric "${many[@]}"
run bandwidth shm bandwidth --sizes "${few[@]}"
# 1 KiB of data in a packet, as those have who are compared with.
run bandwidth-1k shm bandwidth --sizes --frame-size 1072 "${few[@]}"
run sessions shm sessions --sessions 8,100,1000,10000,20000 "${many[@]}"
run sessions-100k shm sessions --sessions 100000 "${many[@]}"
run credits shm credits "${few[@]}"
run txqueue shm txqueue "${many[@]}"
run factors shm factors "${many[@]}"
run threads shm threads "${many[@]}"
run latency udp latency "${many[@]}"
run rate udp rate --sessions 8 --in-flight 64 "${many[@]}"
run bandwidth udp bandwidth --sizes "${few[@]}"

python3 scripts/speed_tables.py "$out" | tee "$out/tables.md"
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
