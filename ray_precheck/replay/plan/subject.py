"""The framework that a dump is tested with, and the results that are tested.

Comes in: a `RunConfig` and an open dump. Goes out: the framework's name, and whether captured results
are tested. Called by the session, and by the listing of a dump.
"""

from ray_precheck.descriptors.known import find_framework, framework_names, require_sole
from ray_precheck.dump.parse import Dump
from ray_precheck.errors import DumpError, UsageError
from ray_precheck.replay.config import RunConfig


def framework_of(config: RunConfig, dump: Dump) -> str:
    """Return the framework of the run. msprobe takes dumps of mindtorch with -f mindspore.

    Raises:
        DumpError: the dump is of another framework than asked for, or does not tell.
        UsageError: the descriptor of the framework cannot be used.
    """
    if config.framework and dump.framework and not _is_meant(config.framework, dump.framework):
        raise DumpError(
            f"{dump.path} is a dump of {dump.framework}, but -f {config.framework} was given;"
            f" use -f {dump.framework}"
        )
    framework = dump.framework or config.framework
    if not framework:
        raise DumpError(
            f"{dump.path} does not name its framework; say it with -f {'|'.join(framework_names())}"
        )
    require_sole(framework)
    return framework


def _is_meant(asked: str, framework: str) -> bool:
    return asked in (framework, *find_framework(framework).asked_as)


def tests_captured(config: RunConfig, dump: Dump) -> bool:
    """Return whether the captured results are tested, not those of a device here.

    Raises:
        UsageError: they are asked for, and the dump has none.
    """
    if config.tested == "dump" and dump.task != "tensor":
        raise UsageError(
            f"--tested dump needs captured tensors, but the task of {dump.path} is {dump.task}"
        )
    return config.tested != "device" and dump.task == "tensor"
