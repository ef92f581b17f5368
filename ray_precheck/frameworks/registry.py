"""From a framework's name to its backend, imported on demand.

Called by `check`, in the workers only. A framework that is missing is reported with the extra that
installs it.
"""

import importlib
import importlib.util
from typing import Any

from ray_precheck.errors import BackendMissingError
from ray_precheck.frameworks.base import Backend
from ray_precheck.frameworks.mindtorch.paths import adapter_folder, native_folder

# framework of the dump -> (module to import, class in it, package needed, extra that installs it)
_BACKENDS = {
    "mindspore": ("ray_precheck.frameworks.mindspore.backend", "MindSporeBackend", "mindspore"),
    "pytorch": ("ray_precheck.frameworks.pytorch.backend", "TorchBackend", "torch"),
    "mindtorch": ("ray_precheck.frameworks.mindtorch.backend", "MindTorchBackend", "mindspore"),
}
_EXTRAS = {"mindspore": "mindspore", "torch": "torch"}


def require_framework(framework: str, *, device_runs: bool = True) -> None:
    """Raise where a package that a dump needs is not installed; imports nothing.

    torch is needed always, it computes the bench. The framework itself is needed where the device
    runs, not where only captured outputs are tested. A mindtorch dump needs two packages called
    torch, the native one and MSAdapter's.

    Raises:
        BackendMissingError: names the package and what to do.
    """
    needed = ["torch"]
    if framework not in _BACKENDS:
        raise BackendMissingError(
            f"{framework} dumps cannot be checked yet; supported are {', '.join(_BACKENDS)}"
        )
    package = _BACKENDS[framework][2]
    if device_runs and package not in needed:
        needed.append(package)
    for name in needed:
        if importlib.util.find_spec(name) is None:
            use = "the bench" if name == "torch" else f"a {framework} dump"
            raise BackendMissingError(
                f"{use} needs {name}, which is not installed here;"
                f" install it with: pip install 'ray_precheck[{_EXTRAS[name]}]'"
            )
    if framework == "mindtorch":
        native_folder()
        if device_runs:
            adapter_folder()


def open_backend(framework: str, kind: str) -> Backend:
    """Import a framework and open it on the one device that this process sees.

    `kind` is npu, gpu or cpu.

    Raises:
        BackendMissingError: the framework is not installed.
    """
    require_framework(framework)
    module, name, _ = _BACKENDS[framework]
    backend: Any = getattr(importlib.import_module(module), name)
    return backend(kind)  # type: ignore[no-any-return]
