#!/usr/bin/env bash
# Packages every crate that is meant to be published, and checks what a registry shows of it: its fields,
# licence files, and a README whose links are absolute.
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
import json, pathlib, re, sys
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
    # A registry shows the README at an address of its own, where paths of the repository do not exist.
    page = at / files[-1]
    links = re.findall(r"\]\(([^)\s]*)|^\[[^\]]*\]:\s*(\S+)", page.read_text() if page.is_file() else "", re.M)
    links = [inline or reference for inline, reference in links]
    missing += [f"{package['"'name'"']}: an absolute link in place of {link}"
                for link in links if not link.startswith(("https://", "#"))]
if missing:
    print("missing in packages: " + "; ".join(missing), file=sys.stderr)
    print("FAILED")
')
if [ "${private[-1]:-}" = FAILED ]; then exit 1; fi
exclude=()
for name in "${private[@]}"; do exclude+=(--exclude "$name"); done
cargo package --workspace --locked --allow-dirty "${how[@]}" "${exclude[@]}"
