"""Operators with several right outputs: the bench takes the choice of the tested side.

Comes in: the name and the arguments of a call, the tested outputs and the bench's. Goes out: the
bench's outputs, with the choice of the tested side where that choice is right, too; unchanged where it
is wrong. Called by `check.judge` before outputs are compared. Pure NumPy: the choice is judged by the
inputs, which both sides have.

An index is right if it selects a value equal to the bench's. Eigenvectors, singular vectors and the
columns of Q are right up to a factor of modulus 1, which the outputs that belong to them share;
eigenvalues of `eig` are right in any order.

Lion moves a parameter by lr, in the direction of sign(beta1 m + (1 - beta1) g). Where the two terms nearly
cancel, an honest sum in the dtype of m and g has either sign, or is 0: each of these steps is right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ray_precheck.accuracy.steps import stepped_to
from ray_precheck.numerics.arrays import same_values
from ray_precheck.numerics.rounding import machine_epsilon
from ray_precheck.operators.ambiguous import (
    AMBIGUOUS,
    Basis,
    IndexChoice,
    SignOfSum,
    Stepped,
    ToWhole,
)
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

# A vector that turns into the other by a factor has an inner product near 1 with it.
_SAME_VECTOR = 0.9


_DIMENSION_KEYWORDS = ("dim", "axis")


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


# Each product is rounded once, and their sum once: 1.5 units in the last place of the larger product,
# and as much again for a kernel that rounds beta1 too.
_ROUNDINGS = 3.0


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
