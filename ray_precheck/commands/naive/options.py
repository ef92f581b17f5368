"""The configuration of runs under default and plain kernels."""

from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.options.declared import Number, option
from ray_precheck.replay.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class NaiveOptions:
    """How often a call is run."""

    section: ClassVar[str] = "what is compared with what"

    runs: int = option(
        3,
        "--runs",
        help="how many equal runs of a call must give the same bits (default {default})",
        type=int,
        metavar="N",
        rule=Number("the count of equal runs", 2, 1000),
        rows="runs",
    )


@dataclass(frozen=True)
class NaiveConfig(RunConfig, NaiveOptions):
    """The settings of a run of calls under default and plain kernels: those of a precheck, and `runs`."""
