"""The table of random APIs: the distribution that each of them draws from.

Comes in: the name of a call, then its arguments and outputs. Goes out: the tests of its outputs and
gradients. Called by `check.random.judge`. To judge one more operator, add a row here under its full
name, and its name to `operators.drawing`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ray_precheck.accuracy.random import discrete as random_discrete
from ray_precheck.accuracy.random import laws as random_laws
from ray_precheck.accuracy.random.statistics import Parameter, StatisticalTest, fact
from ray_precheck.check.random import choices as random_choices
from ray_precheck.check.random import drops as random_drops
from ray_precheck.check.random.arguments import RandomCall
from ray_precheck.operators.drawing import UNSEEDED
from ray_precheck.operators.table import FactTable
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostTensor

Rule = Callable[[RandomCall], list[StatisticalTest]]
GradientRule = Callable[[RandomCall, HostTensor | None, HostTensor], list[StatisticalTest]]


def no_gradient(
    call: RandomCall, incoming: HostTensor | None, grad: HostTensor
) -> list[StatisticalTest]:
    """Test a gradient that must be 0, because the draws do not depend on the input."""
    return [
        fact("are not 0, though the output does not depend on the input", grad.data != 0, "it is 0")
    ]


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


def _drawn_from(law: Callable[..., list[StatisticalTest]], *parameters: str) -> Rule:
    """Return the rule of draws from a law, whose parameters are the arguments of these names."""
    return lambda call: law(call.draws, *map(call.parameter, parameters))


_log_normal = _drawn_from(random_laws.log_normal, "mean", "std")
_uniform = _drawn_from(random_laws.uniform, "low", "high")
_exponential = _drawn_from(random_laws.exponential, "rate")
_gamma = _drawn_from(random_laws.gamma, "alpha", "beta")
_cauchy = _drawn_from(random_laws.cauchy, "median", "sigma")
_laplace = _drawn_from(random_laws.laplace, "mean", "scale")
_binomial = _drawn_from(random_discrete.binomial, "count", "prob")


def _normal(call: RandomCall) -> list[StatisticalTest]:
    return _normal_of(call, call.parameter("mean"), call.parameter("std"))


def _standard_normal(call: RandomCall) -> list[StatisticalTest]:
    return _normal_of(call, 0.0, 1.0)


def _normal_of(call: RandomCall, mean: Parameter, std: Parameter) -> list[StatisticalTest]:
    # The parts of a complex draw have the mean, and half of the variance, each.
    share = 0.5**0.5 if DTYPES[call.out.dtype].kind == "complex" else 1.0
    return random_laws.normal(call.draws, mean, std * share)


def _unit_uniform(call: RandomCall) -> list[StatisticalTest]:
    return random_laws.uniform(call.draws, 0.0, 1.0)


def _standard_laplace(call: RandomCall) -> list[StatisticalTest]:
    return random_laws.laplace(call.draws, 0.0, 1.0)


def _bernoulli(call: RandomCall) -> list[StatisticalTest]:
    name = "input" if call.arguments.get("p") is None else "p"
    return random_discrete.bernoulli(call.draws, call.parameter(name))


def _poisson(call: RandomCall) -> list[StatisticalTest]:
    return random_discrete.poisson(call.draws, call.parameter("rate"), call.spread)


def _geometric(call: RandomCall) -> list[StatisticalTest]:
    return random_discrete.geometric(call.draws, call.number("p"), call.spread)


def _permutation(call: RandomCall) -> list[StatisticalTest]:
    return random_discrete.permutation(call.out.data.reshape(-1).astype(np.float64))


def _integers(call: RandomCall) -> list[StatisticalTest]:
    """randint(high, size), randint(low, high, size), randint_like(input, ...)."""
    low, high = _range(call, 0)
    return random_discrete.uniform_whole_numbers(call.draws, low, high)


def _random(call: RandomCall) -> list[StatisticalTest]:
    """random_(), random_(to), random_(from, to); by default all values of the dtype, for floats the whole
    numbers up to 2 ** (bits of the significand)."""
    info = DTYPES[call.out.dtype]
    default = 2 ** (info.mantissa_bits + 1) + 1 if info.kind == "float" else 2
    if info.kind in ("int", "uint"):
        default = 2 ** (info.bits - (info.kind == "int"))
    return random_discrete.uniform_whole_numbers(call.draws, *_range(call, default))


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


_ANY = "..."
_MEAN_STD = "mean=0.0 std|stddev=1.0 ..."
_LOW_HIGH = "low|from|from_|a|minval=0.0 high|to|b|maxval=1.0 ..."
_DROPOUT = "input|x p=0.5 ..."

_MAKERS = "torch mindspore.mint mindspore.ops"
_METHODS = "torch.Tensor mindspore.Tensor mindspore.ops"


def _drops(kind: str) -> RandomRule:
    """Return the rule of an operator that drops as `kind` says (`random_drops.DROPPINGS`)."""
    return RandomRule(_DROPOUT, random_drops.drop_rule(kind), random_drops.drop_gradient_rule(kind))


_RRELU = RandomRule(random_drops.RRELU, random_drops.rrelu, random_drops.rrelu_gradient)
_REPLACING = RandomRule("input num_samples replacement=True ...", random_choices.multinomial)

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
            RandomRule("input num_samples replacement=False ...", random_choices.multinomial),
        ),
        ("mindspore.ops mindspore.Tensor: multinomial", _REPLACING),
        (
            "mindspore.ops mindspore.Tensor: random_categorical",
            RandomRule("logits num_sample ...", random_choices.random_categorical),
        ),
        ("mindspore.ops: shuffle", RandomRule("x ...", random_choices.shuffle)),
        (
            "torch.nn.functional: gumbel_softmax",
            RandomRule(
                "logits tau=1.0 hard=False eps=1e-10 dim=-1",
                random_choices.gumbel_softmax,
                random_choices.gumbel_gradient,
            ),
        ),
        (
            "mindspore.ops: gumbel_softmax",
            RandomRule(
                "logits tau=1.0 hard=False dim=-1",
                random_choices.gumbel_softmax,
                random_choices.gumbel_gradient,
            ),
        ),
        (
            "torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops: dropout",
            _drops("dropout"),
        ),
        ("torch: dropout_", _drops("dropout")),
        (
            "torch: native_dropout",
            replace(_drops("dropout"), others=random_drops.returned_mask),
        ),
        (
            "mindspore.ops.operations: Dropout",
            replace(
                _drops("dropout"),
                signature="input keep_prob=0.5",
                others=random_drops.returned_mask,
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
                random_drops.attention,
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
