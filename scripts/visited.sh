#!/usr/bin/env bash
# The functions and files of crates/{buf,proto,net,courser}/src that one small RPC visits: 32 bytes, one
# call in flight, transport `mem`, client and server on one thread, in virtual time (scripts/visited.rs):
# a run depends neither on the speed nor on the load of the machine. Everything is
# built without optimisation and without `#[inline]`, so that every function of the source is one of the
# program. Two runs are compared: a function counts when N more RPCs call it at least 0.7 N times more
# often. A function that passes of the event loop without work call too counts only if it leads to one
# that they do not call. Code that is generated (`derive`, macros) does not count; a closure belongs to
# the function that it is written in.
#
#   scripts/visited.sh [TREE]           prints the functions in the order of the calls, and the totals
#   scripts/visited.sh --check [TREE]   and fails when a total is above its limit in
#                                       scripts/visited.limits of the tree, or the list differs from
#                                       docs/small-rpc.txt
#   scripts/visited.sh --write [TREE]   and makes the totals the limits, and writes that list
#
# TREE is the root of a source tree, by default the one that this script lies in.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
command -v valgrind >/dev/null || { echo "valgrind is not installed: apt-get install valgrind" >&2; exit 1; }
mode=
case "${1:-}" in
  --check | --write) mode="$1"; shift ;;
  -*) echo "usage: $0 [--check | --write] [TREE]" >&2; exit 2 ;;
esac
tree="$(cd "${1:-$here/..}" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# The build directory that scripts/loom.sh uses too: no optimisation, and the same flags, so that the
# dependencies are compiled once. The copy has a fixed place there, or every run would add to it.
build="$(mkdir -p "${CARGO_TARGET_DIR:-$here/../target}/plain" && cd "${CARGO_TARGET_DIR:-$here/../target}/plain" && pwd)"
copy="$build/visited-tree"
rm -rf "$copy"
mkdir "$copy"
ln -s "$copy" "$work/tree"
for entry in Cargo.toml Cargo.lock README.md rust-toolchain.toml apps crates examples lab; do
  [ ! -e "$tree/$entry" ] || cp -r "$tree/$entry" "$copy/"
done
python3 "$here/visited.py" strip "$copy"
cp "$here/visited.rs" "$copy/crates/courser/examples/visited.rs"
(
  cd "$copy"
  CARGO_TARGET_DIR="$build" CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_OPT_LEVEL=0 RUSTFLAGS="--cfg loom" \
    CARGO_PROFILE_DEV_DEBUG=line-tables-only CARGO_PROFILE_DEV_LTO=off CARGO_PROFILE_DEV_CODEGEN_UNITS=16 \
    cargo build --locked -q --config profile.dev.package.loom.opt-level=2 -p courser --example visited
)

# The calls within a function of the program: file to write, function, arguments of the program.
calls() {
  valgrind --tool=callgrind --callgrind-out-file="$1" --collect-atstart=no --demangle=no \
    --compress-strings=no --compress-pos=no --dump-instr=yes "--toggle-collect=*7visited${#2}$2*" \
    "$build/debug/examples/visited" "${@:3}" >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
}
measure() {
  for rpcs in 200 1200; do
    calls "$work/rpcs-$rpcs" one_rpc rpcs $rpcs || return 1
  done
  for passes in 200 1200; do
    calls "$work/idle-$passes" idle_passes idle $passes || return 1
  done
  python3 "$here/visited.py" count "$work" "$tree" $mode >"$work/list"
}
status=0
measure || status=$?
cat "$work/list"
[ "$status" = 0 ] || exit 1
# The list without the numbers of lines, which every change moves.
list="$tree/docs/small-rpc.txt"
grep -E '^[a-z]+/src' "$work/list" | sed -E 's/:[0-9]+ / /' >"$work/small-rpc.txt"
case "$mode" in
  --write) cp "$work/small-rpc.txt" "$list" ;;
  --check)
    if ! diff -u "$list" "$work/small-rpc.txt" >&2; then
      echo "docs/small-rpc.txt is not what a small RPC visits: scripts/visited.sh --write" >&2
      exit 1
    fi ;;
esac
