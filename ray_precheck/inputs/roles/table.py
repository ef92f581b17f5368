"""The table of roles: which arguments of which APIs are more than numbers of a range.

Comes in: an `ApiRecord`. Goes out: the roles of its tensor arguments by path. Called where the
inputs of a call are made.

A row has the names of the positional arguments, in order (`x|y`: two names of one argument), and the
rule of each argument that has a role. It stands under the full name of the operator; an in-place
operator has the row of the one without the underscore. Where an operator has several orders of arguments,
as methods of mindspore.Tensor have, the first row counts whose ruled arguments are tensors in the call.

To add an API: a row here, and where its arguments mean something new, a rule in
`inputs.roles.rules`, or a kind of values in `inputs.roles.role`.
"""

from collections.abc import Mapping
from functools import lru_cache

from ray_precheck.inputs.roles.records import (
    MADE,
    index_put_roles,
    optimizer_roles,
    sparse_roles,
    subscript_roles,
)
from ray_precheck.inputs.roles.records import PREFIX as OPTIMIZER
from ray_precheck.inputs.roles.role import (
    Indices,
    Matrix,
    Probabilities,
    Role,
    Signs,
    Sorted,
    Within,
)
from ray_precheck.inputs.roles.rowwise import Causal, Rowwise
from ray_precheck.inputs.roles.rules import (
    ALL,
    INDICES,
    NETWORK,
    POSITIVE,
    ROWS,
    Arguments,
    RoleRow,
    about,
    along,
    always,
    bag_offsets,
    below,
    classes,
    coordinates,
    ctc_target_lengths,
    ctc_targets,
    distinct_along,
    divisor,
    filled_mask,
    lengths_of,
    packed_sizes,
    ranked_like,
    repeats,
    row,
    rows_of,
    running_lengths,
    same_if_alike,
    scattered_mask,
    segments,
    sorted_without_sorter,
    target_probabilities,
)
from ray_precheck.operators.table import FactTable
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import TensorSpec

_DIM = "input dim|axis index"
_SCATTER = "input dim|axis index src|value"
_ND = "input_x|x|input indices updates"
_BY_DIM = row(_DIM, index=along("input"))
_BY_AXIS = row("input|input_params indices|input_indices axis", indices=along("input", "axis", 0))
_ADDED_BY_AXIS = row("input|x indices y axis", indices=along("input", "axis"))
_ADDED_BY_ROW = row(_ND, indices=rows_of("input_x"))
_ADDED_AT = row(_ND, indices=coordinates("input_x"))
_SCALED_AT = row(_ND, indices=coordinates("input_x", parted=True))
_WRITTEN_AT = row(_ND, indices=coordinates("input_x", distinct=True))
_SEGMENTS = row("input segment_ids num_segments", segment_ids=below("num_segments"))
_TORCH_LOSS = "input target weight size_average ignore_index reduce reduction label_smoothing"
_LOSS = "input|inputs target weight ignore_index reduction label_smoothing"
_MATRIX = row("input|A", input=always(Matrix()))
_DEFINITE = row("input|A", input=always(Matrix(symmetric=True)))
_SHARE = always(Within(0.0, 1.0, (0.0, 1.0)))
_TARGET = row("input target|label", target=always(Signs()))
_PAIR_TARGET = row("input1 input2 target", target=always(Signs()))
_DIVISOR = row("input other", other=divisor)
_DIVIDES = row("input other", input=divisor)
_METHODS = "torch.Tensor mindspore.Tensor"
_SOME = "torch torch.Tensor mindspore.Tensor mindspore.ops"
_OF_TORCH = "torch torch.Tensor mindspore.mint"
_INDEXING = ("__getitem__", "__setitem__")


def _unknown(low: float, high: float) -> RoleRow:
    """Return the row of an elementwise API whose domain is used where the range is unknown."""
    return row("input", input=always(Within(low, high, only_unknown=True)))


TABLE: FactTable[tuple[RoleRow, ...]] = FactTable(
    "roles of arguments",
    [
        about(
            "torch: gru lstm rnn_relu rnn_tanh", row("data batch_sizes", batch_sizes=packed_sizes)
        ),
        # Indices that are read through.
        about("torch: embedding", row("weight indices", indices=rows_of("weight"))),
        about(f"{NETWORK}: embedding", row("input weight", input=rows_of("weight"))),
        about(
            "torch torch.nn.functional: embedding_bag",
            row("input weight offsets", input=rows_of("weight"), offsets=bag_offsets),
        ),
        about(f"{_OF_TORCH}: gather", _BY_DIM),
        about("mindspore.Tensor: gather", _BY_DIM, _BY_AXIS),
        about("mindspore.ops: gather", _BY_AXIS),
        about("mindspore.ops: gather_d", _BY_DIM),
        about("mindspore.Tensor mindspore.ops: gather_elements", _BY_DIM),
        about(
            "mindspore.Tensor mindspore.ops: gather_nd",
            row("input indices", indices=coordinates("input")),
        ),
        about(f"{ALL}: index_select", _BY_DIM),
        about(f"{ALL}: take", row("input index|indices axis", index=along("input", "axis"))),
        about(
            "torch torch.Tensor: take_along_dim", row("input indices dim", indices=along("input"))
        ),
        about(
            f"{NETWORK}: one_hot",
            row(
                "tensor|input|indices num_classes|depth",
                tensor=below("num_classes", of_output=True),
            ),
        ),
        about(f"{ALL}: bincount", row("input", input=always(Indices(0, float("inf"), (0, 9))))),
        # Indices that are written through; where several may be alike, sums are made.
        about(f"{_OF_TORCH}: index_add", _BY_DIM),
        about("mindspore.Tensor: index_add", _BY_DIM, _ADDED_BY_AXIS),
        about("mindspore.ops: index_add", _ADDED_BY_AXIS),
        about(f"{_SOME}: index_fill", _BY_DIM),
        about("torch torch.Tensor: index_reduce scatter_reduce", _BY_DIM),
        about(
            "torch torch.Tensor mindspore.Tensor: index_copy",
            row(_DIM, index=distinct_along("input", "index", axis=0)),
        ),
        about(
            f"{_SOME}: put",
            row(
                "input index source accumulate",
                index=distinct_along("input", "index", "", unless="accumulate", axis=0),
            ),
        ),
        about(
            f"{ALL}: scatter",
            row(f"{_SCATTER} reduce", index=distinct_along("input", "index", unless="reduce")),
        ),
        about(f"{_OF_TORCH}: scatter_add", _BY_DIM),
        about("mindspore.Tensor: scatter_add", _BY_DIM, _ADDED_BY_ROW),
        about("mindspore.ops: scatter_add", _ADDED_BY_ROW),
        about(
            "mindspore.ops: scatter_update",
            row(_ND, indices=distinct_along("input_x", "indices", "no_dim", axis=0)),
        ),
        about(
            "mindspore.ops: tensor_scatter_elements",
            row(
                f"{_ND} axis reduction",
                indices=distinct_along("input_x", "indices", "axis", unless="reduction"),
            ),
        ),
        about(
            "mindspore.ops: scatter_nd",
            row("indices updates shape", indices=coordinates(shape="shape")),
        ),
        about("mindspore.ops: tensor_scatter_update scatter_nd_update", _WRITTEN_AT),
        about(
            """mindspore.ops:
                tensor_scatter_add tensor_scatter_sub tensor_scatter_max tensor_scatter_min
                scatter_nd_add scatter_nd_sub scatter_nd_max scatter_nd_min""",
            _ADDED_AT,
        ),
        about(
            """mindspore.ops:
                tensor_scatter_mul tensor_scatter_div scatter_nd_mul scatter_nd_div""",
            _SCALED_AT,
        ),
        about(
            """mindspore.ops: unsorted_segment_sum
            mindspore.Tensor mindspore.ops:
                unsorted_segment_prod unsorted_segment_max unsorted_segment_min""",
            _SEGMENTS,
        ),
        # Losses.
        about("torch.nn.functional: cross_entropy nll_loss", row(_TORCH_LOSS, target=classes)),
        about(
            "mindspore.mint.nn.functional mindspore.ops: cross_entropy nll_loss",
            row(_LOSS, target=classes),
        ),
        about(
            "torch.nn.functional mindspore.ops: multi_margin_loss",
            row("input target", target=classes),
        ),
        about(
            "torch torch.nn.functional mindspore.ops: ctc_loss",
            row(
                "log_probs targets input_lengths target_lengths blank",
                targets=ctc_targets,
                input_lengths=lengths_of("log_probs"),
                target_lengths=ctc_target_lengths,
            ),
        ),
        about(
            f"torch {NETWORK}: kl_div",
            row("input|logits target|labels", target=target_probabilities),
        ),
        about(
            f"{NETWORK}: binary_cross_entropy",
            row(
                "input target",
                input=always(Within(0.0, 1.0, (0.1, 0.9))),
                target=always(Within(0.0, 1.0)),
            ),
        ),
        about(
            "torch.nn.functional mindspore.ops: gaussian_nll_loss",
            row("input target var", var=POSITIVE),
        ),
        about(
            f"""torch torch.nn.functional mindspore.ops: hinge_embedding_loss
            {NETWORK}: soft_margin_loss""",
            _TARGET,
        ),
        about(
            f"""torch torch.nn.functional mindspore.ops: margin_ranking_loss
            torch {NETWORK}: cosine_embedding_loss""",
            _PAIR_TARGET,
        ),
        # Probabilities.
        about(f"{ALL}: multinomial", row("input", input=always(Probabilities()))),
        about(f"{ALL}: bernoulli", row("input", input=_SHARE)),
        about(f"{_SOME}: quantile nanquantile", row("input q", q=_SHARE)),
        # Matrices.
        about(
            f"""{_SOME} torch.linalg: cholesky
            torch.linalg: cholesky_ex ldl_factor
            {_SOME}: logdet""",
            _DEFINITE,
        ),
        about(
            f"""torch.linalg mindspore.mint.linalg: inv
            torch.linalg: inv_ex solve_ex
            {ALL}: inverse
            torch torch.Tensor torch.linalg: solve
            torch.linalg mindspore.ops: solve_triangular
            {_SOME}: cholesky_inverse""",
            _MATRIX,
        ),
        about(f"{_SOME}: cholesky_solve", row("input input2", input2=always(Matrix()))),
        about(f"{ALL}: triangular_solve", row("input A", A=always(Matrix()))),
        # Sorted, lengths.
        about(
            "torch mindspore.ops: bucketize", row("input boundaries", boundaries=always(Sorted()))
        ),
        about(
            "torch mindspore.mint mindspore.Tensor mindspore.ops: searchsorted",
            row("sorted_sequence input|values", sorted_sequence=sorted_without_sorter),
        ),
        about(
            "torch: _pack_padded_sequence",
            row("input lengths batch_first", lengths=lengths_of("input", falling=True)),
        ),
        about(
            "mindspore.Tensor mindspore.ops: reverse_sequence",
            row("input seq_lengths seq_dim batch_dim", seq_lengths=lengths_of("input")),
        ),
        about(f"{ALL}: repeat_interleave", row("input repeats dim", repeats=repeats)),
        about(
            "torch: segment_reduce",
            row(
                "data reduce lengths indices offsets axis",
                lengths=segments(running=False),
                offsets=segments(running=True),
            ),
        ),
        about(
            f"{_SOME}: masked_scatter", row("input|self|x mask source|tensor", mask=scattered_mask)
        ),
        *ROWS,
        # Steps of optimisers.
        about(
            f"{ALL}: addcmul",
            row("input tensor1 tensor2", tensor2=same_if_alike),
        ),
        about(
            f"{ALL}: addcdiv",
            row("input tensor1 tensor2", tensor2=ranked_like),
        ),
        # Masks of attention.
        about(
            "torch.nn.functional: scaled_dot_product_attention",
            row("query key value attn_mask", attn_mask=always(Causal(hides_where_true=False))),
        ),
        about(
            "torch.nn.functional: multi_head_attention_forward",
            row("query", attn_mask=always(Causal()), key_padding_mask=always(Rowwise())),
        ),
        about(f"{_SOME}: masked_fill", row("input mask value", mask=filled_mask)),
        about("torch_npu: npu_scaled_masked_softmax", row("x mask", mask=always(Causal()))),
        about(
            """torch_npu mindspeed: npu_fusion_attention
            mindspore.ops: flash_attention_score""",
            row(
                "query key value head_num input_layout",
                atten_mask=always(Causal()),
                attn_mask=always(Causal()),
                actual_seq_qlen=running_lengths("query"),
                actual_seq_kvlen=running_lengths("key"),
            ),
        ),
        # Whole numbers that are divided by.
        about(
            f"""{ALL}: div divide floor_divide remainder fmod
            {_SOME}: true_divide
            mindspore.ops: floor_div
            {_METHODS}:
                __truediv__ __floordiv__ __mod__ __itruediv__ __ifloordiv__ __imod__""",
            _DIVISOR,
        ),
        about(
            f"""{_METHODS}: __rtruediv__ __rfloordiv__ __rmod__
            torch.Tensor: __rdiv__""",
            _DIVIDES,
        ),
        # Where the range is unknown, numbers of the domain.
        about(
            f"""{ALL}: log log2 log10 log1p sqrt rsqrt reciprocal
            torch.special mindspore.mint.special: log1p
            {_SOME}: lgamma digamma
            torch.special: digamma gammaln
            mindspore.Tensor mindspore.ops: inv""",
            _unknown(0.5, 1.5),
        ),
        about(
            f"""{ALL}: acos asin atanh arccos arcsin arctanh erfinv
            torch.special: erfinv""",
            _unknown(-0.9, 0.9),
        ),
        about(f"{ALL}: acosh arccosh", _unknown(1.1, 2.0)),
        about(f"{_SOME} torch.special: logit", _unknown(0.1, 0.9)),
    ],
)


def roles_of(record: ApiRecord) -> dict[str, Role]:
    """Return the roles of a call's tensor arguments by path; {} where the table has none."""
    api = record.name.api.rsplit(".", 1)[-1]
    if api in _INDEXING:
        return subscript_roles(record, written=api == "__setitem__")
    if api in ("index_put", "index_put_"):
        return index_put_roles(record)
    if api in MADE:
        return sparse_roles(record)
    if record.name.prefix == OPTIMIZER:
        return optimizer_roles(record)
    for candidate in rows_about(record.name, record.framework):
        found = _ruled(record, candidate)
        if found:
            return found
    return {}


def rows_about(name: ApiName, framework: str) -> tuple[RoleRow, ...]:
    """Return the rows of an operator, or of the one that it is the in-place form of."""
    type_name = name.type_name
    plain = type_name if type_name.endswith("__") else type_name.removesuffix("_")
    return TABLE.of(type_name, framework) or TABLE.of(plain, framework) or ()


def _ruled(record: ApiRecord, candidate: RoleRow) -> dict[str, Role]:
    arguments = Arguments(record, candidate.names)
    found: dict[str, Role] = {}
    for name, rule in candidate.rules.items():
        place = arguments.find(name)
        if place is None or not isinstance(place[1], TensorSpec):
            continue
        role = rule(arguments)
        if role is not None:
            found[place[0]] = role
    return found


@lru_cache(1 << 12)
def looks_of(type_name: str, framework: str) -> Mapping[str, str]:
    """Return at which arguments of an operator a capture looks, and at what of them, by their places in a
    record: `{"input.1": "indices", "kwargs.indices": "indices"}`."""
    prefix, _, api = type_name.partition(".")
    if api in _INDEXING[:1] or api in ("index_put", "index_put_"):
        return dict.fromkeys(("input.1", "kwargs.indices"), INDICES)
    found: dict[str, str] = {}
    for candidate in rows_about(ApiName(prefix, api, 0), framework):
        for name, rule in candidate.rules.items():
            look = getattr(rule, "look", None)
            places = [i for i, known in enumerate(candidate.names) if name in known.split("|")]
            if look is not None:
                words = {word for i in places for word in candidate.names[i].split("|")} | {name}
                named = [f"kwargs.{word}" for word in sorted(words)]
                found |= dict.fromkeys([*(f"input.{i}" for i in places), *named], look)
    return found
