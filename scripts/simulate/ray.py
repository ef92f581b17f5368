"""The costs of a message of Ray for the driver, its time on the way, and the time of the writer.

Comes in: a capture. Goes out: `DriverCosts`, measured on a Ray of this machine. Called by
scripts/simulate (`--measure`), whose defaults are such a measurement.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import ray

from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.jobs.precheck.job import done_of
from ray_precheck.plan.planner import plan_tasks
from ray_precheck.runtime.actors import Actors
from ray_precheck.runtime.places.environment import prepare_environment
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.writer import Writer
from ray_precheck.schema.casualty import BatchReport
from ray_precheck.schema.done import Done
from ray_precheck.schema.result import Metrics, Outcome, OutputCheck, TaskResult, Verdict
from ray_precheck.schema.task import Task
from ray_precheck.store.resume import start_run
from ray_precheck.store.tables import API_TABLES
from ray_precheck.store.timeline import Track
from scripts.simulate.costs import CAPTURE

SMALL, LARGE = 1, 64
# Two fsyncs take as long as hundreds of records, so an append of many is measured.
LARGE_WRITE = 2048
FLIGHTS = (16, 256, 1024, 4096)
ROUNDS = 300


@dataclass(frozen=True, slots=True)
class DriverCosts:
    """Seconds of the driver for each message and record, of Ray for the way, and of the writer.

    A step of the driver waits once, over all flights, then gets, schedules, and sends. The defaults
    are rounded medians of four measurements (`python -m scripts.simulate --measure`) on 2 cores of an
    Intel Xeon (2.5 GHz) with a load of 4 to 5, Python 3.11, Ray 2.60. What the driver does with
    messages is its thread's own time; waits and writes are by the clock, and the two fsyncs of a write
    on a virtual disk that nobody else used took 0.2 ms, 5 ms and more while others did.
    """

    wait_s: float = 200e-6
    wait_per_flight_s: float = 1.2e-6
    get_s: float = 55e-6
    get_per_record_s: float = 2.9e-6
    send_s: float = 120e-6
    send_per_record_s: float = 7.8e-6
    record_s: float = 105e-6
    record_per_record_s: float = 2e-6
    acknowledge_s: float = 34e-6
    book_per_record_s: float = 0.33e-6
    one_way_s: float = 500e-6
    write_s: float = 0.2e-3
    write_per_record_s: float = 8e-6


MEASURED = DriverCosts()
FREE = DriverCosts(**dict.fromkeys(DriverCosts.__slots__, 0.0))


def measure() -> tuple[DriverCosts, dict[int, float]]:
    """Measure on a Ray that is started for it; also return the time of a wait over n flights."""
    prepare_environment(own_cluster=True, debug=False)
    from ray_precheck.runtime.places.cluster import Roster, living_nodes, open_cluster
    from ray_precheck.runtime.ray_actors import RayActors

    with open_cluster("", debug=False):
        return measure_with(RayActors(Roster(living_nodes(), "", print)))


def measure_with(
    actors: Actors, flights: Sequence[int] = FLIGHTS, rounds: int = ROUNDS
) -> tuple[DriverCosts, dict[int, float]]:
    """Measure the calls of these actors, each median over so many rounds; see `measure`."""
    # Ray's workers do not import the scripts.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    waits = {count: _wait_s(actors, count) for count in flights}
    with open_dump(CAPTURE) as dump:
        small, large = (_Messages.measured(actors, dump, size, rounds) for size in (SMALL, LARGE))
    book_s = _book_per_record_s(rounds)
    write_small, write_large = _write_s(SMALL, rounds), _write_s(LARGE_WRITE, 1 + rounds // 10)
    get = line_through(small.get_s, large.get_s)
    send = line_through(small.send_s, large.send_s)
    record = line_through(small.record_s, large.record_s)
    write = line_through(write_small, write_large, large=LARGE_WRITE)
    few, many = min(flights), max(flights)
    wait = line_through(waits[few], waits[many], few, many)
    own_s = small.send_s + small.get_s
    costs = DriverCosts(
        *wait, *get, *send, *record, small.acknowledge_s, book_s,
        max(0.0, small.round_trip_s - own_s) / 2, *write,
    )  # fmt: skip
    return costs, waits


def line_through(
    small_s: float, large_s: float, small: int = SMALL, large: int = LARGE
) -> tuple[float, float]:
    """Return the cost of a message and of each item in it, from two measured messages; none is negative.

    On a busy machine the larger message may take less than the smaller, then an item costs nothing; or
    so much more that the message itself would cost less than nothing, then its items cost all of it.
    """
    each_s = max(0.0, (large_s - small_s) / (large - small))
    message_s = small_s - small * each_s
    return (message_s, each_s) if message_s >= 0 else (0.0, large_s / large)


@dataclass(frozen=True, slots=True)
class _Messages:
    """The median seconds of the driver for messages of one size."""

    send_s: float
    get_s: float
    record_s: float
    acknowledge_s: float
    round_trip_s: float

    @classmethod
    def measured(cls, actors: Actors, dump: Dump, size: int, rounds: int) -> "_Messages":
        """Measure as the driver works: with `RayActors`, and payloads that are read from a dump."""
        tasks = (plan_tasks(dump, dump.framework, set()).tasks * LARGE)[:size]
        results = [realistic_result(task) for task in tasks]
        tracks = [Track("10.0.0.1", "npu:0", "check", results)]
        report = BatchReport(tuple(results))
        worker = actors.start(_Worker, "", report)
        _all_there(actors, [actors.call(worker, "append", results, tracks)])

        def send() -> Any:
            return actors.call(worker, "run", _order(dump, tasks), None, None)

        sends, answers = _timed(send, rounds, time.thread_time)
        _all_there(actors, answers)
        gets, _ = _timed(lambda: actors.result(answers.pop()), rounds, time.thread_time)
        records, answers = _timed(
            lambda: actors.call(worker, "append", results, tracks), rounds, time.thread_time
        )
        _all_there(actors, answers)
        acknowledged, _ = _timed(lambda: actors.result(answers.pop()), rounds, time.thread_time)
        trips, _ = _timed(lambda: _answer(actors, send()), rounds)
        actors.kill(worker)
        medians = [statistics.median(s) for s in (sends, gets, records, acknowledged, trips)]
        return cls(*medians)


def _all_there(actors: Actors, answers: Sequence[Any]) -> None:
    """Wait until all answers have come, and their values are on this machine."""
    left = set(answers)
    until = time.monotonic() + 60.0
    while left:
        left -= set(actors.wait(list(left), 1.0))
        if time.monotonic() > until:
            raise TimeoutError(f"Ray has not answered {len(left)} of {len(answers)} calls in 60 s")
    time.sleep(0.5)


def _answer(actors: Actors, answer: Any) -> Any:
    while not actors.wait([answer], 1.0):
        pass
    return actors.result(answer)


def _timed(
    action: Callable[[], Any], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[float], list[Any]]:
    seconds, values = [], []
    for _ in range(rounds):
        begin = clock()
        values.append(action())
        seconds.append(clock() - begin)
    return seconds, values


def _order(dump: Dump, tasks: Sequence[Task]) -> Any:
    """Return an order as the driver makes it, with the raw records read from the dump."""
    from ray_precheck.runtime.workers.worker import Order

    payloads = tuple(dump.payload(task) for task in tasks)
    return Order(payloads, (300.0,) * len(tasks), (1,) * len(tasks), 1)


class _Worker:
    """Answers as a device worker and as the writer, and does nothing; `block` holds a queue up."""

    THREADS: ClassVar[dict[str, Any]] = {}

    def __init__(self, report: BatchReport) -> None:
        self._report = report

    def run(self, order: object, parcel: object, files: object) -> BatchReport:
        return self._report

    def append(self, results: Sequence[Done], tracks: Sequence[Track]) -> int:
        return len(results)

    def block(self, seconds: float) -> None:
        time.sleep(seconds)


def _wait_s(actors: Actors, count: int) -> float:
    """Return the seconds of the driver's wait when one of `count` calls has come back."""
    worker, other = (actors.start(_Worker, "", BatchReport(())) for _ in range(2))
    _all_there(actors, [actors.call(each, "append", (), ()) for each in (worker, other)])
    pending = [actors.call(worker, "block", 60.0)]
    pending += [actors.call(worker, "block", 0.0) for _ in range(count - 2)]
    seconds = []
    for _ in range(30):
        done = actors.call(other, "append", (), ())
        time.sleep(0.01)
        begin = time.perf_counter()
        ready = actors.wait([*pending, done], 1.0)
        seconds.append(time.perf_counter() - begin)
        assert ready == [done]
    actors.kill(worker)
    actors.kill(other)
    return statistics.median(seconds)


def realistic_result(task: Task, began_s: float = 0.0) -> Done:
    """Return a result with two outputs, as most checks have."""
    metrics = Metrics(0.99999994, 1.2e-7, 3.4e-6, (1, 2, 3), 0.5, 2.0)
    checks = tuple(
        OutputCheck(
            f"{task.name}.{output}", "Float64", "Float32", "(2, 16, 512)", metrics, Verdict.PASS
        )
        for output in ("forward.output.0", "backward.output.0")
    )
    return done_of(
        TaskResult(
            task.index,
            task.name,
            Outcome.COMPLETED,
            Verdict.PASS,
            Verdict.PASS,
            "",
            checks,
            began_s,
        )
    )


def _results(count: int) -> list[Done]:
    return [realistic_result(Task(i, f"Mint.matmul.{i}", 1e-3), time.time()) for i in range(count)]


def _book_per_record_s(rounds: int) -> float:
    """Return the seconds that the progress takes of the driver for each record."""
    results = _results(LARGE)
    progress = Progress(rounds * LARGE, 0, show=False)
    seconds, _ = _timed(lambda: progress.add(results), rounds)
    return statistics.median(seconds) / LARGE


def _write_s(size: int, rounds: int) -> float:
    """Return the seconds of the writer to put a batch on the disk, with its part of the timeline."""
    batches = iter([_results(size) for _ in range(rounds)])
    with tempfile.TemporaryDirectory() as folder:
        files = start_run(Path(folder), "20260101000000", {})
        writer = Writer(files, API_TABLES, reopen=False)

        def write() -> None:
            batch = next(batches)
            writer.append(batch, [Track("10.0.0.1", "npu:0", "check", batch)])

        seconds, _ = _timed(write, rounds)
        writer.close()
    return statistics.median(seconds)
