"""What of a call depends on the recorded dtype, for a bench that computes in float64.

Comes in: a call as the device gets it. Goes out: the call in which Python's numbers are rounded as the
kernels take them (`x == 0.1`), and in which arguments have the values that the operator gives them for this
dtype where they are left out (the largest number of `nan_to_num`). Called by `check.inputs`. `SCALARS` is
the table of the operators that take Python's numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ray_precheck.frameworks.base import map_leaves
from ray_precheck.numerics.rounding import machine_epsilon, round_to_dtype
from ray_precheck.operators.table import FactTable
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.values import HostCall, HostTensor

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
    tensors = _tensors(call) if defaults or precision else []
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

    return HostCall(map_leaves(call.args, rounded), map_leaves(call.kwargs, rounded))


def _tensors(call: HostCall) -> list[HostTensor]:
    found: list[HostTensor] = []

    def noted(value: Any) -> Any:
        if isinstance(value, HostTensor):
            found.append(value)
        return value

    map_leaves((call.args, call.kwargs), noted)
    return found


def _common_dtype(tensors: list[HostTensor]) -> str:
    """Return the dtype that torch's promotion gives to tensors and a Python float: that of those with
    dimensions, else that of the others; float32 where all are whole numbers."""
    floats = [t for t in tensors if DTYPES[t.dtype].kind in ("float", "complex")]
    found = {_real(t) for t in floats if t.shape} or {_real(t) for t in floats}
    if len(found) == 1:
        return next(iter(found))
    return "float64" if "float64" in found else "float32"
