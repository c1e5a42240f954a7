#!/usr/bin/env bash
# Checks the language rules of CONTRIBUTING.md that a pattern can check: how often words of riddles
# occur in the files that git tracks, how many comments begin without a subject, and how long the subjects
# of commits are.
#
#   scripts/words.sh               fails above the limits
#   scripts/words.sh --list        prints every occurrence
#   scripts/words.sh --self-test   checks this script on a repository of its own
set -euo pipefail

# Occurrences that are accepted: quotations of the rule, and places where the words are the plain ones.
limit=20
# Comments of Rust sources that begin with "What", "Of", "Those", "That", "Whether" or "Which". This only
# falls: lower it when the count is lower.
elliptic_limit=180
longest=65
# Older commits are not checked.
since=c30497c

verbs='waits?|serves?|copies|copy|hears?|has|sends?|gets?|takes?'
pattern="\\b(so many|nobody|whoever|who ($verbs)|stands? in line|comes? home|puts? off)\\b"

occurrences() { # file:line:word
  git grep -nioIE "$pattern" -- ':!scripts/words.sh' || true
}

elliptic() { # file:line:text of the first line of each block of comments that has no subject
  git ls-files -z '*.rs' | xargs -0 awk '
    FNR == 1 { inside = 0 }
    !match($0, /^[ \t]*\/\/[\/!]?/) { inside = 0; next }
    {
      text = substr($0, RLENGTH + 1)
      sub(/^[ \t]+/, "", text)
      if (!inside && text ~ /^(What|Of|Those|That|Whether|Which)([^A-Za-z]|$)/) print FILENAME ":" FNR ":" text
      inside = text != ""
    }'
}

check_elliptic() {
  local found
  found=$(elliptic | wc -l)
  if [ "$found" -gt "$1" ]; then
    echo "$found comments begin without a subject, and at most $1 are accepted (scripts/words.sh --list):" >&2
    elliptic | cut -d: -f1 | sort | uniq -c | sort -rn | head -n 20 >&2
    return 1
  fi
  echo "$found comments without a subject of at most $1"
}

check_words() {
  local found
  found=$(occurrences | wc -l)
  if [ "$found" -gt "$1" ]; then
    echo "$found riddle words, and at most $1 are accepted (scripts/words.sh --list):" >&2
    occurrences | cut -d: -f1 | sort | uniq -c | sort -rn | head -n 20 >&2
    return 1
  fi
  echo "$found riddle words of at most $1"
}

check_subjects() {
  if ! git merge-base --is-ancestor "$1" HEAD 2>/dev/null; then
    echo "subjects not checked: $1 is not in this history (a shallow clone?)"
    return 0
  fi
  local long
  long=$(git log --no-merges --format='%h %s' "$1..HEAD" |
    awk -v most="$longest" '{ hash = $1; sub(/^[^ ]+ /, ""); if (length($0) > most) print hash ": " length($0) ": " $0 }')
  if [ -n "$long" ]; then
    printf 'commit subjects of more than %s characters:\n%s\n' "$longest" "$long" >&2
    return 1
  fi
  echo "$(git rev-list --count --no-merges "$1..HEAD") commit subjects of at most $longest characters"
}

self_test() {
  local work base
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # the directory of now
  trap "rm -rf '$work'" EXIT
  cd "$work"
  git init -q .
  commit() { git add -A; git -c user.name=t -c user.email=t@t -c commit.gpgsign=false commit -q --allow-empty -m "$1"; }
  must() { "$@" >/dev/null || { echo "self-test: failed, and must pass: $*" >&2; exit 1; }; }
  must_not() { if "$@" >/dev/null 2>&1; then echo "self-test: passed, and must fail: $*" >&2; exit 1; fi; }
  echo "plain words, and whose soever they are" >a.md
  commit "a: begin"
  base=$(git rev-parse HEAD)
  must check_words 0
  printf 'Nobody. Who waits is put off; SO MANY\n' >b.rs
  must check_words 0 # not tracked
  commit "b: $(printf 'x%.0s' {1..62})"
  must_not check_words 3
  must check_words 4
  must check_elliptic 0
  printf '/// Whether.\n/// Of it.\nfn a() {}\n    // Those\n\n//! Whatever\n//!\n//! What\nlet x; // Of\n' >>b.rs
  must_not check_elliptic 2
  must check_elliptic 3
  must check_subjects "$base"
  commit "c: $(printf 'x%.0s' {1..63})"
  must_not check_subjects "$base"
  must check_subjects HEAD
  echo "self-test passed"
}

case "${1:-}" in
  --self-test) self_test ;;
  --list) cd "$(dirname "$0")/.."; occurrences; elliptic ;;
  '')
    cd "$(dirname "$0")/.."
    status=0
    check_words "$limit" || status=1
    check_elliptic "$elliptic_limit" || status=1
    check_subjects "$since" || status=1
    exit $status ;;
  *) echo "usage: $0 [--list | --self-test]" >&2; exit 2 ;;
esac
