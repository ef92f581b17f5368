"""The rules of random APIs: the table of them, and how the draws of each are tested.

Comes in: the name of a call, then its arguments and outputs. Goes out: the tests of its outputs and
gradients. Called by `check.random.judge`. To judge one more operator, add a row here under its full
name, and its name to `operators.drawing`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ray_precheck.accuracy.random import dropout, laws
from ray_precheck.accuracy.random.statistics import (
    Parameter,
    StatisticalTest,
    fact,
    grain_of,
    sampled,
)
from ray_precheck.check.random.arguments import RandomCall
from ray_precheck.errors import NotCheckable
from ray_precheck.numerics.arrays import machine_epsilon
from ray_precheck.operators.drawing import UNSEEDED
from ray_precheck.operators.table import FactTable
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostTensor

RRELU = "input lower=0.125 upper=0.3333333333333333 ..."
_Make = Callable[[float, int | None], dropout.Dropping]
# How an API drops, and over how many leading dimensions it decides separately, by the number of
# dimensions of its input (torch.nn.functional: an input without a batch has one dimension less).
DROPPINGS: dict[str, tuple[_Make, dict[int, int] | None]] = {
    "dropout": (dropout.dropout, None),
    "dropout1d": (dropout.dropout, {2: 1, 3: 2}),
    "dropout2d": (dropout.dropout, {3: 2, 4: 2}),
    "dropout3d": (dropout.dropout, {4: 1, 5: 2}),
    "feature_dropout": (dropout.dropout, {}),
    "alpha_dropout": (dropout.alpha_dropout, None),
    "feature_alpha_dropout": (dropout.alpha_dropout, {}),
}
_CHANNEL_DIMS = 2
Rule = Callable[[RandomCall], list[StatisticalTest]]
GradientRule = Callable[[RandomCall, HostTensor | None, HostTensor], list[StatisticalTest]]
_ANY = "..."
_MEAN_STD = "mean=0.0 std|stddev=1.0 ..."
_LOW_HIGH = "low|from|from_|a|minval=0.0 high|to|b|maxval=1.0 ..."
_DROPOUT = "input|x p=0.5 ..."
_MAKERS = "torch mindspore.mint mindspore.ops"
_METHODS = "torch.Tensor mindspore.Tensor mindspore.ops"


@dataclass(frozen=True, slots=True)
class RandomRule:
    """How the calls of an API are judged.

    `signature` names its arguments, see `check.random.arguments`. `tests` gives the tests of the first
    output, `others` at the second, `gradient` at the gradient of the input; None where there are none.
    """

    signature: str
    tests: Rule
    gradient: GradientRule | None = None
    others: Rule | None = None


def no_gradient(
    call: RandomCall, incoming: HostTensor | None, grad: HostTensor
) -> list[StatisticalTest]:
    """Test a gradient that must be 0, because the draws do not depend on the input."""
    return [
        fact("are not 0, though the output does not depend on the input", grad.data != 0, "it is 0")
    ]


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
    return laws.categories(chosen.reshape(-1)[place], lowest, highest, grain, call.spread)


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
        tests += laws.permutation(position[after])
    return tests


def _dropped(call: RandomCall, api: str) -> tuple[dropout.Mask, dropout.Dropping]:
    x, out = call.tensor("input"), call.out
    if x.shape != out.shape:
        raise NotCheckable(f"its output has shape {list(out.shape)}, its input {list(x.shape)}")
    make, by_dims = DROPPINGS[api]
    units = None if by_dims is None else by_dims.get(len(x.shape), _CHANNEL_DIMS)
    keeps = "keep_prob" in call.arguments  # a primitive of MindSpore
    dropping = make(1 - call.number("keep_prob") if keeps else call.number("p"), units)
    return dropout.mask_of(x, out, dropping), dropping


def returned_mask(call: RandomCall) -> list[StatisticalTest]:
    """Test the mask that native_dropout returns beside its output."""
    mask = call.outputs[1]
    if not isinstance(mask, HostTensor) or mask.shape != call.out.shape:
        raise NotCheckable("its second output is no mask of the shape of the first")
    return dropout.recorded_mask_tests(_dropped(call, "dropout")[0], mask)


def rrelu(call: RandomCall) -> list[StatisticalTest]:
    """Test the slopes that rrelu draws."""
    return dropout.rrelu_tests(
        call.tensor("input"), call.out, call.number("lower"), call.number("upper")
    )


def rrelu_gradient(
    call: RandomCall, incoming: HostTensor | None, grad: HostTensor
) -> list[StatisticalTest]:
    """Test its gradient, which has the same slopes."""
    return dropout.rrelu_gradient_tests(call.tensor("input"), call.out, incoming, grad)


def attention(call: RandomCall) -> list[StatisticalTest]:
    """Test scaled_dot_product_attention with dropout."""
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    scale = call.arguments.get("scale")
    return dropout.attention_tests(
        query.data.astype(np.float64),
        key.data.astype(np.float64),
        value.data.astype(np.float64),
        call.out.data.astype(np.float64),
        bias=_bias(call, query.shape[-2], key.shape[-2]),
        probability=call.number("dropout_p"),
        scale=None if scale is None else float(scale),
        unit=machine_epsilon(call.out.dtype),
    )


def _bias(call: RandomCall, length: int, source: int) -> Array | None:
    mask = call.arguments.get("attn_mask")
    if isinstance(mask, HostTensor):
        is_bool = DTYPES[mask.dtype].kind == "bool"
        return np.where(mask.data, 0.0, -np.inf) if is_bool else mask.data.astype(np.float64)
    if call.flag("is_causal"):
        return np.triu(np.full((length, source), -np.inf), 1)
    return None


def _drawn_from(law: Callable[..., list[StatisticalTest]], *parameters: str | float) -> Rule:
    """Return the rule of draws from a law, whose parameters are the arguments of these names, or numbers."""
    return lambda call: law(
        call.draws, *(call.parameter(p) if isinstance(p, str) else p for p in parameters)
    )


_log_normal = _drawn_from(laws.log_normal, "mean", "std")
_uniform = _drawn_from(laws.uniform, "low", "high")
_unit_uniform = _drawn_from(laws.uniform, 0.0, 1.0)
_exponential = _drawn_from(laws.exponential, "rate")
_gamma = _drawn_from(laws.gamma, "alpha", "beta")
_cauchy = _drawn_from(laws.cauchy, "median", "sigma")
_laplace = _drawn_from(laws.laplace, "mean", "scale")
_standard_laplace = _drawn_from(laws.laplace, 0.0, 1.0)
_binomial = _drawn_from(laws.binomial, "count", "prob")


def _normal(call: RandomCall) -> list[StatisticalTest]:
    return _normal_of(call, call.parameter("mean"), call.parameter("std"))


def _standard_normal(call: RandomCall) -> list[StatisticalTest]:
    return _normal_of(call, 0.0, 1.0)


def _normal_of(call: RandomCall, mean: Parameter, std: Parameter) -> list[StatisticalTest]:
    # The parts of a complex draw have the mean, and half of the variance, each.
    share = 0.5**0.5 if DTYPES[call.out.dtype].kind == "complex" else 1.0
    return laws.normal(call.draws, mean, std * share)


def _bernoulli(call: RandomCall) -> list[StatisticalTest]:
    name = "input" if call.arguments.get("p") is None else "p"
    return laws.bernoulli(call.draws, call.parameter(name))


def _poisson(call: RandomCall) -> list[StatisticalTest]:
    return laws.poisson(call.draws, call.parameter("rate"), call.spread)


def _geometric(call: RandomCall) -> list[StatisticalTest]:
    return laws.geometric(call.draws, call.number("p"), call.spread)


def _permutation(call: RandomCall) -> list[StatisticalTest]:
    return laws.permutation(call.out.data.reshape(-1).astype(np.float64))


def _integers(call: RandomCall) -> list[StatisticalTest]:
    """randint(high, size), randint(low, high, size), randint_like(input, ...)."""
    low, high = _range(call, 0)
    return laws.uniform_whole_numbers(call.draws, low, high)


def _random(call: RandomCall) -> list[StatisticalTest]:
    """random_(), random_(to), random_(from, to); by default all values of the dtype, for floats the whole
    numbers up to 2 ** (bits of the significand)."""
    info = DTYPES[call.out.dtype]
    default = 2 ** (info.mantissa_bits + 1) + 1 if info.kind == "float" else 2
    if info.kind in ("int", "uint"):
        default = 2 ** (info.bits - (info.kind == "int"))
    return laws.uniform_whole_numbers(call.draws, *_range(call, default))


def _range(call: RandomCall, default: int) -> tuple[int, int]:
    numbers, keywords = call.whole_numbers, call.call.kwargs
    named = [
        next((int(keywords[name]) for name in names if keywords.get(name) is not None), None)
        for names in (("low", "from", "from_"), ("high", "to"))
    ]
    if len(numbers) >= 2:
        return numbers[0], numbers[1]
    low, high = named
    if numbers and high is None:
        return (numbers[0], default) if low is None and "to" in keywords else (low or 0, numbers[0])
    if numbers and high is not None:
        return numbers[0], high
    return low or 0, default if high is None else high


def _drops(kind: str) -> RandomRule:
    """Return the rule of an operator that drops as `kind` says (`random_drops.DROPPINGS`)."""
    return RandomRule(
        _DROPOUT,
        lambda call: dropout.dropout_tests(*_dropped(call, kind)),
        # The mask is that of the output.
        lambda call, incoming, grad: dropout.dropout_gradient_tests(
            *_dropped(call, kind), incoming, grad
        ),
    )


_RRELU = RandomRule(RRELU, rrelu, rrelu_gradient)
_REPLACING = RandomRule("input num_samples replacement=True ...", multinomial)

RULES: FactTable[RandomRule] = FactTable(
    "random distribution",
    [
        (f"{_MAKERS}: randn", RandomRule(_ANY, _standard_normal)),
        (f"{_MAKERS}: randn_like", RandomRule(_ANY, _standard_normal, no_gradient)),
        ("mindspore.ops: standard_normal", RandomRule(_ANY, _standard_normal)),
        ("torch torch.nn.init mindspore.mint: normal", RandomRule(_MEAN_STD, _normal)),
        ("mindspore.ops: normal", RandomRule(f"shape {_MEAN_STD}", _normal)),
        (
            f"{_METHODS} torch.nn.init: normal_",
            RandomRule(f"input {_MEAN_STD}", _normal, no_gradient),
        ),
        (
            "torch.Tensor: log_normal_",
            RandomRule("input mean=1.0 std=2.0 ...", _log_normal, no_gradient),
        ),
        ("mindspore.Tensor: log_normal", RandomRule("input mean=1.0 std=2.0 ...", _log_normal)),
        (f"{_MAKERS}: rand", RandomRule(_ANY, _unit_uniform)),
        (f"{_MAKERS}: rand_like", RandomRule(_ANY, _unit_uniform, no_gradient)),
        (
            f"{_METHODS} torch.nn.init: uniform_",
            RandomRule(f"input {_LOW_HIGH}", _uniform, no_gradient),
        ),
        (
            "torch.nn.init mindspore.Tensor: uniform",
            RandomRule(f"input {_LOW_HIGH}", _uniform),
        ),
        ("mindspore.ops: uniform", RandomRule(f"shape {_LOW_HIGH}", _uniform)),
        (
            f"{_METHODS}: exponential_",
            RandomRule("input rate|lambd=1.0 ...", _exponential, no_gradient),
        ),
        (
            "torch.Tensor: cauchy_",
            RandomRule("input median=0.0 sigma=1.0 ...", _cauchy, no_gradient),
        ),
        ("mindspore.Tensor: cauchy", RandomRule("input median=0.0 sigma=1.0 ...", _cauchy)),
        ("mindspore.ops: laplace", RandomRule("shape mean scale|lambda_param ...", _laplace)),
        ("mindspore.ops: standard_laplace", RandomRule(_ANY, _standard_laplace)),
        ("mindspore.ops: gamma", RandomRule("shape alpha beta=1.0 ...", _gamma)),
        ("mindspore.ops: random_gamma", RandomRule("shape alpha beta=1.0", _gamma)),
        (f"{_MAKERS}: randint randint_like", RandomRule(_ANY, _integers)),
        (f"{_METHODS}: random_", RandomRule(_ANY, _random, no_gradient)),
        (f"{_MAKERS}: randperm", RandomRule(_ANY, _permutation)),
        (
            "torch torch.Tensor mindspore.mint mindspore.Tensor: bernoulli",
            RandomRule("input p=None ...", _bernoulli, no_gradient),
        ),
        ("mindspore.ops: bernoulli", RandomRule("input p=0.5 ...", _bernoulli)),
        (f"{_METHODS}: bernoulli_", RandomRule("input p=0.5 ...", _bernoulli, no_gradient)),
        ("mindspore.ops: bernoulli_ext", RandomRule("input ...", _bernoulli)),
        ("torch: poisson", RandomRule("rate|input ...", _poisson)),
        ("mindspore.ops: poisson", RandomRule("shape rate|mean ...", _poisson)),
        ("mindspore.ops: random_poisson", RandomRule("shape rate ...", _poisson)),
        ("torch.Tensor: geometric_", RandomRule("input p ...", _geometric, no_gradient)),
        ("torch: binomial", RandomRule("count prob ...", _binomial)),
        (
            "torch torch.Tensor mindspore.mint: multinomial",
            RandomRule("input num_samples replacement=False ...", multinomial),
        ),
        ("mindspore.ops mindspore.Tensor: multinomial", _REPLACING),
        (
            "mindspore.ops mindspore.Tensor: random_categorical",
            RandomRule("logits num_sample ...", random_categorical),
        ),
        ("mindspore.ops: shuffle", RandomRule("x ...", shuffle)),
        (
            "torch.nn.functional: gumbel_softmax",
            RandomRule(
                "logits tau=1.0 hard=False eps=1e-10 dim=-1",
                gumbel_softmax,
                gumbel_gradient,
            ),
        ),
        (
            "mindspore.ops: gumbel_softmax",
            RandomRule(
                "logits tau=1.0 hard=False dim=-1",
                gumbel_softmax,
                gumbel_gradient,
            ),
        ),
        (
            "torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops: dropout",
            _drops("dropout"),
        ),
        ("torch: dropout_", _drops("dropout")),
        (
            "torch: native_dropout",
            replace(_drops("dropout"), others=returned_mask),
        ),
        (
            "mindspore.ops.operations: Dropout",
            replace(
                _drops("dropout"),
                signature="input keep_prob=0.5",
                others=returned_mask,
            ),
        ),
        ("torch.nn.functional mindspore.ops: dropout1d", _drops("dropout1d")),
        (
            "torch.nn.functional mindspore.mint.nn.functional mindspore.ops: dropout2d",
            _drops("dropout2d"),
        ),
        ("torch.nn.functional mindspore.ops: dropout3d", _drops("dropout3d")),
        ("torch: feature_dropout feature_dropout_", _drops("feature_dropout")),
        ("torch torch.nn.functional: alpha_dropout", _drops("alpha_dropout")),
        ("torch: alpha_dropout_", _drops("alpha_dropout")),
        ("torch torch.nn.functional: feature_alpha_dropout", _drops("feature_alpha_dropout")),
        ("torch: feature_alpha_dropout_", _drops("feature_alpha_dropout")),
        ("torch torch.nn.functional mindspore.ops: rrelu", _RRELU),
        ("torch torch.nn.functional: rrelu_", _RRELU),
        (
            "torch.nn.functional: scaled_dot_product_attention",
            RandomRule(
                "query key value attn_mask=None dropout_p=0.0 is_causal=False scale=None"
                " enable_gqa=False",
                attention,
            ),
        ),
    ],
)


def is_seeded(name: ApiName, framework: str) -> bool:
    """Return whether the draws of an API depend on the seed alone."""
    return not UNSEEDED.of(name.type_name, framework)


def rule_of(name: ApiName, framework: str) -> RandomRule | None:
    """Return the rule for the random calls of an API, None if there is none."""
    return RULES.of(name.type_name, framework)
