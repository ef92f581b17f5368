"""The table of meanings: which arguments of which APIs are more than numbers of a range.

Comes in: an `ApiRecord`. Goes out: the meanings of its tensor arguments by path. Called where the
inputs of a call are made.

A row has the names of the positional arguments, in order (`x|y`: two names of one argument), and the
rule of each argument that has a meaning. It stands under the last part of the API's name
(`linalg.inv` is `inv`), without the underscore of an in-place operator. Of several rows the first
counts whose ruled arguments are tensors in the call, so that torch, mint, mindspore.ops and Tensor
methods, which have other orders, may stand under one name; `only` holds a row to some prefixes.

To add an API: a row here, and where its arguments mean something new, a rule in
`datagen.meaning_rules`, or a kind of values in `datagen.meaning_values`.
"""

from dataclasses import dataclass

from ray_precheck.datagen.meaning import DistinctTogether, Meaning, Within, index_into
from ray_precheck.datagen.meaning_rules import (
    Arguments,
    Rule,
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
    ranked_like,
    repeats,
    rows_of,
    running_lengths,
    same_if_alike,
    sorted_without_sorter,
    target_probabilities,
)
from ray_precheck.datagen.meaning_values import Causal, Matrix, Probabilities, Signs, Sorted
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import Constant, SequenceSpec, TensorSpec, ValueSpec


@dataclass(frozen=True, slots=True)
class MeaningRow:
    """One order of arguments, the rules of those that have a meaning, and whose order it is."""

    names: tuple[str, ...]
    rules: dict[str, Rule]
    only: tuple[str, ...] = ()


def row(names: str, *, only: str = "", **rules: Rule) -> MeaningRow:
    """Return a row; `names` and `only` are written with blanks between them."""
    return MeaningRow(tuple(names.split()), rules, tuple(only.split()))


_DIM = "input dim|axis index"
_SCATTER = "input dim|axis index src|value"
_ND = "input_x|x|input indices updates"
_BY_DIM = row(_DIM, index=along("input"))
_ADDED_AT = row(_ND, indices=coordinates("input_x"))
_WRITTEN_AT = row(_ND, indices=coordinates("input_x", distinct=True))
_SEGMENTS = row("input segment_ids num_segments", segment_ids=below("num_segments"))
_TORCH_LOSS = "input target weight size_average ignore_index reduce reduction label_smoothing"
_LOSS = "input|inputs target weight ignore_index reduction label_smoothing"
_CLASS_LOSS = (
    row(_TORCH_LOSS, only="Functional Torch", target=classes),
    row(_LOSS, target=classes),
)
_MATRIX = (row("input|A", input=always(Matrix())),)
_DEFINITE = (row("input|A", input=always(Matrix(symmetric=True))),)
_TARGET = row("input target|label", target=always(Signs()))
_PAIR_TARGET = row("input1 input2 target", target=always(Signs()))
_DIVISOR = (row("input other", other=divisor),)
_DIVIDES = (row("input other", input=divisor),)


def _unknown(low: float, high: float) -> tuple[MeaningRow, ...]:
    """Return the row of an elementwise API whose domain is used where the range is unknown."""
    return (row("input", input=always(Within(low, high, only_unknown=True))),)


TABLE: dict[str, tuple[MeaningRow, ...]] = {
    # Indices that are read through.
    "embedding": (
        row("weight indices", only="Torch", indices=rows_of("weight")),
        row("input weight", input=rows_of("weight")),
    ),
    "embedding_bag": (row("input weight offsets", input=rows_of("weight"), offsets=bag_offsets),),
    "embedding_lookup": (row("params indices offset", indices=rows_of("params")),),
    "gather": (
        _BY_DIM,
        row("input|input_params indices|input_indices axis", indices=along("input", "axis", 0)),
    ),
    "gather_d": (_BY_DIM,),
    "gather_elements": (_BY_DIM,),
    "gather_nd": (row("input indices", indices=coordinates("input")),),
    "index_select": (_BY_DIM,),
    "take": (row("input index|indices axis", index=along("input", "axis")),),
    "take_along_dim": (row("input indices dim", indices=along("input")),),
    "one_hot": (
        row("tensor|input|indices num_classes|depth", tensor=below("num_classes", of_output=True)),
    ),
    # Indices that are written through; where several may be alike, sums are made.
    "index_add": (
        _BY_DIM,
        row("input|x indices y axis", indices=along("input", "axis")),
    ),
    "index_fill": (_BY_DIM,),
    "index_reduce": (_BY_DIM,),
    "index_copy": (row(_DIM, index=distinct_along("input", "index", axis=0)),),
    "put": (
        row(
            "input index source accumulate",
            index=distinct_along("input", "index", "", unless="accumulate", axis=0),
        ),
    ),
    "scatter": (
        row(f"{_SCATTER} reduce", index=distinct_along("input", "index", unless="reduce")),
    ),
    "scatter_add": (_BY_DIM, row(_ND, indices=rows_of("input_x"))),
    "scatter_reduce": (_BY_DIM,),
    "scatter_update": (row(_ND, indices=distinct_along("input_x", "indices", "no_dim", axis=0)),),
    "tensor_scatter_elements": (
        row(
            f"{_ND} axis reduction",
            indices=distinct_along("input_x", "indices", "axis", unless="reduction"),
        ),
    ),
    "scatter_nd": (row("indices updates shape", indices=coordinates(shape="shape")),),
    **dict.fromkeys(("tensor_scatter_update", "scatter_nd_update"), (_WRITTEN_AT,)),
    **dict.fromkeys(
        [
            f"{stem}_{how}"
            for stem in ("tensor_scatter", "scatter_nd")
            for how in ("add", "sub", "mul", "div", "max", "min")
        ],
        (_ADDED_AT,),
    ),
    **dict.fromkeys(
        [f"unsorted_segment_{how}" for how in ("sum", "prod", "max", "min")], (_SEGMENTS,)
    ),
    # Losses.
    **dict.fromkeys(("cross_entropy", "nll_loss", "nll_loss_nd", "nll_loss2d"), _CLASS_LOSS),
    "multi_margin_loss": (row("input target", target=classes),),
    "ctc_loss": (
        row(
            "log_probs targets input_lengths target_lengths blank",
            targets=ctc_targets,
            input_lengths=lengths_of("log_probs"),
            target_lengths=ctc_target_lengths,
        ),
    ),
    "kl_div": (row("input|logits target|labels", target=target_probabilities),),
    "binary_cross_entropy": (
        row(
            "input target",
            input=always(Within(0.0, 1.0, (0.1, 0.9))),
            target=always(Within(0.0, 1.0)),
        ),
    ),
    "gaussian_nll_loss": (
        row("input target var", var=always(Within(0.0, float("inf"), (0.5, 1.5)))),
    ),
    **dict.fromkeys(("hinge_embedding_loss", "soft_margin_loss"), (_TARGET,)),
    **dict.fromkeys(("margin_ranking_loss", "cosine_embedding_loss"), (_PAIR_TARGET,)),
    # Probabilities.
    "multinomial": (row("input", input=always(Probabilities())),),
    "bernoulli": (row("input", input=always(Within(0.0, 1.0, (0.0, 1.0)))),),
    **dict.fromkeys(
        ("quantile", "nanquantile"), (row("input q", q=always(Within(0.0, 1.0, (0.0, 1.0)))),)
    ),
    # Matrices.
    **dict.fromkeys(("cholesky", "cholesky_ex", "logdet", "ldl_factor"), _DEFINITE),
    **dict.fromkeys(
        ("inv", "inv_ex", "inverse", "solve", "solve_ex", "solve_triangular", "cholesky_inverse"),
        _MATRIX,
    ),
    "cholesky_solve": (row("input input2", input2=always(Matrix())),),
    "triangular_solve": (row("input A", A=always(Matrix())),),
    # Sorted, lengths.
    "bucketize": (row("input boundaries", boundaries=always(Sorted())),),
    "searchsorted": (row("sorted_sequence input|values", sorted_sequence=sorted_without_sorter),),
    "_pack_padded_sequence": (
        row("input lengths batch_first", lengths=lengths_of("input", falling=True)),
    ),
    "reverse_sequence": (
        row("input seq_lengths seq_dim batch_dim", seq_lengths=lengths_of("input")),
    ),
    "repeat_interleave": (row("input repeats dim", repeats=repeats),),
    # Statistics of a batch.
    "batch_norm": (
        row(
            "input weight bias running_mean running_var",
            only="Torch",
            running_var=always(Within(0.0, float("inf"), (0.5, 1.5))),
        ),
        row(
            "input running_mean running_var",
            running_var=always(Within(0.0, float("inf"), (0.5, 1.5))),
        ),
    ),
    # Steps of optimisers.
    "addcmul": (row("input tensor1 tensor2", tensor2=same_if_alike("tensor1", "tensor2")),),
    "addcdiv": (row("input tensor1 tensor2", tensor2=ranked_like("tensor1", "tensor2")),),
    # Masks of attention.
    "scaled_dot_product_attention": (
        row("query key value attn_mask", attn_mask=always(Causal(hides_where_true=False))),
    ),
    "multi_head_attention_forward": (row("query", attn_mask=always(Causal())),),
    "masked_fill": (row("input mask value", mask=filled_mask),),
    "npu_scaled_masked_softmax": (row("x mask", mask=always(Causal())),),
    **dict.fromkeys(
        ("npu_fusion_attention", "flash_attention_score"),
        (
            row(
                "query key value head_num input_layout",
                atten_mask=always(Causal()),
                attn_mask=always(Causal()),
                actual_seq_qlen=running_lengths("query"),
                actual_seq_kvlen=running_lengths("key"),
            ),
        ),
    ),
    # Whole numbers that are divided by.
    **dict.fromkeys(
        """div divide true_divide floor_divide floor_div remainder fmod __truediv__ __floordiv__
        __mod__ __itruediv__ __ifloordiv__ __imod__""".split(),
        _DIVISOR,
    ),
    **dict.fromkeys("__rtruediv__ __rfloordiv__ __rmod__ __rdiv__".split(), _DIVIDES),
    # Where the range is unknown, numbers of the domain.
    **dict.fromkeys(
        "log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma gammaln".split(),
        _unknown(0.5, 1.5),
    ),
    **dict.fromkeys("acos asin atanh arccos arcsin arctanh erfinv".split(), _unknown(-0.9, 0.9)),
    **dict.fromkeys(("acosh", "arccosh"), _unknown(1.1, 2.0)),
    "logit": _unknown(0.1, 0.9),
}
_INDEXING = ("__getitem__", "__setitem__")


def meanings_of(record: ApiRecord) -> dict[str, Meaning]:
    """Return the meanings of a call's tensor arguments by path; {} where the table has none."""
    api = record.name.api.rsplit(".", 1)[-1]
    if api in _INDEXING:
        return _subscript(record, written=api == "__setitem__")
    name = api.removesuffix("_") if not api.endswith("__") else api
    if name == "index_put":
        return _index_put(record)
    for candidate in TABLE.get(name, ()):
        if candidate.only and record.name.prefix not in candidate.only:
            continue
        found = _ruled(record, candidate)
        if found:
            return found
    return {}


def _ruled(record: ApiRecord, candidate: MeaningRow) -> dict[str, Meaning]:
    arguments = Arguments(record, candidate.names)
    found: dict[str, Meaning] = {}
    for name, rule in candidate.rules.items():
        place = arguments.find(name)
        if place is None or not isinstance(place[1], TensorSpec):
            continue
        meaning = rule(arguments)
        if meaning is not None:
            found[place[0]] = meaning
    return found


def _index_put(record: ApiRecord) -> dict[str, Meaning]:
    arguments = Arguments(record, ("input", "indices", "values", "accumulate"))
    shape, place = arguments.shape("input"), arguments.find("indices")
    if shape is None or place is None or not isinstance(place[1], SequenceSpec):
        return {}
    accumulates = arguments.value("accumulate", False) is True
    return _indexed(shape, place[1].items, place[0], written=not accumulates)


def _subscript(record: ApiRecord, *, written: bool) -> dict[str, Meaning]:
    """Return the meanings of the index tensors of `x[...]`."""
    if len(record.args) < 2 or not isinstance(record.args[0], TensorSpec):
        return {}
    shape, index = record.args[0].shape, record.args[1]
    if isinstance(index, SequenceSpec):
        return _indexed(shape, index.items, "input_args.1", written=written)
    return _indexed(shape, (index,), "", written=written, alone="input_args.1")


def _indexed(
    shape: tuple[int, ...],
    items: tuple[ValueSpec, ...],
    path: str,
    *,
    written: bool,
    alone: str = "",
) -> dict[str, Meaning]:
    """Return a meaning for each whole-number tensor among the parts of a subscript."""
    taken = sum(map(_dimensions, items))
    found: dict[str, tuple[int, TensorSpec]] = {}
    dim = 0
    for position, item in enumerate(items):
        if isinstance(item, Constant) and item.value is Ellipsis:
            dim += max(len(shape) - taken, 0)
        elif isinstance(item, TensorSpec) and DTYPES[item.dtype].kind in ("int", "uint"):
            if dim < len(shape) and shape[dim]:
                found[alone or f"{path}.{position}"] = (shape[dim], item)
            dim += 1
        else:
            dim += _dimensions(item)
    together = len({spec.shape for _, spec in found.values()}) == 1
    if not written:
        return {at: index_into(extent) for at, (extent, _) in found.items()}
    if (
        not together
    ):  # broadcast against each other: distinct rows and columns address distinct places
        return {at: DistinctTogether((extent,), 0, at) for at, (extent, _) in found.items()}
    extents = tuple(extent for extent, _ in found.values())
    return {at: DistinctTogether(extents, place, "subscript") for place, at in enumerate(found)}


def _dimensions(item: ValueSpec) -> int:
    """Return how many dimensions a part of a subscript takes."""
    if isinstance(item, TensorSpec) and item.dtype == "bool":
        return len(item.shape)
    if isinstance(item, Constant) and (item.value is None or item.value is Ellipsis):
        return 0
    return 1
