"""The settings of a search for the operator to blame, and what its parts share.

Goes out: a `LocationConfig`, made by the command line or a program; and a `LocationSearch`, made by `run` for
the parts: `dump`, `pairs` and `exchanges`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ray_precheck.commands.locate.options import LocateOptions, SearchOptions
from ray_precheck.options.declared import group_of, require_valid, settings_of
from ray_precheck.options.job import CoreJobOptions
from ray_precheck.options.out_folder import OutFolderOptions
from ray_precheck.running.session import RunSession

Found = TypeVar("Found")


@dataclass(frozen=True)
class LocationConfig(LocateOptions, OutFolderOptions, CoreJobOptions):
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
    runs began with."""

    config: LocationConfig
    folder: Path
    session: RunSession
    first_step: str

    @property
    def options(self) -> SearchOptions:
        """The options that the parts carry."""
        return group_of(self.config, SearchOptions)

    def fingerprint(self, **inputs: str) -> dict[str, str]:
        """Return the settings that another run must have to go on with a part that has these inputs."""
        return inputs | settings_of(self.config)


@dataclass(frozen=True, slots=True)
class PartEnd(Generic[Found]):
    """What a part of a search has found, None where it stopped before its end, and why it did."""

    found: Found | None
    completed: bool = True
    stop_reason: str = ""
