"""The options of a diagnosis. A group of the command's configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.options.compare import ALIGNED, CAPTURE_STANDARDS, EXACT
from ray_precheck.options.declared import REQUIRED, Takes, option
from ray_precheck.options.rules import OneOf


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions:
    """What is diagnosed, and how."""

    section: ClassVar[str] = "what is diagnosed"

    target: Path = option(
        REQUIRED,
        "-tp",
        "--target_path",
        help="the capture of the wrong run: a dump.json, or a folder: of a rank, of a step, or of all steps",
        takes=Takes.ONCE,
        metavar="DUMP",
        becomes=Path,
    )
    golden: Path | None = option(
        None,
        "-gp",
        "--golden_path",
        help="the capture of a run that is right",
        more="Without it nothing is compared, and other inputs, weights and random masks are not found",
        takes=Takes.ONCE,
        metavar="DUMP",
        becomes=Path,
    )
    noise: Path | None = option(
        None,
        "--noise",
        help="another capture of the golden run: what differs between these two is noise, as in `compare`",
        takes=Takes.ONCE,
        metavar="DUMP",
        becomes=Path,
    )
    match: str = option(
        ALIGNED,
        "--match",
        help="{choices} (default: {default}): how calls are paired, as in `compare`",
        rule=OneOf((ALIGNED, EXACT)),
    )
    standard: str = option(
        "auto",
        "--standard",
        help="{choices} (default: {default}): what is an error of the comparison",
        more="The precheck of the suspects is always by `auto`",
        rule=OneOf(CAPTURE_STANDARDS),
    )
