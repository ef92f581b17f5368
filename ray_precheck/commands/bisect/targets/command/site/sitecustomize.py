"""Sets attributes of modules once a Python of a bisected command has imported them.

Comes in: $BISECT_ATTRIBUTES, a line `MODULE.NAME=VALUE` for each, whose value is a Python literal. Goes out:
lines in the file $BISECT_ATTRIBUTES_TOLD: `set NAME`, `missing` with a reason, `unknown MODULE`. This folder
stands in front of PYTHONPATH; a sitecustomize that it hides is run as well. Only the standard library is
used, since the interpreter may be any.
"""

import ast
import atexit
import difflib
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
from typing import Any

# What an attribute that is not there, or does not take a value, raises.
_REFUSALS = (AssertionError, AttributeError, ImportError, RuntimeError, TypeError, ValueError)


class _Loader:
    """The loader of a module, after which attributes are set; else it is that loader."""

    def __init__(self, loader: Any, lines: "list[tuple[str, Any]]") -> None:
        self._loader, self._lines = loader, lines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _set(module, self._lines)


class _Finder:
    """Finds modules as others do, and has their attributes set when they have been loaded."""

    def __init__(self, wanted: "dict[str, list[tuple[str, Any]]]") -> None:
        self.wanted = wanted
        self.busy: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.wanted or name in self.busy:
            return None
        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.wanted[name])  # type: ignore[assignment]
        return spec


def _set(module: Any, lines: "list[tuple[str, Any]]") -> None:
    for attribute, value in lines:
        inner, _, last = attribute.rpartition(".")
        holder = module
        try:
            if inner:
                holder = pkgutil.resolve_name(f"{module.__name__}.{inner}")
            getattr(holder, last)
            setattr(holder, last, value)
        except _REFUSALS as error:
            near = difflib.get_close_matches(last, dir(holder), 1)
            said = "it is not there"
            if not isinstance(error, AttributeError):
                said = f"{type(error).__name__}: {error}".splitlines()[0]
            told = f"{said}{f'; the nearest is {near[0]}' if near else ''}"
            _tell("missing", f"{module.__name__}.{attribute} cannot be set: {told}")
        else:
            _tell("set", f"{module.__name__}.{attribute}")


def _tell(what: str, text: str) -> None:
    told = os.environ.get("BISECT_ATTRIBUTES_TOLD")
    if told:
        with open(told, "a") as file:
            file.write(f"{what} {text}\n")


def _tell_unknown(names: "list[str]") -> None:
    """Tell at the end of a Python which modules it does not have."""
    for name in names:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            _tell("unknown", name)


def _wanted() -> "dict[str, list[tuple[str, Any]]]":
    found: dict[str, list[tuple[str, Any]]] = {}
    for line in os.environ.get("BISECT_ATTRIBUTES", "").splitlines():
        name, _, value = line.partition("=")
        top, _, attribute = name.partition(".")
        found.setdefault(top, []).append((attribute, ast.literal_eval(value)))
    return found


def _begin() -> None:
    wanted = _wanted()
    for name in [each for each in wanted if each in sys.modules]:
        _set(sys.modules[name], wanted.pop(name))
    _tell("python", sys.executable)
    sys.meta_path.insert(0, _Finder(wanted))
    atexit.register(_tell_unknown, [*wanted])


def _run_hidden() -> None:
    """Run the sitecustomize that stands behind this one on the path."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [each for each in sys.path if os.path.abspath(each) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_begin()
_run_hidden()
