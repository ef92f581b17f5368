"""Run by each Python of a captured script, before the script: waits for a framework.

Comes in: the variables of the environment that `capture.launch` sets. Goes out: a session of the capture,
begun right after the framework was imported. An interpreter that imports none pays for this module
alone, which imports nothing. The `sitecustomize` that would have been imported without this one is run first.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

VARIABLE = "RAY_PRECHECK_CAPTURE"
# The names of the frameworks that are captured, by their packages: torch=pytorch mindspore=mindspore
FRAMEWORKS = "RAY_PRECHECK_CAPTURED_FRAMEWORKS"
_FRAMEWORKS = dict(pair.split("=") for pair in os.environ.get(FRAMEWORKS, "").split())


def _run_the_users() -> None:
    """Import the `sitecustomize` that this one hides, if there is one."""
    own_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own_folder]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:  # the import that is underway takes one of the two from there
            sys.modules.setdefault("sitecustomize", own)


class _AfterImport:
    """A loader that starts the capture when the module is there; otherwise it is the module's own."""

    def __init__(self, loader: Any, text: str) -> None:
        self._loader = loader
        self._text = text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        """Make the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module; then start the capture."""
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _begin(_FRAMEWORKS[module.__name__], self._text)


class _Waiting:
    """A finder that finds nothing itself, and is told of each import."""

    def __init__(self, text: str) -> None:
        self._text = text

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a framework where the other finders do, with a loader that starts the capture."""
        if name not in _FRAMEWORKS:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _AfterImport(spec.loader, self._text)
                return spec
        return None


def _begin(framework: str, text: str) -> None:
    """Start the capture by the package that the command belongs to, wherever this Python looks."""
    import json

    found = json.loads(text)
    if "ray_precheck" not in sys.modules:
        from importlib.util import module_from_spec, spec_from_file_location

        folder = os.path.join(found["root"], "ray_precheck")
        spec = spec_from_file_location(
            "ray_precheck",
            os.path.join(folder, "__init__.py"),
            submodule_search_locations=[folder],
        )
        package = sys.modules["ray_precheck"] = module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(package)  # type: ignore[union-attr]
    if framework == "tensorflow":
        from ray_precheck.capture.tensorflow.dumping import turn_on

        turn_on(found)
        return
    from ray_precheck.capture.process import begin

    begin(framework, found)


def _wait() -> None:
    text = os.environ.get(VARIABLE)
    if not text:
        return
    # The folder of the notes is the first text after its name; json would take longer than all of this.
    folder = text.split('"', 4)[3]
    try:  # noqa: SIM105 (contextlib costs more than all of this)
        os.close(os.open(os.path.join(folder, f"{os.getpid()}.started"), os.O_CREAT, 0o600))
    except OSError:
        pass  # it is on another machine
    for name in _FRAMEWORKS:
        if name in sys.modules:  # imported by a .pth file
            _begin(_FRAMEWORKS[name], text)
    sys.meta_path.insert(0, _Waiting(text))


if __name__ == "sitecustomize":
    _wait()
    _run_the_users()
