#!/usr/bin/env python3
"""Checks that each public type of the library has an example that runs.

    scripts/examples.py [--check]    the public items without an example; --check fails if there are some
    scripts/examples.py --self-test

The items are the structs, enums, traits and functions of crates/courser/src that its public modules
(MODULES below) define or re-export, without those that the documentation hides and those of other crates. The doc comment of
each has a code block that the tests compile and run. The example of an enum, or of an error, may be
another item's, which a line names:

    /// Example: [`Client`].

A block with `no_run` counts for the items of WAITS only, and blocks that are not compiled never.
"""

import re
import sys
import tempfile
from pathlib import Path

from rust_source import Crate, tree

CRATE = Path("crates/courser")

# The public modules, by their paths in the crate.
MODULES = ("", "service", "health", "introspection", "metrics", "grpc", "tower")

# The items whose examples cannot run to their ends, with the reason.
WAITS = {}

KINDS = "struct|enum|trait"
COMMENTS = re.compile(r"//(?![/!])[^\n]*|/\*.*?\*/", re.S)
EXPORTED = re.compile(r"((?:^[ \t]*#\[[^\n]*\n)*)^pub\s+use\s+([^;]+);", re.M)
# An item that a macro defines by its name, with the comment before it.
OF_MACRO = re.compile(r"\s+([A-Z]\w+)(?:,$| -> )")
LINK = re.compile(r"^Example: \[`?([\w:]+)`?\]", re.M)


def defined(text):
    """The public items of a file: name -> (kind, doc comment, hidden)."""
    found, of_macros = {}, {}
    docs, hidden, pending = [], False, 0
    for line in text.splitlines():
        # Methods are indented; structs are so too where a macro declares them.
        item = re.match(rf"(?:\s*pub ({KINDS})|pub (?:const |async |unsafe )*(fn)) (\w+)", line)
        of_macro = OF_MACRO.match(line)
        alias = re.match(r"pub (?:type|const|static|mod) (\w+)", line)
        line = line.strip()
        if line.startswith("///"):
            docs.append(line[3:].removeprefix(" "))
        elif pending or line.startswith("#["):
            hidden |= "doc(hidden)" in line
            pending += line.count("[") + line.count("(") - line.count("]") - line.count(")")
        else:
            if item:
                found.setdefault(item.group(3), (item.group(1) or "fn", "\n".join(docs), hidden))
            elif of_macro:
                of_macros.setdefault(of_macro.group(1), ("struct", "\n".join(docs), hidden))
            elif alias:
                found.setdefault(alias.group(1), ("alias", "", True))
            if not line.startswith("//"):
                docs, hidden = [], False
    return of_macros | found


def blocks(docs):
    """The info strings of the code blocks of a doc comment."""
    fences = re.findall(r"^\s*```(.*)$", docs, re.M)
    return [info.strip() for info in fences[::2]]


def runs(name, info):
    """Returns whether a block with this info string is an example of an item."""
    words = set(re.split(r"[\s,]+", info)) - {"", "rust", "should_panic"}
    return not words or (words == {"no_run"} and name in WAITS)


def exports(module, text):
    """The paths that a file re-exports, without hidden ones: (segments, name)."""
    text = COMMENTS.sub(" ", text)
    for found in EXPORTED.finditer(text):
        if "doc(hidden)" not in found.group(1):
            yield from tree(found.group(2))


def public(root):
    """The public items of a crate: path -> (file, kind, doc comment)."""
    crate, items = Crate(root), {}
    texts = {}

    def read(file):
        return texts.setdefault(file, defined(file.read_text()))

    def add(path, file, name):
        # An item that is not found has no example.
        kind, docs, hidden = read(file).get(name, ("item", "", False))
        if not hidden:
            items.setdefault("::".join(filter(None, (path, name))), (file, kind, docs))

    lib = crate.modules[()]
    for path in MODULES:
        module = crate.find(lib, ("crate", *path.split("::"), "*")) if path else lib
        if module is None or (path and module is lib):
            continue
        if path and path not in module.path:
            module = next(m for p, m in crate.modules.items() if p and p[-1] == path)
        own = (name for name, item in read(module.file).items() if name in module.defined and item)
        for name in own if path else ():
            add(path, module.file, name)
        for segments, name in exports(module, module.file.read_text()):
            target = crate.find(module, segments)
            if target and segments[-1] not in MODULES:
                add(path, target.file, segments[-1])
    return items


def may_link(name, kind):
    return kind == "enum" or name.endswith(("Error", "Mismatch"))


def missing(root):
    """The items without an example, as sentences."""
    items, bad = public(root), []
    by_name = {path.rpartition("::")[2]: path for path in items}

    def has_own(name):
        path = by_name.get(name.rpartition("::")[2])
        return path and any(runs(name.rpartition("::")[2], info) for info in blocks(items[path][2]))

    for path, (file, kind, docs) in sorted(items.items()):
        name = path.rpartition("::")[2]
        link = LINK.search(docs)
        if has_own(name) or (link and may_link(name, kind) and has_own(link.group(1))):
            continue
        bad.append(f"{file.relative_to(root)}: {kind} {path} has no example that runs")
    return bad


def self_test():
    """A small crate with an example of each kind, and what is reported when it is taken out."""
    lib = (
        "mod inner;\n/// Has one.\n///\n/// ```\n/// assert!(true);\n/// ```\npub use inner::{Alone, Kind, Made, Plain};\n"
        "#[doc(hidden)]\npub use inner::Hidden;\n"
    )
    plain = "/// Text.\n///\n/// ```\n/// assert!(true);\n/// ```\n#[derive(\n    Debug\n)]\npub struct Plain;\n"
    kind = "/// Example: [`Plain`].\npub enum Kind {}\n"
    rest = "pub struct Hidden;\n/// ```\n/// ```\npub struct Alone;\nmake! {\n    /// Text.\n    Made,\n}\n"
    made = rest.replace("    /// Text.", "    /// ```\n    /// ```")
    untested = plain.replace("/// ```\n", "")
    cases = (
        (plain + kind + made, []),
        # The example is taken out: its own item and the one that refers to it have none.
        (untested + kind + made, ["Kind", "Plain"]),
        (plain.replace("```\n/// assert", "```ignore\n/// assert") + kind + made, ["Kind", "Plain"]),
        (plain.replace("```\n/// assert", "```no_run\n/// assert") + kind + made, ["Kind", "Plain"]),
        # A struct has an example of its own, and so has one that a macro defines.
        (plain + kind.replace("enum", "struct") + made, ["Kind"]),
        (plain + kind.replace("[`Plain`]", "[`Other`]") + made, ["Kind"]),
        (plain + kind + rest, ["Made"]),
        # The name of an item that is not found.
        (plain + kind + made.replace("Made,", "Other,"), ["Made"]),
    )
    for inner, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            src = Path(folder) / "src"
            src.mkdir()
            (src / "lib.rs").write_text(lib)
            (src / "inner.rs").write_text(inner)
            found = [line.split()[2] for line in missing(Path(folder))]
        if found != expected:
            sys.exit(f"scripts/examples.py: the check finds {found}, not {expected}, in\n{inner}")


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = Path(__file__).resolve().parent.parent / CRATE
    bad = missing(root)
    print(*bad, sep="\n") if bad else None
    print(f"public items of courser: {len(public(root))}, without an example that runs: {len(bad)}")
    if bad and "--check" in sys.argv:
        sys.exit(1)


if __name__ == "__main__":
    main()
