"""What can run on a cluster: the protocols between the runtime and the work that it drives.

A `Job` lives in the driver's process and says what there is to do. Its `Opener` is pickled once for
each worker and opens a `Runner` in the child process of the worker. The runtime calls all three and
knows nothing else of the work. `jobs.precheck` implements them for the precheck.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.schema.casualty import Cause
from ray_precheck.schema.done import Done
from ray_precheck.schema.phase import Phase
from ray_precheck.schema.result import Outcome
from ray_precheck.schema.task import DeviceSlot, Task
from ray_precheck.store.tables import Tables


class Cargo(Protocol):
    """The files that payloads name, for workers on machines that do not see the folder they are in."""

    @property
    def folder(self) -> Path:
        """Where the files are, for messages."""

    def limits(self, task: Task, most_bytes: int) -> Mapping[str, int]:
        """Return the files of a task by name, each with the bytes above which it is not sent;
        `most_bytes` is what may be on its way at a time."""

    def size_bytes(self, name: str) -> int:
        """Return how many bytes a file has; 0 where it cannot be read."""

    def ship(self, name: str, limit_bytes: int) -> Any:
        """Read a file; returns its content, or why it is not sent."""

    def packed(self, content: Mapping[str, Any]) -> Any:
        """Return what the runner of one task is given, made of the contents of its files by name."""


class Job(Protocol):
    """What there is to do, seen from the driver."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all pieces, in the order that the finished files have."""

    @property
    def tables(self) -> Tables:
        """The two tables that the rows are written to."""

    @property
    def has_bench(self) -> bool:
        """Whether a piece has a second stage that needs no device (`Stage.BENCH`)."""

    @property
    def bench_suffices(self) -> bool:
        """Whether a worker without a device may do whole pieces."""

    @property
    def memory_limit_bytes(self) -> int:
        """What the tensors of one piece may take, 0 for no limit."""

    @property
    def cargo(self) -> Cargo | None:
        """The files that payloads name; None where there are none, or every machine sees them."""

    def payload(self, task: Task) -> Any:
        """Return what a worker needs for a task: something with the task's `index`, to be pickled."""

    def opener(self, *, is_home: bool) -> "Opener":
        """Return what opens a runner; `is_home`: on the driver's machine, which has the results."""

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return what is written of a task that broke its worker, for a reason in words."""

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return what is written of a task that could not be done, for a reason in words."""


class Opener(Protocol):
    """Opens a runner on a slot; pickled once for each worker."""

    @property
    def memory_limit_bytes(self) -> int:
        """What a process without an accelerator may allocate for one piece, 0 for no limit."""

    def open(self, slot: DeviceSlot, tell: Callable[[Phase], None]) -> "Runner":
        """Load what is needed, open the device and prove that it works.

        `tell` is told of every change of phase, so that the bench's time has a limit of its own.

        Raises:
            DeviceError: the slot cannot be used here; its text says why.
            Exception: whatever else a framework or a driver raises; the slot cannot be used.
        """


class Runner(Protocol):
    """Does one piece after the other, in the child process of a worker."""

    @property
    def caveat(self) -> str:
        """What limits the precision of the device, "" for nothing."""

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

        `files` is what `Cargo.packed` returned; `half` is what the first stage returned, where this
        is the second; `threads` is how many threads the bench may use; `is_near`: the second stage
        will be on this machine.

        Returns a `Done`; or, of the first stage, the half that the second one needs; or None where
        the piece needs a device and there is none.
        """

    def damage(self) -> tuple[Cause, str] | None:
        """Return how the last piece broke this process and why; None where it is as good as before."""


Tell = Callable[[Phase], None]
