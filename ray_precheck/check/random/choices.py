"""The rules of calls that choose categories or an order: multinomial, gumbel_softmax, shuffle.

Comes in: a `RandomCall`. Goes out: `StatisticalTest`s. Called through the table of `check.random.rules`.
"""

import numpy as np

from ray_precheck.accuracy.random.discrete import categories, permutation
from ray_precheck.accuracy.random.statistics import StatisticalTest, fact, grain_of, sampled
from ray_precheck.check.random.arguments import RandomCall
from ray_precheck.errors import NotCheckable
from ray_precheck.numerics.rounding import machine_epsilon
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import HostTensor


def multinomial(call: RandomCall) -> list[StatisticalTest]:
    """Categories drawn by weights, `(K)` or `(N, K)`, with or without replacement."""
    weights = call.tensor("input")
    return _chosen(call, weights.data.astype(np.float64), weights, call.flag("replacement"))


def random_categorical(call: RandomCall) -> list[StatisticalTest]:
    """Categories drawn by the softmax of logits, with replacement."""
    logits = call.tensor("logits")
    return _chosen(call, _softmax(logits.data.astype(np.float64), -1), logits, True)


def _chosen(
    call: RandomCall, weights: Array, given: HostTensor, replacement: bool
) -> list[StatisticalTest]:
    out = call.out.data.astype(np.int64)
    count = weights.shape[-1]
    rows, chosen = weights.reshape(-1, count), out.reshape(-1, out.shape[-1] if out.ndim else 1)
    if len(rows) != len(chosen):
        raise NotCheckable(
            f"its output of shape {list(out.shape)} is not one row for each of weights"
        )
    outside = (chosen < 0) | (chosen >= count)
    tests = [fact(f"are outside of 0 to {count - 1}", outside)]
    if outside.any():
        return tests
    if not replacement:
        ordered = np.sort(chosen, -1)
        twice = ordered[:, 1:] == ordered[:, :-1]
        tests.append(fact("are drawn twice without replacement", twice))
        # The first draw is distributed as the weights are; later draws are not.
        without = np.take_along_axis(rows, chosen, -1) <= 0
        tests.append(fact("are categories without a weight", without))
        chosen = chosen[:, :1]
    return [*tests, *_by_weight(rows, chosen, given.dtype, call)]


def _by_weight(rows: Array, chosen: Array, dtype: str, call: RandomCall) -> list[StatisticalTest]:
    total = rows.sum(-1, keepdims=True)
    upto = np.cumsum(rows / total, -1)
    below = np.concatenate([np.zeros_like(upto[:, :1]), upto[:, :-1]], -1)
    place = sampled(chosen.size)
    lowest, highest = (
        np.take_along_axis(bound, chosen, -1).reshape(-1)[place] for bound in (below, upto)
    )
    grain = grain_of(dtype)
    return categories(chosen.reshape(-1)[place], lowest, highest, grain, call.spread)


def _softmax(logits: Array, dim: int) -> Array:
    weights = np.exp(logits - np.max(logits, dim, keepdims=True))
    return np.asarray(weights / weights.sum(dim, keepdims=True))


def gumbel_softmax(call: RandomCall) -> list[StatisticalTest]:
    """Rows that sum to 1, the largest element of each drawn by the softmax of the logits."""
    logits, out = call.tensor("logits"), call.out
    dim = int(call.number("dim"))
    found = np.moveaxis(out.data.astype(np.float64), dim, -1)
    count = found.shape[-1]
    unit = machine_epsilon(out.dtype)
    off = np.abs(found.sum(-1) - 1.0) > (count + 2) * unit
    tests = [
        fact("are negative or no numbers", ~(found >= -unit)),
        fact("do not sum to 1", off, "each row sums to 1", "rows"),
    ]
    if call.flag("hard"):
        partly = (np.abs(found) > 2 * unit) & (np.abs(found - 1.0) > 2 * unit)
        tests.append(fact("are neither 0 nor 1", partly, "all are 0 or 1"))
    weights = np.moveaxis(_softmax(logits.data.astype(np.float64), dim), dim, -1)
    chosen = np.argmax(found, -1).reshape(-1, 1)
    return [*tests, *_by_weight(weights.reshape(-1, count), chosen, out.dtype, call)]


def gumbel_gradient(
    call: RandomCall, incoming: HostTensor | None, grad: HostTensor
) -> list[StatisticalTest]:
    """Test the gradient of soft samples, which is the gradient of softmax at the samples."""
    if call.flag("hard"):
        raise NotCheckable(
            "backward: the gradient of hard samples depends on draws that the samples do not show"
        )
    out, dim = call.out, int(call.number("dim"))
    y = out.data.astype(np.float64)
    arrived = np.zeros(y.shape) if incoming is None else incoming.data.astype(np.float64)
    through = y * (arrived - (y * arrived).sum(dim, keepdims=True)) / call.number("tau")
    largest = np.abs(arrived).max(initial=0.0) / call.number("tau")
    blur = 8 * y.shape[dim] * machine_epsilon(out.dtype) * largest
    wrong = ~(np.abs(grad.data.astype(np.float64) - through) <= blur)
    what = "the gradient of a softmax with this output"
    return [fact(f"are not {what}", wrong, f"it is {what}")]


def shuffle(call: RandomCall) -> list[StatisticalTest]:
    """The same rows in another order."""
    given, found = call.tensor("x").data, call.out.data
    if given.shape != found.shape:
        raise NotCheckable("its output has not the shape of its input")
    # Equal rows get the same number, so that two lists of numbers are compared instead of rows.
    rows = np.concatenate([given, found]).reshape(2 * len(given), -1)
    codes = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    before, after = codes[: len(given)], codes[len(given) :]
    tests = [
        fact(
            "are missing or there twice",
            np.sort(before) != np.sort(after),
            "all rows are there",
            "rows",
        )
    ]
    if len(np.unique(before)) == len(before) and np.array_equal(np.sort(before), np.sort(after)):
        position = np.empty(len(before))
        position[before] = np.arange(len(before))
        tests += permutation(position[after])
    return tests
