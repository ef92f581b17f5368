"""The settings of a search for the operator to blame, and what its parts share.

Goes out: a `LocationConfig`, made by the command line or a program; and a `LocationSearch`, made by `run` for
the parts: `dump`, `pairs` and `exchanges`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.config import CoreJobOptions
from ray_precheck.options.captures import EXACT
from ray_precheck.options.declared import require_valid, settings_of
from ray_precheck.options.files import ResumeOptions
from ray_precheck.options.locate import LocateOptions
from ray_precheck.options.out_folder import OutFolderOptions
from ray_precheck.runtime.driving import START_OF_RAY_S, SharedRun
from ray_precheck.store.tables import Tables


@dataclass(frozen=True)
class LocationConfig(LocateOptions, OutFolderOptions, CoreJobOptions, ResumeOptions):
    """The settings of a search for the operator to blame."""

    section = LocateOptions.section

    def validate(self) -> None:
        """Check the values that can be checked without the captures.

        Raises:
            UsageError: names the option, its value and the value that is expected.
        """
        require_valid(self)


@dataclass(frozen=True, slots=True)
class LocationSearch:
    """What the parts of a search share. `folder` has the results; `first_step` is the step whose weights the
    runs began with; `on_files` is called with the file or folder to go on with."""

    config: LocationConfig
    folder: Path
    shared: SharedRun
    first_step: str
    show: bool
    on_files: Callable[[Path], None]

    @property
    def is_exact(self) -> bool:
        """Whether calls are matched by name alone."""
        return self.config.match == EXACT

    def fingerprint(self, **inputs: str) -> dict[str, str]:
        """Return the settings that another run must have to go on with a part that has these inputs."""
        return inputs | settings_of(self.config)

    def resumed(self, folder: Path, tables: Tables) -> Path | None:
        """Return the result table in `folder` to go on in, None where a part has to begin."""
        table = folder / tables.file("result", self.shared.stamp)
        return table if self.config.resume_csv is not None and table.exists() else None

    def is_done_here(self, cost_s: float) -> bool:
        """Return whether work is done in this process: it is less than Ray and its workers take to start."""
        config = self.config
        if config.address or isinstance(config.devices, str):
            return False
        return cost_s < START_OF_RAY_S or len(config.devices) == 1
