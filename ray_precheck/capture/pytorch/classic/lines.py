"""What a script sets without torch: the file of lines, and the steps that are dumped.

Comes in: a path, a schedule, and `step_schedule.step()` from the script at the end of each step. Goes out: a
file of JSON lines, one for each tensor and written at once, so that a process that is killed leaves whole
lines and at most one that was cut off; and whether the current step is dumped. Errors are of the types that
torch_npu.hooks raised, which scripts written for it catch.

    ["0_Functional_linear_forward_input.0", [0.5, -1.25], "torch.float32", [1, 2]]
"""

import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ray_precheck.errors import PrecheckError, UsageError

_REASONS = {
    errno.EISDIR: "it is a folder",
    errno.ENOENT: "its folder does not exist",
    errno.ENOTDIR: "a part of its path is a file",
}
Schedule: TypeAlias = Callable[[int], bool]


class HookUsageError(UsageError, RuntimeError):
    """A path, a schedule, a model or a hook is wrong; torch_npu.hooks raised a `RuntimeError`."""


class OverflowFoundError(PrecheckError, ValueError):
    """A call gave NaN or infinity; torch_npu.hooks raised a `ValueError`."""


def tell_user(text: str) -> None:
    """Print a sentence on stderr."""
    print(f"ray-precheck hooks: {text}", file=sys.stderr, flush=True)


class Line(NamedTuple):
    """What is known of one tensor; `suffix` tells the tensors of a call apart ("_input.0")."""

    suffix: str
    values: Sequence[object]
    dtype: str
    shape: Sequence[int]

    def text(self, name: str) -> str:
        """Return the line of a call's tensor; NaN and the infinities are bare words, as Python's reader
        takes them."""
        return json.dumps([name + self.suffix, self.values, self.dtype, self.shape]) + "\n"


class HookLines:
    """An open file of lines.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, must_be_new: bool = False) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(path, flags | (os.O_EXCL if must_be_new else os.O_TRUNC), 0o640)

    def write(self, line: str) -> None:
        """Write one line, wholly or not at all.

        Raises:
            OSError: it cannot be written, as on a full disk; the file ends with the line before.
        """
        raw = memoryview(line.encode())
        written = 0
        try:
            while written < len(raw):
                written += os.write(self._file, raw[written:])
        except OSError:
            if written and stat.S_ISREG(os.fstat(self._file).st_mode):
                os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_END) - written)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class DumpFile:
    """The file that `set_dump_path` names, and the number of the next tensor in it."""

    def __init__(self) -> None:
        self._file: HookLines | None = None
        self._number = 0
        self.failure = ""

    @property
    def is_set(self) -> bool:
        """Whether a path was set."""
        return self._file is not None

    def set_path(self, path: str | os.PathLike[str] | None) -> None:
        """Begin a new file, whose tensors are counted from 0; one of that name is replaced.

        Raises:
            HookUsageError: it is a folder, its folder does not exist, or it cannot be written.
        """
        self.close()
        self._file = _opened(path)
        self._number = 0
        self.failure = ""

    def write(self, name: str, line: Line) -> None:
        """Write the line of a tensor of a call ("Functional_linear_forward").

        Where the file cannot be written any more, `failure` says why and nothing is written from then on.
        """
        if self._file is None or self.failure:
            return
        try:
            self._file.write(line.text(f"{self._number}_{name}"))
        except OSError as error:
            self.failure = f"{self._file.path} cannot be written: {error.strerror or error}"
        self._number += 1

    def close(self) -> None:
        """Close the file; until another path is set nothing is written."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _opened(path: str | os.PathLike[str] | None) -> HookLines:
    if path is None or not os.fspath(path):
        raise HookUsageError(f"the path of the dump is {path!r}; expected the name of a file")
    target = Path(os.path.realpath(path))
    try:
        return HookLines(target)
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    raise HookUsageError(
        f"the dump cannot be written to {target}: {reason}; give set_dump_path the name of a file in a"
        " folder that exists and can be written"
    )


DUMP_FILE = DumpFile()


def set_dump_path(fpath: str | os.PathLike[str] | None = None) -> None:
    """Write to a new file from now on, and number the tensors from 0 again.

    Raises:
        HookUsageError: the path is a folder, its folder does not exist, or it cannot be written.
    """
    DUMP_FILE.set_path(fpath)


def schedule(begin: int = 0, end: int = sys.maxsize, stride: int = 1) -> Schedule:
    """Return a schedule of the steps `begin`, `begin + stride`, .. up to and with `end`.

    `schedule(4, 10, 2)` has the steps 4, 6, 8 and 10; `schedule()` has all.

    Raises:
        HookUsageError: an argument is no whole number, `begin` is negative or after `end`, or `stride` is
            below 1.
    """
    given = f"schedule(begin={begin!r}, end={end!r}, stride={stride!r})"
    if any(type(each) is not int for each in (begin, end, stride)):
        raise HookUsageError(f"{given} was called; expected whole numbers")
    if stride < 1:
        raise HookUsageError(f"{given} was called; expected a stride of 1 or more")
    if not 0 <= begin <= end:
        raise HookUsageError(f"{given} was called; expected 0 <= begin <= end")
    return lambda step: begin <= step <= end and (step - begin) % stride == 0


class StepSchedule:
    """Counts the steps of a training, and knows which of them are dumped."""

    def __init__(self) -> None:
        self.step_num = 0
        self.schedule: Schedule = schedule()

    def set_schedule(self, wanted: Schedule) -> None:
        """Set which steps are dumped.

        Raises:
            HookUsageError: it is no function of the number of a step.
        """
        if not callable(wanted):
            raise HookUsageError(
                f"the schedule is {wanted!r}; expected schedule(begin, end, stride), or a function that"
                " says for the number of a step whether it is dumped"
            )
        self.schedule = wanted

    def is_step_enable(self) -> bool:
        """Return whether the current step is dumped."""
        return self.schedule(self.step_num)

    def step(self) -> None:
        """Go on to the next step."""
        self.step_num += 1

    def reset_step(self) -> None:
        """Begin with step 0 again, as at the start of an epoch."""
        self.step_num = 0


step_schedule = StepSchedule()
