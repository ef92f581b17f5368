"""The modules of the package, parsed, and what their names stand for.

Comes in: a folder with a Python package. Goes out: `Sources`, which finds a module, a function of one and
the values of its names. Called by the collector. Nothing is imported.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of an expression; nothing where all fields are empty.

    `names` are the dotted names of libraries that it may stand for, in which `()` stands for the result
    of a call. `texts` are the strings that it may be, `keys` those that iterating over a dict gives.
    `functions` are functions of the package that it may be: (module, name in it). `is_many` says that it is
    a list, a tuple or a dict of these, whose attributes are Python's own.
    """

    names: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    functions: frozenset[tuple[str, str]] = frozenset()
    is_many: bool = False

    def __or__(self, other: "Value") -> "Value":
        return Value(
            self.names | other.names,
            self.texts | other.texts,
            self.keys | other.keys,
            self.functions | other.functions,
            self.is_many or other.is_many,
        )

    def items(self) -> "Value":
        """Return what iterating over the value gives."""
        return Value(texts=self.keys) if self.keys else self.one()

    def one(self) -> "Value":
        """Return a part of it; of a dict, a value."""
        return replace(self, keys=frozenset(), is_many=False)

    def many(self) -> "Value":
        """Return a list of it."""
        return replace(self, is_many=True)


UNKNOWN = Value()


def named(*names: str) -> Value:
    """Return the value of dotted names."""
    return Value(names=frozenset(names))


def texts_of(*texts: str) -> Value:
    """Return the value of known strings."""
    return Value(texts=frozenset(texts))


@dataclass(slots=True)
class SourceModule:
    """A parsed module: its dotted name, its file below the package's folder, its functions by name."""

    name: str
    file: str
    tree: ast.Module
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)


class Sources:
    """The modules of a package by dotted name."""

    def __init__(self, folder: Path) -> None:
        self.modules = {module.name: module for module in _read(folder)}

    def function(self, module: str, name: str) -> Function | None:
        """Return a function of a module, or the `__init__` of a class, by its qualified name."""
        found = self.modules.get(module)
        if found is None:
            return None
        return found.functions.get(name) or found.functions.get(f"{name}.__init__")


def _read(folder: Path) -> Iterator[SourceModule]:
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder)
        parts = [folder.name, *inside.with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        module = SourceModule(name, inside.as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for function, qualified in functions_in(module.tree):
            module.functions[qualified] = function
        module.classes = {s.name: s for s in module.tree.body if isinstance(s, ast.ClassDef)}
        yield module


def functions_in(node: ast.AST, prefix: str = "") -> Iterator[tuple[Function, str]]:
    """Yield every function below a node with its qualified name, such as `Backend.seed`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, prefix + child.name
            yield from functions_in(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions_in(child, f"{prefix}{child.name}.")
        else:
            yield from functions_in(child, prefix)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a node in order, without those of the functions in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            for outside in outside_nodes(child):
                yield outside
                yield from own_nodes(outside)
            continue
        yield child
        yield from own_nodes(child)


def outside_nodes(function: Function) -> Iterator[ast.expr]:
    """Yield what a function computes where it is defined: its decorators and its defaults."""
    yield from function.decorator_list
    yield from function.args.defaults
    yield from filter(None, function.args.kw_defaults)


def string_constants(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every string below a node, with the id of its node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, id(node)
