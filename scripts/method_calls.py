"""Finds the calls of methods between the files of a Rust crate. Used by scripts/structure.py.

The type of a receiver is known when it is `self`, `Self`, a type's name, a parameter or a variable with a
written type, or a field of one of these; references, `Box`, `Option` and other wrappers are looked
through. The methods of other receivers count when their name is defined once in the crate, has two
words, and is not one of the standard library's. A call of a trait's method leads to the trait. Calls
whose receiver stays unknown are left out: the result is a lower bound.
"""

import re
from collections import defaultdict

from rust_source import closing, item_end

# Types that a method call or a field access sees through, or that usually are unpacked first.
WRAPPERS = {
    "Box", "Rc", "Arc", "Weak", "Option", "Result", "Ref", "RefMut", "RefCell", "Cell", "Pin",
    "ManuallyDrop", "Mutex", "MutexGuard", "RwLock", "NonNull", "UnsafeCell", "MaybeUninit", "Cow",
}
# Names of two words that types of the standard library have too.
STANDARD = {
    "as_bytes", "as_deref", "as_mut", "as_mut_ptr", "as_mut_slice", "as_ptr", "as_ref", "as_secs",
    "as_slice", "as_str", "get_mut", "get_or_insert_with", "into_boxed_slice", "into_inner", "into_iter",
    "is_empty", "is_err", "is_full", "is_none", "is_ok", "is_some", "iter_mut", "last_mut", "local_addr",
    "next_back", "poll_next", "pop_back", "pop_front", "push_back", "push_front", "set_len",
    "shrink_to_fit", "split_at", "to_owned", "to_string", "to_vec", "try_from", "try_into", "try_recv",
    "try_send", "wake_by_ref", "wait_timeout", "write_all", "write_str", "read_exact", "from_str",
    "swap_remove", "drain_all", "retain_mut", "fetch_add", "compare_exchange", "set_nonblocking",
}
FN = re.compile(r"\bfn\s+(\w+)")
TYPED = re.compile(r"(?<![\w:])(\w+)\s*:(?!:)\s*")
CALL = re.compile(r"\.\s*(\w+)\s*(?:::\s*<[^;{}()]*>\s*)?\(")
STATIC = re.compile(r"(?<![\w:.])((?:\w+\s*::\s*)*?)(\w+)\s*(?:::\s*<[^;{}()]*>\s*)?::\s*(\w+)\s*\(")
CHAIN = re.compile(r"((?:\w+\s*\.\s*)*\w+)\s*$")


def angle(text, at):
    """The position behind the angle bracket that opens at `at`."""
    depth = 0
    while at < len(text):
        depth += (text[at] == "<") - (text[at] == ">" and text[at - 1] not in "-=")
        at += 1
        if depth == 0:
            return at
    return at


def split_top(text):
    """The parts of a list at its outermost commas."""
    parts, depth, start = [], 0, 0
    for at, c in enumerate(text):
        depth += (c in "([{<") - (c in ")]}" or (c == ">" and text[at - 1 : at] not in ("-", "=")))
        if c == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def named_type(text):
    """The path of a type without references and wrappers: `&'a mut Option<x::T<U>>` is (x, T)."""
    while True:
        text = re.sub(r"^(?:[&\s*]|'\w+\b|\b(?:mut|dyn|impl|const)\b)*", "", text)
        path = re.match(r"\w+(?:\s*::\s*\w+)*", text)
        if not path:
            return None
        segments = tuple(re.findall(r"\w+", path.group()))
        if segments[-1] not in WRAPPERS or text[path.end() : path.end() + 1] != "<":
            return segments
        inner = split_top(text[path.end() + 1 : angle(text, path.end()) - 1])
        text = next((part for part in inner if not part.strip().startswith("'")), "")


def end_of_type(text, at):
    """Where the type that begins at `at` ends: at a comma, `=`, `;`, `{`, `|` or a closing bracket."""
    while at < len(text) and text[at] not in ",=;{|)]}>":
        if text[at] == "<":
            at = angle(text, at)
        elif text[at] in "([":
            at = closing(text, at) + 1
        else:
            at += 2 if text.startswith("->", at) else 1
    return at


def blocks(text, word):
    """(header, body) of each item `impl` or `trait` of a module."""
    for found in re.finditer(rf"\b{word}\b", text):
        before = text[: found.start()].rstrip()
        if before and before[-1] not in "};]{" and not re.search(r"\b(?:unsafe|pub|\))$", before):
            continue
        at = found.end()
        while at < len(text) and text[at] not in "{;":
            at = angle(text, at) if text[at] == "<" else at + 1
        if at < len(text) and text[at] == "{" and "$" not in text[found.end() : at]:
            yield text[found.end() : at], text[at + 1 : closing(text, at)]


def impl_header(header):
    """(trait's path or None, type's path) of an `impl` block."""
    header = header.strip()
    if header.startswith("<"):
        header = header[angle(header, 0) :]
    header = re.split(r"\bwhere\b", header)[0]
    depth = 0
    for at in range(len(header)):
        depth += (header[at] == "<") - (header[at] == ">" and header[at - 1] not in "-=")
        if depth == 0 and re.match(r"\bfor\b(?!\s*<)", header[at:]) and header[at - 1].isspace():
            return named_type(header[:at]), named_type(header[at + 3 :])
    return None, named_type(header)


class Calls:
    """The methods of a crate, and the files whose code calls them."""

    def __init__(self, crate):
        self.crate = crate
        self.methods = defaultdict(dict)  # (module, type) -> method -> file
        self.defined = defaultdict(dict)  # method -> file -> module
        self.fields = {}  # (module, type) -> field -> (module, path of its type)
        self.bodies = []  # (module, type of self or None, code)
        for module in crate.modules.values():
            self.read(module)
        self.graph = defaultdict(lambda: defaultdict(int))  # file -> file -> calls
        for module, owner, code in self.bodies:
            for function in self.functions(code):
                self.calls(module, owner, function)

    def type_of(self, module, segments):
        """The type of the crate that a path means: (module that defines it, name)."""
        if not segments:
            return None
        name = segments[-1]
        if len(segments) == 1 and name in module.defined:
            return module.path, name
        target = self.crate.find(module, segments)
        if target and name not in target.defined and name in module.names:
            name = module.names[name][-1]  # imported under another name
        return (target.path, name) if target and name in target.defined else None

    def read(self, module):
        rest = module.text
        for header, body in blocks(module.text, "impl"):
            rest = rest.replace(body, " ")
            trait, path = impl_header(header)
            owner = self.type_of(module, path)
            self.bodies.append((module, owner, body))
            if trait is None and owner:
                for name in self.heads(body):
                    self.methods[owner][name] = module
                    self.defined[name][module.file] = module
        for header, body in blocks(module.text, "trait"):
            rest = rest.replace(body, " ")
            owner = (module.path, re.search(r"\w+", header).group())
            self.bodies.append((module, owner, body))
            for name in self.heads(body):
                self.methods[owner][name] = module
                self.defined[name][module.file] = module
        for struct in re.finditer(r"\bstruct\s+(\w+)", module.text):
            self.fields[module.path, struct.group(1)] = self.struct_fields(module, struct.end())
        self.bodies.append((module, None, rest))

    def struct_fields(self, module, at):
        text = module.text
        end = item_end(text, at)
        open_brace = text.find("{", at, end)
        fields = {}
        for part in split_top(text[open_brace + 1 : end]) if open_brace >= 0 else ():
            part = re.sub(r"#\[[^\]]*\]", " ", part)
            if field := re.search(r"(\w+)\s*:(?!:)\s*", part):
                fields[field.group(1)] = (module, named_type(part[field.end() :]))
        return fields

    def heads(self, body):
        """The names of the functions of a block, without those inside of functions."""
        at = 0
        while found := FN.search(body, at):
            yield found.group(1)
            at = self.function_end(body, found.end())

    @staticmethod
    def function_end(text, at):
        while at < len(text) and text[at] not in "{;":
            at = closing(text, at) + 1 if text[at] in "([" else at + 1
        return closing(text, at) + 1 if at < len(text) and text[at] == "{" else at + 1

    def functions(self, code):
        """The functions of a block, each whole."""
        at = 0
        while found := FN.search(code, at):
            at = self.function_end(code, found.end())
            yield code[found.start() : at]

    def variables(self, module, owner, function):
        """The types of parameters and variables that are written."""
        known = {"self": owner}
        for found in TYPED.finditer(function):
            path = named_type(function[found.end() : end_of_type(function, found.end())])
            kind = path and (owner if path == ("Self",) else self.type_of(module, path))
            if kind:
                known[found.group(1)] = kind
        return known

    def calls(self, module, owner, function):
        known = self.variables(module, owner, function)
        for call in CALL.finditer(function):
            chain = CHAIN.search(function, max(0, call.start() - 200), call.start())
            kind = self.receiver(known, chain.group(1)) if chain else None
            self.count(module, kind, call.group(1))
        for call in STATIC.finditer(function):
            path = tuple(re.findall(r"\w+", call.group(1))) + (call.group(2),)
            kind = owner if path == ("Self",) else self.type_of(module, path)
            if kind:
                self.count(module, kind, call.group(3))

    def receiver(self, known, chain):
        first, *fields = re.findall(r"\w+", chain)
        kind = known.get(first)
        for field in fields:
            home, path = self.fields.get(kind, {}).get(field, (None, None))
            kind = path and self.type_of(home, path)
        return kind

    def count(self, module, kind, name):
        target = self.methods.get(kind, {}).get(name) if kind else None
        if not target and "_" in name and name not in STANDARD and len(self.defined[name]) == 1:
            (target,) = self.defined[name].values()
        if target and target.file != module.file:
            self.graph[self.crate.name(module)][self.crate.name(target)] += 1
