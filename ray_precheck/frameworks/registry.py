"""From a framework's name to its backend, imported on demand.

Called by the session before a run, and by `check` in the workers. A framework that is missing is
reported with the command that installs it.
"""

import importlib.util

from ray_precheck.descriptors.descriptor import Framework
from ray_precheck.descriptors.known import (
    BENCH_PACKAGE,
    built_in_frameworks,
    find_framework,
    framework_names,
    is_framework,
    load_part,
)
from ray_precheck.errors import BackendMissingError
from ray_precheck.frameworks.base import Backend


def require_framework(framework: str, *, device_runs: bool = True) -> None:
    """Require that the packages that a dump needs are installed; imports nothing.

    torch is always needed, to compute the bench. The framework itself is needed if the device runs,
    not if only captured outputs are tested. The descriptor's `require` checks for further needs.

    Raises:
        BackendMissingError: names the package and what to do.
    """
    if not is_framework(framework):
        raise BackendMissingError(
            f"{framework} dumps cannot be checked yet; supported are {', '.join(framework_names())}"
        )
    own = find_framework(framework)
    for name in (BENCH_PACKAGE, *(own.modules if device_runs else ())):
        if importlib.util.find_spec(name) is None:
            is_bench = name == BENCH_PACKAGE
            use = "the bench" if is_bench else f"a {framework} dump"
            install = _bench_framework().how_to_install if is_bench else own.how_to_install
            raise BackendMissingError(
                f"{use} needs {name}, which is not installed here; install it with: {install}"
            )
    if own.require:
        load_part(own.require)(device_runs=device_runs)


def _bench_framework() -> Framework:
    return next(each for each in built_in_frameworks() if each.package == BENCH_PACKAGE)


def open_backend(framework: str, kind: str) -> Backend:
    """Import a framework and open it on the one device that this process sees.

    `kind` is npu, gpu or cpu.

    Raises:
        BackendMissingError: the framework is not installed.
    """
    require_framework(framework)
    return load_part(find_framework(framework).backend)(kind)  # type: ignore[no-any-return]
