"""Float64 arithmetic that rounds as a composed implementation in another dtype does.

Comes in: a dtype. Goes out: a context in which every elementary operator of torch, forward and
backward, rounds its float64 result to that dtype; fused operators are taken apart first, by torch's
own decompositions. Called by `check.bench`, which runs the bench inside of it: the results
are those of an honest implementation that rounds after each step, for every API.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ray_precheck import private_parts
from ray_precheck.bench.rounded_steps import ERRORS, KERNELS_STEPS, TERM_BY_TERM, is_tiled, tiled
from ray_precheck.bench.rounded_sums import (
    ACCUMULATIONS,
    FACTORS,
    FLOAT32_UNIT,
    Noise,
    accumulation_error,
    at_least_rounded,
    product_with_errors,
)
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import map_leaves
from ray_precheck.numerics.rounding import round_to_dtype, unit_roundoff
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.float32 import FRACTION_BITS, FULL

_ATEN = torch.ops.aten
_DECOMPOSITIONS = private_parts.find(private_parts.DECOMPOSITIONS) or {}
_DISPATCH_MODE: Any = private_parts.find(private_parts.DISPATCH_MODE)
# Operators that eager frameworks also offer as compositions of others. An operator that is not
# listed is one step: its exact result is rounded once.
_COMPOSED = frozenset(
    """_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm
    native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm
    native_batch_norm_backward _native_batch_norm_legit _fused_rms_norm _fused_rms_norm_backward
    gelu gelu_backward silu silu_backward sigmoid_backward tanh_backward sigmoid mish mish_backward
    softplus softplus_backward log_sigmoid_forward log_sigmoid_backward elu elu_backward hardswish
    hardswish_backward hardsigmoid hardsigmoid_backward logsumexp var std var_mean std_mean
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss
    huber_loss_backward addr binary_cross_entropy binary_cross_entropy_backward nll_loss_forward
    binary_cross_entropy_with_logits soft_margin_loss addmm addmv addbmm baddbmm addcmul addcdiv
    lerp logit logaddexp rsub grid_sampler_2d linalg_cross soft_margin_loss_backward
    floor_divide histc _foreach_norm""".split()
)

# One step where products are those of the dtype; `cdist` of many rows.
_OF_PRODUCTS = frozenset(("_euclidean_dist",))

# The dtypes to which real and complex numbers of a call are rounded if its result is complex or
# wide.
_PARTS = {
    "float64": ("float64", "complex128"),
    "complex128": ("float64", "complex128"),
    "complex64": ("float32", "complex64"),
}
# Dtypes that no wider arithmetic stands behind, in which the bench itself rounds: their steps are rounded to
# `SHORT_BITS` bits instead. An error of rounding is proportional to the unit roundoff but for terms of
# higher order (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1), so that of
# float64 is this error times `LONGER`, 2^-53 / 2^-24.
WIDEST = frozenset({"float64", "complex128"})
SHORT_BITS = 24
LONGER = 2.0 ** (SHORT_BITS - 53)
# Sums are made in so many lanes, as vector units do; each adds one term after the other.
_LANES = 8
# Kernels whose sums over rows (the gradients of weights) honest implementations make in the dtype of
# the tensors, also in half types, one row after the other. torch 2.13's layer_norm on the CPU is off by
# 15 to 18 roundings there for 4,096 rows; its group_norm sums in float32. Their errors are those of the
# very partial sums: behind a mean over the positions the rows of a sample are alike, and partial sums
# become far larger than the total in which they cancel.
_NARROW_SUMS = frozenset("native_layer_norm_backward _fused_rms_norm_backward".split())
# Operators that take values between pixels, with the place of `align_corners` among their arguments, behind
# which the scales stand.
_FORWARD_AT, _BACKWARD_AT = 2, 3
_RESAMPLED = {
    getattr(_ATEN, f"upsample_{name}{suffix}").default: at
    for name in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")
    for suffix, at in (("", _FORWARD_AT), ("_backward", _BACKWARD_AT))
}
# Whose kernels for channels that stand last add one position after the other, in float32
# (aten/src/ATen/native/cpu/batch_norm_kernel.cpp).
_PLAIN_SUMS = frozenset(
    "native_batch_norm _native_batch_norm_legit native_batch_norm_backward".split()
)
# A power that torch's kernels on the CPU compute by two products, each rounded also in half types.
_CUBE = 3
# Losses that are summed in the dtype of the tensors as a cascade: the sums of sqrt(n) terms each are
# summed again.
_NARROW_CASCADES = frozenset("nll_loss_forward nll_loss2d_forward".split())
# Gradients of means whose kernels round 1 / n to the dtype of the tensors, and its products
# (aten/src/ATen/native/cpu/PointwiseOpsKernel.cpp). It gets the error that a rounding has on average, because
# one that is near 0 by luck would be no measure.
_NARROW_NUMBERS = frozenset(["huber_loss_backward"])
# Composed operators within which a step is computed otherwise.
_WITHIN = _NARROW_SUMS | _NARROW_CASCADES | _PLAIN_SUMS | _NARROW_NUMBERS
# The operators of which all products are made, by the number of their factors, which come first.
_FACTORS_OF = {
    _ATEN.mm.default: 2,
    _ATEN.bmm.default: 2,
    _ATEN.mv.default: 2,
    _ATEN.dot.default: 2,
    _ATEN.vdot.default: 2,
    _ATEN.convolution.default: 2,
    _ATEN.convolution_backward.default: 3,
}
_SVD = _ATEN._linalg_svd.default
# Singular values of random matrices of 33 to 200 rows are off by 7 to 10 roundings of the largest one (torch
# 2.13 on the CPU).
_SVD_UNITS = 2.0
_ADDS = frozenset((_ATEN.add.Tensor, _ATEN.add_.Tensor))
_WITH_ALPHA = _ADDS | {_ATEN.sub.Tensor, _ATEN.sub_.Tensor}
_CONVOLUTIONS = frozenset((_ATEN.convolution.default, _ATEN.convolution_backward.default))
_POWERS = frozenset((_ATEN.pow.Tensor_Scalar, _ATEN.pow.Scalar, _ATEN.pow_.Scalar))
_MODES = "linear1d bilinear2d trilinear3d bicubic2d".split()
_INTERPOLATIONS_BACK = frozenset(
    getattr(_ATEN, f"upsample_{mode}_backward").default for mode in _MODES
)
_INTERPOLATIONS = _INTERPOLATIONS_BACK | {
    getattr(_ATEN, f"upsample_{mode}").default for mode in _MODES
}
# Its kernels compute x rstd - mean rstd, where x and the mean may be nearly equal.
_LAYER_NORM = _ATEN.native_layer_norm.default
# Operators that sample at places, with the position of these among their arguments.
_GRIDS = {
    _ATEN.grid_sampler_3d.default: 1,
    _ATEN.grid_sampler_2d_backward.default: 2,
    _ATEN.grid_sampler_3d_backward.default: 2,
}
# The operators in place whose kernels accumulate, and the same ones that return a new tensor.
_IN_PLACE = {
    _ATEN.index_put_.default: _ATEN.index_put.default,
    _ATEN.index_add_.default: _ATEN.index_add.default,
    _ATEN.scatter_add_.default: _ATEN.scatter_add.default,
    _ATEN.put_.default: _ATEN.put.default,
    _ATEN.addbmm_.default: _ATEN.addbmm.default,
}
_ADD_IF_TOLD = frozenset((_ATEN.index_put.default, _ATEN.put.default))
_IN_FLOAT32 = (torch.float32, torch.complex64, torch.float16, torch.bfloat16)
# The steps of a mean and of a variance, as torch's decompositions of norms take them; only these register
# them.
_VARIANCE = torch.ops.prims.var.default if _DECOMPOSITIONS else None
_NORM = _ATEN.linalg_vector_norm.default


@dataclass(frozen=True, slots=True)
class Operands:
    """Formats of fewer bits to which the operands of products are rounded, as those of TF32 are; the
    products are added up in the dtype of the tensors.

    `products` and `convolutions` are their bits of fraction. `truncates`: toward 0, as tensor cores read
    numbers of float32; else to the nearest, ties to even, as libraries convert them before.
    """

    products: int
    convolutions: int
    truncates: bool = False

    def bits_of(self, func: Any) -> int:
        """Return the bits of the factors of an operator, 0 for all bits of float32, and where it has none."""
        if func not in _FACTORS_OF:
            return 0
        bits = self.convolutions if func in _CONVOLUTIONS else self.products
        return bits if bits < FRACTION_BITS[FULL] else 0

    def rounded(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of an operator with its factors rounded."""
        count, bits = _FACTORS_OF[func], self.bits_of(func)
        factors = (_to_bits(each, bits, truncates=self.truncates) for each in args[:count])
        return (*factors, *args[count:])


def _to_bits(x: torch.Tensor, bits: int, *, truncates: bool) -> torch.Tensor:
    """Return a float64 or complex128 tensor with so many bits of fraction; NaN and infinity stay."""
    if x.is_complex():
        parts = _to_bits(torch.view_as_real(x.resolve_conj()), bits, truncates=truncates)
        return torch.view_as_complex(parts.contiguous())
    dropped = torch.finfo(x.dtype).bits - 12 - bits  # 52 bits of fraction
    words = x.detach().contiguous().view(torch.int64)
    if not truncates:
        # Half a unit, a little less where the last bit that stays is 0.
        words = words + ((1 << (dropped - 1)) - 1) + ((words >> dropped) & 1)
    rounded = (words & -(1 << dropped)).view(x.dtype)
    return torch.where(x.isfinite(), rounded, x)


@contextmanager
def rounded_arithmetic(
    dtype: str,
    operands: Operands | None = None,
    *,
    is_short: bool = False,
    narrows: bool = False,
    joins: bool = False,
    tiles: bool = False,
) -> Iterator["_RoundedArithmetic"]:
    """Round every step to `dtype` as long as the context is open, and the operands of products before.

    `is_short`: round to `SHORT_BITS` bits. `narrows`: Python's numbers are rounded to `dtype`, too. `joins`:
    operators that are compositions of others are one step, too. `tiles`: convolutions are computed by tiles.
    The tensors inside are float64, with values
    that `dtype` holds, or that `in_short_bits` has made. Gives the arithmetic, whose `met_products` says
    whether there was a product with such operands, and `met_tiles` whether there was such a convolution.

    Raises:
        NotCheckable: the installed torch has no part that sees every step.
    """
    if _DISPATCH_MODE is None:
        raise NotCheckable(f"torch {torch.__version__} lets nobody see the steps of a call")
    arithmetic = _RoundedArithmetic(dtype, operands, is_short, narrows, joins)
    arithmetic.tiles = tiles
    with sdpa_kernel(SDPBackend.MATH), arithmetic:
        yield arithmetic


def in_short_bits(values: Array) -> Array:
    """Return float64 or complex128 numbers rounded to `SHORT_BITS` bits."""
    found: Array = _to_bits(torch.tensor(values), SHORT_BITS - 1, truncates=False).numpy()
    return found


def _elsewhere(func: Any, args: tuple[Any, ...], share: float) -> tuple[Any, ...]:
    """Return the arguments of a resampling whose places are off by this share of themselves.

    Kernels of a GPU compute places in float32 (area_pixel_compute_source_index in
    aten/src/ATen/native/cuda/UpSample.cuh): at pixel 264 they are off by 3e-5 pixels (H200, torch 2.11).
    """
    at = _RESAMPLED[func]
    if args[at]:  # aligned corners: no scale can be given
        return args
    sizes = args[2][2:] if at == _BACKWARD_AT else args[0].shape[2:]
    given = [*args[at + 1 :], *[None] * len(args[1])]
    scales = [
        (scale or out / size) * (1.0 + share)
        for scale, out, size in zip(given, args[1], sizes, strict=False)
    ]
    return (*args[: at + 1], *scales)


class _RoundedArithmetic(_DISPATCH_MODE or object):  # type: ignore[misc]
    def __init__(
        self, dtype: str, operands: Operands | None, is_short: bool, narrows: bool, joins: bool
    ) -> None:
        super().__init__()
        self._narrows = narrows
        self._joins = joins
        self._operands = operands
        self._is_short = is_short
        self.met_products = self.met_tiles = self.tiles = False
        real, complex_ = _PARTS.get("complex64" if is_short else dtype, (dtype, "complex64"))
        self._narrow = {
            torch.float64: getattr(torch, real),
            torch.complex128: getattr(torch, complex_),
        }
        self._unit = unit_roundoff(real)
        self._noise = Noise()
        self._outer = ""  # the operator of `_WITHIN` that runs

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._narrows:
            args, kwargs = map_leaves((args, kwargs), self._narrowed)
        elif self._outer in _NARROW_NUMBERS:
            args, kwargs = map_leaves((args, kwargs), self._roughly)
        name = func.overloadpacket.__name__
        composed = name in _COMPOSED or (name in _OF_PRODUCTS and self._operands is not None)
        if composed and not self._joins and (func in KERNELS_STEPS or func in _DECOMPOSITIONS):
            return self._composed(func, args, kwargs)
        if func in _RESAMPLED:
            args = _elsewhere(func, args, 2.0 * min(self._unit, FLOAT32_UNIT))
        if func is _ATEN.pow.Tensor_Scalar and args[1] == _CUBE:
            with self:
                return args[0] * args[0] * args[0]
        if self._operands is not None and self._operands.bits_of(func):
            self.met_products = True
            return map_leaves(self._product(func, args, kwargs, self._operands), self._rounded)
        if func in _IN_PLACE and self._accumulates(_IN_PLACE[func], args, kwargs):
            return args[0].copy_(self._rounded(self._accumulated(_IN_PLACE[func], args, kwargs)))
        args = self._as_kernels_take(func, args)
        if func in _WITH_ALPHA and kwargs.get("alpha", 1) != 1:
            if self._joins:
                # The number has the dtype of the tensors in torch's kernels on the CPU.
                return self._rounded(func(*args, alpha=self._narrowed(kwargs["alpha"])))
            return self._with_multiple(func, args, kwargs["alpha"])
        if func is _ATEN.div.Tensor_mode and kwargs.get("rounding_mode") == "trunc":
            return self._rounded(self._rounded(args[0] / args[1]).trunc())
        if func is _ATEN.div.Tensor_mode and kwargs.get("rounding_mode") == "floor":
            return self._composed(_ATEN.floor_divide.default, args, {})
        if self._unit == FLOAT32_UNIT and not self._is_short and is_tiled(func, args):
            self.met_tiles = True
            if self.tiles:
                found = tiled(func, args, func(*args, **kwargs))
                return map_leaves(found, self._rounded)
        if self._accumulates(func, args, kwargs):
            return map_leaves(self._accumulated(func, args, kwargs), self._rounded)
        if func in _INTERPOLATIONS and args[3 if func in _INTERPOLATIONS_BACK else 2]:
            return self._rounded(func(*args) + _moved_places(func, args))
        result = func(*args, **kwargs)
        if func is _SVD and result[1].numel() and self._unit <= FLOAT32_UNIT:
            result = self._of_near_matrix(result, args, kwargs)
        if func in ERRORS:
            result = self._noise.added_to(result, ERRORS[func](args, result, self._unit))
        if func.is_view:
            return result
        if func._schema.is_mutable:
            return _in_place(result, self._rounded)
        return map_leaves(result, self._rounded)

    def _product(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: Operands
    ) -> Any:
        """Return a product of rounded operands, with the errors of accumulating it."""
        compute = self._accumulated if self._accumulates(func, args, kwargs) else _called
        found = compute(func, operands.rounded(func, args), kwargs)
        if func is not _ATEN.convolution_backward.default or found[2] is None:
            return found
        # The gradient of a bias is a sum, and no product.
        return (*found[:2], args[0].sum([d for d in range(args[0].dim()) if d != 1]))

    def _as_kernels_take(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments with the errors of what kernels compute of them first: exponents are rounded to
        the dtype, places beside the coordinates 1 and those of the last pixel."""
        if func in _POWERS and args[0].__class__ is not args[1].__class__:
            return tuple(map(self._narrowed, args))
        if func in _INTERPOLATIONS:
            return _at_rounded_places(args, behind=1 if func in _INTERPOLATIONS_BACK else 0)
        if func in _GRIDS and self._unit > FLOAT32_UNIT:
            # torch's kernels for half types on the CPU compute places in the half type.
            at = _GRIDS[func]
            places = (args[at].abs() + 1.0) * self._unit
            return (*args[:at], self._noise.added_to(args[at], places), *args[at + 1 :])
        return args

    def _with_multiple(self, func: Any, args: tuple[Any, ...], alpha: float) -> torch.Tensor:
        """Return a sum with a multiple that was rounded before, as torch's kernels for half types on the CPU
        add it; it may be far larger than the sum. Of both directions the one counts that is farther off,
        since a sum of one element may be right by luck."""
        own, multiple = args[0], args[1] * (alpha if func in _ADDS else -alpha)
        exact = own + multiple
        error = multiple.abs() * (1.01 * self._unit)
        up, down = self._rounded(exact + error), self._rounded(exact - error)
        found = torch.where((up - exact).abs() > (down - exact).abs(), up, down)
        return own.copy_(found) if func._schema.is_mutable else found

    def _of_near_matrix(
        self, exact: tuple[torch.Tensor, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, ...]:
        """Return the singular values and vectors of a matrix that is off by roundings of its norm, as LAPACK
        gives them (Users' Guide, 3rd ed., section 4.9); the vectors in the directions of the exact ones."""
        left, values, right = exact
        error = (_SVD_UNITS * self._unit) * values[..., :1, None].expand(args[0].shape)
        u, s, vh = _SVD(self._noise.added_to(args[0], error), *args[1:], **kwargs)
        if not u.numel():  # no vectors were asked for
            return u, s, vh
        count = s.shape[-1]
        turn = (u.conj() * left).sum(-2)[..., :count].sgn()
        left, right = left.clone(), right.clone()
        left[..., :count] = u[..., :count] * turn.unsqueeze(-2)
        right[..., :count, :] = vh[..., :count, :] * turn.conj().unsqueeze(-1)
        return left, s, right

    def _composed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, before = func.overloadpacket.__name__, self._outer
        if func is _ATEN.native_layer_norm_backward.default:
            error = args[3].abs() * min(self._unit, FLOAT32_UNIT)
            args = (args[0], self._noise.added_to(args[1], error), *args[2:])
        self._outer = name if name in _WITHIN else before
        try:
            with self:
                found: Any = (KERNELS_STEPS.get(func) or _DECOMPOSITIONS[func])(*args, **kwargs)
                return self._normed(found, args) if func is _LAYER_NORM else found
        finally:
            self._outer = before

    def _normed(self, found: tuple[torch.Tensor, ...], args: tuple[Any, ...]) -> Any:
        """Return the outputs of layer_norm of a kernel that multiplies before it subtracts."""
        out, mean, rstd = found
        error = (mean * rstd).abs() * min(self._unit, FLOAT32_UNIT)
        error = error if args[2] is None else error * args[2].abs()
        return self._noise.added_to(out, error), mean, rstd

    def _term_by_term(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        terms = self._made(TERM_BY_TERM[func](*args, **kwargs))
        if func is _ATEN._trilinear.default:
            summed, unrolled = args[6], args[7] if len(args) > 7 else 1
            if unrolled not in summed:
                return torch.stack(list(terms), unrolled - sum(d < unrolled for d in summed))
        added = total = squares = torch.zeros((), dtype=torch.float64)
        for term in terms:
            added, total = self._rounded(added + term), total + term
            squares = squares + total**2
        return self._at_least(added, total, squares)

    def _made(self, terms: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield terms that are made in this arithmetic."""
        while True:
            with self:
                term = next(terms, None)
            if term is None:
                return
            yield term

    def _accumulates(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether an operator is one whose kernels accumulate many terms, here with errors."""
        if not any(func in each for each in (_SUMS, ACCUMULATIONS, FACTORS, TERM_BY_TERM)):
            return False
        if func in _ADD_IF_TOLD and not (len(args) > 3 and args[3]):
            return False
        if func is _NORM and not (args[0].numel() and (len(args) < 2 or args[1] in (1, 2))):
            return False
        first = args[0] if args else None
        if not torch.is_tensor(first) or kwargs.get("dtype") is not None or _is_sparse(args):
            return False
        return self._narrow.get(first.dtype) in _IN_FLOAT32

    def _accumulated(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in ACCUMULATIONS:
            return ACCUMULATIONS[func].with_errors(func, args, kwargs, self._unit, self._noise)
        if func in TERM_BY_TERM:
            return self._term_by_term(func, args, kwargs)
        if func in FACTORS:
            return product_with_errors(func, args, kwargs, self._unit, self._noise)
        of_weights = self._outer in _NARROW_SUMS and not _is_of_rows(args)
        lanes = 1 if of_weights or self._outer in _PLAIN_SUMS else _LANES
        scale = self._scale(args[0])
        terms = args[0] if scale == 1.0 else args[0] / scale
        scale **= 2 if func is _VARIANCE else 1
        total = _SUMS[func](terms, *args[1:], **kwargs, lanes=lanes) * scale
        if self._unit <= FLOAT32_UNIT:
            exact_by_luck = total == func(*args, **kwargs)
            least = at_least_rounded(total, torch.zeros_like(total.abs()), self._unit)
            return self._noise.added_to(total, torch.where(exact_by_luck, least, 0.0))
        if of_weights:
            terms, _ = _terms(args[0], *args[1:2])
            return self._added_row_by_row(terms).reshape(total.shape)
        if self._outer not in _NARROW_CASCADES:
            return total
        squares = func(args[0] ** 2, *args[1:], **kwargs)
        count = args[0].numel() // max(total.numel(), 1)
        cascade = max(1, round(math.sqrt(count) / 2))
        deviation = accumulation_error(total, squares, count, self._unit, cascade)
        return self._noise.added_to(total, deviation)

    def _scale(self, terms: torch.Tensor) -> float:
        """Return the power of 2 by which the terms of a sum are divided, for float32 to hold them."""
        if not self._is_short or not terms.numel():
            return 1.0
        largest = float(terms.abs().max())
        return 2.0 ** math.frexp(largest)[1] if math.isfinite(largest) else 1.0

    def _added_row_by_row(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum of the rows of `(n, m)` in one accumulator of the dtype, `(m,)`."""
        added = torch.zeros_like(terms[0])
        for row in terms:
            added = self._rounded(added + row)
        return self._at_least(added, terms.sum(0), terms.cumsum(0).square_().sum(0))

    def _at_least(
        self, added: torch.Tensor, total: torch.Tensor, squares: torch.Tensor
    ) -> torch.Tensor:
        """Return a sum whose partial sums were rounded, with at least the error of random roundings;
        `squares` is the sum of the squares of the partial sums.

        Terms that are alike are rounded alike, so that no random error stands for theirs; an error that
        is small by luck is as large as random ones would be.
        """
        deviation, error = (squares * (self._unit**2 / 3)).sqrt(), added - total
        return total + torch.copysign(torch.maximum(error.abs(), deviation), error)

    def _narrowed(self, value: Any) -> Any:
        if torch.is_tensor(value) and value.dim() == 0:
            return self._rounded(value)
        if not isinstance(value, float):
            return value
        # Not by a kernel of torch's, which may be the faulty one.
        dtype = str(self._narrow[torch.float64]).removeprefix("torch.")
        return float(round_to_dtype(np.asarray(value), dtype))

    def _roughly(self, value: Any) -> Any:
        return value * (1.0 + self._unit / math.sqrt(3.0)) if isinstance(value, float) else value

    def _rounded(self, value: Any) -> Any:
        if not torch.is_tensor(value) or value.dtype not in self._narrow:
            return value
        if self._is_short:
            return _to_bits(value, SHORT_BITS - 1, truncates=False)
        return value.to(self._narrow[value.dtype]).to(value.dtype)


def _called(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _moved_places(func: Any, args: tuple[Any, ...]) -> torch.Tensor:
    """Return what an interpolation with aligned corners changes by where places are two roundings of float32
    off: the same interpolation at any place is that of a grid."""
    back = func in _INTERPOLATIONS_BACK
    x = torch.zeros(args[2], dtype=args[0].dtype) if back else args[0]
    grad = args[0]
    if x.dim() == 3:  # a row is an image
        x, grad = x.unsqueeze(2), grad.unsqueeze(2)
    extents = x.shape[2:]
    sizes = [1] * (len(extents) - len(args[1])) + list(args[1])
    mode, border = (2 if "bicubic" in func.overloadpacket.__name__ else 0), 1
    sampler = "grid_sampler_2d" if x.dim() == 4 else "grid_sampler_3d"

    def sampled(share: float) -> torch.Tensor:
        axes = [torch.linspace(0.0, 2.0, out, dtype=x.dtype) * share - 1.0 for out in sizes]
        axes = [
            axis if extent > 1 else 0 * axis for axis, extent in zip(axes, extents, strict=True)
        ]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], -1)
        grid = grid.expand(len(x), *grid.shape)
        if not back:
            return getattr(_ATEN, sampler)(x, grid, mode, border, True)  # type: ignore[no-any-return]
        backward = getattr(_ATEN, f"{sampler}_backward")
        return backward(grad, x, grid, mode, border, True, [True, False])[0]  # type: ignore[no-any-return]

    found = sampled(1.0 + 2.0 * FLOAT32_UNIT) - sampled(1.0)
    return found.reshape(args[2] if back else (*args[0].shape[:2], *args[1]))


def _at_rounded_places(args: tuple[Any, ...], behind: int) -> tuple[Any, ...]:
    """Return the arguments of an interpolation whose scales are two roundings of float32 off.

    Kernels round the scale, and its product with the place. With aligned corners an operator takes no scales.
    """
    at = 2 + behind  # align_corners
    if args[at]:
        return args
    given = (args[2] if behind else args[0].shape)[2:]
    scales = [*args[at + 1 :], *[None] * len(given)]
    asked = zip(scales, args[1], given, strict=False)
    moved = [(scale or out / size) * (1.0 + 2.0 * FLOAT32_UNIT) for scale, out, size in asked]
    return (*args[: at + 1], *moved)


def _is_sparse(args: tuple[Any, ...]) -> bool:
    return any(torch.is_tensor(each) and each.layout is not torch.strided for each in args)


def _in_place(result: Any, rounded: Callable[[Any], Any]) -> Any:
    if torch.is_tensor(result) and result.is_floating_point():
        result.copy_(rounded(result))
    return result


def _terms(x: torch.Tensor, dim: Any = None) -> tuple[torch.Tensor, list[int]]:
    """Return the terms of a sum, `(n, m)` for n terms of each of m results, and the shape of the results."""
    dims = sorted(d % max(x.dim(), 1) for d in _dims(dim, x.dim()))
    kept = [d for d in range(x.dim()) if d not in dims]
    shape = [x.shape[d] for d in kept]
    columns = int(np.prod(shape, dtype=np.int64))
    return x.detach().permute(*dims, *kept).reshape(-1, columns), shape


def _sum(
    x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, lanes: int = _LANES
) -> torch.Tensor:
    """Sum in float32, in lanes: of the orders that kernels take one with a large error."""
    if not x.dim() or not x.numel():
        return x.clone()
    if x.is_complex():
        parts = torch.view_as_real(x.resolve_conj()).unbind(-1)
        return torch.complex(*(_sum(each, dim, keepdim, lanes=lanes) for each in parts))
    terms, shape = _terms(x, dim)
    with np.errstate(all="ignore"):
        total = _sum_rows(terms.to(torch.float32).contiguous().numpy(), lanes)
    if keepdim:
        dims = {d % x.dim() for d in _dims(dim, x.dim())}
        shape = [1 if d in dims else x.shape[d] for d in range(x.dim())]
    return torch.from_numpy(np.asarray(total, np.float64)).reshape(shape)


def _sum_rows(terms: Array, most_lanes: int) -> Array:
    """Sum the rows of `(n, m)` one after the other, each lane by itself, then the lanes."""
    lanes = min(most_lanes, len(terms))
    whole = len(terms) // lanes * lanes
    # Along the first of several dimensions NumPy adds row after row; a single column it sums pairwise.
    by_lane = terms[:whole].reshape(whole // lanes, -1)
    is_column = by_lane.shape[1] == 1
    by_lane = by_lane.cumsum(0, dtype=terms.dtype)[-1] if is_column else np.add.reduce(by_lane)
    total = by_lane.reshape(lanes, -1).cumsum(0, dtype=terms.dtype)[-1]
    for row in terms[whole:]:
        total = total + row
    return np.asarray(total)


def _mean(
    x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, lanes: int = _LANES
) -> torch.Tensor:
    count = 1
    for d in _dims(dim, x.dim()):
        count *= x.shape[d] if x.dim() else 1
    return _sum(x, dim, keepdim, lanes=lanes) / count


def _variance(
    x: torch.Tensor, dim: Sequence[int] | None, correction: float = 1.0, *, lanes: int
) -> torch.Tensor:
    """Return the sum of the squares of the differences from the mean, over their number less `correction`."""
    terms, shape = _terms(x, dim)
    rest = terms - _mean(terms, 0, lanes=lanes)
    total = _sum(rest * rest, 0, lanes=lanes)
    return (total / max(len(terms) - correction, 0.0)).reshape(shape)


def _vector_norm(
    x: torch.Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, lanes: int
) -> torch.Tensor:
    """Return the root of the sum of squares, or the sum of the sizes, of numbers that are not empty.

    Small terms beside a large partial sum are lost, all in one direction. Torch's kernel on the CPU has lanes
    for squares along the last dimension alone (aten/src/ATen/native/cpu/ReduceOpsKernel.cpp).
    """
    sizes = x.abs()
    largest = float(sizes.max())
    scale = 2.0 ** math.frexp(largest)[1] if math.isfinite(largest) else 1.0
    is_last = x.dim() - 1 in {d % max(x.dim(), 1) for d in _dims(dim, x.dim())}
    lanes = lanes if ord == 2 and is_last else 1
    return _sum((sizes / scale) ** ord, dim, keepdim, lanes=lanes) ** (1.0 / ord) * scale


def _dims(dim: Any, count: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(count))
    return [dim] if isinstance(dim, int) else list(dim)


def _is_of_rows(args: tuple[Any, ...]) -> bool:
    """Return whether a sum runs along the last dimension, as those of one row's statistics do."""
    dims = _dims(args[1] if len(args) > 1 else None, args[0].dim())
    return args[0].dim() > 1 and args[0].dim() - 1 in {d % args[0].dim() for d in dims}


_SUMS: dict[Any, Callable[..., torch.Tensor]] = {
    _ATEN.sum.default: _sum,
    _ATEN.sum.dim_IntList: _sum,
    _ATEN.mean.default: _mean,
    _ATEN.mean.dim: _mean,
    _NORM: _vector_norm,
}
if _DECOMPOSITIONS:
    _SUMS |= {_VARIANCE: _variance, torch.ops.prims.sum.default: _sum}
