"""The trials of a bisect as a job: a `GrowingJob` whose next tasks a search chooses.

Comes in: a target's survey, the rows of an earlier part of the run, and what is finished. Goes out: tasks,
and rows in `TABLES`: one for each trial, and one for each of its outputs. `commands.bisect.run` makes the
job.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_precheck.commands.bisect.options import HITS, RAISE, BisectConfig
from ray_precheck.commands.bisect.target import (
    OutputRow,
    Survey,
    Target,
    TrialOpener,
    TrialResult,
    TrialRunner,
)
from ray_precheck.foreign import caught, first_line
from ray_precheck.options.declared import ranges_of
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import Cause, DeviceSlot, Done, Phase, Task
from ray_precheck.searching.bisection import Limits, Rung, RungFinding, Search, Trial, TrialAnswer
from ray_precheck.searching.strategy import ladder
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.tables import Tables, encode_row, encode_text

# `bisect_{timestamp}.csv` and `bisect_outputs_{timestamp}.csv`.
TABLES = Tables(
    "bisect",
    ("Trial", "Rung", "Enabled", "Repeat", "Exit", "Verdict", "Metric", "Seconds", "Message"),
    ("Output", "Dtype", "Shape", "Distance", "Index", "Message", "Trial"),
    detail_parts=None,
    verdicts=1,
    needs_details=False,
    words=("", "outputs"),
    unit="trial",
    verdict_at=5,
)
_VERDICTS = {
    TrialAnswer.PASS: Verdict.PASS,
    TrialAnswer.FAIL: Verdict.ERROR,
    TrialAnswer.UNRESOLVED: Verdict.SKIP,
}
# As long as this at the least, so that no two trials share a message to a worker.
_COST_S = 1.0
# So many switches are named in a cell; more are there by their numbers alone.
_MOST_NAMED = 6


def enabled_cell(rung: Rung, enabled: frozenset[str]) -> str:
    """Return what is on in a trial: `all`, `none`, or the numbers of the switches that are on or off in their
    order, counted from 1, with their names where they are few."""
    members = rung.members
    on = [number for number, name in enumerate(members, 1) if name in enabled]
    if len(on) == len(members):
        return "all"
    if not on:
        return "none"
    off = sorted(set(range(1, len(members) + 1)) - set(on))
    word, numbers = ("only", on) if len(on) <= len(off) else ("all but", off)
    names = ", ".join(members[number - 1] for number in numbers)
    named = f" ({names})" if len(numbers) <= _MOST_NAMED else ""
    return f"{word} {ranges_of(numbers)} of {len(members)}{named}"


@dataclass(frozen=True, slots=True)
class TrialPayload:
    """A trial on its way to a worker."""

    index: int
    name: str
    trial: Trial
    rung: Rung


def trial_row(payload: TrialPayload, result: TrialResult, seconds: float, began_s: float) -> Done:
    """Return the rows of a trial."""
    trial, metric = payload.trial, result.metric
    row = encode_row(
        [
            payload.name,
            encode_text(trial.rung),
            encode_text(enabled_cell(payload.rung, trial.enabled)),
            str(trial.repeat),
            result.exit,
            result.answer.value,
            "" if metric is None else f"{metric:.4g}",
            f"{seconds:.2f}",
            encode_text(result.message),
        ]
    )
    details = b"".join(_output_row(payload.name, each) for each in result.outputs)
    verdict = _VERDICTS[result.answer]
    return Done(payload.index, payload.name, verdict, row, details, began_s, device_s=seconds)


def _output_row(trial: str, output: OutputRow) -> bytes:
    distance = "" if output.distance is None else f"{output.distance:.4g}"
    cells = [encode_text(output.name), output.dtype, output.shape, distance]
    return encode_row([*cells, encode_text(output.index), encode_text(output.message), trial])


def recorded_answers(table: Path) -> dict[tuple[str, str, int], TrialAnswer]:
    """Return the answers of the rows of a run by rung, what was on, and repeat."""
    found = {}
    for _, rung, enabled, repeat, _, verdict, *_ in decoded_rows(table, TABLES.result):
        if verdict in TrialAnswer.__members__ and repeat.isdecimal():
            found[rung, enabled, int(repeat)] = TrialAnswer(verdict)
    return found


def search_limits(config: BisectConfig, survey: Survey) -> Limits:
    """Return how a search is done, by its options."""
    repeats = config.repeats or (1 if survey.is_exact else 6)
    return Limits(repeats, 0, config.order == HITS, config.confidence)


@dataclass(slots=True)
class BisectJob:
    """The trials of a search, and of the searches that a target asks for behind it.

    `recorded` are the answers of an earlier part of the run, whose rows have the `names`. After
    `config.minutes` the search ends with what is known.
    """

    target: Target
    config: BisectConfig
    survey: Survey
    scratch: Path
    recorded: Mapping[tuple[str, str, int], TrialAnswer]
    names: list[str]
    findings: list[RungFinding] = field(default_factory=list)
    history: list[tuple[Trial, TrialAnswer]] = field(default_factory=list)
    tables: Tables = TABLES
    has_bench: bool = False
    bench_suffices: bool = False
    memory_limit_bytes: int = 0
    input_files: None = None
    _asked: dict[int, TrialPayload] = field(default_factory=dict)
    _rungs: dict[str, Rung] = field(default_factory=dict)
    _search: Search | None = None
    _further: "Future[Sequence[Rung]] | None" = None
    _finished: int = 0
    _is_dry: bool = False
    _began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._begin(self.survey.rungs)

    @property
    def is_open(self) -> bool:
        """Whether more trials may come."""
        return self._search is not None or self._further is not None

    def _begin(self, rungs: Sequence[Rung]) -> None:
        config = self.config
        left = config.trials - len(self.history) if config.trials else 0
        if config.trials and left <= 0:
            return
        self._rungs.update((rung.name, rung) for rung in rungs)
        self._is_dry = False
        self._search = Search(ladder(rungs, search_limits(config, self.survey)), most=left)

    def first_tasks(self, room: int) -> list[Task]:
        """Return the tasks that the run begins with; [] where an earlier part has answered everything."""
        tasks: list[Task] = []
        while self.is_open and not tasks:
            if self._further is not None:
                self._further.exception()  # waits
            tasks = self.grow((), room)
        return tasks

    def grow(self, finished: Sequence[Done], room: int) -> list[Task]:
        """Take the answers of trials, and return the next ones."""
        self._finished += len(finished)
        for done in finished:
            payload = self._asked[done.index]
            self._answer(payload.trial, _answer_of(done.verdict))
        if self._further is not None and self._further.done():
            rungs, self._further = self._further.result(), None
            if rungs:
                self._begin(rungs)
        if self._search is None:
            return []
        is_spent = 0 < self.config.trials <= len(self.history)
        if self._is_late or is_spent:
            self._end_stage(self._search.end(), is_late=True)
            return []
        return self._next(room)

    @property
    def _is_late(self) -> bool:
        minutes = self.config.minutes
        return bool(minutes) and time.monotonic() - self._began_s > 60 * minutes

    def _answer(self, trial: Trial, answer: TrialAnswer) -> None:
        self.history.append((trial, answer))
        self._is_dry = False
        if self._search is not None:
            self._search.answer(trial, answer)

    def _next(self, room: int) -> list[Task]:
        tasks: list[Task] = []
        if self.config.trials:
            running = len(self._asked) - self._finished
            room = min(room, self.config.trials - len(self.history) - running)
        while self._search is not None and len(tasks) < room and not self._is_dry:
            # One by one where answers are recorded: a run that was finished has no use for speculation.
            wanted = self._search.wanted(1 if self.recorded else room - len(tasks))
            if self._search.findings is not None:
                self._end_stage(self._search.findings, is_late=False)
            if not wanted:
                # Nothing more is wanted before the next answer comes.
                self._is_dry = self._search is not None
                break
            for trial in wanted:
                answer = self._recorded(trial)
                if answer is None:
                    tasks.append(self._task(trial))
                else:
                    self._answer(trial, answer)
        return tasks

    def _recorded(self, trial: Trial) -> TrialAnswer | None:
        cell = encode_text(enabled_cell(self._rungs[trial.rung], trial.enabled))
        return self.recorded.get((encode_text(trial.rung), cell, trial.repeat))

    def _task(self, trial: Trial) -> Task:
        index = len(self.names)
        # A run that was killed lacks the rows of trials that were running.
        name = str(1 + max(map(int, self.names[-1:]), default=0))
        self.names.append(name)
        self._asked[index] = TrialPayload(index, name, trial, self._rungs[trial.rung])
        return Task(index, name, _COST_S)

    def _end_stage(self, findings: Sequence[RungFinding], *, is_late: bool) -> None:
        self.findings.extend(findings)
        self._search = None
        if not is_late:
            self._further = Future()
            # A daemon: a run that is stopped does not wait for what the target looks at.
            threading.Thread(target=self._look_further, args=(self._further,), daemon=True).start()

    def _look_further(self, found: "Future[Sequence[Rung]]") -> None:
        rungs, error = caught(
            lambda: self.target.further(self.config, self.survey, self.findings, self.scratch)
        )
        if error is None:
            found.set_result(rungs or ())
        else:
            found.set_exception(error)

    def payload(self, task: Task) -> TrialPayload:
        """Return the trial of a task."""
        return self._asked[task.index]

    def opener(self, *, is_home: bool) -> "BisectOpener":
        """Return the opener of runners."""
        opener = self.target.opener(self.config, self.survey)
        scratch = self.scratch if is_home else None
        return BisectOpener(opener, scratch, self.memory_limit_bytes)

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the row of a trial that broke its worker."""
        fails = self.config.fail_on == RAISE
        answer = TrialAnswer.FAIL if fails else TrialAnswer.UNRESOLVED
        result = TrialResult(answer, outcome.value, message=reason)
        return trial_row(self.payload(task), result, 0.0, time.time())

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the row of a trial that could not be run."""
        result = TrialResult(TrialAnswer.UNRESOLVED, message=reason)
        return trial_row(self.payload(task), result, 0.0, time.time())


def _answer_of(verdict: Verdict) -> TrialAnswer:
    return next(answer for answer, each in _VERDICTS.items() if each is verdict)


@dataclass(frozen=True, slots=True)
class BisectOpener:
    """Opens a runner of trials with a folder of its own; pickled for each worker."""

    opener: TrialOpener
    scratch: Path | None
    memory_limit_bytes: int = 0

    def open(self, slot: DeviceSlot, tell: Callable[[Phase], None]) -> "BisectRunner":
        """Return a runner."""
        below = self.scratch if self.scratch is not None and self.scratch.is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="trials_", dir=below))
        return BisectRunner(self.opener.open(folder), folder)


@dataclass(slots=True)
class BisectRunner:
    """Runs one trial after the other."""

    trials: TrialRunner
    folder: Path
    caveat: str = ""

    def run(self, payload: TrialPayload, stage: Stage, **_: Any) -> Done:
        """Run a trial and return its rows."""
        began_s, begin = time.time(), time.monotonic()
        result, error = caught(lambda: self.trials.run(payload.trial, payload.rung))
        if result is None:
            assert error is not None
            said = f"{type(error).__name__}: {first_line(error)}"
            result = TrialResult(TrialAnswer.UNRESOLVED, message=said)
        return trial_row(payload, result, time.monotonic() - begin, began_s)

    def damage(self) -> tuple[Cause, str] | None:
        """Return None: a trial runs in a process of its own."""
        return None
