"""The job of a simulated run, for the package's own driver: records of a `Cast`, and their files.

Comes in: a cast and a layout. Goes out: a `Job` as `runtime.job` defines it. Called by `histories.world`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.schema.result import Outcome
from ray_precheck.schema.task import Done, Task
from ray_precheck.store.tables import API_TABLES
from scripts.histories.answers import Cast, failed_row, unchecked_row


@dataclass(frozen=True, slots=True)
class Payload:
    """The part of a record that is sent to a worker."""

    index: int


@dataclass(frozen=True, slots=True)
class File:
    """The content of a file, of which only the length counts."""

    nbytes: int


class SimulatedJob:
    """The job of a simulated run. `ships`: only the first machine sees the files."""

    has_bench = True
    memory_limit_bytes = 0
    tables = API_TABLES

    def __init__(self, cast: Cast, *, bench_suffices: bool, ships: bool) -> None:
        self._cast = cast
        self.names = cast.names
        self.bench_suffices = bench_suffices
        self.input_files = InputFiles() if ships else None

    def payload(self, task: Task) -> Payload:
        return Payload(task.index)

    def opener(self, *, is_home: bool) -> Any:
        return None

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        return failed_row(task, outcome, reason, task.index in self._cast.with_backward)

    def unchecked(self, task: Task, reason: str) -> Done:
        return unchecked_row(task, reason, task.index in self._cast.with_backward)


class GrowingSimulatedJob(SimulatedJob):
    """The same without benches, whose records come when workers have nothing to do, the costly ones first."""

    has_bench = False

    def __init__(self, cast: Cast, tasks: Sequence[Task], *, ships: bool) -> None:
        super().__init__(cast, bench_suffices=False, ships=ships)
        self._later = deque(tasks)

    @property
    def is_open(self) -> bool:
        return bool(self._later)

    def grow(self, finished: Sequence[Done], room: int) -> list[Task]:
        return [self._later.popleft() for _ in range(min(room, len(self._later)))]


class InputFiles:
    """One file for each record, as large as its outputs."""

    folder = Path("captured")

    def limits(self, task: Task, most_bytes: int) -> Mapping[str, int]:
        return {f"{task.index}/{task.nbytes}": task.nbytes}

    def size_bytes(self, name: str) -> int:
        return int(name.partition("/")[2])

    def ship(self, name: str, limit_bytes: int) -> File:
        return File(self.size_bytes(name))

    def packed(self, content: Mapping[str, File]) -> frozenset[int]:
        return frozenset(int(name.partition("/")[0]) for name in content)


class Steps(Executor):
    """An executor that runs a call when `step` says so, in place of the shipper's thread."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def step(self) -> None:
        """Run the call that was submitted first."""
        future, do = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            future.set_result(do())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._waiting.clear()
