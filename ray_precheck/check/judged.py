"""The judgement of a call: its rows, notes and verdicts, forward and backward.

Made by `check.judge`, `check.random.judge` and `check.random.quiet_dropout`; `check.explain` adds to
the rows, `check.row` makes the `TaskResult`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray_precheck.accuracy.comparison import no_implementations
from ray_precheck.accuracy.outputs import Judge, check_output
from ray_precheck.check.inputs import Inputs
from ray_precheck.frameworks.base import Leaf
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Outcome, OutputCheck, Verdict
from ray_precheck.schema.values import HostCall, HostTensor

# Gives the bench's leaves, in the order of the rows, for other inputs and cotangents.
Recompute = Callable[[HostCall, list[HostTensor | None]], Sequence[Leaf]]


@dataclass(frozen=True, slots=True)
class Compared:
    """A detail row, and the two leaves that it compares; `bench` is None for random outputs."""

    check: OutputCheck
    tested: Any
    bench: Any = None


def compared(
    name: str,
    tested: Any,
    bench: Any,
    judge: Judge,
    implementations: Callable[[], Sequence[Array]] = no_implementations,
) -> Compared:
    """Compare one leaf with the bench's."""
    return Compared(check_output(name, tested, bench, judge, implementations), tested, bench)


@dataclass(frozen=True, slots=True)
class DirectionCheck:
    """The outcome of checking one direction of a call.

    `ruled` is a verdict that does not depend on the rows: the device raised, or the direction was
    not checked at all. `cotangents` are the incoming gradients. `recompute` runs the bench again to
    explain an error, None where there is no bench. `caveat` is a sentence about a limit of the
    device's precision that may explain errors of float32, "" for none. `is_transposed`: it is that of
    the run with transposed inputs, which alone has errors.
    """

    rows: tuple[Compared, ...] = ()
    notes: tuple[str, ...] = ()
    ruled: Verdict | None = None
    outcome: Outcome = Outcome.COMPLETED
    cotangents: tuple[HostTensor | None, ...] = ()
    recompute: Recompute | None = None
    caveat: str = ""
    is_transposed: bool = False

    @property
    def checks(self) -> tuple[OutputCheck, ...]:
        """The detail rows."""
        return tuple(row.check for row in self.rows)

    @property
    def verdict(self) -> Verdict:
        """Error if any row is an error; else pass if any row is a pass; else SKIP: nothing was compared."""
        if self.ruled is not None:
            return self.ruled
        verdicts = {row.check.verdict for row in self.rows}
        if Verdict.ERROR in verdicts:
            return Verdict.ERROR
        return Verdict.PASS if Verdict.PASS in verdicts else Verdict.SKIP

    @property
    def failing(self) -> tuple[OutputCheck, ...]:
        """The detail rows in error."""
        return tuple(check for check in self.checks if check.verdict is Verdict.ERROR)

    @property
    def messages(self) -> list[str]:
        """The sentences about this direction in the Message of the result row."""
        told = self.failing
        if not told and self.verdict is Verdict.SKIP:
            told = self.checks
        # X.0.forward.output.1 without the call's name
        rows = [f"{'.'.join(c.name.split('.')[-3:])}: {c.message}" for c in told]
        if self.ruled is None and not self.rows:
            rows.append("there was no output to compare")
        return [*rows, *self.notes]


@dataclass(frozen=True, slots=True)
class Judged:
    """Both directions of a call with the inputs that were judged: safer ones after a second try."""

    inputs: Inputs
    forward: DirectionCheck
    backward: DirectionCheck

    @property
    def rows(self) -> tuple[Compared, ...]:
        """The detail rows."""
        return (*self.forward.rows, *self.backward.rows)
