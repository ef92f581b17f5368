"""The configuration of a search for the operator to blame."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.errors import UsageError
from ray_precheck.options.declared import OneOf, Takes, option
from ray_precheck.options.shared import (
    EXACT,
    MEGENGINE,
    CoreJobOptions,
    LayoutOptions,
    OutFolderOptions,
    golden_capture,
    largest_error,
    pairing,
    require_megengine,
    target_capture,
)

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How the operator to blame is searched: carried whole by the plan, the payloads and the walk."""

    section: ClassVar[str] = "what is searched"

    match: str = pairing(", as in `compare`", rows="match")
    standard: str = option(
        AUTO,
        "--standard",
        help="{choices} (default: {default}): what is an error",
        more="`megengine` names the variables whose error is above `--max-err` and that got no such variable,"
        " as MegEngine's accuracy_shake_var_tree; nothing is replayed",
        rule=OneOf((AUTO, MEGENGINE)),
        rows="standard",
    )
    max_err: float | None = largest_error()
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

    @property
    def is_exact(self) -> bool:
        """Whether calls are matched by name alone."""
        return self.match == EXACT


@dataclass(frozen=True, kw_only=True)
class LocationConfig(SearchOptions, LayoutOptions, OutFolderOptions, CoreJobOptions):
    """The settings of a search for the operator to blame."""

    section: ClassVar[str] = SearchOptions.section

    target: Path = target_capture("the capture of the wrong run")
    golden: Path | None = golden_capture(
        None,
        "the capture of a run that is right",
        "It adds what replay cannot see: operators that were not captured, and other inputs, weights,"
        " masks and settings. Without files of tensors it is needed",
    )

    def validate(self) -> None:
        """Check the values that can be checked without the dumps or the machine.

        Raises:
            UsageError: names the option, its value and the value that is expected.
        """
        super().validate()
        require_megengine(self.max_err, self.standard)
        if self.standard != MEGENGINE:
            return
        if self.golden is None:
            raise UsageError("--standard megengine compares two runs: name the golden one with -gp")
        if self.replay:
            raise UsageError(
                "--replay: --standard megengine replays nothing; leave one of them out"
            )
