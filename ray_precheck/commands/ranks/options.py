"""The configuration of a check of the ranks of one run against each other."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.options.declared import REQUIRED, Takes, option
from ray_precheck.options.shared import CoreJobOptions, OutFolderOptions


@dataclass(frozen=True)
class RanksConfig(OutFolderOptions, CoreJobOptions):
    """The settings of a check of ranks against each other. It runs on CPUs alone."""

    section: ClassVar[str] = "what is checked"

    dump: Path = option(
        REQUIRED,
        "-i",
        "--input_path",
        help="the folder of the ranks of a run: of a step, or of all steps",
        takes=Takes.ONCE,
        metavar="DUMP",
        becomes=Path,
    )
    layout: str = option(
        "",
        "--layout",
        help="how the ranks are laid out, such as dp=2,tp=2, the leftmost axis varying slowest;"
        " without it groups are inferred from the collectives and the values",
        more="Axes are dp, tp, pp, cp and ep; others are taken as they are. The product of the sizes is"
        " the number of ranks",
        takes=Takes.ONCE,
        metavar="AXES",
        rows="layout",
    )
