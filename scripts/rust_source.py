"""Reads the modules of a Rust crate: their names, imports and structs. Used by scripts/structure.py."""

import re
from collections import defaultdict

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?r(?P<h>#*)".*?"(?P=h)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^\\'\n])'""",
    re.S,
)
TEST = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*\))\)\]")
VISIBLE = r"(?:pub(?:\s*\([^)]*\))?\s+)"
USE = re.compile(rf"(?:^|(?<=[;{{}}\]\s]))({VISIBLE}?)use\s+([^;]+);")
LIMITED = re.compile(r"\bpub\s*\(\s*in\b[^)]*\)")
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
        for path in INLINE.finditer(LIMITED.sub(" ", USE.sub(" ", self.text))):
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
