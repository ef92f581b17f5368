"""What honest implementations on this machine's CPU make of a call: the measure of `auto`.

Comes in: a function of the bench with its arguments, and which leaves of a run are compared. Goes
out: for each leaf a sequence of carrier arrays that is made no further than it is read. Called by
the forward and backward checks; nothing is run unless a standard asks. Everything runs on one
thread, and every draw is keyed: the same bits whoever computes them.

The peers of a leaf are made in float64, without the framework's kernels of the tested dtype: a
kernel that is wrong cannot vouch for itself. torch's own kernel stands beside them as `kernel`, and
is left out where it is the one that is tested.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from ray_precheck.bench.rounded import rounded_arithmetic
from ray_precheck.check.sides.attempt import attempt
from ray_precheck.check.sides.raised import OutOfMemory
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan, Execution, Leaf, map_leaves
from ray_precheck.frameworks.pytorch.run import TorchExecution, TorchPlace
from ray_precheck.schema.dtypes import DTYPES, Array, quantum, round_to_dtype
from ray_precheck.schema.values import HostCall, HostTensor

Cotangents = Sequence[HostTensor | None]
# The leaves that are compared, of any execution of the call.
Pick = Callable[[Execution, list[HostTensor | None]], Sequence[Leaf]]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a call: in float64 (`widen`) or the recorded dtypes.

    `rounds`: each step is rounded to the tested dtype. `moves`: how far every float input is moved
    at most, in units in the last place; one way where it is positive, the other where it is not.
    """

    widen: bool
    rounds: bool = False
    moves: float = 0.0

    def context(self, dtype: str) -> AbstractContextManager[None]:
        """Return what the call runs in."""
        return rounded_arithmetic(dtype) if self.rounds else nullcontext()


# torch's own operator in the recorded dtypes.
KERNEL = Way(widen=False)
# A composed implementation that rounds after each step.
COMPOSED = Way(widen=True, rounds=True)
# Both ways by what rounding the inputs may do, and by next to nothing, which parts equal numbers.
MOVES = tuple(Way(widen=True, moves=moves) for moves in (0.5, -0.5, 2.0**-7, -(2.0**-7)))


@dataclass(frozen=True)
class Peers:
    """The honest implementations of one direction of a call.

    `function` is the bench's. `pick` gives the compared leaves of an execution. `kernel_is_tested`:
    what is tested was computed by torch's kernels on the CPU, which then cannot be its measure.
    """

    function: Callable[..., Any]
    call: HostCall
    plan: CallPlan
    pick: Pick
    cotangents: Cotangents = ()
    kernel_is_tested: bool = False
    _runs: dict[tuple[Way, str], Sequence[Leaf] | None] = field(default_factory=dict)

    def of(self, position: int, tested: HostTensor) -> "PeersOfLeaf":
        """Return what the peers make of one leaf, as carrier arrays of the tested dtype."""
        return PeersOfLeaf(self, position, tested, (COMPOSED,))

    def leaves(self, way: Way, dtype: str) -> Sequence[Leaf] | None:
        """Return the leaves that one way gives; None where it cannot be run."""
        if way.rounds and DTYPES[dtype].kind not in ("float", "complex"):
            return None
        key = (way, dtype if way.rounds or way.moves else "")
        if key not in self._runs:
            try:
                self._runs[key], _ = attempt(lambda: self._run(way, dtype))
            except (OutOfMemory, NotCheckable):
                self._runs[key] = None
        return self._runs[key]

    def _run(self, way: Way, dtype: str) -> Sequence[Leaf]:
        call, incoming = self.call, list(self.cotangents)
        if way.moves:
            call, incoming = _moved_call(call, incoming, way.moves, dtype)
        with way.context(dtype):
            place = TorchPlace(widen=way.widen)
            return self.pick(TorchExecution(self.function, call, self.plan, place), incoming)


class PeersOfLeaf(Sequence[Array]):
    """What some ways of computing a call make of one output, those left out that cannot be run."""

    def __init__(
        self, peers: Peers, position: int, tested: HostTensor, ways: Sequence[Way]
    ) -> None:
        self._peers = peers
        self._position = position
        self._tested = tested
        self._ways = list(ways)
        self._found: list[Array] = []

    @property
    def moved(self) -> Sequence[Array]:
        """The bench, not rounded, for inputs that are moved by less than their last place, both ways."""
        return PeersOfLeaf(self._peers, self._position, self._tested, MOVES)

    @property
    def kernel(self) -> Array | None:
        """What torch's own operator on the CPU makes of it in the recorded dtypes, which has yet to
        be proven; None where it cannot run there, or is what is tested."""
        if self._peers.kernel_is_tested:
            return None
        return next(iter(PeersOfLeaf(self._peers, self._position, self._tested, (KERNEL,))), None)

    def __len__(self) -> int:
        while self._ways:
            self._compute_next()
        return len(self._found)

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Array]: ...
    def __getitem__(self, index: int | slice) -> Array | Sequence[Array]:
        while self._ways and not (isinstance(index, int) and 0 <= index < len(self._found)):
            self._compute_next()
        return self._found[index]

    def _compute_next(self) -> None:
        way = self._ways.pop(0)
        leaves = self._peers.leaves(way, self._tested.dtype)
        if leaves is None or len(leaves) <= self._position:
            return
        leaf = leaves[self._position]
        if not isinstance(leaf, HostTensor) or leaf.shape != self._tested.shape:
            return
        kind = DTYPES[leaf.dtype].kind
        data = leaf.data
        is_float = kind == DTYPES[self._tested.dtype].kind and kind in ("float", "complex")
        if is_float and not way.moves:
            data = round_to_dtype(data, self._tested.dtype)
        self._found.append(data)


def _moved_call(
    call: HostCall, incoming: list[HostTensor | None], moves: float, tested: str
) -> tuple[HostCall, list[HostTensor | None]]:
    """Return a call, in float64, with every float moved by units of its dtype, or of float32 where
    the tested output has no fewer bits: a half type that is widened first is exact there.

    No two numbers move alike: equal ones part, in one order for positive `moves` and in the other
    for negative ones.
    """
    generator = np.random.Generator(np.random.Philox(key=0))

    def moved(value: Any) -> Any:
        if not isinstance(value, HostTensor) or DTYPES[value.dtype].kind != "float":
            return value
        wide = value.data.astype(np.float64)
        widened = DTYPES[tested].mantissa_bits >= DTYPES["float32"].mantissa_bits
        finest = "float32" if widened and value.dtype != "float64" else value.dtype
        shares = generator.uniform(0.5, 1.0, size=wide.shape)
        shares *= generator.choice([-1.0, 1.0], size=wide.shape)
        return HostTensor("float64", np.asarray(wide + moves * shares * quantum(wide, finest)))

    changed = HostCall(map_leaves(call.args, moved), map_leaves(call.kwargs, moved))
    return changed, [moved(cotangent) for cotangent in incoming]
