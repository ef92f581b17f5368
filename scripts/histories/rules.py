"""The rules that must hold in every history, whatever happens in it.

Comes in: the batches that the driver sends, their reports, and the rows that are written. Goes out:
`Broken`, where a rule does not hold. The rules follow by themselves which record ran where; of the
scheduler they see its commands alone.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.runtime.scheduling.commands import Command, Record, SendBatch, Stage
from ray_precheck.runtime.scheduling.queue import MAX_BATCH_RECORDS
from ray_precheck.runtime.scheduling.slots import COST_SLACK, CRASHES_NEEDED, MAX_RUNS
from ray_precheck.schema.task import BatchReport, Cause, Done, Task, WorkerFailure
from ray_precheck.store.tables import DETAIL_COLUMNS, RESULT_COLUMNS, header
from scripts.histories.answers import failed_row, unchecked_row

TIMEOUT_S = 30.0
SILENT_REASON = "its worker gave no result for it"
_RESULT_HEAD, _DETAIL_HEAD = header(RESULT_COLUMNS), header(DETAIL_COLUMNS)
_LINE_END = b"\r\n"


class Broken(AssertionError):
    """A rule that does not hold."""


def require(holds: object, what: str) -> None:
    """Raise `Broken` where a rule does not hold."""
    if not holds:
        raise Broken(what)


@dataclass(slots=True)
class PendingCall:
    """A call that a worker has: the start of its process (no batch), or a batch.

    `place` is that of the worker; `fresh`: its process has run no record before. `killed_at` is the
    position of the record at which the process is killed, -1 for none; `lost` says why no answer
    comes.
    """

    slot: str
    place: str
    fresh: bool = False
    batch: SendBatch | None = None
    killed_at: int = -1
    lost: str = ""
    cause: Cause = Cause.LOST

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The records of the batch."""
        return self.batch.tasks if self.batch is not None else ()


@dataclass(slots=True)
class Rules:
    """The rules of one life of the driver: which records ran where, broke a worker, are settled.

    `alone` are the records that must run alone, as they ran with others, or in two halves, to no end.
    """

    pending: set[int]
    with_backward: frozenset[int]
    draining: bool = False
    runs: Counter[int] = field(default_factory=Counter)
    crashes: Counter[tuple[int, Cause]] = field(default_factory=Counter)
    broke_at: dict[int, str] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)
    tickets: set[int] = field(default_factory=set)
    starts: int = 0
    reasons_to_start: int = 0

    def is_settled(self, index: int) -> bool:
        """Return whether the row of a record is recorded, so that nothing more is due."""
        return index not in self.pending

    def started(self, slots: int) -> None:
        """Check that no life has more starts than reasons for starts; every slot is a reason."""
        self.starts += 1
        most = slots + self.reasons_to_start
        require(self.starts <= most, f"{self.starts} starts, where {most} are the most")

    def sent(self, call: PendingCall, elsewhere: bool, kept: set[int]) -> None:
        """Check a batch that is sent to a device; `elsewhere` says whether there is a slot at another
        place, `kept` which records wait somewhere else.
        """
        batch = call.batch
        assert batch is not None
        indices = self._sent(batch, kept)
        require(batch.stage is not Stage.BENCH, "a device is to be a bench")
        for index in indices:
            if index in self.alone:
                whole = len(indices) == 1 and batch.stage is Stage.CHECK
                require(whole, f"record {index} runs with others, or in halves, once more")
            if index in self.broke_at:
                whole = len(indices) == 1 and batch.stage is Stage.CHECK
                require(whole, f"quarantined record {index} runs with others, or in halves")
                require(call.fresh, f"quarantined record {index} runs on a used worker")
                require(
                    not elsewhere or self.broke_at[index] != call.place,
                    f"quarantined record {index} runs where it broke a worker",
                )

    def sent_to_bench(self, batch: SendBatch, kept: set[int]) -> None:
        """Check a batch that is sent to a bench worker: no record in it is quarantined or must run alone."""
        indices = self._sent(batch, kept)
        require(self.alone.isdisjoint(indices), "a bench was tried in vain, and is tried again")
        require(self.broke_at.keys().isdisjoint(indices), "a bench gets a quarantined record")

    def _sent(self, batch: SendBatch, kept: set[int]) -> list[int]:
        indices = [task.index for task in batch.tasks]
        require(not self.draining, "a batch is sent while draining")
        require(batch.ticket not in self.tickets, "a ticket is used twice")
        self.tickets.add(batch.ticket)
        require(kept.isdisjoint(indices), "a record runs that waits somewhere else")
        require(1 <= len(indices) <= MAX_BATCH_RECORDS, f"a batch of {len(indices)} records")
        require(len(set(indices)) == len(indices), "a record is in a batch twice")
        require(self.pending.issuperset(indices), "a record runs that is settled")
        require(self.in_flight.isdisjoint(indices), "a record is with two workers")
        limits = tuple(TIMEOUT_S + COST_SLACK * task.cost_s for task in batch.tasks)
        require(batch.limits_s == limits, "a time limit is wrong")
        self.in_flight.update(indices)
        return indices

    def bench_ended(
        self, tasks: Sequence[Task], report: BatchReport | None, commands: Sequence[Command]
    ) -> None:
        """Check what `commands` record of what a bench worker had: what it answers, and that a bench
        took too long. Nobody is blamed. `report` is None where the worker was lost.
        """
        due = [] if report is None else list(report.results)
        failure = None if report is None else report.failure
        for task in tasks:
            self._count_run(task)
            broke_it = failure is not None and task.index == failure.index
            if failure is not None and broke_it and failure.cause is Cause.OVER_BUDGET:
                due.append(self._over_budget(task, failure))
        self.in_flight.difference_update(task.index for task in tasks)
        self.pending.difference_update(result.index for result in due)
        self.check_whole(tasks)
        _check_records(commands, due)

    def check_whole(self, tasks: Sequence[Task]) -> None:
        """Expect those of tasks that are not settled to be checked alone, in one piece."""
        self.alone.update(self.pending.intersection(task.index for task in tasks))

    def _count_run(self, task: Task) -> None:
        self.runs[task.index] += 1
        require(self.runs[task.index] <= MAX_RUNS, f"record {task.index} runs too often")

    def _over_budget(self, task: Task, failure: WorkerFailure) -> Done:
        has_backward = task.index in self.with_backward
        return unchecked_row(task, failure.reason, has_backward)

    def ended(
        self,
        call: PendingCall,
        report: BatchReport | None,
        reason: str,
        commands: Sequence[Command],
    ) -> None:
        """Check what `commands` record of a batch that came back.

        `report` is None where the worker was lost for `reason`.
        """
        self.in_flight.difference_update(task.index for task in call.tasks)
        due = [] if report is None else list(report.results)
        said = {result.index for result in due}
        said |= set() if report is None else {each.index for each in report.measured}
        left = [task for task in call.tasks if task.index not in said]
        failure = None if report is None else report.failure
        broken: list[Task] = []
        if failure is not None:
            indices = [task.index for task in left]
            position = indices.index(failure.index)
            broken, left = left[position : position + 1], left[:position]
        for task in [*(t for t in call.tasks if t.index in said), *left, *broken]:
            self._count_run(task)
        require(said or left or broken or self.draining, "a batch has come to nothing")
        if report is None:
            self.reasons_to_start += 1
        if not self.draining:
            why = reason if report is None else SILENT_REASON
            due += self._missing(call, left, Cause.SILENT if report else call.cause, why)
        if failure is not None:
            due += self._count_crash(call, broken[0], failure)
        self.pending.difference_update(result.index for result in due)
        _check_records(commands, due)

    def _missing(
        self, call: PendingCall, left: Sequence[Task], cause: Cause, why: str
    ) -> list[Done]:
        """Deal with records that were run and have no result: of several nobody knows who did it."""
        if len(left) == 1:
            return self._count_crash(call, left[0], WorkerFailure(left[0].index, cause, why))
        require(self.alone.isdisjoint(task.index for task in left), "lost with others twice")
        self.alone.update(task.index for task in left)
        return []

    def _count_crash(self, call: PendingCall, task: Task, failure: WorkerFailure) -> list[Done]:
        """Count a crash; return the verdict if the record ran alone on a fresh worker."""
        index, cause = task.index, failure.cause
        if cause is Cause.OVER_BUDGET:
            self.reasons_to_start += 2
            return [self._over_budget(task, failure)]
        self.crashes[index, cause] += 1
        self.broke_at[index] = call.place
        self.reasons_to_start += 2
        if not (call.fresh and len(call.tasks) == 1):
            return []
        if self.crashes[index, cause] < CRASHES_NEEDED[cause]:
            return []
        if failure.done is not None:
            return [failure.done]
        has_backward = index in self.with_backward
        return [failed_row(task, cause.outcome, failure.reason, has_backward)]


def _check_records(commands: Sequence[Command], due: Sequence[Done]) -> None:
    """Check that exactly the results that are due are recorded."""
    told = [r for command in commands if isinstance(command, Record) for r in command.results]
    by_index = sorted(told, key=lambda result: result.index)
    if by_index != sorted(due, key=lambda result: result.index):
        names = [[result.index for result in each] for each in (told, due)]
        raise Broken(f"recorded is {names[0]}, due is {names[1]}")


@dataclass(slots=True)
class Ledger:
    """The rows that were written of every record, in each version, and the acknowledged records."""

    names: list[str]
    versions: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)

    def record(self, finished: Sequence[Done]) -> None:
        """Note the pieces that are going to be written."""
        for done in finished:
            self.versions.setdefault(done.name, {})[done.row] = done.details

    def forget_last(self, details: bytes) -> None:
        """Expect the last call of the details to be done again: it may have lost some of its rows."""
        self.acknowledged.discard(last_call(details))

    def check_done(self, done: set[str]) -> None:
        """Check that acknowledged records are done, and none that was never recorded."""
        require(done <= self.versions.keys(), "a record is done that was never recorded")
        lost = self.acknowledged - done
        require(not lost, f"acknowledged and lost: {sorted(lost)}")

    def check_files(self, result: bytes, details: bytes, done: set[str]) -> None:
        """Check that both files have whole rows of the records that are done, and of no others."""
        require(result.startswith(_RESULT_HEAD) or not (result or done), "the result header")
        require(details.startswith(_DETAIL_HEAD) or not details, "the details header")
        found: dict[str, bytes] = {}
        for row in result.removeprefix(_RESULT_HEAD).split(_LINE_END):
            name = row.partition(b",")[0].decode()
            if name:
                require(name not in found, f"{name} has two rows")
                found[name] = row + _LINE_END
        require(found.keys() == done, "the rows are not those of what is done")
        has: dict[str, bytes] = {}
        for row in details.removeprefix(_DETAIL_HEAD).split(_LINE_END):
            if row:
                has[call_of(row)] = has.get(call_of(row), b"") + row + _LINE_END
        for name, row in found.items():
            require(row in self.versions[name], f"{name} has a row that was never recorded")
            require(self.versions[name][row] == has.pop(name, b""), f"{name} has other details")
        require(not has, f"details without a result row: {list(has)}")

    def check_prefix(self, result: bytes, details: bytes, done: set[str]) -> None:
        """What has a whole row in files that were cut was recorded, has its details and is done, but
        for the call of the last detail row.
        """
        last = last_call(details)
        rows = result.split(_LINE_END)[1:-1]
        require(len(done) <= len(rows), "a prefix has more that is done than rows")
        for row in rows:
            name = call_of(row, is_detail=False)
            versions = self.versions.get(name, {})
            require(row + _LINE_END in versions, f"a prefix has a row of {name} that nobody wrote")
            require(versions[row + _LINE_END] in details, f"a prefix lacks details of {name}")
            require(
                name in done or name == last, f"a prefix has a row of {name}, which is not done"
            )

    def check_end(self, result: bytes, details: bytes) -> None:
        """Check that the files have the row and details of every record, in order, and no others."""
        rows = [next(iter(self.versions.get(name, {b"": b""}).items())) for name in self.names]
        if result == _RESULT_HEAD + b"".join(row for row, _ in rows) and (
            details == _DETAIL_HEAD + b"".join(each for _, each in rows)
        ):
            return
        self.check_files(result, details, set(self.names))
        for data, head in ((result, _RESULT_HEAD), (details, _DETAIL_HEAD)):
            calls = [row for row in data.removeprefix(head).split(_LINE_END) if row]
            places = [self.names.index(call_of(row, data is details)) for row in calls]
            require(places == sorted(places), "the files are not in the order of the dump")


def last_call(details: bytes) -> str:
    """Return the call of the last whole detail row, "" where there is none."""
    rows = details.split(_LINE_END)
    return call_of(rows[-2]) if len(rows) > 2 else ""


def call_of(row: bytes, is_detail: bool = True) -> str:
    """Return the name of the call whose row this is."""
    cell = row.partition(b",")[0].decode()
    return cell.rsplit(".", 3)[0] if is_detail else cell


def read_files(paths: Sequence[Path]) -> tuple[bytes, bytes]:
    """Return the bytes of both files; a file that is missing has none."""
    found = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                found.append(file.read())
        except FileNotFoundError:
            found.append(b"")
    return found[0], found[1]
