"""ray_precheck: find the operators of a training step that are numerically wrong on a device.

`precheck` runs a dump of msprobe's and returns a `PrecheckReport`; `rerun` checks one API again
that a run with `-save_error_data` saved; `reference` declares a bench of one's own. Everything
that can go wrong is a `PrecheckError`.
"""

from ray_precheck.bench.declared import reference
from ray_precheck.config import RunConfig
from ray_precheck.errors import (
    BackendMissingError,
    DeviceError,
    DumpError,
    PrecheckError,
    ResumeError,
    StoppedError,
    UsageError,
)
from ray_precheck.session import PrecheckReport, precheck, rerun, run

__version__ = "0.1.0"

__all__ = [
    "BackendMissingError",
    "DeviceError",
    "DumpError",
    "PrecheckError",
    "PrecheckReport",
    "ResumeError",
    "RunConfig",
    "StoppedError",
    "UsageError",
    "precheck",
    "reference",
    "rerun",
    "run",
]
