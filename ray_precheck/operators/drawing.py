"""Which operators draw random numbers: always, never, or with some of their arguments.

Goes out: `DRAWING`. Called by `bench.checkable`, which reads the arguments of a call. The rules by which the
draws are judged are in `check.random.rules`.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

from ray_precheck.operators.table import FactTable, table_of_names

_RECURRENT = "has_biases num_layers dropout train bidirectional batch_first"
_POOLS_AT_RANDOM = "the places where it pools are random, and no statistic of them is known"
_INITIALISES = "its output is random, and no statistic of it is known"
_RANDOMISED = "it is a randomised algorithm: its result depends on random numbers"
_OF_THE_BATCH = "its `training` says whether it uses the statistics of the batch"
_KEEPS_ALL = "its bench takes no `keep_prob` but 1"
_ALWAYS = """
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: bernoulli multinomial
    torch.Tensor mindspore.Tensor mindspore.ops: bernoulli_ exponential_ random_
    torch: binomial
    torch mindspore.ops: poisson
    torch mindspore.mint mindspore.ops:
        rand rand_like randint randint_like randn randn_like randperm
    torch torch.nn.init mindspore.mint mindspore.ops: normal
    torch.Tensor torch.nn.init mindspore.Tensor mindspore.ops: normal_ uniform_
    torch.nn.init mindspore.Tensor mindspore.ops: uniform
    torch.Tensor: cauchy_ geometric_ log_normal_
    torch.nn.functional mindspore.ops: gumbel_softmax
    mindspore.Tensor: cauchy log_normal
    mindspore.Tensor mindspore.ops: random_categorical
    mindspore.ops.operations: Dropout
    mindspore.ops:
        bernoulli_ext gamma laplace random_gamma random_poisson shuffle standard_laplace
        standard_normal
"""
# Whose flag `training` is false where it is not given.
_DROPOUTS_IF_TOLD = """
    torch.nn.functional: alpha_dropout feature_alpha_dropout
"""
_DROPOUTS = """
    torch:
        alpha_dropout alpha_dropout_ dropout_ feature_alpha_dropout feature_alpha_dropout_
        feature_dropout feature_dropout_ native_dropout
    torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops: dropout
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops: dropout2d
    torch.nn.functional mindspore.ops: dropout1d dropout3d
"""
_INITIALISERS = """
    torch.nn.init:
        kaiming_normal_ kaiming_uniform_ orthogonal_ sparse_ trunc_normal_ xavier_normal_
        xavier_uniform_
"""
_FRACTIONAL_POOLS = """
    torch.nn.functional mindspore.ops: fractional_max_pool2d fractional_max_pool3d
    torch.nn.functional: fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices
"""
_BATCH_NORMS = """
    torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops: batch_norm
    mindspore.ops.operations: BatchNorm
    torch torch.nn.functional: instance_norm
    torch: _native_batch_norm_legit cudnn_batch_norm miopen_batch_norm native_batch_norm
"""
_FUSED_ATTENTION = """
    torch_npu mindspeed: npu_fusion_attention
    torch_npu: npu_fusion_attention_v2
    mindspore.ops: flash_attention_score speed_fusion_attention
"""
# The draws of these operators do not depend on the seed, in MindSpore 2.10 on the CPU.
# Operators whose draws depend on a seed among their arguments, whose default is a number.
SELF_SEEDED = table_of_names("self-seeded", "mindspore.ops: randperm")
UNSEEDED = table_of_names(
    "unseeded",
    """
    mindspore.ops: dropout1d dropout2d dropout3d bernoulli
    mindspore.ops.operations: Dropout
    mindspore.mint.nn.functional: dropout2d
    mindspore.ops mindspore.Tensor: random_categorical
    mindspore.Tensor: cauchy log_normal
    """,
)


@dataclass(frozen=True, slots=True)
class Always:
    """The operator draws with all arguments, and is judged by statistics."""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """The operator draws, and no statistic tells whether its output is right."""

    reason: str


@dataclass(frozen=True, slots=True)
class Never:
    """The operator never draws, although it has an argument of a name that elsewhere says so."""

    reason: str


@dataclass(frozen=True, slots=True)
class DrawsIf:
    """The operator draws with some arguments.

    `names` are its parameters by position, with alternative keywords separated by `|`. A call draws if
    the parameter `probability` is not 0 (None: the operator has no such parameter) and the parameter
    `training` is not False (None: it has no such flag). `needs_layers`: it drops between its layers,
    so a call with one layer does not draw. `shows_mask`: input and output together show which elements
    were dropped.
    """

    names: str
    probability: str | None
    default_probability: float = 0.0
    training: str | None = None
    default_training: bool = True
    needs_layers: bool = False
    shows_mask: bool = False


Drawing: TypeAlias = Always | Unjudged | Never | DrawsIf

_DROPOUT = DrawsIf("input|x p training|train", "p", 0.5, "training|train", shows_mask=True)
RNN = DrawsIf(f"input hx params {_RECURRENT}", "dropout", 0.0, "train", needs_layers=True)
PACKED_RNN = replace(RNN, names=f"data batch_sizes hx params {_RECURRENT}")
_RRELU = DrawsIf("input lower upper training", None, 0.0, "training", default_training=False)
_ATTENTION = DrawsIf("query key value attn_mask dropout_p", "dropout_p")
_MULTI_HEAD = DrawsIf(
    "query key value embed_dim_to_check num_heads in_proj_weight in_proj_bias bias_k bias_v"
    " add_zero_attn dropout_p out_proj_weight out_proj_bias training",
    "dropout_p",
    0.0,
    "training",
)
_MIOPEN = DrawsIf(
    "input weight weight_stride0 hx cx mode hidden_size num_layers batch_first dropout train",
    "dropout",
    0.0,
    "train",
    needs_layers=True,
)


DRAWING: FactTable[Drawing] = FactTable(
    "drawing",
    [
        (_ALWAYS, Always()),
        (_FRACTIONAL_POOLS, Unjudged(_POOLS_AT_RANDOM)),
        (_INITIALISERS, Unjudged(_INITIALISES)),
        ("torch: lobpcg pca_lowrank svd_lowrank", Unjudged(_RANDOMISED)),
        (_BATCH_NORMS, Never(_OF_THE_BATCH)),
        (_FUSED_ATTENTION, Never(_KEEPS_ALL)),
        (_DROPOUTS, _DROPOUT),
        (_DROPOUTS_IF_TOLD, replace(_DROPOUT, default_training=False)),
        ("torch torch.nn.functional mindspore.ops: rrelu", _RRELU),
        ("torch torch.nn.functional: rrelu_", _RRELU),
        ("torch: gru lstm rnn_relu rnn_tanh", RNN),
        ("torch: miopen_rnn", _MIOPEN),
        ("torch.nn.functional: scaled_dot_product_attention", _ATTENTION),
        ("torch.nn.functional: multi_head_attention_forward", _MULTI_HEAD),
    ],
)
