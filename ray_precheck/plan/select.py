"""What can be checked, and the reason for what cannot.

Comes in: names and records. Goes out: a reason for a SKIP row, or "". `skip_by_name` needs the
name alone and is called by the planner; `skip_by_record` is called where the record is decoded.
"""

from dataclasses import dataclass

from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import Constant, Symbol, ValueSpec

PREFIXES = {
    "mindspore": ("Mint", "MintFunctional", "Tensor", "Functional"),
    "pytorch": ("Functional", "Tensor", "Torch", "VF", "NPU"),
    "mindtorch": ("Functional", "Tensor", "Torch"),
}
_OTHER_PREFIXES = {
    "Distributed": "a collective operator needs its other ranks",
    "MintDistributed": "a collective operator needs its other ranks",
}
# Random whatever their arguments are; they are judged by statistics (`check.random_rules`).
RANDOM = frozenset(
    """bernoulli bernoulli_ bernoulli_ext binomial cauchy cauchy_ exponential_ gamma geometric_
        gumbel_softmax laplace log_normal log_normal_ multinomial normal normal_ poisson rand
        rand_like randint randint_like randn randn_like random_ random_categorical random_gamma
        random_poisson randperm shuffle standard_laplace standard_normal uniform uniform_""".split()
)
# Random, too, and no statistic tells whether they are right.
_UNJUDGED = {
    **dict.fromkeys(
        """fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d
        fractional_max_pool3d_with_indices""".split(),
        "where it pools is random, and no statistic of it is known",
    ),
    **dict.fromkeys(
        """kaiming_normal_ kaiming_uniform_ orthogonal_ sparse_ trunc_normal_ xavier_normal_
        xavier_uniform_""".split(),
        "its output is random, and no statistic of it is known",
    ),
    **dict.fromkeys(
        ["lobpcg", "pca_lowrank", "svd_lowrank"],
        "it is a randomised algorithm: its result depends on random numbers",
    ),
}


@dataclass(frozen=True, slots=True)
class _Dropout:
    """Where an API takes the probability to drop, its default, and whether it has `training`."""

    position: int
    keyword: str
    default: float
    training_position: int | None = None
    training_default: bool = True


_DROP = _Dropout(1, "p", 0.5, 2)
# input, hx, weights, has_biases, num_layers, dropout, train, ...
_RECURRENT = _Dropout(5, "dropout", 0.0, 6)
_UNJUDGED_DROPOUTS = {
    **dict.fromkeys(["lstm", "gru", "rnn_tanh", "rnn_relu"], _RECURRENT),
    "multi_head_attention_forward": _Dropout(11, "dropout_p", 0.0, 14),
}
_RRELU = _Dropout(1, "lower", 0.125, 3, training_default=False)
_DROPOUTS = {
    **dict.fromkeys(
        [
            "dropout",
            "dropout1d",
            "dropout2d",
            "dropout3d",
            "alpha_dropout",
            "feature_alpha_dropout",
            "dropout_",
            "feature_dropout",
            "native_dropout",
            "alpha_dropout_",
            "feature_dropout_",
            "feature_alpha_dropout_",
        ],
        _DROP,
    ),
    "scaled_dot_product_attention": _Dropout(4, "dropout_p", 0.0),
    **dict.fromkeys(["rrelu", "rrelu_"], _RRELU),
}
# With a dtype among their arguments.
_READS_BITS = ("view",)
_TRAINING_KEYWORDS = ("training", "train")


def skip_by_name(name: ApiName, framework: str) -> str:
    """Return why calls of this name cannot be checked, "" where they may be.

    A prefix that is no framework's may be one that a user's own bench declares, if it can stand in
    Python at all: the bench says.
    """
    if name.prefix in _OTHER_PREFIXES:
        return _OTHER_PREFIXES[name.prefix]
    if not name.prefix.isidentifier() or any(name.prefix in known for known in PREFIXES.values()):
        return unsupported_prefix(name, framework)
    return ""


def unsupported_prefix(name: ApiName, framework: str) -> str:
    """Return that a prefix is none of a framework's, "" where it is one."""
    known = PREFIXES.get(framework, ())
    if name.prefix in known:
        return ""
    supported = ", ".join(known)
    return f"prefix {name.prefix} is not supported for {framework} (supported: {supported})"


def skip_by_record(record: ApiRecord) -> str:
    """Return why this call cannot be checked, "" where it can: it depends on the bits of its input, or
    is random in a way that neither a bench nor a statistic can judge."""
    api = _last_name(record)
    if api in _READS_BITS and any(
        _is_dtype(spec) for spec in (*record.args, *dict(record.kwargs).values())
    ):
        return "it reads the bits of its input as another dtype, which the bench holds in float64"
    if api in _UNJUDGED_DROPOUTS and _drops(record, _UNJUDGED_DROPOUTS[api]):
        return "it drops at random between its steps, which does not show in its output"
    return _UNJUDGED.get(api, "")


def _is_dtype(spec: ValueSpec) -> bool:
    return isinstance(spec, Symbol) and spec.kind == "dtype"


def is_random(record: ApiRecord) -> bool:
    """Return whether two right runs of a call may differ, so that only statistics can judge it."""
    api = _last_name(record)
    return api in RANDOM or (api in _DROPOUTS and _drops(record, _DROPOUTS[api]))


def _last_name(record: ApiRecord) -> str:
    return record.name.api.rsplit(".", 1)[-1]


def _drops(record: ApiRecord, dropout: _Dropout) -> bool:
    probability = _argument(record, dropout.position, (dropout.keyword,), dropout.default)
    if dropout.training_position is None:
        return probability != 0
    default = dropout.training_default
    training = _argument(record, dropout.training_position, _TRAINING_KEYWORDS, default)
    return probability != 0 and training is not False


def _argument(
    record: ApiRecord, position: int, keywords: tuple[str, ...], default: object
) -> object:
    """Return the value of a constant argument, the default where the record has none."""
    kwargs: dict[str, ValueSpec] = dict(record.kwargs)
    found = next((kwargs[keyword] for keyword in keywords if keyword in kwargs), None)
    if found is None and position < len(record.args):
        found = record.args[position]
    return found.value if isinstance(found, Constant) else default


# Operators that change their first argument although their name does not end in one underscore.
_IN_PLACE_OPERATORS = frozenset(
    """__iadd__ __isub__ __imul__ __imatmul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__
        __ior__ __ixor__ __ilshift__ __irshift__ __idiv__ __setitem__""".split()
)


def changes_its_input(record: ApiRecord) -> bool:
    """Return whether the API writes into its first argument.

    Names with one trailing underscore, augmented assignments, and calls with `inplace`. The flag
    may be positional in torch.nn.functional; a positional True there counts, at the price of a
    needless copy.
    """
    api = record.name.api.rsplit(".", 1)[-1]
    if api in _IN_PLACE_OPERATORS or (api.endswith("_") and not api.endswith("__")):
        return True
    flagged = dict(record.kwargs).get("inplace") == Constant(True)
    positional = any(isinstance(arg, Constant) and arg.value is True for arg in record.args)
    return flagged or (record.name.prefix == "Functional" and positional)
