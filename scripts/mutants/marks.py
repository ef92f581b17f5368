"""The package with a mark at each statement, which says that a test has reached it.

Comes in: the folder of a package. Goes out: for each of its files the lines that were reached since
they were last asked for. Called by `tests_of`. The marks are put in as a module is compiled on its
import; its file stays as it is. A mark costs one store, so that tests take hardly longer; to trace
every call, with a function of Python, made them take many times as long.
"""

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

_NAME = "__reached_lines__"


class Marks(MetaPathFinder):
    """An entry of `sys.meta_path` that marks the modules of one package in a folder."""

    def __init__(self, folder: Path, package: str) -> None:
        self._folder = f"{folder}/"
        self._package = package
        self._lines: dict[str, bytearray] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the package as Python does, and have it compiled with marks."""
        if fullname.partition(".")[0] != self._package:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, self._of_file(spec.loader.path))
        return spec

    def take(self) -> dict[str, list[int]]:
        """Return the lines that were reached in each file, its path below the folder, and forget them."""
        reached = {}
        for path, lines in self._lines.items():
            if 1 in lines:
                reached[path] = [number for number, mark in enumerate(lines) if mark]
                lines[:] = bytes(len(lines))
        return reached

    def _of_file(self, path: str) -> bytearray:
        lines = bytearray(Path(path).read_bytes().count(b"\n") + 2)
        return self._lines.setdefault(path.removeprefix(self._folder), lines)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, lines: bytearray) -> None:
        super().__init__(name, path)
        self._lines = lines

    def get_code(self, fullname: str) -> CodeType:
        tree = marked(ast.parse(Path(self.path).read_bytes(), self.path))
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[_NAME] = self._lines
        super().exec_module(module)


def install(folder: Path, package: str) -> Marks:
    """Mark what is imported of a package from now on."""
    marks = Marks(folder, package)
    sys.meta_path.insert(0, marks)
    return marks


def marked(tree: ast.Module) -> ast.Module:
    """Return a module that marks the first line of each statement in a function, and of each lambda.

    What runs as the module is imported has no marks: it runs once for all tests.
    """
    changed: ast.Module = _Marker().visit(tree)
    return ast.fix_missing_locations(changed)


class _Marker(ast.NodeTransformer):
    """Puts the marks in; `_depth` is the number of functions around a node."""

    def __init__(self) -> None:
        self._depth = 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._depth:
            for block in ("body", "orelse", "finalbody"):
                statements = getattr(node, block, None)
                if isinstance(statements, list):
                    setattr(node, block, _with_marks(statements))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._visit_function(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        # A store as an expression; it returns None.
        mark = ast.parse(f"{_NAME}.__setitem__({node.lineno}, 1)", mode="eval").body
        node.body = ast.BoolOp(ast.Or(), [mark, node.body])
        return node

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node


def _with_marks(statements: list[ast.stmt]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for statement in statements:
        if not _is_text(statement):
            found += ast.parse(f"{_NAME}[{statement.lineno}] = 1").body
        found.append(statement)
    return found


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement may be a docstring, which must stay the first."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
