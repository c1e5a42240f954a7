#!/usr/bin/env bash
# Checks the dependencies against deny.toml: advisories, licences, duplicate versions, sources.
#
# cargo-deny does it where it is installed (cargo install cargo-deny --locked). Without it a program below
# checks licences, duplicates and sources by the output of cargo tree, and advisories are not checked. They
# are not checked either where the database of RustSec cannot be fetched. Both end with exit code 77 and
# the reason.
set -euo pipefail
cd "$(dirname "$0")/.."

if cargo deny --version >/dev/null 2>&1; then
  cargo deny --locked check -D unmatched-skip bans licenses sources
  if ! timeout 120 cargo deny --locked fetch db >/dev/null 2>&1; then
    echo "advisories not checked: the database of RustSec cannot be fetched"; exit 77
  fi
  exec cargo deny --locked check --disable-fetch advisories
fi

packages() { cargo tree --workspace --all-features --locked --target "$1" --prefix none --format '{p}|{l}'; }
for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
  packages "$target" | python3 -c '
import os, re, sys, tomllib
rules = tomllib.load(open("deny.toml", "rb"))
allowed = set(rules["licenses"]["allow"])
skipped = [rule["crate"] for rule in rules["bans"]["skip"]]

def is_allowed(expression):
    """Whether an SPDX expression holds; before SPDX, "/" meant OR."""
    terms = re.findall(r"[()/]|[^\s()/]+(?: WITH [^\s()/]+)?", expression)
    words = {"OR": "or", "/": "or", "AND": "and", "(": "(", ")": ")"}
    return eval(" ".join(words.get(term) or str(term in allowed) for term in terms))

wrong, kept = set(), {}
packages = {line.strip().removesuffix(" (*)") for line in sys.stdin if line.strip()}
for package, expression in (package.split("|") for package in packages):
    name, version, *source = package.split(" ")
    if not is_allowed(expression or "none"):
        wrong.add(f"{name} {version}: licence {expression}")
    if any(word != "(proc-macro)" and not word.startswith(f"({os.getcwd()}/") for word in source):
        wrong.add(f"{name} {version}: source {source}")
    if not any(f"{name}@{version[1:]}".startswith(rule) for rule in skipped):
        kept.setdefault(name, set()).add(version)
wrong |= {f"{name}: versions {sorted(versions)}" for name, versions in kept.items() if len(versions) > 1}
print(f"{len(packages)} packages:", "; ".join(sorted(wrong)) or "licences, versions and sources are accepted")
sys.exit(bool(wrong))'
done
echo "advisories not checked: cargo-deny is not installed (cargo install cargo-deny --locked)"
exit 77
