"""What can run on a cluster: the protocols between the runtime and the work that it drives.

A `Job` lives in the driver's process and says what there is to do. Its `Opener` is pickled once for
each worker and opens a `Runner` in the child process of the worker. The runtime calls all three and
knows nothing else of the work. `replay.job` implements them for the precheck.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.result import Outcome
from ray_precheck.schema.task import Cause, DeviceSlot, Done, Phase, Task
from ray_precheck.store.tables import Tables


class InputFiles(Protocol):
    """The files that payloads name, for workers on machines that do not see the folder they are in."""

    @property
    def folder(self) -> Path:
        """Where the files are, for messages."""

    def limits(self, task: Task, most_bytes: int) -> Mapping[str, int]:
        """Return the files of a task by name, each with the bytes above which it is not sent;
        `most_bytes` is how many bytes may be on their way at a time."""

    def size_bytes(self, name: str) -> int:
        """Return how many bytes a file has; 0 where it cannot be read."""

    def ship(self, name: str, limit_bytes: int) -> Any:
        """Read a file; return its content, or an object that says why the file is not sent."""

    def packed(self, content: Mapping[str, Any]) -> Any:
        """Return the `files` for the runner of a task, made of the contents of its files by name."""


class Pieces(Protocol):
    """What a run writes, seen from its files: a result row for each piece."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all pieces, in the order that the finished files have."""

    @property
    def tables(self) -> Tables:
        """The two tables that the rows are written to."""


class Job(Pieces, Protocol):
    """The work of a run, seen from the driver."""

    @property
    def has_bench(self) -> bool:
        """Whether a piece has a second stage that needs no device (`Stage.BENCH`)."""

    @property
    def bench_suffices(self) -> bool:
        """Whether a worker without a device may do whole pieces."""

    @property
    def memory_limit_bytes(self) -> int:
        """How many bytes the tensors of one piece may take, 0 for no limit."""

    @property
    def input_files(self) -> InputFiles | None:
        """The files that payloads name; None where there are none, or every machine sees them."""

    def payload(self, task: Task) -> Any:
        """Return the object that a worker needs for a task; it has the task's `index` and is pickled."""

    def opener(self, *, is_home: bool) -> "Opener":
        """Return the opener of runners; `is_home`: on the driver's machine, which has the results."""

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the rows of a task that broke its worker; `reason` is a sentence."""

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the rows of a task that could not be done; `reason` is a sentence."""


@runtime_checkable
class GrowingJob(Job, Protocol):
    """A job whose later tasks depend on what the earlier ones gave: a search. Its `names` grow, too; it has
    no bench."""

    @property
    def is_open(self) -> bool:
        """Whether more tasks may come, also where none is left."""

    def grow(self, finished: Sequence[Done], room: int) -> Sequence[Task]:
        """Take pieces that are finished, and return new tasks, at most `room`: so many workers have nothing
        to do. It is called often and returns at once."""


class Opener(Protocol):
    """Opens a runner on a slot; pickled once for each worker."""

    @property
    def memory_limit_bytes(self) -> int:
        """How many bytes a process without an accelerator may allocate for a piece, 0 for no limit."""

    def open(self, slot: DeviceSlot, tell: Callable[[Phase], None]) -> "Runner":
        """Load the packages of the framework, open the device and prove that it works.

        `tell` is told of every change of phase, so that the bench's time has a limit of its own.

        Raises:
            DeviceError: the slot cannot be used here; its text says why.
            Exception: whatever else a framework or a driver raises; the slot cannot be used.
        """


class Runner(Protocol):
    """Does one piece after the other, in the child process of a worker."""

    @property
    def caveat(self) -> str:
        """A sentence about a limit of the device's precision, "" for none."""

    def run(
        self,
        payload: Any,
        stage: Stage,
        *,
        files: Any = None,
        half: Any = None,
        threads: int = 1,
        is_near: bool = False,
    ) -> Any:
        """Do a piece, or one stage of it.

        `files` is the value of `InputFiles.packed`; `half` is the value that the first stage returned, for
        the second stage; `threads` is how many threads the bench may use; `is_near`: the second
        stage will be on this machine.

        Returns a `Done`; or, of the first stage, the half that the second one needs; or None where
        the piece needs a device and there is none.
        """

    def damage(self) -> tuple[Cause, str] | None:
        """Return how the last piece damaged this process, and why; None if it did not."""


Tell = Callable[[Phase], None]
