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
from pathlib import Path

from ray_precheck.runtime.driver import DriveOptions, Driver
from ray_precheck.runtime.places.placement import DeviceRequest, place_slots
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import Done, Task
from ray_precheck.store.resume import start_run
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import API_TABLES
from scripts.simulate.account import Account, Setup
from scripts.simulate.actors import TimedActors, TimedPayload
from scripts.simulate.costs import Workload

TIMEOUT_S = 300.0


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
            files = start_run(Path(folder), "20260101000000", RunSettings({}))
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
    input_files = None

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
