"""Every use that our sources make of torch_npu, torch.npu, MindSpore and acl.

Comes in: the modules of the package. Goes out: `Collected`: the uses, and the places that cannot be
followed. Called by the command and by a test, which holds the table of the docs against it. A use is
found by what the sources say, never by a list of names: an import, an attribute, a call, an assignment, a
getattr, a text with such a name in it (a line of a script that `repro` writes, a private part).
"""

import ast
import functools
import operator
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

from scripts.npu_calls.evaluate import (
    FINDS_PART,
    HOLE,
    LIBRARIES,
    OR,
    Use,
    extended,
    has_parts,
    is_whole,
    use_of,
    value_of,
)
from scripts.npu_calls.explained import EXPLAINED, IMPLIED, PASSED_ON, TAKES_ANYTHING
from scripts.npu_calls.names import Scopes
from scripts.npu_calls.sources import SourceModule, Value, named, outside_nodes

_IN_TEXT = re.compile(
    r"(?<![\w./-])(?:torch_npu|torch\.npu|acl|mindspore|ms)(?:\.\w+)+(?::\w+(?:\.\w+)*)?"
)
# A function that calls itself on parts of what it got has names that grow for ever.
_MOST_PARTS = 12
_BY_NAME = ("getattr", "hasattr", "setattr", "delattr")
# The names under which texts of scripts know the libraries.
_IN_SCRIPTS = {
    "torch": named("torch"),
    "torch_npu": named("torch_npu"),
    "ms": named("mindspore"),
    "mindspore": named("mindspore"),
    "acl": named("acl"),
}


@dataclass(slots=True)
class Collected:
    """The uses; `unclear` has the places that cannot be followed, with what stands there."""

    uses: set[Use] = field(default_factory=set)
    unclear: set[tuple[str, str]] = field(default_factory=set)


def collect_uses(scopes: Scopes) -> Collected:
    """Return every use in the modules of a package."""
    found = Collected()
    sources = scopes.sources
    waiting: list[_Entry] = []
    for module in sources.modules.values():
        waiting.append(_Entry(module.name, "", ()))
        waiting += [_Entry(module.name, name, ()) for name in module.functions]
    seen = set(waiting)
    while waiting:
        entry = waiting.pop()
        for called in _Reader(scopes, entry, found).read():
            if called not in seen:
                seen.add(called)
                waiting.append(called)
    _explain(found, scopes)
    return found


def _explain(found: Collected, scopes: Scopes) -> None:
    """Take the places out that are explained, and add the names that constants of ours give them."""
    explained = {where for where, _ in found.unclear if where in EXPLAINED}
    for where in explained:
        told = EXPLAINED[where]
        if told.constant and told.module in scopes.sources.modules:
            value = scopes.of_module(told.module)[told.constant]
            for name in value.items().texts:
                found.uses.add(Use(f"{told.base}.{name}", f"{told.base}.{name}", where, "read"))
    found.unclear = {(where, what) for where, what in found.unclear if where not in explained}
    files = {module.file for module in scopes.sources.modules.values()}
    for where in EXPLAINED.keys() - explained:
        if where.partition(":")[0] in files:
            found.unclear.add((where, "is explained in explained.py, and nothing varies there"))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A function to read, "" for the top of a module, with the values of its parameters."""

    module: str
    function: str
    given: tuple[tuple[str, Value], ...]


class _Reader:
    """Reads one function and adds its uses."""

    def __init__(self, scopes: Scopes, entry: _Entry, found: Collected) -> None:
        self._module: SourceModule = scopes.sources.modules[entry.module]
        self._sources = scopes.sources
        self._entry = entry
        self._found = found
        self._called: list[_Entry] = []
        if entry.function:
            self._names = scopes.of_function(self._module, entry.function, entry.given)
            self._root: ast.AST = self._module.functions[entry.function]
        else:
            self._names = scopes.of_top(self._module)
            self._root = self._module.tree
        self.where = f"{self._module.file}: {entry.function}".removesuffix(": ")

    def read(self) -> list[_Entry]:
        """Read it; return the functions that it calls with a part of a library."""
        body = self._root.body  # type: ignore[attr-defined]
        for statement in body:
            self._visit(statement)
        return self._called

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for outside in outside_nodes(node):
                    self._visit(outside)
            case ast.Global(names=names) if any(self._names.get(name) for name in names):
                self._unclear(f"binds {', '.join(names)} of its module")
            case ast.Assign(targets=targets, value=value):
                self._assigned(targets, value)
            case ast.Expr(value=ast.Constant(value=str())):
                return  # a docstring
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.Call():
                self._call(node)
            case ast.Attribute(value=ast.Name(id="self")):
                return  # an attribute of ours
            case ast.Attribute(ctx=context) if self._libs(node):
                how = "read" if isinstance(context, ast.Load) else "set"
                self._record(self._libs(node), how)
                self._inside(node.value)
            case ast.Attribute(attr="npu"):
                self._unclear("npu of something that is not known")
                self._visit(node.value)
            case ast.Name(ctx=ast.Load()) if self._libs(node):
                self._record(self._libs(node), "read")
            case ast.Tuple(elts=parts) if self._is_choice(parts):
                self._choice(parts)
            case ast.Constant(value=str()) | ast.JoinedStr():
                for text in value_of(node, self._names).texts:
                    self._text(text)
                if isinstance(node, ast.JoinedStr):
                    for part in node.values:
                        if isinstance(part, ast.FormattedValue):
                            self._visit(part.value)
            case _:
                for child in ast.iter_child_nodes(node):
                    self._visit(child)

    def _inside(self, node: ast.expr) -> None:
        """Visit what stands in the beginning of a chain of attributes, which is no use by itself."""
        match node:
            case ast.Attribute(value=base):
                self._inside(base)
            case ast.Subscript(value=base, slice=index):
                self._inside(base)
                self._visit(index)
            case ast.Name():
                return
            case ast.Call(func=ast.Name(id="getattr")):
                self._getattr(node, is_use=False)
            case _:
                self._visit(node)

    def _assigned(self, targets: list[ast.expr], value: ast.expr) -> None:
        """Visit an assignment; names, tuples and attributes of `self` are followed, others are not."""
        shown = [name for name in self._libs(value) if has_parts(name)]
        for target in targets:
            is_ours = isinstance(target, ast.Attribute) and not self._libs(target)
            is_self = is_ours and ast.unparse(target).startswith("self.")
            if shown and (isinstance(target, ast.Subscript) or (is_ours and not is_self)):
                self._unclear(f"puts {', '.join(shown)} into {ast.unparse(target)}")
            self._visit(target)
        self._visit(value)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            if node.level == 0 and (node.module or "").split(".")[0] in LIBRARIES:
                self._record([f"{node.module}.{alias.name}" for alias in node.names], "read")
                if node.names[0].name == "*":
                    self._unclear(f"imports every name of {node.module}")
            return
        self._record([a.name for a in node.names if a.name.split(".")[0] in LIBRARIES], "read")

    def _call(self, node: ast.Call) -> None:
        function = node.func
        if self._libs(function):
            self._record(self._libs(function), "call", node)
            self._inside(function)
        elif isinstance(function, ast.Name) and function.id in _BY_NAME:
            self._getattr(node)
            return
        elif _is_import(function):
            names = value_of(node, self._names).names
            self._record(sorted(names), "read")
            if not names:
                self._unclear("imports a module whose name is not known")
        elif not isinstance(function, ast.Name):
            self._visit(function)
        self._private_part(node)
        self._passed(node)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._argument(argument)

    def _private_part(self, node: ast.Call) -> None:
        functions = value_of(node.func, self._names).functions
        finds = any((home.rpartition(".")[2], name) == FINDS_PART for home, name in functions)
        if finds and not value_of(node.args[0], self._names).texts:
            self._unclear("finds a private part that is not known")

    def _argument(self, node: ast.expr) -> None:
        """Visit an argument; a module of a library that is passed on is no use by itself."""
        if not (isinstance(node, ast.Name) and self._libs(node)):
            self._visit(node)

    def _getattr(self, node: ast.Call, *, is_use: bool = True) -> None:
        base, name, *default = node.args
        bases, texts = self._libs(base), value_of(name, self._names).texts
        if is_use:
            how = "set" if ast.unparse(node.func) in ("setattr", "delattr") else "read"
            self._record([extended(b, f".{t}") for b in bases for t in sorted(texts)], how)
        if (
            bases
            and not is_whole(name, self._names)
            and not all(each.split(".")[0] == "torch" for each in bases)
        ):
            self._unclear(f"{ast.unparse(node.func)} of {', '.join(bases)} by a name that varies")
        self._inside(base)
        for each in (name, *default):
            self._visit(each)

    def _passed(self, node: ast.Call) -> None:
        """Follow the parts of libraries that are arguments into our functions, or say that it fails."""
        values = [(a, value_of(a, self._names)) for a in node.args]
        values += [(k.value, value_of(k.value, self._names)) for k in node.keywords]
        loaded = [(a, v) for a, v in values if any(not n.endswith("()") for n in v.names)]
        if not loaded or self._libs(node.func):
            return
        functions = value_of(node.func, self._names).functions
        for module, name in functions:
            self._queue(module, name, node)
        last = ast.unparse(node.func).rpartition(".")[2]
        if functions or last in (*TAKES_ANYTHING, *PASSED_ON):
            return
        for _, value in loaded:
            shown = ", ".join(sorted(name for name in value.names if has_parts(name)))
            if all(name.split(".")[0] == "torch" for name in value.names):
                continue
            if shown or _is_maker(node.func) or _is_vars(node):
                shown = shown or ", ".join(sorted(value.names))
                self._unclear(f"gives {shown} to {ast.unparse(node.func)}")

    def _queue(self, module: str, name: str, node: ast.Call) -> None:
        function = self._sources.function(module, name)
        if function is None:
            return
        parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        parameters = parameters[1:] if parameters[:1] in (["self"], ["cls"]) else parameters
        given = dict(zip(parameters, (value_of(a, self._names) for a in node.args), strict=False))
        given |= {k.arg: value_of(k.value, self._names) for k in node.keywords if k.arg}
        everything = [*node.args, *(k.value for k in node.keywords)]
        for rest in (function.args.vararg, function.args.kwarg):
            if rest is not None:
                values = (value_of(each, self._names) for each in everything)
                given[rest.arg] = functools.reduce(operator.or_, values, Value()).many()
        home = self._sources.modules[module]
        if name not in home.functions:
            name = f"{name}.__init__"
        known = {key: value for key, value in given.items() if value != Value()}
        longest = max((n.count(".") for value in known.values() for n in value.names), default=0)
        if longest > _MOST_PARTS:
            self._unclear(f"gives a name of {longest} parts to {name}, which may not end")
            return
        self._called.append(_Entry(module, name, tuple(sorted(known.items(), key=lambda i: i[0]))))

    def _is_choice(self, parts: list[ast.expr]) -> bool:
        """Return whether a tuple has nothing but texts that each are the name of a library's part."""
        texts = [part.value for part in parts if isinstance(part, ast.Constant)]
        return (
            len(texts) == len(parts) > 1
            and all(isinstance(text, str) and ":" in text for text in texts)
            and all(_IN_TEXT.fullmatch(text) for text in texts)
        )

    def _choice(self, parts: list[ast.expr]) -> None:
        names = sorted(str(part.value).replace(":", ".") for part in parts)  # type: ignore[attr-defined]
        self._add(Use(OR.join(names), OR.join(names), self.where, "text"))

    def _text(self, text: str) -> None:
        """Add the uses in a text: the lines of a script, or names in another text."""
        if not _IN_TEXT.search(text):
            return
        whole = text if re.search(r"\s", text) else text.replace(":", ".")
        tree = _parsed(textwrap.dedent(whole))
        if tree is None:
            for match in _IN_TEXT.finditer(text):
                name = match[0].replace(":", ".")
                self._record([re.sub(r"^ms\.", "mindspore.", name)], "text")
            return
        outer, self._names = self._names, _IN_SCRIPTS
        try:
            for node in tree.body:
                self._visit(node)
        finally:
            self._names = outer

    def _libs(self, node: ast.expr) -> list[str]:
        return sorted(value_of(node, self._names).names)

    def _record(self, names: Iterable[str], how: str, call: ast.Call | None = None) -> None:
        for name in names:
            if name.startswith("torch."):
                name = re.sub(r"^torch\.npu(?=\.|$)", "torch_npu.npu", name)
            for implied, count in IMPLIED.get((self._module.file, name), ()):
                shown = f"{implied}({', '.join(['_'] * count)})"
                self._add(Use(shown, implied, f"{self.where} (through {name})", "call", count))
            if name.split(".")[0] == "torch" or name in LIBRARIES:
                continue
            if HOLE in name.split("."):
                self._unclear(f"a text has {name}, whose name varies")
                continue
            if how in ("read", "set") and name.endswith("()"):
                continue  # a result that is passed on
            self._add(use_of(name, self.where, how, call))

    def _add(self, use: Use) -> None:
        self._found.uses.add(use)

    def _unclear(self, what: str) -> None:
        self._found.unclear.add((self.where, what))


def _parsed(text: str) -> ast.Module | None:
    """Return the tree of a text that is Python, None for a list of names after a colon and other texts."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    return None if any(isinstance(node, ast.AnnAssign) for node in tree.body) else tree


def _is_import(function: ast.expr) -> bool:
    match function:
        case ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"):
            return True
    return False


def _is_maker(function: ast.expr) -> bool:
    """Return whether a function was made by another one, such as attrgetter(name)."""
    return isinstance(function, ast.Call)


def _is_vars(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in ("vars", "dir")
