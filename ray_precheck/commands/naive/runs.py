"""The runs of one call under any set of switches, here or in another process, and what is judged of them.

Comes in: `Inputs`, a checker and a board. Goes out: `Measured`, the place where equal runs differ, `Judged`.
Called by `commands.naive.contrast`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ray_precheck.check.checker import Checker
from ray_precheck.check.inputs import Inputs
from ray_precheck.check.judged import Judged
from ray_precheck.check.measured import Measured
from ray_precheck.commands.naive.elsewhere import PlainProcesses, PlainRun
from ray_precheck.commands.naive.repeats import first_unlike
from ray_precheck.frameworks.switches import SwitchBoard

if TYPE_CHECKING:
    from ray_precheck.dump.tensors import TensorFiles


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
