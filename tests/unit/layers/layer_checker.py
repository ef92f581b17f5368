"""Reads the imports of a package with `ast` and holds a table of layers.

Comes in: the sources of modules by dotted name. Goes out: what breaks the table, as sentences.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One import: the dotted name that is imported, its line, and whether it runs at once.

    `at_once` is False inside functions and `if TYPE_CHECKING`.
    """

    target: str
    line: int
    at_once: bool


@dataclass(frozen=True)
class Table:
    """What may import what: layers from the lowest up, and who may import a framework.

    A layer lists packages, or modules in them that have another layer than their package, as patterns
    without the name of the whole package in front; `""` is its `__init__`. `reserved` has patterns of modules
    by the foreign package that they may import.
    """

    package: str
    layers: Sequence[Sequence[str]]
    reserved: Mapping[str, Sequence[str]]

    def layer_of(self, module: str) -> int | None:
        """The layer of a module; None where the table does not know it."""
        local = "" if module == self.package else module.removeprefix(f"{self.package}.")
        for wanted in (local, local.split(".")[0]):
            for rank, patterns in enumerate(self.layers):
                if any(fnmatchcase(wanted, pattern) for pattern in patterns):
                    return rank
        return None


def read_package(folder: Path) -> dict[str, str]:
    """Return the sources of a package by dotted name; `__init__` is the package itself."""
    sources = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        sources[".".join(part for part in parts if part != "__init__")] = path.read_text("utf-8")
    return sources


def imports_of(module: str, source: str, modules: Sequence[str]) -> Iterator[Import]:
    """Yield the imports of a module, `import_module` of a constant among them.

    `from package import name` is an import of the module `package.name` where there is one.
    """
    is_package = any(other.startswith(f"{module}.") for other in modules)

    def walk(node: ast.AST, at_once: bool) -> Iterator[Import]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            at_once = False
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.body:
                yield from walk(statement, False)
            for statement in node.orelse:
                yield from walk(statement, at_once)
            return
        for target in _targets(node, module, is_package, modules):
            yield Import(target, getattr(node, "lineno", 0), at_once)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_once)

    yield from walk(ast.parse(source), True)


def _targets(node: ast.AST, module: str, is_package: bool, modules: Sequence[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = module.split(".")
            above = above[: len(above) - node.level + (1 if is_package else 0)]
            base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            full = f"{base}.{alias.name}"
            yield full if full in modules else base
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = ast.unparse(node.func).rsplit(".", 1)[-1]
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            yield node.args[0].value


def broken_rules(sources: Mapping[str, str], table: Table) -> list[str]:
    """Return what breaks the table, one sentence for each import."""
    found = []
    for module, source in sources.items():
        if table.layer_of(module) is None:
            found.append(f"{module} is in no layer")
            continue
        for item in imports_of(module, source, list(sources)):
            sentence = _broken_rule(module, item.target, table)
            if sentence:
                found.append(f"{module}:{item.line} {sentence}")
    return found


def _broken_rule(module: str, target: str, table: Table) -> str:
    root = target.split(".", 1)[0]
    if root == table.package:
        own, other = table.layer_of(module), table.layer_of(target)
        if own is not None and other is not None and other > own:
            return f"imports {target} of a higher layer"
    elif root in table.reserved:
        local = module.removeprefix(f"{table.package}.")
        if not any(fnmatchcase(local, pattern) for pattern in table.reserved[root]):
            return f"may not import {root}"
    return ""


def imports_of_room(sources: Mapping[str, str], room: str) -> list[tuple[str, str]]:
    """Return every import of the package by the modules of a room, those inside functions too.

    A pair for each: the module and what it imports, both without the name of the package.
    """
    package = next(iter(sources)).split(".", 1)[0]
    found = []
    for module, source in sources.items():
        local = module.removeprefix(f"{package}.")
        if not is_in(local, [room]):
            continue
        for item in imports_of(module, source, list(sources)):
            if item.target.startswith(f"{package}."):
                found.append((local, item.target.removeprefix(f"{package}.")))
    return found


def is_in(module: str, rooms: Sequence[str]) -> bool:
    """Return whether a module is one of these rooms, or below one of them."""
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def import_cycles(sources: Mapping[str, str]) -> list[list[str]]:
    """Return cycles of imports, at least one wherever modules run in a circle.

    Imports inside functions and for types alone count too: whoever reads one module of the circle must
    read them all. Each cycle starts at its first name. That a package is imported before its modules is
    not counted.
    """
    modules = list(sources)
    graph = {
        module: sorted({item.target for item in imports_of(module, source, modules)})
        for module, source in sources.items()
    }
    cycles: set[tuple[str, ...]] = set()
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            cycle = path[path.index(module) :]
            first = cycle.index(min(cycle))
            cycles.add((*cycle[first:], *cycle[:first]))
        elif module in graph and module not in done:
            for target in graph[module]:
                visit(target, [*path, module])
            done.add(module)

    for module in modules:
        visit(module, [])
    return [list(cycle) for cycle in sorted(cycles)]
