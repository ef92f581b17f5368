"""The configuration of a search for the operator to blame."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.options.declared import Takes, option
from ray_precheck.options.shared import (
    EXACT,
    CoreJobOptions,
    OutFolderOptions,
    golden_capture,
    pairing,
    target_capture,
)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How the operator to blame is searched: carried whole by the plan, the payloads and the walk."""

    section: ClassVar[str] = "what is searched"

    match: str = pairing(", as in `compare`", rows="match")
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
class LocationConfig(SearchOptions, OutFolderOptions, CoreJobOptions):
    """The settings of a search for the operator to blame."""

    section: ClassVar[str] = SearchOptions.section

    target: Path = target_capture("the capture of the wrong run")
    golden: Path | None = golden_capture(
        None,
        "the capture of a run that is right",
        "It adds what replay cannot see: operators that were not captured, and other inputs, weights,"
        " masks and settings. Without files of tensors it is needed",
    )
