"""What became of one call, as its result row says it.

Comes in: the cells of a result row. Goes out: a `Call`. Called by the summary and by what CI reads.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ray_precheck.report.tables import read_columns
from ray_precheck.schema.result import MACHINE_REASONS, Verdict, call_verdict, verdict_in
from ray_precheck.store.columns import RESULT_COLUMNS, decode_name

# The Message of a device that raised (`check.judge`), and of a backward pass that did.
_RAISED = re.compile(r"(?:^|; )the device raised where the bench is fine")
_BACKWARD_RAISED = re.compile(r"(?:^|; )backward: the device raised where the bench is fine")


class Call(NamedTuple):
    """A row of the result CSV: the name as the dump has it, and the verdicts of both directions."""

    name: str
    forward: Verdict
    backward: Verdict
    message: str

    @property
    def verdict(self) -> Verdict:
        """The verdict of the whole call."""
        return call_verdict(self.forward, self.backward)

    @property
    def forward_broke(self) -> bool:
        """Whether the forward pass gave nothing to compare: the device raised, crashed or hung."""
        if self.forward is not Verdict.ERROR:
            return False
        return self.message.startswith(MACHINE_REASONS) or bool(_RAISED.search(self.message))

    @property
    def backward_broke(self) -> bool:
        """Whether the backward pass gave nothing to compare: the device raised."""
        return self.backward is Verdict.ERROR and bool(_BACKWARD_RAISED.search(self.message))

    @property
    def broke(self) -> bool:
        """Whether the call is in error, and no number of it is."""
        wrong_forward = self.forward is Verdict.ERROR and not self.forward_broke
        wrong_backward = self.backward is Verdict.ERROR and not self.backward_broke
        is_error = self.verdict is Verdict.ERROR
        return is_error and not wrong_forward and not wrong_backward


def read_calls(result: Path) -> Iterator[Call]:
    """Yield what became of each call of a result CSV; nothing where there is no file.

    Raises:
        OSError: the file cannot be read.
    """
    yield from map(call_of, read_columns(result, tuple(RESULT_COLUMNS)))


def call_of(cells: Sequence[str]) -> Call:
    """Return what became of the call of a result row, given its cells in their order."""
    name, forward, backward, message = cells
    return Call(decode_name(name), verdict_in(forward), verdict_in(backward), message)
