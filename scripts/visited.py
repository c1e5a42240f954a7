"""The parts of scripts/visited.sh that are not shell: see there."""

import re
import sys
from collections import defaultdict
from pathlib import Path

from rust_source import TOKEN, closing

CRATES = ("buf", "proto", "net", "courser")

# Functions of at most this many lines are listed, and are not counted.
SHORT = 6


def strip(tree):
    """Removes all `#[inline]` attributes of the counted crates; lines keep their numbers."""
    inline = re.compile(r"#\[inline(\([a-z]+\))?\]|#\[cfg_attr\([^\]\n]*, *inline(\([a-z]+\))?\)\]")
    for crate in CRATES:
        for path in (tree / "crates" / crate / "src").rglob("*.rs"):
            path.write_text(inline.sub("", path.read_text()))


def blank(text):
    """The source with comments, strings and characters replaced by blanks; lines stay."""
    return TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def functions(path):
    """The named functions of a file: (first line, last line, name)."""
    text = blank(path.read_text())
    line_at = [0]
    for c in text:
        line_at.append(line_at[-1] + (c == "\n"))
    found = []
    for item in re.finditer(r"\bfn\s+(\w+)", text):
        depth = 0
        for at in range(item.end(), len(text)):
            c = text[at]
            if c in "([":
                depth += 1
            elif c in ")]":
                depth -= 1
            elif c == ";" and depth == 0:
                break  # no body
            elif c == "{" and depth == 0:
                end = closing(text, at)
                found.append((line_at[item.start()] + 1, line_at[end] + 1, item.group(1)))
                break
    return found


class Calls:
    """A callgrind file: the first lines of functions, and how often one calls another from which address."""

    def __init__(self, path):
        self.line = {}
        self.edges = defaultdict(int)  # (caller, address of the call, callee) -> calls
        self.entries = defaultdict(int)  # function -> calls
        file = here = caller = callee_file = callee = None
        count = 0
        for text in path.open():
            key, equals, value = text.rstrip("\n").partition("=")
            if equals and key == "fl":
                file = here = value
            elif equals and key in ("fi", "fe"):
                here = value
            elif equals and key == "fn":
                caller, callee_file = (file, value), file
                here = file
            elif equals and key in ("cfi", "cfl"):
                callee_file = value
            elif equals and key == "cfn":
                callee = (callee_file, value)
                callee_file = file
            elif equals and key == "calls":
                count = int(value.split()[0])
            elif text.startswith("0x") and caller:
                address, line = (int(n, 0) for n in text.split()[:2])
                if count:
                    self.edges[caller, address, callee] += count
                    self.entries[callee] += count
                    count = 0
                elif here == file and line:
                    self.line[caller] = min(line, self.line.get(caller, line))


class Source:
    """What the functions of a program are in the source."""

    def __init__(self, work):
        self.root = (work / "tree" / "crates").resolve()
        self.files = {}

    def function(self, program, line):
        """(file, first line, last line, name) of the named function around a line; None: not ours."""
        path = Path(program[0])
        if not path.is_absolute():
            path = self.root.parent / path
        try:
            inside = path.relative_to(self.root)
        except ValueError:
            return None
        if len(inside.parts) < 3 or inside.parts[0] not in CRATES or inside.parts[1] != "src":
            return None
        if path not in self.files:
            self.files[path] = functions(path)
        around = [f for f in self.files[path] if f[0] <= line <= f[1]]
        if not around:
            return None  # generated
        return str(inside), *max(around)


def runs(work, what):
    """The runs of one kind: (how many RPCs or passes, the calls), shortest first."""
    found = work.glob(f"{what}-*")
    return sorted(((int(p.name.split("-")[1]), Calls(p)) for p in found), key=lambda run: run[0])


def more(few, many, share):
    """What the longer run has at least `share` times more of for each RPC or pass more."""
    (n, few), (m, many) = few, many
    return {what for what, calls in many.items() if calls - few.get(what, 0) >= share * (m - n)}


def of_every_rpc(runs):
    """The functions that every RPC calls, and the calls that one of five RPCs makes.

    Callgrind misses a few calls when threads take turns; what is done because of the time that has
    passed is done by half of the RPCs at most.
    """
    entries = [(n, calls.entries) for n, calls in runs]
    edges = [(n, calls.edges) for n, calls in runs]
    return more(entries[0], entries[-1], 0.7), more(edges[0], edges[-1], 0.2)


def in_order(edges, roots):
    """The functions, by a walk from the roots along the calls of each in the order of its code."""
    callees = defaultdict(list)
    for caller, _, callee in sorted(edges, key=lambda e: e[1]):
        callees[caller].append(callee)
    seen, order = set(), []
    stack = list(reversed(roots))
    while stack:
        f = stack.pop()
        if f in seen:
            continue
        seen.add(f)
        order.append(f)
        stack.extend(reversed(callees[f]))
    return order


def leads_to(edges, wanted, passable):
    """Those, and all functions from which one of them is reached through passable ones."""
    callers = defaultdict(set)
    for caller, _, callee in edges:
        callers[callee].add(caller)
    reached, stack = set(wanted), list(wanted)
    while stack:
        for caller in callers[stack.pop()] - reached:
            if passable(caller):
                reached.add(caller)
                stack.append(caller)
    return reached


def visits(work):
    """The functions of the source that every RPC calls, in order: all, and those that count."""
    rpcs = runs(work, "rpcs")
    entries, edges = of_every_rpc(rpcs)
    lines = rpcs[-1][1].line
    source = Source(work)
    ours = {f: source.function(f, lines.get(f, 0)) for f in rpcs[-1][1].entries}
    idle = more(*[(n, calls.entries) for n, calls in runs(work, "idle")], 0.1)
    idle = {ours[f] for f in entries & idle}
    busy = {f for f in entries if ours[f] and ours[f] not in idle}
    counted = leads_to(edges, busy, lambda f: f in entries or not ours.get(f))
    counted = {ours[f] for f in counted & entries}
    roots = {caller for caller, _, _ in edges if "7visited7one_rpc" in caller[1]}
    order = in_order(edges, sorted(roots))
    order += sorted(entries - set(order))
    called = list(dict.fromkeys(ours[f] for f in order if f in entries and ours[f]))
    return called, [f for f in called if f in counted]


def totals(functions):
    """How many functions, and in how many files, have more than SHORT lines: a reader passes accessors at
    once, and folding them into their callers would not help."""
    long = {(file, first) for file, first, last, _ in functions if last - first + 1 > SHORT}
    return len(long), len({file for file, _ in long})


def count(work, tree, mode):
    """Prints what an RPC visits, and compares the totals with the limits or makes them the limits."""
    called, visited = visits(work)
    for file, line, _, name in visited:
        print(f"{file}:{line} {name}")
    total = totals(visited)
    print("{} functions in {} files, of those with more than {} lines".format(*total, SHORT))
    print("({} in {} with what passes that find nothing do too)".format(*totals(called)))
    print("({} functions of any length)".format(len(visited)))
    limits = tree / "scripts" / "visited.limits"
    if mode == "--write":
        limits.write_text("{} {}\n".format(*total))
    if mode != "--check":
        return 0
    allowed = tuple(int(n) for n in limits.read_text().split())
    if total[0] <= allowed[0] and total[1] <= allowed[1]:
        return 0
    message = "a small RPC visits {} functions of more than six lines in {} files; the limits are {} and {}"
    print(message.format(*total, *allowed), file=sys.stderr)
    return 1


def main():
    mode, *args = sys.argv[1:]
    if mode == "strip":
        strip(Path(args[0]))
        return 0
    return count(Path(args[0]), Path(args[1]), args[2] if args[2:] else None)


sys.exit(main())
