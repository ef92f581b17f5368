"""A plugin of pytest that notes which functions of the package each test enters.

Comes in: a tree with `ray_precheck` and its tests, in which pytest runs with `-p scripts.mutants.reached`.
Goes out: a `TestMap` as JSON in the file that `MUTANTS_MAP` names. Each function is marked as its module is
compiled on its import, and its file stays as it is. A mark costs one call, so tests take hardly longer; a
function of Python that traces every call makes them take many times as long.
"""

import ast
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

VARIABLE = "MUTANTS_MAP"
_MARK = "__mark_function__"


@dataclass(slots=True)
class TestMap:
    """What the tests of a folder do that pass on the code as it is.

    `reached`: for each test and file (its path below the tree) the first lines of the functions that it
    enters; `seconds` of each test; `failing`: tests that fail, and are left out; `digest` of the tree.
    """

    reached: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)
    digest: str = ""

    def reaching(self, path: str, line: int = 0) -> set[str]:
        """Return the tests that enter the function at a line of a file; line 0: any of its functions."""
        return {
            test
            for test, files in self.reached.items()
            if path in files and (not line or line in files[path])
        }


class Marks(MetaPathFinder):
    """An entry of `sys.meta_path` that marks the functions of one package in a folder."""

    def __init__(self, folder: Path, package: str) -> None:
        self._folder = f"{folder}/"
        self._package = package
        self._entered: set[tuple[str, int]] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the package as Python does, and have it compiled with marks."""
        if fullname.partition(".")[0] != self._package:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
            name = spec.loader.path.removeprefix(self._folder)
            spec.loader.mark = lambda line: self._entered.add((name, line))
        return spec

    def take(self) -> dict[str, list[int]]:
        """Return the functions that were entered in each file, and forget them."""
        found: dict[str, list[int]] = {}
        for path, line in sorted(self._entered):
            found.setdefault(path, []).append(line)
        self._entered.clear()
        return found


class _Loader(SourceFileLoader):
    mark: Any = None

    def get_code(self, fullname: str) -> CodeType:
        tree = _Marker().visit(ast.parse(Path(self.path).read_bytes(), self.path))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[_MARK] = self.mark
        super().exec_module(module)


class _Marker(ast.NodeTransformer):
    """Puts a mark at the beginning of each function and each lambda."""

    def visit(self, node: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # A docstring must stay the first statement.
            node.body.insert(ast.get_docstring(node) is not None, ast.Expr(_call(node)))
        elif isinstance(node, ast.Lambda):
            node.body = ast.BoolOp(ast.Or(), [_call(node), node.body])  # the mark returns None
        return node


def _call(node: Any) -> ast.expr:
    return ast.parse(f"{_MARK}({node.lineno})", mode="eval").body


class _Tracer:
    def __init__(self, marks: Marks, out: Path) -> None:
        self._marks, self._out, self._found = marks, out, TestMap()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._marks.take()
        begin = time.perf_counter()
        done = yield
        if item.nodeid not in self._found.failing:
            self._found.seconds[item.nodeid] = time.perf_counter() - begin
            self._found.reached[item.nodeid] = self._marks.take()
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._found.failing:
            self._found.failing.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._out.write_text(json.dumps(asdict(self._found)))


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Mark what is imported of the package, where a map is asked for: from the conftest files on, which
    import parts of it."""
    if out := os.environ.get(VARIABLE):
        marks = Marks(Path.cwd(), "ray_precheck")
        sys.meta_path.insert(0, marks)
        early_config.pluginmanager.register(_Tracer(marks, Path(out)))
