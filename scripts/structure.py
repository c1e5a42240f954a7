#!/usr/bin/env python3
"""Checks how the modules of a crate depend on each other, and how open its structs are.

    scripts/structure.py CRATE [--check] [--allow 'a,b,c: reason']...
    scripts/structure.py --self-test

It prints the groups of modules (files) that import each other in a circle, and the structs with more
than 15 fields that are visible outside of their module. With --check it fails when there are any.
A group is accepted when all of it is in one `--allow` list.

A module imports another one by `use crate::..`, `use super::..`, `use self::..`, `use child::..` or by
such a path inside of its code. A name that a module only imports or re-exports belongs to the module
that defines it. Declarations (`mod`), re-exports (`pub use`) and tests are no imports.
"""

import argparse
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

MOST_FIELDS = 15

# Plain records without invariants: nothing breaks when somebody sets a field.
RECORDS = {
    "courser": {"Config": "settings, validated as a whole"},
    "proto": {
        "Config": "settings, validated as a whole",
        "EndpointStats": "counters to read",
        "SessionStats": "counters to read",
    },
}

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?r(?P<h>#*)".*?"(?P=h)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^\\'\n])'""",
    re.S,
)
TEST = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*\))\)\]")
VISIBLE = r"(?:pub(?:\s*\([^)]*\))?\s+)"
USE = re.compile(rf"(?:^|(?<=[;{{}}\]\s]))({VISIBLE}?)use\s+([^;]+);")
INLINE = re.compile(r"(?<![\w:$])(crate|super|self)((?:\s*::\s*\w+)+)")
ITEM = re.compile(r"\b(?:fn|struct|enum|union|trait|type|const|static|macro_rules!)\s+(\w+)")
STRUCT = re.compile(r"\bstruct\s+(\w+)\s*")


def closing(text, at):
    """Where the bracket that opens at `at` is closed."""
    depth = 0
    for end in range(at, len(text)):
        if text[end] in "([{":
            depth += 1
        elif text[end] in ")]}":
            depth -= 1
            if depth == 0:
                return end
    return len(text) - 1


def body(text, at):
    """The fields of a struct; `at` is behind its name."""
    depth = 0
    while depth or text[at] not in "{(;":
        if text.startswith("where", at):
            at = re.compile(r"[{;]").search(text, at).start()
            continue
        depth += (text[at] == "<") - (text[at] == ">" and text[at - 1] != "-")
        at += 1
    return text[at : closing(text, at)] if text[at] != ";" else ""


def item_end(text, at):
    """Where the item that begins at `at` ends: at its semicolon or its closing brace."""
    while at < len(text) and text[at] != ";":
        if text[at] in "([":
            at = closing(text, at)
        elif text[at] == "{":
            return closing(text, at)
        at += 1
    return at


def code(text):
    """The source without comments, strings, characters and what is compiled for tests only."""
    text = TOKEN.sub(" ", text)
    while test := TEST.search(text):
        text = text[: test.start()] + text[item_end(text, test.end()) + 1 :]
    return text


def tree(text, prefix=()):
    """The paths of a use tree: (segments, name that it gets)."""
    text = text.strip().removeprefix("::")
    brace = text.find("{")
    if brace < 0:
        path, _, name = (part.strip() for part in text.partition(" as "))
        segments = prefix + tuple(s.strip() for s in path.split("::"))
        if segments[-1] == "self" and len(segments) > 1:
            segments = segments[:-1]
        return [(segments, name or segments[-1])]
    prefix += tuple(s.strip() for s in text[:brace].split("::") if s.strip())
    parts, depth, start = [], 0, brace + 1
    for at in range(brace + 1, len(text)):
        c = text[at]
        if c == "{":
            depth += 1
        elif depth == 0 and c in ",}":
            parts.append(text[start:at])
            start = at + 1
        elif c == "}":
            depth -= 1
    return [path for part in parts if part.strip() for path in tree(part, prefix)]


class Module:
    """A file, or a `mod name { .. }` within one."""

    def __init__(self, path, file, text):
        self.path, self.file = path, file
        self.names = {}  # name -> segments of the path that it was imported or re-exported by
        self.globs = []
        self.imports = []  # segments
        self.inner = self.without_inner(text)
        self.uses()

    def without_inner(self, text):
        """Takes inner modules out of the text; returns (name, text) of each."""
        inner = []
        while found := re.search(r"\bmod\s+(\w+)\s*\{", text):
            end = closing(text, found.end() - 1)
            inner.append((found.group(1), text[found.end() : end]))
            text = text[: found.start()] + text[end + 1 :]
        self.text = text
        self.defined = set(ITEM.findall(text))
        return inner

    def uses(self):
        for use in USE.finditer(self.text):
            for segments, name in tree(use.group(2)):
                if name == "*":
                    self.globs.append(segments[:-1])
                else:
                    self.names[name] = segments
                if not use.group(1):
                    self.imports.append(segments)
        for path in INLINE.finditer(USE.sub(" ", self.text)):
            segments = tuple(re.findall(r"\w+", path.group()))
            self.imports.append(segments)


class Crate:
    def __init__(self, root):
        self.src = root / "src"
        self.modules = {}
        for name in ("lib.rs", "main.rs"):
            if (self.src / name).exists():
                self.load((), self.src / name, self.src)
                break

    def load(self, path, file, below):
        """Reads a file and the modules that it declares, which are files in the folder `below`."""
        self.add(Module(path, file, code(file.read_text())), below)

    def add(self, module, below):
        self.modules[module.path] = module
        for name, text in module.inner:
            self.add(Module((*module.path, name), module.file, text), below / name)
        declared = re.finditer(r'((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([^)]*\))?\s+)?\bmod\s+(\w+)\s*;', module.text)
        for name in (found.group(2) for found in declared):
            for file in (below / f"{name}.rs", below / name / "mod.rs"):
                if file.exists():
                    self.load((*module.path, name), file, below / name)

    def find(self, module, segments, seen=frozenset()):
        """The module that defines what a path means, seen from a module; None: another crate's."""
        if (module.path, segments) in seen:
            return None
        seen = seen | {(module.path, segments)}
        first, *rest = segments
        if first == "crate":
            return self.descend(self.modules[()], rest, seen)
        if first == "self":
            return self.descend(module, rest, seen)
        if first == "super":
            parent = self.modules.get(module.path[:-1])
            return parent and self.find(parent, ("self", *rest), seen)
        if (*module.path, first) in self.modules or first in module.names:
            return self.descend(module, segments, seen)
        return None

    def descend(self, module, segments, seen):
        if not segments or segments[0] == "*":
            return module
        first, *rest = segments
        if first == "super":
            return self.find(module, tuple(segments), seen)
        child = self.modules.get((*module.path, first))
        if child:
            return self.descend(child, rest, seen)
        if first in module.defined:
            return module
        if first in module.names:
            path = module.names[first]
            if path[0] == first and len(path) > 1 and (*module.path, first) not in self.modules:
                return None  # `use other_crate::other_crate`
            return self.find(module, (*path, *rest), seen)
        for glob in module.globs:
            target = self.find(module, glob, seen)
            if target and (first in target.defined or first in target.names):
                return self.descend(target, segments, seen)
        return module

    def imports(self):
        """By file: the files that it imports."""
        graph = defaultdict(set)
        for module in self.modules.values():
            graph[self.name(module)]
            for segments in module.imports:
                target = self.find(module, segments)
                if target and target.file != module.file:
                    graph[self.name(module)].add(self.name(target))
        return graph

    def name(self, module):
        inside = module.file.relative_to(self.src).with_suffix("")
        return str(inside.parent if inside.name == "mod" else inside)

    def open_structs(self):
        """(file, struct, fields that are visible outside of the module), most first."""
        found = []
        for module in self.modules.values():
            for struct in STRUCT.finditer(module.text):
                fields = body(module.text, struct.end())
                count = len(re.findall(r"\bpub\b(?!\s*\(\s*self\s*\))", fields))
                found.append((self.name(module), struct.group(1), count))
        return sorted(found, key=lambda f: -f[2])


def circles(graph):
    """The strongly connected components of more than one module (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(graph[v]):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            group = stack[stack.index(v) :]
            del stack[stack.index(v) :]
            if len(group) > 1:
                found.append(sorted(group))

    for v in sorted(graph):
        if v not in index:
            visit(v)
    return sorted(found, key=lambda group: -len(group))


def report(root, check, allowed):
    """Prints what is found; returns the exit code."""
    crate = Crate(root)
    graph = crate.imports()
    bad = 0
    for group in circles(graph):
        reason = next((why for names, why in allowed if set(group) <= names), None)
        print(f"{root}: {len(group)} modules import each other: {', '.join(group)}")
        for name in group:
            print(f"    {name} -> {', '.join(sorted(graph[name] & set(group)))}")
        if reason:
            print(f"    allowed: {reason}")
        bad += not reason
    for file, struct, count in crate.open_structs():
        if count > MOST_FIELDS:
            reason = RECORDS.get(root.name, {}).get(struct)
            print(f"{root}: {file}: struct {struct} has {count} fields that other modules see"
                  + (f" (allowed: {reason})" if reason else ""))
            bad += not reason
    print(f"{root}: {len(graph)} modules, {bad} objections")
    if check and bad:
        print(f"{root}: break the circle, or let methods stand for fields (see above)", file=sys.stderr)
        return 1
    return 0


def self_test():
    assert tree("crate::a::{self, b::{C, D as E}, f}") == [
        (("crate", "a"), "a"), (("crate", "a", "b", "C"), "C"),
        (("crate", "a", "b", "D"), "E"), (("crate", "a", "f"), "f"),
    ]
    assert code("a /* x */ #[cfg(test)] mod t { fn f() { '}'; } } b").split() == ["a", "b"]
    assert code('#[cfg(test)] mod t; "use crate::x;" \'{\' c').split() == ["c"]

    def made(files):
        folder = tempfile.TemporaryDirectory()
        for name, text in files.items():
            path = Path(folder.name) / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        crate = Crate(Path(folder.name))
        graph = {name: targets for name, targets in crate.imports().items() if targets}
        return graph, circles(crate.imports()), crate.open_structs()

    # A re-exported name belongs to its own file; `mod` and `pub use` are no imports.
    graph, found, _ = made({
        "lib.rs": "mod a; mod b; pub use a::A;",
        "a/mod.rs": "mod inner; pub(crate) use inner::A;",
        "a/inner.rs": "use crate::b::B; pub struct A;",
        "b.rs": "use crate::a::A; pub struct B;",
    })
    assert graph == {"a/inner": {"b"}, "b": {"a/inner"}}, graph
    assert found == [["a/inner", "b"]], found
    # Inline paths count; comments, strings and tests do not.
    graph, found, _ = made({
        "lib.rs": "mod a; mod b; mod c;",
        "a.rs": "fn f() -> crate::b::B { super::c::g() }",
        "b.rs": "// crate::a\npub struct B; #[cfg(test)] mod tests { use crate::a::f; }",
        "c.rs": 'pub fn g() { "crate::a::f"; }',
    })
    assert graph == {"a": {"b", "c"}} and not found, (graph, found)
    # A parent imports its child by `use child::..`; the child sees the parent's imports.
    graph, found, _ = made({
        "lib.rs": "mod a; mod b;",
        "a.rs": "mod x; use x::X; use crate::b::B; pub struct A;",
        "a/x.rs": "use super::{B}; pub struct X(B);",
        "b.rs": "pub struct B;",
    })
    assert graph == {"a": {"a/x", "b"}, "a/x": {"b"}} and not found, (graph, found)
    # Globs, and modules within a file.
    graph, _, _ = made({
        "lib.rs": "mod a; mod b; pub mod parts { pub use crate::a::*; }",
        "a.rs": "pub struct A;",
        "b.rs": "use crate::parts::A;",
    })
    assert graph == {"b": {"a"}}, graph
    # Fields.
    _, _, structs = made({
        "lib.rs": "struct S<T: Fn(u8)> { pub a: (u8, u8), pub(crate) b: T, c: u8, pub(self) d: u8 }\n"
                  "struct P(pub u8, u8); struct U;",
    })
    assert structs == [("lib", "S", 2), ("lib", "P", 1), ("lib", "U", 0)], structs
    # A name that is imported from a crate of the same name does not lead round in circles.
    graph, _, _ = made({"lib.rs": "mod a; mod b; use x::{x};", "a.rs": "use crate::x::y;", "b.rs": ""})
    assert not graph, graph
    print("the self-test passes")


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("crate", nargs="?", type=Path)
    args.add_argument("--check", action="store_true")
    args.add_argument("--allow", action="append", default=[], metavar="'MODULES: REASON'")
    args.add_argument("--self-test", action="store_true")
    options = args.parse_args()
    if options.self_test:
        self_test()
        return 0
    if not options.crate or not (options.crate / "src").is_dir():
        args.error("the folder of a crate is missing")
    allowed = []
    for group in options.allow:
        names, colon, reason = group.partition(":")
        if not reason.strip():
            args.error(f"--allow {group!r}: a reason is missing")
        allowed.append(({name.strip() for name in names.split(",")}, reason.strip()))
    return report(options.crate, options.check, allowed)


if __name__ == "__main__":
    sys.exit(main())
