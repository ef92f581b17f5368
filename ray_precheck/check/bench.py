"""The station of the bench: it runs a call forward in float64, and in other honest ways.

Comes in: `UnderTest`. Goes out: `Benched`, of which the judge gets gradients, and which can run again on
other inputs; and what both sides have changed beside the outputs, as the judge compares it. Called by the
checker, and by `check.random.judge` where a device has raised.

A call may change a tensor and need not: statistics stay where a network is evaluated. So a tensor counts
where one side has changed it, and what neither has changed has no row.

`Implementations` are honest other ones of a call on this machine's CPU, by which `auto` and `benchmark`
estimate how large an error may be; one is computed when a standard reads it. They run on one thread and draw
with fixed keys, so every process computes the same bits. They are computed in float64, without kernels of the
tested dtype: a wrong kernel cannot vouch for itself. torch's own kernel is available beside them as `kernel`,
unless it is the kernel under test. Implementations of float64 results have the errors of shorter arithmetic,
made as much smaller as float64 is longer.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, overload

import numpy as np

from ray_precheck.bench.checkable import changed_tensors
from ray_precheck.bench.least_errors import errors_by_norms
from ray_precheck.bench.optimizers import JOINED_STEPS, SINGLE_NUMBERS
from ray_precheck.bench.rounded import (
    LONGER,
    WIDEST,
    Operands,
    autocast_steps,
    in_short_bits,
    rounded_arithmetic,
)
from ray_precheck.bench.run import Bench
from ray_precheck.check.attempt import Attempt, OutOfMemory, attempt, attempt_forward
from ray_precheck.check.inputs import Inputs
from ray_precheck.check.tested import UnderTest
from ray_precheck.descriptors.descriptor import find_framework
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import (
    CallPlan,
    Execution,
    Leaf,
    changed_by,
    map_leaves,
    mapped_call,
    tensors_of,
)
from ray_precheck.frameworks.pytorch.names import resolve_torch
from ray_precheck.frameworks.pytorch.run import TorchExecution, TorchPlace
from ray_precheck.numerics.arrays import round_to_dtype, spacing
from ray_precheck.operators.effects import CHANGES
from ray_precheck.schema.dtypes import DTYPES, FRACTION_BITS, FULL_FLOAT32, Array, Float32
from ray_precheck.schema.values import HostCall, HostTensor, Nested, Sparse
from ray_precheck.store.error_data import input_tensors

Cotangents = Sequence[HostTensor | None]
# Gives the compared leaves of an execution of the call, which gets the incoming gradients.
Pick = Callable[[Execution, list[HostTensor | None]], Sequence[Leaf]]
# So many parts of a unit in the last place tell the benches of moved inputs apart in float64.
_FARTHER = 2.0**10


@dataclass(frozen=True, slots=True)
class Benched:
    """A call whose results are tested, and the outcome of the bench's forward pass."""

    tested: UnderTest
    attempt: Attempt
    bench: Bench

    @property
    def function(self) -> Callable[..., Any]:
        """The torch callable that is the bench."""
        return self.bench.resolve(self.tested.inputs.record.name)

    @property
    def author(self) -> str:
        """The file and function of a user's own bench, "" for the benches of this package."""
        return self.bench.origin(self.tested.inputs.record.name)

    def run_again(self, call: HostCall) -> Execution:
        """Run the bench on other inputs of the same call; its exceptions are not caught."""
        return self.bench.forward(self.function, call, self.tested.inputs.plan)


def run_bench(bench: Bench, tested: UnderTest) -> Benched:
    """Run the bench forward, unless the second try has run it already.

    Raises:
        NotCheckable: there is no bench.
        OutOfMemory: an allocation failed.
    """
    return Benched(tested, tested.bench or attempt_bench(bench, tested.inputs), bench)


def attempt_bench(bench: Bench, inputs: Inputs) -> Attempt:
    """Return the outcome of the bench's forward pass; raises as `run_bench`."""
    return attempt_forward(bench, inputs.record.name, inputs.bench_call, inputs.plan)


def gradients_as_dumped(
    inputs: Inputs, framework: str, run: Execution, cotangents: list[HostTensor | None]
) -> list[HostTensor | None]:
    """Return gradients of a run in the order in which the framework's dumps list them.

    Where the dump says to which input each gradient belongs, there is one for each tensor of the inputs.
    """
    by_node = inputs.record.gradient_of is None and find_framework(framework).node_gradients
    if by_node and isinstance(run, TorchExecution):
        return run.node_gradients(cotangents)
    # MindSpore's dumps list one for each tensor of the inputs, too.
    grads = run.gradients(cotangents)
    spread: list[HostTensor | None] = [None] * sum(1 for _ in inputs.record.input_tensors())
    for position, grad in zip(inputs.plan.differentiable, grads, strict=True):
        spread[position] = grad
    return spread


class ChangedPair(NamedTuple):
    """A tensor that a call has changed, after it on both sides; `number` is its place among those that
    the call may change."""

    number: int
    name: str
    tested: HostTensor
    bench: HostTensor


def changed_pairs(benched: Benched) -> tuple[list[ChangedPair], list[str]]:
    """Return what a call has changed, and notes about what cannot be compared; the bench has run."""
    tested, execution = benched.tested, benched.attempt.execution
    assert execution is not None
    inputs = tested.inputs
    if not inputs.plan.changed:
        return [], []
    given, bench_given = tensors_of(inputs.call), tensors_of(inputs.bench_call)
    pairs: list[ChangedPair] = []
    unknown: list[str] = []
    for number, (each, bench) in enumerate(
        zip(changed_tensors(inputs.record), changed_by(execution), strict=True)
    ):
        changes = not _is_same(bench_given[each.position], bench)
        if not tested.changed:
            unknown += [each.name] if changes else []
            continue
        mine = tested.changed[number]
        if changes or (_is_judge(benched) and not _is_same(given[each.position], mine)):
            mine = inputs.statistics_as_computed(mine)
            pairs.append(ChangedPair(number, each.name, mine, bench))
    lacks = "the dump does not hold" if tested.is_captured else "the backend does not give"
    notes = [f"{lacks} {', '.join(unknown)} after the call: not compared"] if unknown else []
    return pairs, notes


def _is_judge(benched: Benched) -> bool:
    """Return whether the bench changes what the tested function has to change: torch's own function of that
    name does, and the references of operators that are known to. Others may only return the outputs."""
    record = benched.tested.inputs.record
    if CHANGES.of(record.name.type_name, record.framework):
        return not benched.author
    is_torch = find_framework(record.framework or "pytorch").is_bench
    return is_torch and benched.function is resolve_torch(record.name)


def _is_same(before: HostTensor, after: HostTensor) -> bool:
    if before.shape != after.shape:
        return False
    return bool(np.array_equal(before.data.astype(after.data.dtype), after.data, equal_nan=True))


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute a call: in float64 (`widen`) or in the recorded dtypes.

    `rounds`: each step is rounded to the tested dtype, and the operands of products to fewer bits, where
    these are named. `moves`: every float input moves by at most
    this many units in the last place; the sign turns the direction of all moves. `single`: the numbers of
    fused optimizers are those of float32. `casts`: steps are rounded as autocast on an accelerator does.
    `narrows`: the numbers of formulas are rounded as the steps are. `joins`: what an optimizer's kernel
    computes in one pass, as a product that is added, is one step. `tiles`: convolutions are those of tiles.
    `stores`: a fused backward pass makes the weights of attention anew.
    """

    widen: bool
    rounds: bool = False
    moves: float = 0.0
    operands: Operands | None = None
    single: bool = False
    casts: bool = False
    narrows: bool = False
    joins: bool = False
    tiles: bool = False
    stores: bool = False

    def context(self, dtype: str) -> AbstractContextManager[Any]:
        """Return the context in which the call runs."""
        if not self.rounds:
            return nullcontext()
        return rounded_arithmetic(
            dtype,
            self.operands,
            is_short=dtype in WIDEST,
            narrows=self.narrows,
            joins=self.joins,
            tiles=self.tiles,
            stores=self.stores,
        )


# The bench.
EXACT = Way(widen=True)
# torch's own operator in the recorded dtypes.
KERNEL = Way(widen=False)
# A composed implementation that rounds after each step.
COMPOSED = Way(widen=True, rounds=True)
# The same whose scalars have the dtype of the tensors, as vector units of NPUs take them.
NARROWED = replace(COMPOSED, narrows=True)
# Kernels that round their results alone, as those of torch's optimizers that are not fused: in a half type
# beta2 v is v or next to it, so that all elements are off in one direction, and (1 - beta2) g^2 is subnormal
# where it is a step of its own. Gradients of a softmax are those of its rounded result, which may be one
# number in many rows.
JOINED = replace(COMPOSED, joins=True)
# Convolutions by tiles, whose errors are larger.
TILED = replace(COMPOSED, tiles=True)
# Gradients of fused attention, as torch computes them on the CPU, too: where scores are large, rounding their
# log-sum-exp to float32 is the largest error.
STORED = replace(COMPOSED, stores=True)
# A fused optimizer on a GPU.
FUSED = Way(widen=True, single=True)
# A function that autocast leaves alone, whose steps it sees.
AUTOCAST = Way(widen=True, casts=True)
# Moves by half an ulp, as rounding the inputs does, and by so little that only equal numbers part;
# each in both directions.
MOVES = tuple(Way(widen=True, moves=moves) for moves in (0.5, -0.5, 2.0**-7, -(2.0**-7)))


@dataclass(frozen=True)
class Implementations:
    """The implementations of one direction of a call.

    `function` is the bench's. `pick` gives the compared leaves of an execution. `kernel_is_tested`:
    torch's kernels on the CPU computed the tested results, so they cannot be a measure for them.
    `float32` are the formats of the operands in the products that made the tested results.
    `narrow_steps` is the half type of the first steps of a function under autocast, "" for none.
    """

    function: Callable[..., Any]
    call: HostCall
    plan: CallPlan
    pick: Pick
    cotangents: Cotangents = ()
    kernel_is_tested: bool = False
    float32: Float32 = FULL_FLOAT32
    narrow_steps: str = ""
    _runs: dict[tuple[Way, str], Sequence[Leaf] | None] = field(default_factory=dict)
    # The dtypes in which the composed one has met a convolution for tiles, or attention.
    _with_tiles: set[str] = field(default_factory=set)
    _with_attention: set[str] = field(default_factory=set)

    def of(self, position: int, tested: HostTensor) -> "ImplementationsOfLeaf":
        """Return the implementations' values of one leaf, as carrier arrays of the tested dtype."""
        joined = (JOINED,) if any(map(_is_group, self.call.args)) else ()
        ways = (COMPOSED, *joined, FUSED, AUTOCAST, TILED, STORED)
        return ImplementationsOfLeaf(self, position, tested, ways)

    def leaves(self, way: Way, dtype: str) -> Sequence[Leaf] | None:
        """Return the leaves computed in one way; None if the call cannot run in it.

        For a `WIDEST` dtype the inputs are short, too, but for the kernel's.
        """
        if way.rounds and DTYPES[dtype].kind not in ("float", "complex"):
            return None
        if way.casts and not self.narrow_steps:
            return None
        if way.single and not any(map(_is_fused, self.call.args)):
            return None
        if way.tiles and dtype not in self._with_tiles:
            return None
        if way.stores and not (self.cotangents and dtype in self._with_attention):
            return None
        key = (way, dtype if way.rounds or way.moves or dtype in WIDEST else "")
        if key not in self._runs:
            try:
                self._runs[key], _ = attempt(lambda: self._run(way, dtype))
            except (OutOfMemory, NotCheckable):
                self._runs[key] = None
        return self._runs[key]

    def _run(self, way: Way, dtype: str) -> Sequence[Leaf]:
        call, incoming = self.call, list(self.cotangents)
        if dtype in WIDEST and way.widen:
            call, incoming = _changed_call(call, incoming, _in_short_bits)
        if way.moves:
            call, incoming = _moved_call(call, incoming, way.moves, dtype)
        if way.single:
            call = HostCall(tuple(map(_with_single_numbers, call.args)), call.kwargs)
        if way.joins:
            joined = (
                {**each, JOINED_STEPS: True} if _is_group(each) else each for each in call.args
            )
            call = HostCall(tuple(joined), call.kwargs)
        dense = _dense_call(call, self.plan) if way.rounds else None
        if dense is not None and self._means_the_same(dense, call, incoming):
            flat = [None if each is None else each.flat for each in incoming]
            found, error = attempt(lambda: self._computed(way, dtype, dense, flat))
            if error is None and found is not None:
                return found
        return self._computed(way, dtype, call, incoming)

    def _means_the_same(
        self, dense: HostCall, call: HostCall, incoming: list[HostTensor | None]
    ) -> bool:
        """Return whether the values of nested tensors, taken as one tensor, give the same results."""
        given = (*input_tensors(call).values(), *filter(None, incoming))
        if not any(isinstance(each.storage, Nested) for each in given):
            return True
        flat = [None if each is None else each.flat for each in incoming]
        mine, error = attempt(lambda: self._computed(EXACT, "", dense, flat))
        other, failed = attempt(lambda: self._computed(EXACT, "", call, incoming))
        if error or failed or mine is None or other is None or len(mine) != len(other):
            return False
        return all(
            isinstance(m, HostTensor)
            and isinstance(o, HostTensor)
            and m.shape == o.shape
            and np.allclose(m.data, o.data, 1e-9, 1e-12, equal_nan=True)
            for m, o in zip(mine, other, strict=True)
        )

    def _computed(
        self, way: Way, dtype: str, call: HostCall, incoming: list[HostTensor | None]
    ) -> Sequence[Leaf]:
        context: AbstractContextManager[Any] = way.context(dtype)
        if way.casts:
            context = autocast_steps(self.narrow_steps)
        with context as arithmetic:
            place = TorchPlace(widen=way.widen)
            found = self.pick(TorchExecution(self.function, call, self.plan, place), incoming)
        if way == COMPOSED and arithmetic.met_tiles:
            self._with_tiles.add(dtype)
        if way == COMPOSED and arithmetic.met_attention:
            self._with_attention.add(dtype)
        if way.operands is not None and not arithmetic.met_products:
            raise NotCheckable("the call makes no product of fewer bits")
        return found


class ImplementationsOfLeaf(Sequence[Array]):
    """The values of one output, computed in several ways; ways that cannot run are left out."""

    def __init__(
        self,
        implementations: Implementations,
        position: int,
        tested: HostTensor,
        ways: Sequence[Way],
    ) -> None:
        self._implementations = implementations
        self._position = position
        self._tested = tested
        self._ways = list(ways)
        self._found: list[Array] = []

    def _in(self, ways: Sequence[Way]) -> "ImplementationsOfLeaf":
        """Return the values of the same output in other ways."""
        return ImplementationsOfLeaf(self._implementations, self._position, self._tested, ways)

    def least_errors(self, bench_out: Array) -> tuple[float, float] | None:
        """Return the RMSE and the largest error that the first one of these has at least, where the bench's
        values are a product of two of the given tensors in float32; None where they are not."""
        if self._tested.dtype != "float32" or COMPOSED not in self._ways:
            return None
        given = (
            *input_tensors(self._implementations.call).values(),
            *self._implementations.cotangents,
        )
        plain = [each for each in given if each is not None and each.storage is None]
        return errors_by_norms([each.data for each in plain if each.dtype == "float32"], bench_out)

    @property
    def moved(self) -> Sequence[Array]:
        """The bench's values, not rounded, for inputs moved by `MOVES`."""
        return self._in(MOVES)

    @property
    def coarse(self) -> Sequence[Array]:
        """The values of implementations that round the operands of float32 products to fewer bits, as the
        tested one did: to the nearest, and truncated. () where it did not, or makes no product."""
        if not self._implementations.float32 or self._tested.dtype not in ("float32", "complex64"):
            return ()
        bits = self._implementations.float32
        formats = FRACTION_BITS[bits.products], FRACTION_BITS[bits.convolutions]
        ways = [replace(COMPOSED, operands=Operands(*formats, cut)) for cut in (False, True)]
        if self._implementations.leaves(ways[0], self._tested.dtype) is None:
            return ()
        return self._in(ways)

    @property
    def narrowed(self) -> Sequence[Array]:
        """The values of a composed implementation that also rounds scalars to the dtype; none for float64."""
        if self._tested.dtype in WIDEST:
            return ()
        return self._in((NARROWED, JOINED))

    @property
    def formats(self) -> str:
        """The words for the formats of the operands."""
        return str(self._implementations.float32)

    @property
    def moved_farther(self) -> float:
        """How many times as far from the bench as the moves bring it the `moved` ones are."""
        return _FARTHER if self._tested.dtype in WIDEST else 1.0

    @property
    def kernel(self) -> Array | None:
        """The values of torch's own operator on the CPU in the recorded dtypes, which may be wrong; None
        if it cannot run, or is the kernel under test."""
        if self._implementations.kernel_is_tested:
            return None
        return next(iter(self._in((KERNEL,))), None)

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
        leaf = self._leaf(way, self._tested.dtype)
        if leaf is None:
            return
        kind, data = DTYPES[leaf.dtype].kind, leaf.data
        if self._tested.dtype in WIDEST and way.widen:
            data = self._longer(data, way)
        is_float = kind == DTYPES[self._tested.dtype].kind and kind in ("float", "complex")
        if is_float and not way.moves:
            data = round_to_dtype(data, self._tested.dtype)
        self._found.append(data)

    def _leaf(self, way: Way, dtype: str) -> HostTensor | None:
        leaves = self._implementations.leaves(way, dtype)
        found = leaves[self._position] if leaves and self._position < len(leaves) else None
        is_alike = isinstance(found, HostTensor) and found.shape == self._tested.shape
        return found if is_alike else None

    def _longer(self, data: Array, way: Way) -> Array:
        """Return the bench's values with the error that short ones have, in the proportion of float64.

        An error of rounding is a unit in the last place or more, since kernels may round to either side.
        """
        plain, exact = (self._leaf(EXACT, dtype) for dtype in (self._tested.dtype, ""))
        if plain is None or exact is None or plain.dtype not in WIDEST:
            return data
        with np.errstate(all="ignore"):
            error = (data - plain.data) * LONGER * (_FARTHER if way.moves else 1.0)
            if way.rounds:
                units = np.spacing(np.abs(exact.data)) / np.abs(error)
                error = error * np.maximum(1.0, units)
        return np.asarray(exact.data + np.where(np.isfinite(error), error, 0.0))


def _is_group(argument: Any) -> bool:
    """Return whether an argument is a group of an optimizer."""
    return isinstance(argument, dict) and {"params", "grads"} <= argument.keys()


def _is_fused(group: Any) -> bool:
    """Return whether a group is one of an optimizer that has its numbers on the device, in float32."""
    ways = ("fused", "capturable")
    return isinstance(group, dict) and any(group.get(way) is True for way in ways)


def _with_single_numbers(group: Any) -> Any:
    """Return the group of a fused optimizer with hyperparameters of float32."""
    if not _is_fused(group):
        return group

    def single(value: Any) -> Any:
        return float(np.float32(value)) if isinstance(value, float) else value

    return {**map_leaves(group, single), SINGLE_NUMBERS: True}


def _dense_call(call: HostCall, plan: CallPlan) -> HostCall | None:
    """Return a call with all elements of its sparse tensors, whose sums are taken apart, and with the values
    of nested ones; None for one without.

    Also None where the gradient of a sparse one is asked for, which kernels compute at its places alone.
    """
    tensors: list[HostTensor] = []

    def dense(value: Any) -> Any:
        if not isinstance(value, HostTensor):
            return value
        tensors.append(value)
        return value.dense.flat

    found = mapped_call(call, dense)
    sparse = {at for at, each in enumerate(tensors) if isinstance(each.storage, Sparse)}
    is_nested = any(isinstance(each.storage, Nested) for each in tensors)
    return found if (sparse or is_nested) and not sparse & set(plan.differentiable) else None


def _moved_call(
    call: HostCall, incoming: list[HostTensor | None], moves: float, tested: str
) -> tuple[HostCall, list[HostTensor | None]]:
    """Return a call, in float64, with every float and every part of a complex number moved by units of its
    dtype, or of float32 if the tested output has at least as many bits: a half type that is widened first
    is exact there. Whole numbers of which alone floats are computed move, too, as floats.

    No two numbers move alike, so equal numbers part: in one order for positive `moves`, in the other
    order for negative ones. The parts of a complex number move by units of its magnitude, as a product
    mixes them; a part of 0 stays, since its sign says the side of a branch cut.
    """
    generator = np.random.Generator(np.random.Philox(key=0))
    computed = ("float", "complex")
    kinds = {DTYPES[each.dtype].kind for each in input_tensors(call).values()}
    are_whole = kinds.isdisjoint(computed) and DTYPES[tested].kind in computed

    def moved(value: HostTensor) -> HostTensor:
        kind = DTYPES[value.dtype].kind
        if not are_whole and kind not in computed:
            return value
        found: Array = np.array(value.data, np.complex128 if kind == "complex" else np.float64)
        widened = DTYPES[tested].mantissa_bits >= DTYPES["float32"].mantissa_bits
        own = value.dtype if kind in computed else tested
        finest = "float32" if widened and own not in WIDEST else own
        unit = spacing(np.abs(found), finest)
        unit = unit / (LONGER if {finest, tested} <= WIDEST else 1.0)
        for part in (found.real, found.imag) if kind == "complex" else (found,):
            shares = generator.uniform(0.5, 1.0, size=found.shape)
            shares *= generator.choice([-1.0, 1.0], size=found.shape)
            part += moves * shares * np.where((part == 0.0) & (kind == "complex"), 0.0, unit)
        return replace(value, dtype=str(found.dtype), data=found, layout=None)

    return _changed_call(call, incoming, moved)


def _in_short_bits(value: HostTensor) -> HostTensor:
    return replace(value, data=in_short_bits(value.data)) if value.dtype in WIDEST else value


def _changed_call(
    call: HostCall, incoming: list[HostTensor | None], change: Callable[[HostTensor], HostTensor]
) -> tuple[HostCall, list[HostTensor | None]]:
    """Return a call and its incoming gradients with other tensors."""

    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, HostTensor) else value

    return mapped_call(call, changed), [changed(cotangent) for cotangent in incoming]
