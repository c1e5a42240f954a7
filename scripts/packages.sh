#!/usr/bin/env bash
# Packages every crate that is meant to be published, and checks what a registry shows of it.
#
#   scripts/packages.sh            assembles the packages (seconds; asks the registry's index)
#   scripts/packages.sh --verify   and compiles each from its package (minutes)
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  '') how=(--no-verify) ;;
  --verify) how=() ;;
  *) echo "usage: $0 [--verify]" >&2; exit 2 ;;
esac

# Crates that are not published are excluded; the others need the fields and files of a page.
mapfile -t private < <(cargo metadata --format-version 1 --no-deps --locked | python3 -c '
import json, pathlib, sys
missing = []
for package in json.load(sys.stdin)["packages"]:
    if package["publish"] == []:
        print(package["name"])
        continue
    fields = ["description", "license", "readme", "repository", "keywords", "categories", "rust_version"]
    missing += [f"{package['"'name'"']}: {field}" for field in fields if not package[field]]
    at = pathlib.Path(package["manifest_path"]).parent
    files = ["LICENSE-MIT", "LICENSE-APACHE", package["readme"] or "README.md"]
    missing += [f"{package['"'name'"']}: file {file}" for file in files if not (at / file).is_file()]
if missing:
    print("missing in packages: " + ", ".join(missing), file=sys.stderr)
    print("FAILED")
')
if [ "${private[-1]:-}" = FAILED ]; then exit 1; fi
exclude=()
for name in "${private[@]}"; do exclude+=(--exclude "$name"); done
cargo package --workspace --locked --allow-dirty "${how[@]}" "${exclude[@]}"
