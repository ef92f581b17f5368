"""The report of a search for the operator to blame.

Made by `run`. Read by the command line, by a diagnosis, and by programs that import the package.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.commands.locate.walk.places import DumpRoots, RootPlace
from ray_precheck.store.frames import read_table

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class LocationReport:
    """The report of a search. `completed` is False if it stopped before its end: `table` was not written.

    `places` has the roots, the likeliest culprit first. `notes` are sentences about captures that were cut
    off and dumps without a partner. `errors` has the folder of saved tensors for each dump, by its label.
    """

    folder: Path
    table: Path
    places: tuple[RootPlace, ...]
    dumps: tuple[DumpRoots, ...]
    completed: bool
    stop_reason: str = ""
    notes: tuple[str, ...] = ()
    errors: dict[str, Path] | None = None
    graphs: tuple[Path, ...] = ()
    is_compared: bool = False

    @property
    def located(self) -> "pandas.DataFrame":
        """`locate_{timestamp}.csv` as a data frame."""
        return read_table(self.table)

    @property
    def judged(self) -> int:
        """How many records have an own error, replayed or estimated."""
        return sum(dump.located.judged for dump in self.dumps)

    @property
    def compared(self) -> int:
        """How many records have a partner in the golden run."""
        return sum(dump.located.compared for dump in self.dumps)
