"""A run of the package's own driver in simulated time.

Comes in: a workload, the number of devices, faults, the costs of messages. Goes out: an `Account` of
the run. Called by `scripts.simulate`. The driver, the crew, the recorder and the scheduler are the
package's; Ray, the workers and the writer are `TimedActors`.
"""

import gc
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.runtime.driver import DriveOptions, Driver
from ray_precheck.runtime.places.placement import DeviceRequest, place_slots
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.done import Done
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import Task
from ray_precheck.store.resume import start_run
from ray_precheck.store.tables import API_TABLES
from scripts.simulate.actors import DEVICES_PER_NODE, TimedActors, TimedPayload
from scripts.simulate.costs import Workload
from scripts.simulate.ray import MEASURED, DriverCosts

TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a run. Zero is never.

    One device in `slow_every` is `slow_factor` times as slow; one record in `crash_every` kills its
    process, which takes `restart_s` to replace. At `loss_at_s` the devices of `lost_nodes` machines
    are gone, which Ray notices `notice_s` later; machines of the same names join after `return_s`.
    """

    slow_every: int = 0
    slow_factor: float = 3.0
    crash_every: int = 0
    restart_s: float = 1.5
    loss_at_s: float = 0.0
    lost_nodes: int = 0
    notice_s: float = 5.0
    return_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Setup:
    """The simulated cluster. `own_s`: the time of the driver's own code, None to measure it."""

    devices: int
    benches: int = 0
    faults: Faults = Faults()
    costs: DriverCosts = MEASURED
    own_s: float | None = None
    seed: int = 0


@dataclass(slots=True)
class Account:
    """The outcome of a run, in seconds.

    `useful_s` is the time of workers whose records counted, `away_s` the time that they were gone.
    `driver_s` is the time that the driver computed, Ray's part included; `own_s` is the part of its
    own code. `blocked_s` is how long the driver waited for the writer alone.
    """

    setup: Setup
    records: int
    bound_s: float
    wall_s: float = 0.0
    useful_s: float = 0.0
    away_s: float = 0.0
    driver_s: float = 0.0
    own_s: float = 0.0
    blocked_s: float = 0.0
    writer_s: float = 0.0
    steps: int = 0
    messages: int = 0
    batches: int = 0
    recorded: list[int] = field(default_factory=list)

    @property
    def efficiency(self) -> float:
        """Useful time / (wall x workers that were there)."""
        workers = self.setup.devices + self.setup.benches
        return self.useful_s / (self.wall_s * workers - self.away_s)


class World:
    """A simulation; `run` it once."""

    def __init__(self, workload: Workload, setup: Setup) -> None:
        self.workload = workload
        self.setup = setup
        rng = random.Random(setup.seed)
        devices = range(setup.devices)
        factors: dict[int, float] = {}
        faults = setup.faults
        if faults.slow_every:
            slow = rng.sample(devices, max(1, len(devices) // faults.slow_every))
            factors = dict.fromkeys(slow, faults.slow_factor)
        count = len(workload.tasks)
        crashes = count // faults.crash_every if faults.crash_every else 0
        killers = frozenset(rng.sample(range(count), crashes))
        speed = sum(1 / factors.get(number, 1.0) for number in devices) + setup.benches
        bound_s = max(workload.total_s / speed, workload.longest_s)
        self.account = Account(setup, count, bound_s, recorded=[0] * count)
        self.actors = TimedActors(workload, setup, self.account, factors, killers)

    def run(self) -> Account:
        """Simulate to the end; the account's `recorded` counts how often each record was."""
        job = _Job(self.workload)
        request = DeviceRequest("npu", takes_all=True)
        with tempfile.TemporaryDirectory() as folder, _frozen():
            files = start_run(Path(folder), "20260101000000", {})
            driver = Driver(
                job,
                self.actors,
                request,
                place_slots(request, self.actors.nodes()),
                files,
                lambda: False,
                DriveOptions(TIMEOUT_S, self.setup.benches),
            )
            driver.launch()
            self.actors.begin()
            driver.run(self.workload.tasks, (), Progress(len(job.names), 0, show=False))
        self.actors.end()
        return self.account


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep Python from looking for garbage in simulated objects, which are not the driver's."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Job:
    """The records of a workload; nothing of a record travels but its index."""

    tables = API_TABLES
    has_bench = True
    bench_suffices = False
    memory_limit_bytes = 0
    cargo = None

    def __init__(self, workload: Workload) -> None:
        tasks = sorted(workload.tasks, key=lambda task: task.index)
        self.names = [task.name for task in tasks]
        self._payloads = [TimedPayload(task.index) for task in tasks]

    def payload(self, task: Task) -> TimedPayload:
        return self._payloads[task.index]

    def opener(self, *, is_home: bool) -> None:
        return None

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        return Done(task.index, task.name, Verdict.ERROR, b"")

    def unchecked(self, task: Task, reason: str) -> Done:
        return Done(task.index, task.name, Verdict.SKIP, b"")


__all__ = ["DEVICES_PER_NODE", "Account", "Faults", "Setup", "World"]
