"""Outputs with one right value, and outputs with several, of which the bench takes the tested side's choice.

Comes in: the name and the arguments of a call, the tested outputs and the bench's. Goes out: whether an
output has one right value, and which elements have it (`auto` asks, too); the bench's outputs, with the
choice of the tested side where that choice is right, too, unchanged where it is wrong. Called by
`check.judge` before outputs are compared. Pure NumPy: the choice is judged by the inputs, which both sides
have.

An index is right if it selects a value equal to the bench's. Eigenvectors, singular vectors and the
columns of Q are right up to a factor of modulus 1, which the outputs that belong to them share;
eigenvalues of `eig` are right in any order.

Lion moves a parameter by lr, in the direction of sign(beta1 m + (1 - beta1) g). Where the two terms nearly
cancel, an honest sum in the dtype of m and g has either sign, or is 0: each of these steps is right.

A number within a few roundings of float32 of the middle between two steps of a quantizer may go to either.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.accuracy.metrics import rounded_bench
from ray_precheck.frameworks.base import map_leaves, tensors_of
from ray_precheck.numerics.arrays import (
    machine_epsilon,
    round_to_dtype,
    same_values,
    smallest_normal,
)
from ray_precheck.operators.exact import (
    AMBIGUOUS,
    Basis,
    Exactness,
    IndexChoice,
    SignOfSum,
    Stepped,
    ToWhole,
)
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor, Quantized

# 16 roundings of float32, of numbers of at least 1.
_NEAR = 2.0**-20
# A choice is the next step if it is that far to this share of it.
_SAME_STEP = 1e-3
# A vector that turns into the other by a factor has an inner product near 1 with it.
_SAME_VECTOR = 0.9
_DIMENSION_KEYWORDS = ("dim", "axis")
# Each product is rounded once, and their sum once: 1.5 units in the last place of the larger product,
# and as much again for a kernel that rounds beta1 too.
_ROUNDINGS = 3.0
# Kernels may flush what is smaller than the normal numbers of float32 to 0, in formats with its exponents.
_FLUSHED = smallest_normal("float32")


def is_exact(known: Exactness | None, call: HostCall, place: int, dtype: str) -> bool:
    """Return whether the output at `place`, of a dtype, is an exact function of the arguments of a call, by
    what is known of the operator."""
    if known is None or (known.outputs is not None and place >= known.outputs):
        return False
    if _computes(known, call):
        return False
    if DTYPES[dtype].kind in ("float", "complex"):
        has_complex = any(DTYPES[each.dtype].kind == "complex" for each in tensors_of(call))
        return known.floats and (known.of_complex or not has_complex)
    return not known.compares or _compares_as_given(call)


def exact_elements(device_out: Array, bench_out: Array, dtype: str) -> Array:
    """Return flags, bool `(N,)`, of the elements that are the bench, rounded once to the dtype; NaN equals
    NaN, and 0 equals -0. Both arrays have one shape.

    A cast of float64 to a half type may go by way of float32 (c10::Half and c10::BFloat16 are made of
    floats), which rounds twice: where it is within a half of float32's unit of a tie.
    """
    out, bench = device_out.reshape(-1), bench_out.reshape(-1)
    once = rounded_bench(bench, dtype)
    same = same_values(out, once)
    info = DTYPES[dtype]
    if info.kind != "float" or info.mantissa_bits >= DTYPES["float64"].mantissa_bits:
        return np.asarray(same)
    if info.mantissa_bits < DTYPES["float32"].mantissa_bits:
        by_float32 = round_to_dtype(bench.astype(np.float64), "float32").astype(np.float64)
        same |= out == round_to_dtype(by_float32, dtype)
    if info.min_exponent == DTYPES["float32"].min_exponent:
        same |= (out == 0) & (np.abs(bench) < _FLUSHED)
    return np.asarray(same)


def _computes(known: Exactness, call: HostCall) -> bool:
    """Return whether a call has an argument with which its operator computes."""
    for name, position in known.unless:
        value = call.kwargs.get(name)
        if value is None and position is not None and position < len(call.args):
            value = call.args[position]
        if value is not None and value is not False and not (isinstance(value, int) and not value):
            return True
    return False


def _compares_as_given(call: HostCall) -> bool:
    """Return whether no number changes in the dtype in which floats are compared with it.

    A Python number, a tensor without dimensions, and whole numbers take the dtype of the other side's floats
    first (torch's type promotion): what is decided then, the bench decides with more digits.
    """
    floats = [each for each in tensors_of(call) if DTYPES[each.dtype].kind == "float"]
    sized = [each for each in floats if each.shape] or floats
    if not sized:
        return True
    widest = max((each.dtype for each in sized), key=lambda dtype: DTYPES[dtype].mantissa_bits)
    values: list[Any] = []
    map_leaves(
        (call.args, call.kwargs),
        lambda leaf: values.append(leaf) if isinstance(leaf, int | float) else None,
    )
    values += [each.data for each in tensors_of(call) if each.dtype != widest]
    with np.errstate(over="ignore", invalid="ignore"):
        return all(
            np.array_equal(round_to_dtype(wide, widest), wide, equal_nan=True)
            for wide in (np.asarray(value, np.float64) for value in values)
        )


def chosen_like(
    name: ApiName,
    call: HostCall,
    tested: Sequence[Any],
    bench: Sequence[Any],
    framework: str = "",
) -> list[Any]:
    """Return the bench's outputs, with the tested side's choices where they are as right.

    Outputs are the flattened leaves of both sides. Outputs that cannot be aligned are returned as
    they are: other shapes, other numbers of outputs, operators that choose nothing.
    """
    ambiguity = AMBIGUOUS.of(name.type_name, framework)
    if ambiguity is None or not _alike(tested, bench):
        return list(bench)
    if isinstance(ambiguity, IndexChoice):
        return _selected_like(ambiguity, call, tested, bench)
    if isinstance(ambiguity, Stepped):
        return [stepped_to(ambiguity, call, tested[0], bench[0]), *bench[1:]]
    if isinstance(ambiguity, ToWhole):
        return _undefined_like(ambiguity, call, tested, bench)
    if isinstance(ambiguity, SignOfSum):
        return stepped_like(call, tested, bench)
    if _has_matrices(ambiguity, bench):
        return _turned_like(ambiguity, tested, bench)
    return list(bench)


def _alike(tested: Sequence[Any], bench: Sequence[Any]) -> bool:
    """Return whether all outputs are tensors of the same shapes."""
    pairs = list(zip(tested, bench, strict=False))
    return len(tested) == len(bench) and all(
        isinstance(t, HostTensor) and isinstance(b, HostTensor) and t.shape == b.shape
        for t, b in pairs
    )


def _selected_like(
    selection: IndexChoice,
    call: HostCall,
    tested: Sequence[HostTensor],
    bench: Sequence[HostTensor],
) -> list[Any]:
    source = next(iter([*call.args, *call.kwargs.values()]), None)
    holds_indices = len(tested) == selection.outputs and DTYPES[tested[-1].dtype].kind == "int"
    if not isinstance(source, HostTensor) or not holds_indices:
        return list(bench)
    if call.kwargs.get("stable") is True:  # Ties have one right order then.
        return list(bench)
    # Of values and indices the indices come last.
    dimension = _dimension(selection, call)
    chosen = _equal_choices(
        source.data, tested[-1].data, bench[-1].data, dimension, selection.ordered
    )
    return [*bench[:-1], replace(bench[-1], data=chosen)]


def _undefined_like(
    cast: ToWhole, call: HostCall, tested: Sequence[HostTensor], bench: Sequence[HostTensor]
) -> list[Any]:
    """Return the bench with the tested side's integers for floats that the integers do not hold."""
    found: list[Any] = list(bench)
    source = call.args[cast.source] if cast.source < len(call.args) else None
    if len(found) != 1 or not isinstance(source, HostTensor) or source.shape != bench[0].shape:
        return found
    if DTYPES[source.dtype].kind != "float" or DTYPES[tested[0].dtype].kind not in ("int", "uint"):
        return found
    limits, values = np.iinfo(DTYPES[tested[0].dtype].carrier), source.data.astype(np.float64)
    held = (values > limits.min - 1.0) & (values < limits.max + 1.0)
    if limits.bits == 64:  # whose limits less one are no float64
        held |= values == limits.min
    if not held.all():
        found[0] = replace(bench[0], data=np.where(held, bench[0].data, tested[0].data))
    return found


def _dimension(selection: IndexChoice, call: HostCall) -> int | None:
    given = next((call.kwargs[key] for key in _DIMENSION_KEYWORDS if key in call.kwargs), None)
    if given is None and selection.position < len(call.args):
        given = call.args[selection.position]
    return given if isinstance(given, int) and not isinstance(given, bool) else selection.default


def _equal_choices(
    source: Array, tested: Array, bench: Array, dimension: int | None, ordered: bool
) -> Array:
    """Return the tested index where it selects the value that the bench's selects, else the bench's."""
    if dimension is None or source.ndim == 0:
        source, dimension = source.reshape(-1), 0
        mine, other = tested.reshape(-1), bench.reshape(-1)
    else:
        if not -source.ndim <= dimension < source.ndim:
            return bench
        mine, other = (_with_dimension(i, source.ndim, dimension) for i in (tested, bench))
    if not _select_along(source, mine, other, dimension):
        return bench
    size = source.shape[dimension]
    inside = (mine >= 0) & (mine < size)
    if ordered and not _is_distinct(mine, dimension):
        return bench
    with np.errstate(invalid="ignore"):
        taken = np.take_along_axis(source, np.where(inside, mine, 0).astype(np.int64), dimension)
        wanted = np.take_along_axis(source, other.astype(np.int64), dimension)
        same = inside & same_values(taken, wanted)
    return np.where(same.reshape(tested.shape), tested, bench)


def _select_along(source: Array, mine: Array, other: Array, dimension: int) -> bool:
    """Return whether indices are those of elements along a dimension, all other extents being equal:
    an API with a meaning of its own for a missing dimension may give others."""
    without = [
        (part.ndim, np.delete(part.shape, dimension).tolist())
        for part in (source, mine, other)
        if part.ndim == source.ndim
    ]
    return len(without) == 3 and without[0] == without[1] == without[2]


def _with_dimension(index: Array, ndim: int, dimension: int) -> Array:
    """Return indices with the dimension that a reduction took away."""
    return index if index.ndim == ndim else np.expand_dims(index, dimension)


def _is_distinct(index: Array, dimension: int) -> bool:
    """Return whether no index comes twice along a dimension."""
    ordered = np.sort(index, axis=dimension)
    return not bool((np.diff(ordered, axis=dimension) == 0).any())


def _has_matrices(basis: Basis, bench: Sequence[HostTensor]) -> bool:
    """Return whether the outputs that hold vectors are matrices."""
    places = [basis.vectors, basis.rows, basis.columns]
    return all(bench[i].data.ndim > 1 for i in places if i is not None and 0 <= i < len(bench))


def _turned_like(
    basis: Basis, tested: Sequence[HostTensor], bench: Sequence[HostTensor]
) -> list[Any]:
    parts = [leaf.data for leaf in bench]
    has_vectors = 0 <= basis.vectors < len(parts)
    if basis.values is not None:
        order = _order_like(tested[basis.values].data, parts[basis.values])
        parts[basis.values] = np.take_along_axis(parts[basis.values], order, -1)
        if has_vectors:
            columns = np.expand_dims(order, -2)
            parts[basis.vectors] = np.take_along_axis(parts[basis.vectors], columns, -1)
    if has_vectors:
        factor = _factors(tested[basis.vectors].data, parts[basis.vectors])
        parts[basis.vectors] = parts[basis.vectors] * factor
        if basis.rows is not None and basis.rows < len(parts):
            parts[basis.rows] = _turned_back(parts[basis.rows], factor)
        if basis.columns is not None and basis.columns < len(parts):
            turned = _turned_back(np.swapaxes(parts[basis.columns], -1, -2), factor.conj())
            parts[basis.columns] = np.swapaxes(turned, -1, -2)
    return [replace(leaf, data=data) for leaf, data in zip(bench, parts, strict=True)]


def _order_like(tested: Array, bench: Array) -> Array:
    """Return, for each tested value in turn, the place of the nearest bench value not taken yet."""
    if not bench.size:
        return np.zeros(bench.shape, np.int64)
    rows_tested, rows_bench = (
        tested.reshape(-1, tested.shape[-1]),
        bench.reshape(-1, bench.shape[-1]),
    )
    order = np.empty(rows_bench.shape, np.int64)
    for row, (mine, other) in enumerate(zip(rows_tested, rows_bench, strict=True)):
        distance = np.abs(mine[:, None] - other[None, :]).astype(np.float64)
        for place in range(len(mine)):
            distance_here = np.nan_to_num(distance[place], nan=np.inf)
            order[row, place] = nearest = int(np.argmin(distance_here))
            distance[:, nearest] = np.inf
    return order.reshape(bench.shape)


def _factors(tested: Array, bench: Array) -> Array:
    """Return for each column the factor of modulus 1 that turns the bench's into the tested one, as
    `(..., 1, columns)`; 1 where no factor does.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        inner = (bench.conj() * tested).sum(-2, keepdims=True)
        norms = np.linalg.norm(bench, axis=-2, keepdims=True) * np.linalg.norm(
            tested.astype(inner.dtype), axis=-2, keepdims=True
        )
        turns = np.abs(inner) > _SAME_VECTOR * norms
        return np.asarray(np.where(turns, inner / np.where(turns, np.abs(inner), 1), 1))


def _turned_back(rows: Array, factor: Array) -> Array:
    """Return rows times the conjugate factors of their columns; rows beyond these stay."""
    back = np.ones((*rows.shape[:-1], 1), np.result_type(rows, factor))
    count = min(rows.shape[-2], factor.shape[-1])
    back[..., :count, :] = np.swapaxes(factor, -1, -2)[..., :count, :].conj()
    return np.asarray(rows * back)


def stepped_like(
    call: HostCall, tested: Sequence[HostTensor], bench: Sequence[HostTensor]
) -> list[Any]:
    """Return the bench's outputs with the tested side's steps where the sign is undecided."""
    found: list[Any] = list(bench)
    start = 0
    for group in call.args:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), list):
            return list(bench)
        for place, (undecided, sign) in enumerate(_sums(group)):
            position = start + place
            if position >= len(found) or found[position].shape != undecided.shape:
                return list(bench)
            mine, lr = tested[position].data, _plain(group.get("lr"))
            chosen = _nearest(mine, found[position].data, undecided, sign, lr)
            found[position] = replace(found[position], data=chosen)
        start += 2 * len(group["params"])  # the parameters, then their momenta
    return found


def _sums(group: Mapping[str, Any]) -> Iterator[tuple[Array, Array]]:
    """Yield, for each parameter, where rounding decides the sign of the sum, and the exact sign."""
    betas, grads = group.get("betas"), group.get("grads")
    momenta = (group.get("state") or {}).get("exp_avg") or [None] * len(group["params"])
    if not isinstance(betas, list | tuple) or not isinstance(grads, list):
        return
    beta1 = _plain(betas[0])
    for grad, momentum in zip(grads, momenta, strict=False):
        kept = np.zeros(grad.shape) if momentum is None else momentum.data.astype(np.float64)
        terms = (kept * beta1, grad.data.astype(np.float64) * (1.0 - beta1))
        if group.get("maximize"):
            terms = (terms[0], -terms[1])
        total = terms[0] + terms[1]
        used = [each for each in (grad, momentum) if each is not None]
        unit = max(machine_epsilon(each.dtype) for each in used)
        near = np.abs(total) < _ROUNDINGS * unit * np.maximum(*np.abs(terms))
        yield np.asarray(near & (momentum is not None)), np.sign(total)


def _nearest(tested: Array, bench: Array, undecided: Array, sign: Array, lr: float) -> Array:
    """Return the bench's values, where undecided the nearest to the tested of the three steps."""
    wide = np.nan_to_num(tested.astype(np.float64))
    before = bench + lr * sign
    candidates = np.stack([before - lr, before, before + lr])
    nearest = np.abs(candidates - wide).argmin(axis=0)
    chosen = np.take_along_axis(candidates, nearest[None], axis=0)[0]
    return np.asarray(np.where(undecided & np.isfinite(bench), chosen, bench))


def _plain(value: Any) -> float:
    """Return a hyperparameter, which may be a tensor of one element."""
    if isinstance(value, HostTensor):
        return float(value.data.reshape(-1)[0])
    return float(value)


def quantized_like(tested: HostTensor, bench: HostTensor) -> HostTensor:
    """Return the whole numbers of a quantized bench: the tested ones where the bench lies half a step off."""
    storage = bench.storage
    if not isinstance(storage, Quantized) or bench.data.dtype.kind != "f":
        return bench
    whole = np.rint(bench.data)
    if tested.shape == bench.shape and tested.data.dtype.kind in "iu":
        shift = np.abs(storage.along(bench.data.ndim)[1])
        near = 0.5 + storage.slack + _NEAR * np.maximum(np.abs(bench.data) + shift, 1.0)
        whole = np.where(np.abs(bench.data - tested.data) <= near, tested.data, whole)
    return replace(bench, data=whole.astype(bench.dtype))


class Observed(NamedTuple):
    """The extremes that a fused observer follows, and the steps that it chooses for them."""

    lowest: Array
    highest: Array
    scale: Array
    zero_point: Array


def observed(
    x: Array,
    before: tuple[Array, Array],
    weight: float,
    ends: tuple[int, int],
    axis: int | None,
    is_symmetric: bool,
) -> Observed:
    """Return what `fused_moving_avg_obs_fake_quant` makes of new values, along an axis or of all.

    As torch's ChooseQuantizationParams (aten/src/ATen/native/quantized/cpu/QuantUtils.h): the range has 0 in
    it, a symmetric one in the middle. The smallest scales, which torch widens, are not.
    """
    rest = None if axis is None else tuple(at for at in range(x.ndim) if at != axis % x.ndim)
    new = (x.min(axis=rest).reshape(-1), x.max(axis=rest).reshape(-1))
    followed = []
    for old, now in zip(before, new, strict=True):
        known = np.resize(old, now.shape).astype(np.float64)
        with np.errstate(invalid="ignore"):
            followed.append(np.where(np.isinf(known), now, known + weight * (now - known)))
    (low, high), (first, last) = followed, ends
    straddles = (low < 0) & (high > 0) & is_symmetric
    half = (last - first) // 2
    reach = np.maximum(np.abs(low / -(half + 1)), np.abs(high / half))
    low = np.minimum(np.where(straddles, -reach * (half + 1), low), 0.0)
    high = np.maximum(np.where(straddles, reach * half, high), 0.0)
    scale = (high - low) / (last - first)
    scale = np.where(scale == 0, 0.1, scale)
    from_low, from_high = first - low / scale, last - high / scale
    nearer = abs(first) + np.abs(low / scale) < abs(last) + np.abs(high / scale)
    zero = np.where(straddles, (first + last) / 2, np.where(nearer, from_low, from_high))
    zero = np.clip(np.rint(zero), first, last)
    return Observed(followed[0], followed[1], scale, zero)


def stepped_to(
    rounding: Stepped, call: HostCall, tested: HostTensor, bench: HostTensor
) -> HostTensor:
    """Return the bench's output of a call, one step on where the input lies in the middle of two."""
    if len(call.args) < 2 or not isinstance(call.args[0], HostTensor):
        return bench
    x: Array = call.args[0].data.astype(np.float64)
    scale = call.args[1].data if isinstance(call.args[1], HostTensor) else np.asarray(call.args[1])
    if rounding.observes:
        scale = _observed_scale(x, call)
    scale = scale.astype(np.float64)
    if rounding.axis is not None and scale.size > 1:
        axis = call.args[rounding.axis] if rounding.axis < len(call.args) else None
        if type(axis) is not int or scale.ndim != 1:
            return bench
        scale = scale.reshape([-1 if at == axis % x.ndim else 1 for at in range(x.ndim)])
    if x.shape != bench.shape or (scale.ndim != x.ndim and scale.size != 1):
        return bench
    with np.errstate(invalid="ignore", divide="ignore"):
        steps = x / scale
        middle = np.abs(np.abs(steps - np.floor(steps)) - 0.5)
        near = middle <= _NEAR * np.maximum(np.abs(steps), 1.0)
        moved = tested.data.astype(np.float64) - bench.data
        next_one = np.abs(np.abs(moved) - np.abs(scale)) <= _SAME_STEP * np.abs(scale)
        other = bench.data + np.copysign(np.abs(scale), moved)
    return replace(bench, data=np.where(near & next_one, other, bench.data))


def _observed_scale(x: Array, call: HostCall) -> Array:
    """Return the scale that `fused_moving_avg_obs_fake_quant` rounds with: a new one, or the given one."""
    tensors = [each.data for each in call.args[1:7] if isinstance(each, HostTensor)]
    if len(tensors) != 6 or len(call.args) < 11:
        return np.zeros(0)
    observes, _, lowest, highest, scale, _ = tensors
    if not observes.any():
        return scale
    weight, first, last, axis, *rest = call.args[7:]
    per_row, is_symmetric = [*rest, False, False][:2]
    ends = (first, last)
    return observed(
        x, (lowest, highest), weight, ends, axis if per_row else None, is_symmetric
    ).scale
