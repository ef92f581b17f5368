"""The options of which calls of a dump are checked. A group of a command's configuration."""

from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.options.declared import Takes, option

# The entry in the settings of a run that checks all calls of its dump.
EVERY_CALL = "every call"


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Which calls of a dump are checked; the others get no rows.

    `white_list` and `black_list` are names of APIs as msprobe's config.json has them; `calls` are the
    whole names of single calls, which another command has chosen.
    """

    section: ClassVar[str] = "which calls are checked"

    filter_alike: bool = option(
        False,
        "-filter_api",
        "--filter_api",
        "--filter-api",
        help="of calls alike in name, shapes, dtypes and scalars check one; the others name it",
        takes=Takes.NOTHING,
        rows="filter_api",
    )
    # The settings hold `plan.selection.Selection.text`, not the value of this field alone.
    keywords: tuple[str, ...] = option(
        (),
        "-k",
        help="only calls whose name fits, as pytest's -k: 'matmul and not Tensor.'; repeatable",
        more="The others get no rows, and the run goes on with the same `-k` only",
        takes=Takes.EACH,
        metavar="PATTERN",
        rows="selection",
    )
    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
