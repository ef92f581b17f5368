"""Which calls draw random numbers: always, or only with the arguments that they have.

Comes in: a record. Goes out: whether two right runs of the call may differ, and the call with its
drawing switched off. Called by `plan.select` and by `check.random.quiet_dropout`. Every operator of torch
and MindSpore that takes a probability to drop, a `training` flag, a seed or a generator stands in one
of the tables here; a test reads the signatures of the installed frameworks and names what is missing.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import Constant, ValueSpec

# Random whatever their arguments are; they are judged by statistics (`check.random.rules`).
RANDOM = frozenset(
    """bernoulli bernoulli_ bernoulli_ext binomial cauchy cauchy_ exponential_ gamma geometric_
        gumbel_softmax laplace log_normal log_normal_ multinomial normal normal_ poisson rand
        rand_like randint randint_like randn randn_like random_ random_categorical random_gamma
        random_poisson randperm shuffle standard_laplace standard_normal uniform uniform_""".split()
)
# These are random too, and no statistic tells whether they are right.
UNJUDGED = {
    **dict.fromkeys(
        """fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d
        fractional_max_pool3d_with_indices""".split(),
        "the places where it pools are random, and no statistic of them is known",
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
# These take `training` and draw nothing: it says whether they use the statistics of the batch.
DRAWS_NOTHING = frozenset(
    """batch_norm native_batch_norm _native_batch_norm_legit miopen_batch_norm cudnn_batch_norm
        instance_norm""".split()
)
# Fused attention: its bench refuses every `keep_prob` but 1 (`bench.fused.attention`).
REFUSED_BY_BENCH = frozenset(
    """npu_fusion_attention npu_fusion_attention_v2 flash_attention_score
        speed_fusion_attention""".split()
)


@dataclass(frozen=True, slots=True)
class _Switch:
    """How a call says whether it drops. `names` are its parameters by position; alternative keywords
    are parted by `|`. It draws where `probability` is not 0 (None: whatever it is) and `training` is
    not False (None: it has no such flag); `needs_layers` where it drops between its layers alone.
    """

    names: str
    probability: str | None
    default_probability: float = 0.0
    training: str | None = None
    default_training: bool = True
    needs_layers: bool = False


_DROPOUT = _Switch("input|x p training|train", "p", 0.5, "training|train")
_RECURRENT = "has_biases num_layers dropout train bidirectional batch_first"
_RNN = _Switch(f"input hx params {_RECURRENT}", "dropout", 0.0, "train", needs_layers=True)
_PACKED_RNN = replace(_RNN, names=f"data batch_sizes hx params {_RECURRENT}")
_RRELU = _Switch("input lower upper training", None, 0.0, "training", default_training=False)
_ATTENTION = _Switch("query key value attn_mask dropout_p", "dropout_p")
_MULTI_HEAD = _Switch(
    "query key value embed_dim_to_check num_heads in_proj_weight in_proj_bias bias_k bias_v"
    " add_zero_attn dropout_p out_proj_weight out_proj_bias training",
    "dropout_p",
    0.0,
    "training",
)
_MIOPEN = _Switch(
    "input weight weight_stride0 hx cx mode hidden_size num_layers batch_first dropout train",
    "dropout",
    0.0,
    "train",
    needs_layers=True,
)
# Operators whose output shows, beside the input, which elements were dropped.
DROPOUTS = frozenset(
    """dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout dropout_
        feature_dropout native_dropout alpha_dropout_ feature_dropout_
        feature_alpha_dropout_""".split()
)
_SWITCHES = {
    **dict.fromkeys(DROPOUTS, _DROPOUT),
    **dict.fromkeys(["rrelu", "rrelu_"], _RRELU),
    **dict.fromkeys(["lstm", "gru", "rnn_tanh", "rnn_relu"], _RNN),
    "miopen_rnn": _MIOPEN,
    "scaled_dot_product_attention": _ATTENTION,
    "multi_head_attention_forward": _MULTI_HEAD,
}


def is_classified(api: str) -> bool:
    """Return whether a table here says of an operator, by the last part of its name, when it draws."""
    tables: tuple[Mapping[str, object] | frozenset[str], ...]
    tables = (RANDOM, UNJUDGED, DRAWS_NOTHING, REFUSED_BY_BENCH, _SWITCHES)
    return any(api in table for table in tables)


def is_random(record: ApiRecord) -> bool:
    """Return whether two right runs of a call may differ, so that only statistics can judge it."""
    return last_name(record) in RANDOM or is_dropping(record)


def is_dropping(record: ApiRecord) -> bool:
    """Return whether a call draws because of the arguments with which it was called."""
    switch = _switch_of(record)
    if switch is None:
        return False
    if switch.training and _is(record, switch, switch.training, switch.default_training, False):
        return False
    if switch.needs_layers and _is(record, switch, "num_layers", 2, 1):
        return False
    default = switch.default_probability
    return not (switch.probability and _is(record, switch, switch.probability, default, 0))


def without_drawing(record: ApiRecord) -> ApiRecord:
    """Return the record of a dropping call with the probability to drop set to 0; the record itself
    where it takes none (rrelu)."""
    switch = _switch_of(record)
    if switch is None or switch.probability is None:
        return record
    args = list(record.args)
    position = switch.names.split().index(switch.probability)
    if position < len(args):
        args[position] = Constant(0.0)
        return replace(record, args=tuple(args))
    kwargs = {**dict(record.kwargs), switch.probability: Constant(0.0)}
    return replace(record, kwargs=tuple(kwargs.items()))


def seed_of(seed: int, api_name: str) -> int:
    """Return the seed of one call's draws, 0 to 2^31 - 1: the same on every host, in any order."""
    text = f"{seed}\0{api_name}\0draws".encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") % 2**31


def last_name(record: ApiRecord) -> str:
    """Return the last part of a dotted name."""
    return record.name.api.rsplit(".", 1)[-1]


def _switch_of(record: ApiRecord) -> _Switch | None:
    switch = _SWITCHES.get(last_name(record))
    if switch is _RNN and _is_packed(record):
        return _PACKED_RNN
    return switch


def _is_packed(record: ApiRecord) -> bool:
    """Return whether a recurrent call is that of packed sequences, which has one argument more before
    the flag `has_biases`, or names its `data`."""
    flags = [isinstance(arg, Constant) and isinstance(arg.value, bool) for arg in record.args[:5]]
    return flags[4:] == [True] or "batch_sizes" in dict(record.kwargs)


def _is(record: ApiRecord, switch: _Switch, name: str, default: object, value: object) -> bool:
    """Return whether an argument has this value; the value of an argument that is no constant is
    unknown."""
    kwargs: dict[str, ValueSpec] = dict(record.kwargs)
    found = next((kwargs[keyword] for keyword in name.split("|") if keyword in kwargs), None)
    position = switch.names.split().index(name)
    if found is None and position < len(record.args):
        found = record.args[position]
    if found is None:
        return default == value
    return isinstance(found, Constant) and found.value == value
