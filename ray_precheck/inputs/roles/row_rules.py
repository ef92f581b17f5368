"""The roles of arguments of which an operator looks at whole rows, and the rules that give them.

Comes in: `Arguments`. Goes out: a `Role` of `inputs.roles.rowwise`, and `ROWS`, the rows of the table of
roles. Called by `inputs.roles.table`.
"""

import math

from ray_precheck.inputs.roles.role import Role
from ray_precheck.inputs.roles.rowwise import (
    CHANNELS,
    LINES,
    NORMED,
    SAMPLES,
    Normed,
    Ordered,
    Rowwise,
    Scores,
)
from ray_precheck.inputs.roles.rules import (
    ALL,
    DIFFERENT,
    NETWORK,
    POSITIVE,
    Arguments,
    RoleRow,
    about,
    always,
    looked_at,
    row,
)
from ray_precheck.schema.values import TensorSpec, ValueSpec


def scores(arguments: Arguments) -> Role | None:
    """Return the role of scores of which a softmax or its like is computed along a dimension."""
    shape = arguments.shape("input")
    return None if not shape else Scores() if _is_last(arguments, shape) else Rowwise()


def ordered(arguments: Arguments) -> Role | None:
    """Return the role of numbers that are put in order, or of which the largest is looked for."""
    return Ordered(equal=not arguments.record.has_backward)


def normed_lines(arguments: Arguments) -> Role | None:
    """Return the role of numbers whose last dimensions are normalised by mean and deviation."""
    shape = arguments.shape("input")
    extents = arguments.value("normalized_shape", shape[-1:] if shape else None)
    if not shape or not isinstance(extents, tuple) or shape[len(shape) - len(extents) :] != extents:
        return None
    bears = _bears_small_deviations(arguments)
    return Normed(rows=math.prod(shape[: len(shape) - len(extents)]), zero=bears, offset=bears)


def normed_channels(arguments: Arguments) -> Role | None:
    """Return the role of numbers whose channels are normalised by mean and deviation over a batch."""
    # No offsets: for channels_last torch itself computes the variance as a difference of two sums.
    return Normed(look=CHANNELS, zero=_bears_small_deviations(arguments))


def normed_groups(arguments: Arguments) -> Role | None:
    """Return the role of numbers whose groups of channels are normalised, in each sample alone."""
    shape, groups = arguments.shape("input"), arguments.value("num_groups")
    if not shape or len(shape) < 2:
        return None
    groups = shape[1] if arguments.find("num_groups") is None else groups
    if type(groups) is not int or groups < 1 or shape[1] % groups:
        return None
    zero = _bears_small_deviations(arguments)
    return Normed(look=SAMPLES, rows=shape[0] * groups, zero=zero)


def scaled_lines(arguments: Arguments) -> Role | None:
    """Return the role of vectors that are divided by a norm, of which some may be zero."""
    # The gradient at 0 is that of the small number in the divisor's place.
    return None if arguments.record.has_backward else Normed(zero=True)


def measured_lines(arguments: Arguments) -> Role | None:
    """Return the role of vectors whose length is computed, of which some may be zero."""
    order = arguments.value("ord", 2)
    # The gradient of a length is 0 there; that of a sum of roots is infinite.
    return Normed(zero=True) if order in (2, "fro") else Rowwise()


for _look, _rules in (
    (LINES, (scores, scaled_lines, measured_lines)),
    (NORMED, (normed_lines,)),
    (CHANNELS, (normed_channels,)),
    (SAMPLES, (normed_groups,)),
    (DIFFERENT, (ordered,)),
):
    for _rule in _rules:
        looked_at(_look, _rule)


def _is_last(arguments: Arguments, shape: tuple[int, ...]) -> bool:
    dim = arguments.value("dim", -1)
    return dim in (-1, len(shape) - 1, (-1,), (len(shape) - 1,))


# The largest gradient of which rounding errors stay below the absolute limit of msprobe's standard.
_BORNE_GRADIENTS = {"float64": 1.0, "float32": 1.0, "float16": 0.1, "bfloat16": 0.02}
# What a division by a deviation of 0 and the small number beside it makes of a gradient.
_LARGEST_FACTOR = 1e3


def _bears_small_deviations(arguments: Arguments) -> bool:
    """Return whether gradients stay small where they are divided by a small deviation, or as the record's.

    Where they do not, rounding alone leads to errors that no recorded call has.
    """
    record = arguments.record
    if record.grads_in is None:
        return True
    arriving = [_largest(spec) for spec in record.grads_in if isinstance(spec, TensorSpec)]
    passed_on = [_largest(spec) for spec in (record.grads_out or ())[:1] if spec is not None]
    tensor = arguments.tensor("input")
    borne = _BORNE_GRADIENTS.get(tensor.dtype, 0.0) if tensor else 0.0
    known = [size for size in passed_on if math.isfinite(size)]
    return max(arriving, default=math.inf) * _LARGEST_FACTOR <= max(borne, *known, 0.0)


def _largest(spec: ValueSpec) -> float:
    """Return the largest absolute value of a tensor, infinity where it is not known."""
    ends = (spec.low, spec.high) if isinstance(spec, TensorSpec) else (None,)
    sizes = [math.inf if end is None or not math.isfinite(end) else abs(end) for end in ends]
    return float(max(sizes))


ROWS: list[tuple[str, tuple[RoleRow, ...]]] = [
    # Statistics of a batch.
    about(
        "torch: batch_norm",
        row(
            "input weight bias running_mean running_var",
            input=normed_channels,
            running_var=POSITIVE,
        ),
    ),
    about(
        f"{NETWORK}: batch_norm",
        row("input running_mean running_var", input=normed_channels, running_var=POSITIVE),
    ),
    about(
        "mindspore.ops.operations: BatchNorm",
        row("input scale bias mean variance", input=normed_channels, variance=POSITIVE),
    ),
    # Rows that are normalised, compared, or weighed against each other.
    about("mindspore.ops.operations: LayerNorm", row("input gamma beta", input=normed_lines)),
    about(f"torch {NETWORK}: layer_norm", row("input normalized_shape", input=normed_lines)),
    about(f"torch {NETWORK}: group_norm", row("input num_groups", input=normed_groups)),
    about("torch torch.nn.functional: instance_norm", row("input", input=normed_groups)),
    about(
        f"{ALL}: var std\n        torch mindspore.mint mindspore.ops: var_mean std_mean",
        row("input dim|axis", input=always(Rowwise(look=NORMED))),
    ),
    about(
        """torch torch.nn.functional mindspore.ops: rms_norm
        torch.nn.functional mindspore.mint.nn.functional: normalize""",
        row("input|x", input=scaled_lines),
    ),
    about(
        """torch.linalg mindspore.mint.linalg: vector_norm
        torch.linalg: norm
        torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: norm""",
        row("input|A|x ord|p", input=measured_lines),
    ),
    about(
        "torch torch.nn.functional mindspore.ops: cosine_similarity",
        row("x1 x2", x1=scaled_lines, x2=scaled_lines),
    ),
    about(
        f"""torch torch.Tensor torch.special {NETWORK}: log_softmax softmax
        mindspore.mint: softmax
        mindspore.mint.special: log_softmax
        mindspore.Tensor: softmax
        {ALL}: logsumexp
        torch.special: logsumexp""",
        row("input|logits dim|axis", input=scores),
    ),
    about(
        f"""{ALL}:
            argmax argmin max min cummax cummin median kthvalue topk sort argsort
        torch torch.Tensor mindspore.Tensor mindspore.ops: nanmedian
        torch torch.Tensor: mode msort unique unique_consecutive
        mindspore.Tensor mindspore.ops: top_k
        mindspore.Tensor: argmax_with_value argmin_with_value""",
        row("input", input=ordered),
    ),
]
