#!/usr/bin/env python3
"""Checks how the modules of the crates depend on each other, and how open their structs are.

    scripts/structure.py [--check | --write]   a line for each crate of the workspace
    scripts/structure.py CRATE                 the circles of one crate, with their arrows
    scripts/structure.py --self-test

A circle is a group of modules (files) that depend on each other. Circles are counted twice: by imports
alone, and by imports and calls of methods, because the parts of one large `impl` in several files call
each other without an import. Structs with more than 15 fields that are visible outside of their module
are counted too, and expressions that find an entry of a table by its number (LOOKUPS below). With --check the program fails when a figure is above its limit in
scripts/structure.limits, or when an import does not go down the floors of its crate (FLOORS below), and
prints the circles of that crate. --write lowers limits, and never raises
one: to raise one, edit the file and give the reason in the commit.

A module imports another one by `use crate::..`, `use super::..`, `use self::..`, `use child::..` or by
such a path inside of its code. A name that a module only imports or re-exports belongs to the module
that defines it. Declarations (`mod`), re-exports (`pub use`) and tests are no imports. The calls are those
that scripts/method_calls.py can resolve.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

from method_calls import Calls
from rust_source import Crate, code, tree

MOST_FIELDS = 15

# The figures of a crate, in the order of scripts/structure.limits.
COLUMNS = (
    "modules in the largest circle of imports",
    "modules in circles of imports",
    "modules in the largest circle of imports and calls",
    "modules in circles of imports and calls",
    "structs with more than 15 visible fields",
    "look-ups of sessions and peers",
)

# The expressions that find an entry of a table by its number, for crates where each flow should find
# its entries once.
LOOKUPS = {
    "proto": re.compile(
        r"\bsessions\s*\.\s*(?:client|client_mut|server_mut|server_of|awake_client|awake_server_of|unused|get|get_mut)\s*\("
        r"|\bpeers\s*\.\s*at(?:_mut)?\s*\("
        r"|\bpeers\s*\.\s*get(?:_mut)?\s*\([^()]* as usize\)"
        r"|\b(?:sessions|peers)\s*\[[^\[\]]* as usize\]"
        r"|\.\s*(?:client|connected|open|awake|server|awake_server|request)_flow(?:_of)?\s*\("
    ),
}

# Plain records without invariants: nothing breaks when somebody sets a field.
RECORDS = {
    "courser": {"Config": "settings, validated as a whole"},
    "proto": {
        "Config": "settings, validated as a whole",
        "EndpointStats": "counters to read",
        "SessionStats": "counters to read",
    },
}

# The folders of a crate by floors, the highest first: imports go down only.
FLOORS = {
    "courser": (
        "standard tower", "client server", "rpc task", "run grpc", "service", "channel config", "core", "control",
        "shape counts", "error",
        "platform", "counters machine panics submit sync",
    ),
}


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


def measure(root):
    """(crate, its imports, its imports and calls of methods, open structs, look-ups) of a folder's crate."""
    crate = Crate(root)
    imports = crate.imports()
    both = {name: set(targets) for name, targets in imports.items()}
    for name, targets in Calls(crate).graph.items():
        both[name] |= set(targets)
    records = RECORDS.get(root.name, {})
    opened = [s for s in crate.open_structs() if s[2] > MOST_FIELDS and s[1] not in records]
    return crate, imports, both, opened, lookups(crate, LOOKUPS.get(root.name))


def lookups(crate, pattern):
    """The number of look-ups in each file with some."""
    found = {}
    for module in crate.modules.values() if pattern else ():
        name = crate.name(module)
        found[name] = found.get(name, 0) + len(pattern.findall(module.text))
    return {name: n for name, n in found.items() if n}


def figures(imports, both, opened, found):
    """The figures of a crate, in the order of COLUMNS."""
    of_imports, of_both = circles(imports), circles(both)
    sizes = [[len(group) for group in groups] or [0] for groups in (of_imports, of_both)]
    return [n for group in sizes for n in (max(group), sum(group))] + [len(opened), sum(found.values())]


def details(root, imports, both, opened, found):
    """Prints the circles of a crate with the arrows inside of them, and its open structs."""
    for kind, graph in (("import", imports), ("import or call", both)):
        for group in circles(graph):
            print(f"{root}: {len(group)} modules {kind} each other:")
            for name in group:
                print(f"    {name} -> {', '.join(sorted(graph[name] & set(group)))}")
    for file, struct, count in opened:
        print(f"{root}: {file}: struct {struct} has {count} fields that other modules see")
    most = sorted(found.items(), key=lambda item: -item[1])
    if most:
        print(f"{root}: look-ups: {', '.join(f'{name} {n}' for name, n in most)}")


def read_limits(path):
    """crate -> its limits, in the order of COLUMNS."""
    rows = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return {row[0]: [int(n) for n in row[1:]] for row in rows if row}


def write_limits(path, found):
    """Lowers the limits to what was found; a crate without limits gets the figures found."""
    limits = read_limits(path)
    rows = []
    for crate, now in found.items():
        before = limits.get(crate, now)
        rows.append([crate, *(min(pair) for pair in zip(before, now))])
    lines = [line for line in path.read_text().splitlines() if line.startswith("#")]
    lines += ["{:<20}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}".format(*row) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def objections(crate, now, limits):
    """What is above a limit, as sentences. A crate without limits may have no circle."""
    allowed = limits.get(crate, [0] * len(COLUMNS))
    return [
        f"{crate}: {what}: {n}, and the limit is {most}"
        for what, n, most in zip(COLUMNS, now, allowed)
        if n > most
    ]


def upward(root, imports):
    """The imports between folders that do not go down a floor, as sentences."""
    floors = FLOORS.get(root.name, ())
    place = {folder: n for n, folders in enumerate(floors) for folder in folders.split()}
    wrong = []
    for name, targets in sorted(imports.items()):
        folder = name.partition("/")[0]
        if floors and folder not in (*place, "lib"):
            wrong.append(f"{root}: {folder} is on no floor of FLOORS")
        for target in sorted(targets):
            to = target.partition("/")[0]
            if to != folder and place.get(to, 0) <= place.get(folder, -1):
                wrong.append(f"{root}: {name} imports {target}, which is not on a lower floor")
    return wrong


def members(tree):
    """The folders of the crates of a workspace, without examples."""
    listed = re.search(r"^members = \[(.*?)\]", (tree / "Cargo.toml").read_text(), re.M | re.S).group(1)
    folders = re.findall(r'"([^"]+)"', listed)
    return [Path(f) for f in folders if not f.startswith("examples/") and (tree / f / "src").is_dir()]


def report(tree, mode):
    """Prints a line for each crate; returns the exit code."""
    path = tree / "scripts" / "structure.limits"
    limits = read_limits(path)
    found, bad, largest = {}, [], (0, "", [])
    for folder in members(tree):
        _, imports, both, *rest = measure(tree / folder)
        now = found[str(folder)] = figures(imports, both, *rest)
        wrong = objections(str(folder), now, limits) + upward(folder, imports)
        if wrong and mode == "check":
            details(folder, imports, both, *rest)
        bad += wrong
        print("{:<20} {:>3} modules; circles of imports: largest {}, in all {}; with calls: {}, {}; "
              "open structs {}; look-ups {}".format(str(folder), len(imports), *now))
        for group in circles(both)[:1]:
            largest = max(largest, (len(group), str(folder), group))
    print(f"The largest circle has {largest[0]} modules, in {largest[1]}: {', '.join(largest[2])}")
    if mode == "write":
        write_limits(path, found)
        return 0
    for crate, now in found.items():
        if limits.get(crate, now) != now and not objections(crate, now, limits):
            print(f"{crate} is below its limits: lower them by scripts/structure.py --write")
    if mode == "check" and bad:
        print("\n".join([*bad, "Break the circle, or let methods stand for fields (see above)."]), file=sys.stderr)
        return 1
    return 0


def self_test():
    assert tree("crate::a::{self, b::{C, D as E}, f}") == [
        (("crate", "a"), "a"), (("crate", "a", "b", "C"), "C"),
        (("crate", "a", "b", "D"), "E"), (("crate", "a", "f"), "f"),
    ]
    assert code("a /* x */ #[cfg(test)] mod t { fn f() { '}'; } } b").split() == ["a", "b"]
    assert code('#[cfg(test)] mod t; "use crate::x;" \'{\' c').split() == ["c"]

    def write(files):
        folder = tempfile.TemporaryDirectory()
        for name, text in files.items():
            path = Path(folder.name) / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    def made(files):
        folder = write(files)
        crate = Crate(Path(folder.name))
        graph = {name: targets for name, targets in crate.imports().items() if targets}
        return graph, circles(crate.imports()), crate.open_structs()

    # Imports go down the floors; those within a folder have no direction.
    graph = {"lib": {"run"}, "run": {"core", "run/a"}, "run/a": {"run"}, "core": set()}
    assert upward(Path("courser"), graph) == []
    graph["core"] = {"run/a"}
    assert upward(Path("courser"), graph) == ["courser: core imports run/a, which is not on a lower floor"]
    assert upward(Path("courser"), {"new/a": set()}) == ["courser: new is on no floor of FLOORS"]
    assert upward(Path("proto"), graph) == []

    # A re-exported name belongs to its own file; `mod` and `pub use` are no imports.
    graph, found, _ = made({
        "lib.rs": "mod a; mod b; pub use a::A;",
        "a/mod.rs": "mod inner; pub(crate) use inner::A;",
        "a/inner.rs": "use crate::b::B; pub struct A;",
        "b.rs": "use crate::a::A; pub struct B;",
    })
    assert graph == {"a/inner": {"b"}, "b": {"a/inner"}}, graph
    assert found == [["a/inner", "b"]], found
    # Inline paths count; comments, strings, tests and the extents of `pub` do not.
    graph, found, _ = made({
        "lib.rs": "mod a; mod b; mod c;",
        "a.rs": "fn f() -> crate::b::B { super::c::g() }",
        "b.rs": "// crate::a\npub struct B; #[cfg(test)] mod tests { use crate::a::f; }",
        "c.rs": 'pub(in crate::a) fn g() { "crate::a::f"; }',
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
    self_test_calls(write)
    self_test_limits()
    print("the self-test passes")


def self_test_calls(write):
    def calls(files):
        folder = write(files)
        return {a: dict(b) for a, b in Calls(Crate(Path(folder.name))).graph.items()}

    parts = {
        "lib.rs": "mod a; mod b; struct S { field: Option<Box<a::A>> } impl S { fn top(&self) { self.of_b() } }",
        "a.rs": "pub struct A; impl A { pub fn run(&self) {} }",
        "b.rs": "use crate::S; impl<'a> S { fn of_b(&self) { self.top(); self.field.run(); } }",
    }
    # The parts of one `impl` call each other without an import; fields have types, also wrapped ones.
    assert calls(parts) == {"lib": {"b": 1}, "b": {"lib": 1, "a": 1}}, calls(parts)
    # Parameters, variables and static calls; a trait's method leads to the trait.
    found = calls({
        "lib.rs": "mod a; mod b; use a::{A, T as U};\n"
                  "fn f(x: &mut A, y: &dyn U) { x.run(); y.go(); let z: A = A::new(); z.run(); b::g().run(); }",
        "a.rs": "pub struct A; impl A { pub fn run(&self) {} pub fn new() -> A { A } } pub trait T { fn go(&self); }",
        "b.rs": "pub fn g() -> crate::a::A { crate::a::A::new() }",
    })
    assert found == {"lib": {"a": 4}, "b": {"a": 1}}, found
    # The receiver is unknown: a name of two words that is defined once counts, one of `std` does not.
    found = calls({
        "lib.rs": "mod a; fn f() { x().wake_slots(); x().push_back(1); x().run(); }",
        "a.rs": "struct A; impl A { fn wake_slots(&self) {} fn push_back(&self) {} fn run(&self) {} }",
    })
    assert found == {"lib": {"a": 1}}, found


def self_test_limits():
    assert not objections("c", [2, 2, 3, 3, 0, 5], {"c": [2, 4, 3, 3, 0, 5]})
    assert len(objections("c", [3, 4, 3, 3, 1, 6], {"c": [2, 4, 3, 3, 0, 5]})) == 3
    assert len(objections("new", [2, 2, 2, 2, 0, 0], {})) == 4
    text = (
        "s.sessions.client_mut(1); peers\n.at(2); self.client_flow(3); sessions[n as usize]; "
        "peers.get(n as usize); fn client_flow(); sessions.len(); held.peers.get(&n); sessions[0]"
    )
    assert len(LOOKUPS["proto"].findall(text)) == 5
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "limits"
        path.write_text("# reason\nc 2 4 3 3 0 9 # of c\n")
        write_limits(path, {"c": [1, 5, 3, 3, 0, 8], "d": [2, 2, 2, 2, 0, 0]})
        assert read_limits(path) == {"c": [1, 4, 3, 3, 0, 8], "d": [2, 2, 2, 2, 0, 0]}
        assert path.read_text().startswith("# reason\n")


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("crate", nargs="?", type=Path, help="the folder of one crate, for its circles")
    args.add_argument("--check", action="store_true", help="fail when a figure is above its limit")
    args.add_argument("--write", action="store_true", help="lower the limits to the figures")
    args.add_argument("--self-test", action="store_true", help="test this program")
    options = args.parse_args()
    if options.self_test:
        self_test()
        return 0
    if options.crate:
        if not (options.crate / "src").is_dir():
            args.error(f"{options.crate} is not the folder of a crate")
        details(options.crate, *measure(options.crate)[1:])
        return 0
    tree = Path(__file__).resolve().parent.parent
    return report(tree, "check" if options.check else "write" if options.write else None)


if __name__ == "__main__":
    sys.exit(main())
