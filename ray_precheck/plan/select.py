"""What can be checked, and the reason for what cannot.

Comes in: names and records. Goes out: a reason for a SKIP row, or "". `skip_by_name` needs the
name alone and is called by the planner; `skip_by_record` is called where the record is decoded.
"""

from dataclasses import dataclass

from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import Constant, ValueSpec

PREFIXES = {
    "mindspore": ("Mint", "MintFunctional", "Tensor", "Functional"),
    "pytorch": ("Functional", "Tensor", "Torch", "VF"),
}
_OTHER_PREFIXES = {
    "Distributed": "a collective operator needs its other ranks",
    "MintDistributed": "a collective operator needs its other ranks",
    "NPU": "an operator of torch_npu has no bench yet",
    "Aten": "an aten operator has no bench yet; capture the API that calls it (level L1)",
}
_RANDOM = frozenset(
    """bernoulli bernoulli_ cauchy cauchy_ exponential_ fractional_max_pool2d fractional_max_pool3d
        geometric_ gumbel_softmax laplace log_normal log_normal_ multinomial normal normal_
        poisson rand rand_like randint randint_like randn randn_like random_ randperm rrelu
        rrelu_ standard_normal uniform uniform_""".split()
)


@dataclass(frozen=True, slots=True)
class _Dropout:
    """Where an API takes the probability to drop, its default, and whether it has `training`."""

    position: int
    keyword: str
    default: float
    training_position: int | None = None


_DROP = _Dropout(1, "p", 0.5, 2)
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
        ],
        _DROP,
    ),
    "scaled_dot_product_attention": _Dropout(4, "dropout_p", 0.0),
}
_TRAINING_KEYWORDS = ("training", "train")


def skip_by_name(name: ApiName, framework: str) -> str:
    """Return why calls of this name cannot be checked, "" where they may be."""
    if name.prefix in PREFIXES.get(framework, ()):
        return ""
    if name.prefix in _OTHER_PREFIXES:
        return _OTHER_PREFIXES[name.prefix]
    known = ", ".join(PREFIXES.get(framework, ()))
    return f"prefix {name.prefix} is not supported for {framework} (supported: {known})"


def skip_by_record(record: ApiRecord) -> str:
    """Return why this call cannot be checked, "" where it can: its output is random."""
    api = record.name.api.rsplit(".", 1)[-1]
    if api in _RANDOM or (api in _DROPOUTS and _drops(record, _DROPOUTS[api])):
        return "its output is random, so that two runs cannot be compared element by element"
    return ""


def _drops(record: ApiRecord, dropout: _Dropout) -> bool:
    probability = _argument(record, dropout.position, (dropout.keyword,), dropout.default)
    if dropout.training_position is None:
        return probability != 0
    training = _argument(record, dropout.training_position, _TRAINING_KEYWORDS, True)
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
