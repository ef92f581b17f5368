"""One call with its inputs and its two sides, each run at most once and only when needed."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from ray_precheck.check.measured import Measured, measure
from ray_precheck.check.sides.attempt import Attempt, Side, attempt_forward
from ray_precheck.check.sides.captured import captured_outputs
from ray_precheck.compare.comparison import no_peers
from ray_precheck.compare.outputs import Judge, check_output
from ray_precheck.compare.standards.base import Standard
from ray_precheck.compare.standards.msprobe import MSPROBE
from ray_precheck.datagen.generate import TensorSource
from ray_precheck.frameworks.base import CallPlan, Execution, Leaf
from ray_precheck.plan.drawing import is_random
from ray_precheck.plan.select import changes_its_input
from ray_precheck.schema.dtypes import Array, is_differentiable
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.result import Outcome, OutputCheck, Verdict
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import HostCall, HostTensor


class Job:
    """A call under check. `measured` and `bench` run forward when they are first asked for.

    `measured` may be given: then the device has run elsewhere. `cotangents` are what the device's
    gradients were made of, where it has run here.
    """

    def __init__(
        self,
        payload: TaskPayload,
        record: ApiRecord,
        call: HostCall,
        source: TensorSource,
        sides: "Sides",
        measured: Measured | None = None,
    ) -> None:
        self.payload = payload
        self.record = record
        self.call = call
        self.source = source
        self.sides = sides
        self.plan = call_plan(record)
        self.cotangents: list[HostTensor | None] | None = None
        self._given = measured

    @cached_property
    def measured(self) -> Measured:
        """What the device made of the call."""
        if self._given is not None:
            return self._given
        with self.sides.on_device():
            if is_random(self.record):
                self.sides.seed_device(self.record)
            return replace(measure(self), caveat=self.sides.caveat)

    @property
    def caveat(self) -> str:
        """What may be why float32 is off on the device that has run this call; "" for nothing."""
        ran: Measured | None = self._given or self.__dict__.get("measured")
        tensors = [spec for _, spec in self.record.input_tensors()]
        is_single = any(spec.dtype == "float32" for spec in tensors)
        return ran.caveat if ran is not None and is_single else ""

    @cached_property
    def captured(self) -> list[Leaf] | None:
        """The captured outputs, read once for both directions; None where the dump holds none."""
        return captured_outputs(self.record, self.source)

    @cached_property
    def bench(self) -> Attempt:
        """What became of the bench's forward pass."""
        return attempt_forward(self.sides.bench, self.record.name, self.call, self.plan)

    def judge(self, direction: str) -> Judge:
        """Return how the outputs (forward) or the gradients (backward) of this call are judged."""
        type_name = self.record.name.type_name
        return Judge(self.sides.framework, self.sides.standard, type_name, direction)

    def run_bench(self, call: HostCall) -> Execution:
        """Run the bench on other inputs of the same call; whatever it raises goes through."""
        function = self.sides.bench.resolve(self.record.name)
        return self.sides.bench.forward(function, call, self.plan)


class Sides(Protocol):
    """Where calls run: the checker, which opens the device when it is needed; `standard` judges.

    `tests_own_kernel`: what is tested was computed by torch on the CPU, as the bench is. `caveat` is
    what limits the precision of float32 on the device.
    """

    bench: Side
    framework: str
    standard: Standard = MSPROBE
    tests_dump: bool
    tests_own_kernel: bool
    may_run_device: bool
    device_label: str
    caveat: str = ""

    def device(self) -> Side:
        """Return the device under test, opened."""

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether an error of the device means that it has no kernel."""

    def note_device_error(self) -> None:
        """Be told that the device raised: it may be unusable from now on."""

    def seed_device(self, record: ApiRecord) -> None:
        """Seed the device's generators for a call whose output is random."""

    def on_device(self) -> AbstractContextManager[None]:
        """Be told that the device runs, not the bench, as long as the context is open."""


class DirectionCheck:
    """The outcome of checking one direction of a call, forward or backward.

    `pairs` are the tested and the bench's leaf of each detail row, by its name. `ruled` is a verdict
    that does not depend on the rows: the device raised, or the direction was not checked at all.
    """

    def __init__(self, ruled: Verdict | None = None, outcome: Outcome = Outcome.COMPLETED) -> None:
        self.ruled = ruled
        self.outcome = outcome
        self.notes: list[str] = []
        self.checks: list[OutputCheck] = []
        self.pairs: dict[str, tuple[Any, Any]] = {}
        self.cotangents: list[HostTensor | None] = []

    def compare(
        self,
        name: str,
        tested: Any,
        bench: Any,
        judge: Judge,
        peers: Callable[[], Sequence[Array]] = no_peers,
    ) -> None:
        """Add one detail row."""
        self.checks.append(check_output(name, tested, bench, judge, peers))
        self.pairs[name] = (tested, bench)

    def add(self, check: OutputCheck, tested: Any) -> None:
        """Add a detail row of an output that has no bench."""
        self.checks.append(check)
        self.pairs[check.name] = (tested, None)

    @property
    def verdict(self) -> Verdict:
        """Error where any row is; else SKIP where none is a pass: nothing was compared; else pass."""
        if self.ruled is not None:
            return self.ruled
        verdicts = {check.verdict for check in self.checks}
        if Verdict.ERROR in verdicts:
            return Verdict.ERROR
        return Verdict.PASS if Verdict.PASS in verdicts else Verdict.SKIP

    @property
    def failing(self) -> list[OutputCheck]:
        """The detail rows in error."""
        return [check for check in self.checks if check.verdict is Verdict.ERROR]

    @property
    def messages(self) -> list[str]:
        """What the result row says about this direction."""
        told = self.failing
        if not told and self.verdict is Verdict.SKIP:
            told = self.checks
        # X.0.forward.output.1 without the call's name
        rows = [f"{'.'.join(c.name.split('.')[-3:])}: {c.message}" for c in told]
        if self.ruled is None and not self.checks:
            rows.append("there was no output to compare")
        return [*rows, *self.notes]


def call_plan(record: ApiRecord) -> CallPlan:
    """Return how a call is to be run on both sides.

    Gradients are wanted where there is a backward record: of the tensors that the dump flags as
    requiring one, or of all floating tensors where it flags none (MindSpore has no flags).
    """
    in_place = changes_its_input(record)
    if not record.has_backward:
        return CallPlan(in_place=in_place)
    tensors = [spec for _, spec in record.input_tensors()]
    floating = [i for i, spec in enumerate(tensors) if is_differentiable(spec.dtype)]
    flagged = [i for i in floating if tensors[i].requires_grad]
    return CallPlan(tuple(flagged or floating), in_place)
