"""The station that makes the inputs of a call.

Comes in: `Decoded`, and the source of its tensors: a generator, the files of a dump, or files that were
saved for a replay. Goes out: `Inputs`. Called by the checker; the later stations take the incoming
gradients from the same source.

The bench, which computes in float64, gets the call as its dtype has it: Python's numbers are rounded as the
kernels take them (`x == 0.1`), and arguments that are left out have the values that the operator gives them
for this dtype (the largest number of `nan_to_num`). `SCALARS` is the table of the operators that take
Python's numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_precheck.check.attempt import Measured
from ray_precheck.check.decode import Decoded
from ray_precheck.check.settings import CheckSettings
from ray_precheck.descriptors.descriptor import find_framework, is_framework
from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.frameworks.base import Leaf, mapped_call, tensors_of
from ray_precheck.inputs.generate import (
    GeneratedTensors,
    TensorSource,
    assign_cotangents,
    build_call,
    generated_tensors,
)
from ray_precheck.inputs.layouts import placed_alone, placed_together, transposed
from ray_precheck.numerics.arrays import machine_epsilon, round_to_dtype
from ray_precheck.operators.effects import (
    CASTS_ARGUMENTS,
    NARROW_INSIDE,
    NARROW_STATISTICS,
    SUMS_NARROWLY,
)
from ray_precheck.operators.table import FactTable
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import HostCall, HostTensor, TensorSpec, walk_specs
from ray_precheck.store.error_data import SavedTensors, input_tensors

if TYPE_CHECKING:
    from ray_precheck.dump.tensors import TensorFiles

# torch 2.13, ATen/native/cpu and ATen/native/cuda: the number is a tensor without dimensions that is cast to
# the dtype of the others (comparisons, remainder, fmod, searches, the
# gradient of clamp), or is taken as `scalar_t` (hardshrink).
_IN_DTYPE = """
    torch torch.Tensor:
        eq ne lt le gt ge greater greater_equal less less_equal not_equal remainder fmod isin clamp clip
        clamp_min clamp_max
        bucketize searchsorted
    torch.Tensor:
        eq_ ne_ lt_ le_ gt_ ge_ greater_ greater_equal_ less_ less_equal_ not_equal_ remainder_ fmod_ clamp_
        clip_ clamp_min_ clamp_max_
        __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __mod__ __imod__ __rmod__ __rfloordiv__
    mindspore.mint mindspore.Tensor mindspore.ops:
        eq ne lt le gt ge greater greater_equal less less_equal not_equal
    mindspore.Tensor: __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    torch torch.nn.functional: hardshrink
    torch.Tensor: hardshrink
"""
# The number is taken in the type in which the kernel computes: float32 for half types, too (opmath_t). Of
# sums kernels of half types on the CPU take it in the half type, those on GPUs in float32; both are honest.
# Powers round it for each kernel that they call (x**2.3, and x**1.3 backward), as `bench.rounded` does.
_AS_COMPUTED = """
    torch torch.Tensor:
        add sub subtract mul multiply div divide true_divide floor_divide
        addcmul addcdiv addmm addmv addbmm baddbmm addr xlogy pow
    torch: rsub
    torch.Tensor:
        add_ sub_ subtract_ mul_ multiply_ div_ divide_ true_divide_ floor_divide_ addcmul_ addcdiv_ addmm_
        addmv_ addbmm_ baddbmm_ addr_ xlogy_ pow_
        __add__ __iadd__ __radd__ __sub__ __isub__ __rsub__ __mul__ __imul__ __rmul__ __truediv__
        __itruediv__ __rtruediv__ __floordiv__ __ifloordiv__ __div__ __idiv__
        __pow__ __ipow__ __rpow__
    torch torch.nn.functional: threshold threshold_ rrelu celu selu
    torch.nn.functional:
        softshrink softplus leaky_relu leaky_relu_ elu elu_ hardtanh hardtanh_ hinge_embedding_loss
        margin_ranking_loss
"""
# "dtype": in the dtype of the tensors; "computed": at least in float32.
SCALARS: FactTable[str] = FactTable(
    "precision of scalars", [(_IN_DTYPE, "dtype"), (_AS_COMPUTED, "computed")]
)


_REAL = {"complex64": "float32", "complex128": "float64"}
_COMPUTED_IN = {"float16": "float32", "bfloat16": "float32"}
_HALF_TYPES = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Inputs(Decoded):
    """A call with its arguments. `source` has made them, and makes the incoming gradients.

    `unplaced` are the paths of the arguments that do not lie in memory as the dump says. `is_transposed`:
    inputs and incoming gradients have another order of dimensions in memory.
    """

    source: TensorSource
    call: HostCall
    unplaced: tuple[str, ...] = ()
    is_transposed: bool = False

    @property
    def bench_call(self) -> HostCall:
        """The call as the bench gets it: contiguous, unless it reads layouts, with numbers as the recorded
        dtype has them; and what autocast casts for the device is cast before it is widened, but for what the
        call writes into."""
        call = self.call if self.plan.reads_layout else mapped_call(self.call, _contiguous)
        call = as_in_dtype(self.record.name.type_name, self.record.framework, call)
        if not self._is_cast:
            return call
        position = count()

        def cast(value: Any) -> Any:
            if not isinstance(value, HostTensor) or next(position) in self.plan.uncast:
                return value
            return _cast(self.record.autocast, value)

        return mapped_call(call, cast)

    def gradient_as_computed(self, gradient: Leaf) -> Leaf:
        """Return a gradient in the dtype in which it was computed.

        Autocast widens it for an argument that it has cast. Kernels of normalisations that take weights of
        float32 beside tensors of a half type may add up the gradients of these weights in the half type, each
        thread its share: torch 2.13's layer_norm on the CPU does. Another one with a digit more was not
        computed so.
        """
        half, record = self._half_type, self.record
        if not half or not isinstance(gradient, HostTensor) or gradient.dtype in _HALF_TYPES:
            return gradient
        found = _cast(half, gradient)
        if SUMS_NARROWLY.of(record.name.type_name, record.framework):
            return found
        return found if np.array_equal(found.data, gradient.data, equal_nan=True) else gradient

    def statistics_as_computed(self, statistics: HostTensor) -> HostTensor:
        """Return running statistics in the dtype in which they were computed, as a gradient is returned."""
        narrow = NARROW_STATISTICS.of(self.record.name.type_name, self.record.framework)
        found: HostTensor = self.gradient_as_computed(statistics) if narrow else statistics
        return found

    @property
    def _half_type(self) -> str:
        """The half type in which the call computes, "" where it is another one: that of its casts, where the
        record tells it, or that of all floating outputs."""
        if self._tells_casts and self.record.autocast:
            return self.record.autocast if self.record.autocast in _HALF_TYPES else ""
        leaves = (leaf for spec in self.record.outputs for _, leaf in walk_specs(spec, ""))
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, TensorSpec)}
        floats = {dtype for dtype in dtypes if DTYPES[dtype].kind == "float"}
        return next(iter(floats)) if len(floats) == 1 and floats <= _HALF_TYPES else ""

    def narrow_steps(self, device: str) -> str:
        """Return the half type to which autocast on a kind of device rounds steps of the call before its
        float32 result, "" for none."""
        record = self.record
        names = NARROW_INSIDE.of(record.name.type_name, record.framework)
        first = next(record.input_tensors(), None)
        is_half = first is not None and first[1].dtype == record.autocast in _HALF_TYPES
        return record.autocast if names and is_half and device != "cpu" else ""

    @property
    def _tells_casts(self) -> bool:
        """Whether the field `autocast` says that the arguments of this very call were cast."""
        framework = self.record.framework
        return is_framework(framework) and find_framework(framework).autocast_is_told

    @property
    def _is_cast(self) -> bool:
        """Whether autocast has cast the arguments of the call."""
        record = self.record
        if record.autocast and self._tells_casts:
            return True
        if not record.autocast or self._half_type != record.autocast:
            return False
        return bool(CASTS_ARGUMENTS.of(record.name.type_name, record.framework))

    def output_name(self, direction: str, position: int) -> str:
        """Return the name of a detail row."""
        return f"{self.record.name}.{direction}.output.{position}"


def _contiguous(value: Any) -> Any:
    has_layout = isinstance(value, HostTensor) and value.layout is not None
    return replace(value, layout=None) if has_layout else value


def _cast(dtype: str, value: Any) -> Any:
    """Return a float tensor in a dtype; autocast leaves float64 as it is."""
    if not isinstance(value, HostTensor) or value.dtype in (dtype, "float64"):
        return value
    if DTYPES[value.dtype].kind != "float":
        return value
    return replace(value, dtype=dtype, data=round_to_dtype(value.data, dtype), layout=None)


def make_inputs(decoded: Decoded, source: TensorSource) -> Inputs:
    """Make the arguments of a call.

    Raises:
        NotCheckable: an argument is not described well enough, or its file cannot be used.
    """
    call, unplaced = _with_layouts(build_call(decoded.record, source), decoded.record, source)
    made = Inputs(
        decoded.payload, decoded.record, decoded.plan, decoded.is_random, source, call, unplaced
    )
    if isinstance(source, SavedTensors) and source.is_transposed:
        return transposed_inputs(made) or made
    return made


def _with_layouts(
    call: HostCall, record: ApiRecord, source: TensorSource
) -> tuple[HostCall, tuple[str, ...]]:
    """Return a call whose tensors lie in memory as the dump says, and the paths of those that do not."""
    specs = list(record.input_tensors())
    if not any(spec.stride is not None or spec.offset or spec.shares for _, spec in specs):
        return call, ()
    tensors = list(input_tensors(call).values())
    generated = isinstance(source, GeneratedTensors)
    found, unplaced = placed_together(tensors, specs, may_change=generated)
    supply = iter(found)
    return mapped_call(
        call, lambda leaf: next(supply) if isinstance(leaf, HostTensor) else leaf
    ), tuple(unplaced)


def transposed_inputs(inputs: Inputs) -> Inputs | None:
    """Return a call with the same inputs, transposed in memory; None where that changes nothing."""
    found = mapped_call(inputs.call, _transposed)
    pairs = zip(input_tensors(found).values(), input_tensors(inputs.call).values(), strict=True)
    has_changed = any(mine is not before for mine, before in pairs)
    return replace(inputs, call=found, is_transposed=True) if has_changed else None


def _transposed(value: Any) -> Any:
    return transposed(value) if isinstance(value, HostTensor) else value


def safer_inputs(inputs: Inputs, why: str) -> Inputs:
    """Return a call with safer inputs; `why` is what the device raised with the first ones.

    Raises:
        NotCheckable: see `make_inputs`.
    """
    assert isinstance(inputs.source, GeneratedTensors)
    return make_inputs(inputs, inputs.source.safer(inputs.record, why))


def source_of(
    record: ApiRecord,
    settings: CheckSettings,
    files: "TensorFiles | None" = None,
    *,
    keeps: bool = False,
) -> TensorSource:
    """Return the source of the tensors of a call in this run.

    `files` are the captured tensors, where the dump's folder cannot be read on this machine. With
    `keeps` a generator keeps the tensors that it draws.
    """
    if files is not None:
        return CapturedTensors(files)
    if settings.task == "tensor":
        return CapturedTensors(settings.data_folder)
    options = settings.options
    return generated_tensors(options.seed, record, options.distribution, keeps=keeps)


def source_as_measured(source: TensorSource, record: ApiRecord, measured: Measured) -> TensorSource:
    """Return a source that gives the same tensors as the device had in another process."""
    if not isinstance(source, GeneratedTensors):
        return source
    if measured.safer:
        source = source.safer(record, measured.safer)
    source.take(measured.inputs, measured.notes)
    return source


def cotangents_of(inputs: Inputs, outputs: list[Leaf]) -> list[HostTensor | None]:
    """Return the incoming gradients, one for each output; None for an output that is no tensor.

    Raises:
        NotCheckable: the incoming gradients in the dump do not fit the outputs.
    """
    found = _incoming(inputs, outputs)
    return [_transposed(cotangent) for cotangent in found] if inputs.is_transposed else found


def _incoming(inputs: Inputs, outputs: list[Leaf]) -> list[HostTensor | None]:
    if isinstance(inputs.source, SavedTensors):
        return _placed_again(inputs.source.cotangents(len(outputs)), inputs.record)
    tensors = [leaf if isinstance(leaf, HostTensor) else None for leaf in outputs]
    generated = isinstance(inputs.source, GeneratedTensors)
    return assign_cotangents(inputs.record, tensors, inputs.source, may_reshape=generated)


def _placed_again(saved: list[HostTensor | None], record: ApiRecord) -> list[HostTensor | None]:
    """Return saved incoming gradients with the layouts of the record, where each is of an output."""
    specs = record.grads_in or ()
    if len(specs) != len(saved):
        return saved
    return [
        placed_alone(tensor, spec, may_change=False)
        if tensor is not None and isinstance(spec, TensorSpec)
        else tensor
        for tensor, spec in zip(saved, specs, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Default:
    """An argument that an operator computes from the first tensor where it is None.

    `position` is its place among the positional arguments, -1 for a keyword alone. It stays as it is where
    one of the arguments `unless` is given.
    """

    name: str
    position: int
    value: Callable[[HostTensor], Any]
    unless: tuple[str, ...] = ()

    def filled(self, call: HostCall, tensor: HostTensor) -> HostCall:
        """Return the call with this argument."""
        if any(call.kwargs.get(name) is not None for name in (self.name, *self.unless)):
            return call
        if not 0 <= self.position < len(call.args):
            return replace(call, kwargs={**call.kwargs, self.name: self.value(tensor)})
        if call.args[self.position] is not None:
            return call
        args = list(call.args)
        args[self.position] = self.value(tensor)
        return replace(call, args=tuple(args))


def _largest(tensor: HostTensor) -> float:
    return DTYPES[tensor.dtype].largest


def _computed_eps(tensor: HostTensor) -> float:
    """Return the distance from 1 to the next number of the type in which the kernel computes.

    torch 2.13, layer_norm.cpp: `rms_norm_composite` widens half types first, and takes float32's.
    """
    name = _real(tensor)
    return machine_epsilon(_COMPUTED_IN.get(name, name))


def _rank_tolerance(tensor: HostTensor) -> float:
    """Return the larger extent of a matrix times the eps of its dtype (torch.linalg.matrix_rank)."""
    return max(tensor.shape[-2:], default=1) * machine_epsilon(_real(tensor))


def _real(tensor: HostTensor) -> str:
    return _REAL.get(tensor.dtype, tensor.dtype)


_DEFAULTS: FactTable[tuple[Default, ...]] = FactTable(
    "arguments by dtype",
    [
        ("torch torch.nn.functional: rms_norm", (Default("eps", 3, _computed_eps),)),
        (
            """
            torch torch.Tensor: nan_to_num nan_to_num_
            mindspore.mint mindspore.Tensor mindspore.ops: nan_to_num
            """,
            (
                Default("posinf", 2, _largest),
                Default("neginf", 3, lambda tensor: -_largest(tensor)),
            ),
        ),
        (
            "torch.linalg: matrix_rank",
            (Default("rtol", -1, _rank_tolerance, ("tol", "atol")),),
        ),
        ("torch.linalg: pinv", (Default("rtol", -1, _rank_tolerance, ("atol", "rcond")),)),
        ("torch.linalg: lstsq", (Default("rcond", 2, _rank_tolerance),)),
        ("torch torch.Tensor: nextafter", (Default("dtype", -1, lambda tensor: tensor.dtype),)),
        ("torch.Tensor: nextafter_", (Default("dtype", -1, lambda tensor: tensor.dtype),)),
    ],
)


def as_in_dtype(type_name: str, framework: str, call: HostCall) -> HostCall:
    """Return a call for the bench, with what depends on the dtype of its tensors."""
    defaults = _DEFAULTS.of(type_name, framework) or ()
    precision = SCALARS.of(type_name, framework)
    tensors = tensors_of(call) if defaults or precision else []
    if not tensors:
        return call
    if DTYPES[tensors[0].dtype].kind in ("float", "complex"):
        for default in defaults:
            call = default.filled(call, tensors[0])
    if precision is None:
        return call
    dtype = _common_dtype(tensors)
    if precision == "computed":
        dtype = _COMPUTED_IN.get(dtype, dtype)

    def rounded(value: Any) -> Any:
        if type(value) is complex:
            return complex(rounded(value.real), rounded(value.imag))
        if type(value) is not float or not np.isfinite(value):
            return value
        return float(round_to_dtype(np.asarray(value), dtype))

    return mapped_call(call, rounded)


def _common_dtype(tensors: list[HostTensor]) -> str:
    """Return the dtype that torch's promotion gives to tensors and a Python float: that of those with
    dimensions, else that of the others; float32 where all are whole numbers."""
    floats = [t for t in tensors if DTYPES[t.dtype].kind in ("float", "complex")]
    found = {_real(t) for t in floats if t.shape} or {_real(t) for t in floats}
    if len(found) == 1:
        return next(iter(found))
    return "float64" if "float64" in found else "float32"
