"""The configuration of a search for the births of NaN and infinity."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.options.declared import REQUIRED, Takes, option
from ray_precheck.options.shared import (
    CoreJobOptions,
    OutFolderOptions,
)


@dataclass(frozen=True)
class OverflowConfig(OutFolderOptions, CoreJobOptions):
    """The settings of a search for the births of NaN and infinity. It runs on CPUs alone."""

    section: ClassVar[str] = "what is searched"

    dump: Path = option(
        REQUIRED,
        "-i",
        "--input_path",
        help="the dump, as msprobe has it: a dump.json, or a folder of a rank, a step, or all steps",
        takes=Takes.ONCE,
        metavar="DUMP",
        becomes=Path,
    )
    headroom: bool = option(
        False,
        "--headroom",
        help="also tell which tensors come near the limit of their dtype, and when they get there",
        more="Near is a factor of 8. A line fitted over the steps tells the step; with the counts of"
        " `capture --sketch` the share of zeros and subnormal values stands beside it",
        takes=Takes.NOTHING,
        rows="headroom",
    )
