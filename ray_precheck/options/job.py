"""The options of every command that runs a job.

Comes in: options of the command line or arguments of a function. Goes out: groups of a command's
configuration. Each option is declared once, as a field (`options.declared` says how); a command whose
configuration has a group takes its options. Read by `running` and `runtime`.
"""

from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.options.declared import Takes, option
from ray_precheck.options.files import ResumeOptions
from ray_precheck.options.limits import LimitOptions
from ray_precheck.options.places import CoreOptions, PlaceOptions


@dataclass(frozen=True, kw_only=True)
class DebugOptions:
    """How errors are shown."""

    section: ClassVar[str] = "help"

    debug: bool = option(
        False, "--debug", help="show tracebacks and what Ray prints", takes=Takes.NOTHING
    )


@dataclass(frozen=True, kw_only=True)
class JobOptions(PlaceOptions, LimitOptions, ResumeOptions, DebugOptions):
    """The options of a command that runs a job on devices; `running` reads no others."""


@dataclass(frozen=True, kw_only=True)
class CoreJobOptions(CoreOptions, JobOptions):
    """The options of a command that runs a job on processor cores."""
