"""Calls under default kernels and under plain ones, as a job: `ray-precheck naive`.

Comes in: an open dump. Goes out: a `Job`: that of the precheck, whose workers contrast each call
(`commands.naive.contrast`), and rows in the two tables `NAIVE_TABLES`: one for each call, and one for each of
its outputs. The session `switching` makes the job.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.bench.declared import load_declarations
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import Dump
from ray_precheck.replay.job import PrecheckJob, PrecheckOpener, PrecheckRunner
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.result import Outcome, TaskResult, Verdict, call_verdict
from ray_precheck.schema.task import DeviceSlot, Done, Phase, Task, TaskPayload
from ray_precheck.store.tables import Tables, encode_name, encode_row, encode_text

if TYPE_CHECKING:
    from ray_precheck.check.checker import Checker
    from ray_precheck.commands.naive.contrast import Contrast, OutputContrast
    from ray_precheck.commands.naive.elsewhere import PlainProcesses
    from ray_precheck.frameworks.switches import SwitchBoard

# `naive_{timestamp}.csv` and `naive_outputs_{timestamp}.csv`.
NAIVE_TABLES = Tables(
    "naive",
    (
        "API Name",
        "Verdict",
        "Default Error",
        "Naive Error",
        "Difference",
        "Wrong",
        "Switch",
        "Reproducible",
        "Output",
        "Index",
        "Message",
    ),
    (
        "API Name",
        "Tested Dtype",
        "Shape",
        "Default Error",
        "Naive Error",
        "Difference",
        "Status",
        "Message",
    ),
    verdicts=1,
    needs_details=False,
    words=("", "outputs"),
)


class NaiveJob(PrecheckJob):
    """The calls of a dump as a job, each contrasted; `runs` is how many equal runs are compared."""

    def __init__(
        self, dump: Dump, settings: CheckSettings, runs: int, *, shared_fs: bool = False
    ) -> None:
        super().__init__(dump, replace(settings, standard=Auto()), shared_fs=shared_fs)
        self.tables = NAIVE_TABLES
        self.has_bench = self.bench_suffices = False
        self._runs = runs

    def opener(self, *, is_home: bool) -> "NaiveOpener":
        """Return the opener of a worker's checker."""
        own = super().opener(is_home=is_home)
        return NaiveOpener(own.settings, own.must_see_data, self._runs)

    def settled(self, result: TaskResult) -> Done:
        """Return the row of a call that needs no run."""
        verdict = call_verdict(result.forward, result.backward)
        return _reason_row(result.index, result.name, verdict, result.message)

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the row of a call that broke its worker: it is an error."""
        return _reason_row(task.index, task.name, Verdict.ERROR, reason)

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the row of a call that could not be run: SKIP."""
        return _reason_row(task.index, task.name, Verdict.SKIP, reason)


@dataclass(frozen=True, slots=True)
class NaiveOpener(PrecheckOpener):
    """Opens a checker and the board of its framework's switches."""

    runs: int = 3

    def open(self, slot: DeviceSlot, tell: Callable[[Phase], None]) -> "NaiveRunner":
        """Load the frameworks, read the switches and open the device; see `PrecheckOpener.open`."""
        from ray_precheck.frameworks.mindtorch.paths import prefer_native

        prefer_native()
        # The settings of the user's program may stand in a module of theirs, and count as the default side.
        load_declarations(self.settings.bench_modules)
        from ray_precheck.commands.naive.elsewhere import PlainProcesses
        from ray_precheck.frameworks.switches import SwitchBoard, switches_of

        board = SwitchBoard(switches_of(self.settings.framework), slot.kind)
        elsewhere = PlainProcesses(self.settings, slot.kind)
        # It loads its framework while this process opens the device.
        elsewhere.prepare(board.environment(board.names))
        runner = PrecheckOpener.open(self, slot, tell)
        return NaiveRunner(runner.checker, board, elsewhere, self.runs)


class NaiveRunner(PrecheckRunner):
    """Contrasts one call after the other."""

    def __init__(
        self, checker: "Checker", board: "SwitchBoard", elsewhere: "PlainProcesses", runs: int
    ) -> None:
        super().__init__(checker, ())
        from ray_precheck.commands.naive.contrast import Contraster

        self._contraster = Contraster(checker, board, elsewhere, runs)

    def run(self, payload: TaskPayload, stage: Stage, *, files: Any = None, **others: Any) -> Done:
        """Contrast a call and return its rows."""
        self._message, began_s = "", time.time()
        walk = partial(self._contraster.contrast, files=files)
        found, device_s, bench_s = self.checker.walk_over(payload, walk, files)
        if isinstance(found, TaskResult):
            self._message = found.message
            verdict = call_verdict(found.forward, found.backward)
            done = _reason_row(payload.index, payload.name, verdict, found.message)
        else:
            done = contrast_row(payload, found)
        return replace(done, began_s=began_s, device_s=device_s, bench_s=bench_s)


def _reason_row(index: int, name: str, verdict: Verdict, reason: str) -> Done:
    cells = [encode_name(name), verdict.value, *[""] * 8, encode_text(reason)]
    return Done(index, name, verdict, encode_row(cells))


def contrast_row(payload: TaskPayload, found: "Contrast") -> Done:
    """Return the rows of a call that was run."""
    worst, outputs = found.worst, found.outputs
    cells = [
        encode_name(payload.name),
        found.verdict.value,
        _number(_largest(each.default_error for each in outputs)),
        _number(_largest(each.naive_error for each in outputs)),
        _number(_largest(each.difference for each in outputs)),
        found.wrong,
        ", ".join(found.switches),
        "no" if found.unlike else "yes",
        encode_name(_place(worst.name) if worst else ""),
        encode_text(str(list(worst.index)) if worst and worst.index else ""),
        encode_text("; ".join(found.said)),
    ]
    details = b"".join(map(_output_row, outputs))
    return Done(payload.index, payload.name, found.verdict, encode_row(cells), details)


def _output_row(output: "OutputContrast") -> bytes:
    cells = [
        encode_name(output.name),
        output.dtype,
        output.shape,
        _number(output.default_error),
        _number(output.naive_error),
        _number(output.difference),
        output.verdict.value,
        encode_text(output.message),
    ]
    return encode_row(cells)


def _place(name: str) -> str:
    """Return the last parts of the name of an output: `forward.output.0`."""
    return ".".join(name.split(".")[-3:])


def _largest(errors: Iterable[float | None]) -> float | None:
    return max((each for each in errors if each is not None), default=None)


def _number(value: float | None) -> str:
    """Return an error with 3 digits, "" where it is not known."""
    return "" if value is None else f"{value:.3g}"
