"""What the words of a session share: the capture, the one beside it, and where files of ours go."""

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ray_precheck.commands.inspect.opened import (
    OpenedCapture,
    TensorFile,
    open_capture,
    read_tensor,
)
from ray_precheck.errors import UsageError


def state_folder() -> Path:
    """Return the folder of what a user would miss, but not much (XDG Base Directory Specification)."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "ray_precheck" / "inspect"


@dataclass
class InspectSession:
    """A session: paths of captures, which are opened when a word asks for them.

    `state` is a folder for texts and graphs that cannot stand beside the capture, `results` where whole
    comparisons go. `cmd_root` is the folder below which CANN's tools are looked for. `pairing` is what
    `judged` keeps of both captures.
    """

    path: Path | None = None
    golden_path: Path | None = None
    state: Path = field(default_factory=state_folder)
    cmd_root: Path = Path("/usr/local")
    pairing: Any = None

    @cached_property
    def capture(self) -> OpenedCapture:
        """The capture that is looked into.

        Raises:
            DumpError: it cannot be read.
            UsageError: none was named.
        """
        if self.path is None:
            raise UsageError("no capture is open: ray-precheck inspect CAPTURE")
        return open_capture(self.path)

    @cached_property
    def golden(self) -> OpenedCapture | None:
        """The capture of --with; None where none was named."""
        return open_capture(self.golden_path) if self.golden_path is not None else None

    @property
    def results(self) -> Path:
        """The folder of the results of whole comparisons."""
        return self.state / "vector_compare"

    def require_golden(self, word: str) -> OpenedCapture:
        """Return the capture of --with.

        Raises:
            UsageError: none was named.
        """
        if self.golden is None:
            raise UsageError(
                f"{word} wants another capture: ray-precheck inspect CAPTURE --with CAPTURE2"
            )
        return self.golden

    def tensor(self, name: str, *, of_golden: bool = False) -> TensorFile:
        """Return a tensor by the name of a file or a value; `of_golden`: of the other capture, if that has
        it.

        Raises:
            UsageError: nothing is called so.
            NotCheckable: the file cannot be read.
        """
        file = Path(name)
        if file.suffix in (".npy", ".pt") and file.is_file():
            return read_tensor(file, name)
        captures = [self.capture, *([self.golden] if self.golden is not None else [])]
        reasons = []
        for capture in reversed(captures) if of_golden else captures:
            try:
                return capture.tensor(name)
            except UsageError as error:
                reasons.append(error)
        raise reasons[0]

    def close(self) -> None:
        """Close what was opened."""
        for name in ("capture", "golden"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()
