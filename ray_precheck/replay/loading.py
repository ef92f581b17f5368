"""What check processes import, named and begun before anything else of a run.

The imports of a framework and of the bench take longer than all other preparations, so a command starts the
server that makes them (`runtime.workers.fork_server`) as soon as it knows the framework, and then imports
what it needs itself. This module therefore imports nothing heavy.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ray_precheck.descriptors.descriptor import find_framework, is_framework, load_part
from ray_precheck.foreign import open_file
from ray_precheck.options.shared import JobOptions
from ray_precheck.runtime.workers.fork_server import kept_servers

# The header stands before the calls.
_HEADER_BYTES = 1 << 14
_FRAMEWORK = re.compile(rb'"framework"\s*:\s*"(\w+)"')


def load_checker(*frameworks: str) -> None:
    """Import what a checker of these frameworks needs; nothing is computed, and no device opened.

    What is not installed is left out: the process that needs it says so.
    """
    from ray_precheck.frameworks.mindtorch.paths import prefer_native

    prefer_native()
    import ray_precheck.check.checker
    import ray_precheck.replay.job
    import ray_precheck.runtime.workers.check_process  # noqa: F401
    from ray_precheck.bench.run import load_bench

    for framework in map(find_framework, frameworks):
        load_bench(framework.name)
        if find_spec(framework.package) is not None:
            load_part(framework.backend)


@contextmanager
def loaded_early(config: JobOptions, framework: str, dump: Path) -> Iterator[None]:
    """Start the server of a run over a dump, with the framework that it names where none is given; the run
    finds it if that is what it needs."""
    with kept_servers() as servers:
        framework = framework or _framework_in(dump)
        if is_framework(framework) and not config.joins:
            servers.open(partial(load_checker, framework), debug=config.debug)
        yield


def _framework_in(dump: Path) -> str:
    """Return the framework that the header of a dump names, "" where it has none or cannot be read."""
    try:
        with open_file(dump / "dump.json" if dump.is_dir() else dump) as file:
            found = _FRAMEWORK.search(file.read(_HEADER_BYTES))
    except OSError:
        return ""
    return found[1].decode() if found else ""
