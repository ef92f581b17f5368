"""The options of locating the operator to blame. A group of the command's configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.options.compare import ALIGNED, EXACT
from ray_precheck.options.declared import REQUIRED, Takes, option
from ray_precheck.options.rules import OneOf


@dataclass(frozen=True, kw_only=True)
class LocateOptions:
    """What is searched, and how."""

    section: ClassVar[str] = "what is searched"

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
        more="It adds what replay cannot see: operators that were not captured, and other inputs, weights,"
        " masks and settings. Without files of tensors it is needed",
        takes=Takes.ONCE,
        metavar="DUMP",
        becomes=Path,
    )
    match: str = option(
        ALIGNED,
        "--match",
        help="{choices} (default: {default}): how calls are paired, as in `compare`",
        rule=OneOf((ALIGNED, EXACT)),
        rows="match",
    )
    replay: bool = option(
        False,
        "--replay",
        help="insist on replaying captured inputs: estimates from statistics or sketches are an error",
        takes=Takes.NOTHING,
        rows="replay",
    )
    graph: bool = option(
        False,
        "--graph",
        help="also write the affected part of the data flow as Graphviz dot and JSON",
        more="`locate_graph_{timestamp}.dot` and `.json` beside the table",
        takes=Takes.NOTHING,
    )
