"""Sets attributes of modules once a Python of a bisected command has imported them.

Comes in: $BISECT_ATTRIBUTES, a line `MODULE.NAME=VALUE` for each, whose value is a Python literal. This
folder stands in front of PYTHONPATH; a sitecustomize that it hides is run as well. Only the standard library
is used.
"""

import ast
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


class _Setting:
    """Finds modules as others do, and has their attributes set when they have been loaded."""

    def __init__(self, wanted: dict[str, list[tuple[str, Any]]]) -> None:
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
        if spec is None or spec.loader is None:
            return None
        load, lines = spec.loader.exec_module, self.wanted[name]

        def exec_module(module: Any) -> None:
            load(module)
            for attribute, value in lines:
                *inner, last = attribute.split(".")
                holder = module
                for each in inner:
                    importlib.import_module(holder.__name__ + "." + each)
                    holder = getattr(holder, each)
                setattr(holder, last, value)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wanted() -> dict[str, list[tuple[str, Any]]]:
    found: dict[str, list[tuple[str, Any]]] = {}
    for line in os.environ.get("BISECT_ATTRIBUTES", "").splitlines():
        name, _, value = line.partition("=")
        top, _, attribute = name.partition(".")
        found.setdefault(top, []).append((attribute, ast.literal_eval(value)))
    return found


sys.meta_path.insert(0, _Setting(_wanted()))
_here = os.path.dirname(os.path.abspath(__file__))
_spec = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [each for each in sys.path if os.path.abspath(each) != _here]
)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
