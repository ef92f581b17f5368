"""Float64 arithmetic that rounds as a composed implementation in another dtype does.

Comes in: a dtype. Goes out: a context in which every elementary operator of torch, forward and
backward, rounds its float64 result to that dtype; fused operators are taken apart first, by torch's
own decompositions. Called by `check.bench`, which runs the bench inside of it: the results
are those of an honest implementation that rounds after each step, for every API. `autocast_steps` rounds as a
function does whose steps autocast sees on an accelerator (those of `operators.effects`).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ray_precheck import private_parts
from ray_precheck.bench.rounded_steps import (
    ERRORS,
    INTERPOLATIONS,
    KERNELS_STEPS,
    TERM_BY_TERM,
    at_rounded_places,
    has_aligned_corners,
    is_tiled,
    moved_places,
    tiled,
)
from ray_precheck.bench.rounded_sums import (
    ACCUMULATIONS,
    DECOMPOSITIONS,
    FACTORS,
    FLOAT32_UNIT,
    LANES,
    NORM,
    SUMS,
    VARIANCE,
    Noise,
    accumulation_error,
    at_least_rounded,
    is_of_rows,
    product_with_errors,
    terms_of,
)
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import map_leaves
from ray_precheck.numerics.arrays import round_to_dtype, unit_roundoff
from ray_precheck.operators.effects import IN_FLOAT32
from ray_precheck.schema.dtypes import FRACTION_BITS, FULL, Array

_ATEN = torch.ops.aten
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
# Kernels whose sums over rows (the gradients of weights) honest implementations make in the dtype of
# the tensors, also in half types, one row after the other. torch 2.13's layer_norm on the CPU is off by
# 15 to 18 roundings there for 4,096 rows; its group_norm sums in float32. Their errors are those of the
# very partial sums: behind a mean over the positions the rows of a sample are alike, and partial sums
# become far larger than the total in which they cancel.
_NARROW_SUMS = frozenset("native_layer_norm_backward _fused_rms_norm_backward".split())
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
# Its kernels compute x rstd - mean rstd, where x and the mean may be nearly equal.
_LAYER_NORM = _ATEN.native_layer_norm.default
# The softmax of torch's composed attention, which no other function calls.
_ATTENTION = _ATEN._safe_softmax.default if hasattr(_ATEN, "_safe_softmax") else None
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
    stores: bool = False,
) -> Iterator["_RoundedArithmetic"]:
    """Round every step to `dtype` as long as the context is open, and the operands of products before.

    `is_short`: round to `SHORT_BITS` bits. `narrows`: Python's numbers are rounded to `dtype`, too. `joins`:
    operators that are compositions of others are one step, too. `tiles`: convolutions are computed by tiles.
    `stores`: the weights of attention have the errors of a fused backward pass.
    The tensors inside are float64, with values
    that `dtype` holds, or that `in_short_bits` has made. Gives the arithmetic, whose `met_products` says
    whether there was a product with such operands, `met_tiles` whether there was such a convolution, and
    `met_attention` whether there were such weights.

    Raises:
        NotCheckable: the installed torch has no part that sees every step.
    """
    if _DISPATCH_MODE is None:
        raise NotCheckable(f"torch {torch.__version__} lets nobody see the steps of a call")
    arithmetic = _RoundedArithmetic(dtype, operands, is_short, narrows, joins)
    arithmetic.tiles, arithmetic.stores = tiles, stores
    with sdpa_kernel(SDPBackend.MATH), arithmetic:
        yield arithmetic


def in_short_bits(values: Array) -> Array:
    """Return float64 or complex128 numbers rounded to `SHORT_BITS` bits."""
    found: Array = _to_bits(torch.tensor(values), SHORT_BITS - 1, truncates=False).numpy()
    return found


class _Steps(_DISPATCH_MODE or object):  # type: ignore[misc]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing here is compiled, and torch would import its compiler at the first step to
        keep it away, which takes 0.6 s in each process."""
        return False


class _RoundedArithmetic(_Steps):
    def __init__(
        self, dtype: str, operands: Operands | None, is_short: bool, narrows: bool, joins: bool
    ) -> None:
        super().__init__()
        self._narrows = narrows
        self._joins = joins
        self._operands = operands
        self._is_short = is_short
        self.met_products = self.met_tiles = self.met_attention = False
        self.tiles = self.stores = False
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
        if composed and not self._joins and (func in KERNELS_STEPS or func in DECOMPOSITIONS):
            return self._composed(func, args, kwargs)
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
        if func in INTERPOLATIONS and has_aligned_corners(func, args):
            return self._rounded(func(*args) + moved_places(func, args))
        result = func(*args, **kwargs)
        if func is _SVD and result[1].numel() and self._unit <= FLOAT32_UNIT:
            result = self._of_near_matrix(result, args, kwargs)
        if func is _ATTENTION:
            self.met_attention = True
            if self.stores:
                result = self._from_stored_sums(result, *args[:2])
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
        rounded = operands.rounded(func, args)
        is_sum = self._accumulates(func, args, kwargs)
        found = self._accumulated(func, rounded, kwargs) if is_sum else func(*rounded, **kwargs)
        if func is not _ATEN.convolution_backward.default or found[2] is None:
            return found
        # The gradient of a bias is a sum, and no product.
        return (*found[:2], args[0].sum([d for d in range(args[0].dim()) if d != 1]))

    def _from_stored_sums(
        self, weights: torch.Tensor, scores: torch.Tensor, dim: int
    ) -> torch.Tensor:
        """Return the weights of attention as a fused backward pass makes them anew, exp(score - log-sum-exp),
        of log-sum-exps that the forward pass has stored in float32: the rounding of these is a relative
        error."""
        sums = scores.logsumexp(dim, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
        ones = torch.ones_like(sums)
        return weights * self._noise.added_to(ones, sums.abs() * min(self._unit, FLOAT32_UNIT))

    def _as_kernels_take(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments with the errors of what kernels compute of them first: exponents are rounded to
        the dtype, places beside the coordinates 1 and those of the last pixel."""
        if func in _POWERS and args[0].__class__ is not args[1].__class__:
            return tuple(map(self._narrowed, args))
        if func in INTERPOLATIONS:
            return at_rounded_places(func, args, min(self._unit, FLOAT32_UNIT))
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
                found: Any = (KERNELS_STEPS.get(func) or DECOMPOSITIONS[func])(*args, **kwargs)
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
        if not any(func in each for each in (SUMS, ACCUMULATIONS, FACTORS, TERM_BY_TERM)):
            return False
        if func in _ADD_IF_TOLD and not (len(args) > 3 and args[3]):
            return False
        if func is NORM and not (args[0].numel() and (len(args) < 2 or args[1] in (1, 2))):
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
        of_weights = self._outer in _NARROW_SUMS and not is_of_rows(args)
        lanes = 1 if of_weights or self._outer in _PLAIN_SUMS else LANES
        scale = self._scale(args[0])
        terms = args[0] if scale == 1.0 else args[0] / scale
        scale **= 2 if func is VARIANCE else 1
        total = SUMS[func](terms, *args[1:], **kwargs, lanes=lanes) * scale
        if self._unit <= FLOAT32_UNIT:
            exact_by_luck = total == func(*args, **kwargs)
            least = at_least_rounded(total, torch.zeros_like(total.abs()), self._unit)
            return self._noise.added_to(total, torch.where(exact_by_luck, least, 0.0))
        if of_weights:
            terms, _ = terms_of(args[0], *args[1:2])
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


def _is_sparse(args: tuple[Any, ...]) -> bool:
    return any(torch.is_tensor(each) and each.layout is not torch.strided for each in args)


def _in_place(result: Any, rounded: Callable[[Any], Any]) -> Any:
    if torch.is_tensor(result) and result.is_floating_point():
        result.copy_(rounded(result))
    return result


@contextmanager
def autocast_steps(dtype: str) -> Iterator[None]:
    """Round the steps of a function of half tensors as autocast on an accelerator does: to `dtype`, but for
    the operators that it has in float32 and what is made of their results.

    Raises:
        NotCheckable: see `rounded_arithmetic`.
    """
    if _DISPATCH_MODE is None:
        raise NotCheckable(f"torch {torch.__version__} lets nobody see the steps of a call")
    with _AutocastSteps(dtype):
        yield


class _AutocastSteps(_Steps):
    def __init__(self, dtype: str) -> None:
        super().__init__()
        self._dtype = getattr(torch, dtype)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given: list[Any] = []
        map_leaves(args, given.append)
        is_wide = func.overloadpacket.__name__ in IN_FLOAT32 or any(
            hasattr(each, "in_float32") for each in given
        )
        result = func(*args, **(kwargs or {}))

        def stepped(value: Any) -> Any:
            if not torch.is_tensor(value) or value.dtype is not torch.float64:
                return value
            if is_wide:
                value.in_float32 = True  # type: ignore[attr-defined]
            elif not func.is_view:
                return value.to(self._dtype).to(value.dtype)
            return value

        return map_leaves(result, stepped)
