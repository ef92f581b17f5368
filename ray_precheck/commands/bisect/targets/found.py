"""The targets by name: those of this package, and those of others by their entry points."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module, metadata

from ray_precheck.commands.bisect.target import Target
from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught, first_line

GROUP = "ray_precheck.bisect"
_OWN = {
    "paddle": "ray_precheck.commands.bisect.targets.paddle.target",
    "torch-compile": "ray_precheck.commands.bisect.targets.torch_compile.target",
    "onnx": "ray_precheck.commands.bisect.targets.onnx.target",
    "run": "ray_precheck.commands.bisect.targets.command.target",
}


def find_target(name: str) -> Target:
    """Return the target of a name.

    Raises:
        UsageError: there is none, or its package cannot be loaded; names the nearest.
    """
    modules = target_modules()
    if name not in modules:
        near = get_close_matches(name, modules, 1)
        told = f"the nearest is {near[0]}" if near else f"there are {', '.join(modules)}"
        raise UsageError(f"{name!r} is nothing that can be bisected; {told}")
    module, error = caught(lambda: import_module(modules[name]))
    if module is None:
        assert error is not None
        raise UsageError(
            f"the target {name} ({modules[name]}) cannot be loaded: {first_line(error)}"
        )
    target: Target = module.TARGET
    return target


def target_modules() -> Mapping[str, str]:
    """Return the modules of all targets by name; a name of this package is never replaced."""
    others = {point.name: point.value for point in metadata.entry_points(group=GROUP)}
    return {**others, **_OWN}


def target_texts() -> dict[str, str]:
    """Return a line on each target by name, of those that can be loaded."""
    found = {}
    for name, path in target_modules().items():
        module, _ = caught(lambda path=path: import_module(path))  # type: ignore[misc]
        if module is not None:
            found[name] = str(module.TARGET.text)
    return found
