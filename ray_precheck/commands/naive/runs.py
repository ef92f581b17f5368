"""The runs of one call under any set of switches, here or in another process, and whether they gave the
same bits.

Comes in: `Inputs`, a checker and a board. Goes out: `Measured`, the place where equal runs differ, `Judged`.
Called by `commands.naive.contrast`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from ray_precheck.accuracy.outputs import same_value
from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.inputs import Inputs
from ray_precheck.check.judge import Judged
from ray_precheck.commands.naive.elsewhere import PlainProcesses, PlainRun
from ray_precheck.frameworks.base import Leaf
from ray_precheck.frameworks.switches import SwitchBoard
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import HostTensor

if TYPE_CHECKING:
    from ray_precheck.dump.tensors import TensorFiles


def first_unlike(one: Measured, other: Measured) -> str:
    """Return where two results differ first, such as `forward.output.0 [1, 2]`; "" where no bit does.

    NaN equals NaN whatever its bits. That one run raised and the other did not is a difference, too.
    """
    mine, theirs = dict(_leaves(one)), dict(_leaves(other))
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        if (name in mine) != (name in theirs):
            return f"{name}, which one of them alone gave"
        found = _unlike(mine[name], theirs[name])
        if found is not None:
            return f"{name}{found}"
    failures = zip_longest((one.error, one.gradient_error), (other.error, other.gradient_error))
    if any((mine is None) != (theirs is None) for mine, theirs in failures):
        return "an error, which one of them alone raised"
    return ""


def _leaves(measured: Measured) -> Iterator[tuple[str, Leaf]]:
    for position, leaf in enumerate(measured.outputs or ()):
        yield f"forward.output.{position}", leaf
    for position, leaf in enumerate(measured.gradients or ()):
        yield f"backward.output.{position}", leaf


def _unlike(one: Leaf, other: Leaf) -> str | None:
    """Return the index of the first difference, "" where the leaves differ as a whole, None for none."""
    if not (isinstance(one, HostTensor) and isinstance(other, HostTensor)):
        return None if same_value(one, other) else ""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return ""
    differs = _differs(one.data, other.data)
    if not differs.any():
        return None
    index = np.unravel_index(int(np.argmax(differs)), one.shape)
    return f" {[int(each) for each in index]}"


def _differs(one: Array, other: Array) -> Array:
    """Return flags, `(N,)` bool, of the elements whose bits differ; `(0,)` where none does."""
    mine, theirs = np.ascontiguousarray(one).reshape(-1), np.ascontiguousarray(other).reshape(-1)
    bits = mine.view(np.uint8), theirs.view(np.uint8)
    if np.array_equal(*bits):
        return np.zeros(0, bool)
    width = mine.itemsize
    flags = (bits[0].reshape(-1, width) != bits[1].reshape(-1, width)).any(axis=1)
    if mine.dtype.kind in "fc":
        flags &= ~(np.isnan(mine) & np.isnan(theirs))
    return np.asarray(flags)


@dataclass(frozen=True, slots=True)
class CallRuns:
    """The runs of a call. `count` is how many equal runs must give the same bits.

    `safer` is the reason for safer inputs, "" for none; `files` are the captured tensors, where the dump's
    folder cannot be read on this machine. `elsewhere` runs calls with switches of the environment.
    """

    checker: Checker
    board: SwitchBoard
    count: int
    elsewhere: PlainProcesses
    inputs: Inputs
    safer: str = ""
    files: "TensorFiles | None" = None

    def run(self, plain: Collection[str]) -> Measured:
        """Run the call once with these switches at their plain side and all others at their default.

        Raises:
            NotCheckable: the process that has these switches of the environment cannot run it.
        """
        environment = self.board.environment(plain)
        if environment:
            wanted = PlainRun(self.inputs.payload, tuple(plain), self.safer, self.files)
            with self.checker.on_device():
                return self.elsewhere.run(environment, wanted)
        with self.board.turned(plain):
            return self.checker.run(self.inputs)

    def unlike(self, plain: Collection[str], first: Measured) -> str:
        """Return where another one of several equal runs differs from the first, "" for none."""
        again = (first_unlike(first, self.run(plain)) for _ in range(self.count - 1))
        return next(filter(None, again), "")

    def judged(self, measured: Measured) -> Judged:
        """Judge results against the bench, which is computed with all switches of this process at their plain
        side.

        Raises:
            NotCheckable: they cannot be judged.
        """
        with self.board.turned(self.board.names):
            return self.checker.judge(self.inputs, measured)
