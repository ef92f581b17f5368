"""From the arguments of a call to the role of one of them.

Comes in: `Arguments`, a record's arguments by name. Goes out: a `Role`, or None where the record
does not tell enough. The rows of `inputs.roles.table` name these rules; `ROWS` are those of them whose
operators look at whole rows of an argument.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray_precheck.inputs.roles.role import (
    AtMost,
    Classes,
    Coordinates,
    Distinct,
    Indices,
    Lengths,
    NonZero,
    PackedSizes,
    Parts,
    Probabilities,
    Ranked,
    Role,
    Same,
    Sorted,
    Within,
    index_into,
)
from ray_precheck.inputs.roles.rowwise import (
    CHANNELS,
    LINES,
    NORMED,
    SAMPLES,
    Causal,
    Normed,
    Ordered,
    Rowwise,
    Scores,
)
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import Constant, SequenceSpec, TensorSpec, ValueSpec

# Scores that are filled with less than this are those of a mask.
_HIDDEN_SCORE = -1e4
# Namespaces of a tensor's methods and of the functions that have their names.
ALL = "torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops"
NETWORK = "torch.nn.functional mindspore.mint.nn.functional mindspore.ops"
# The largest gradient of which rounding errors stay below the absolute limit of msprobe's standard.
_BORNE_GRADIENTS = {"float64": 1.0, "float32": 1.0, "float16": 0.1, "bfloat16": 0.02}
# What a division by a deviation of 0 and the small number beside it makes of a gradient.
_LARGEST_FACTOR = 1e3


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call by their names: `names` are those of the positional ones, in order.

    Alternatives, as of keywords that differ between frameworks, are parted by `|`.
    """

    record: ApiRecord
    names: tuple[str, ...]

    def find(self, name: str) -> tuple[str, ValueSpec] | None:
        """Return path and spec of an argument, None where the call does not have it."""
        keywords = dict(self.record.kwargs)
        for position, known in enumerate(self.names):
            if name in known.split("|"):
                if position < len(self.record.args):
                    return f"input_args.{position}", self.record.args[position]
                name = known
        for keyword in name.split("|"):
            if keyword in keywords:
                return f"input_kwargs.{keyword}", keywords[keyword]
        return None

    def tensor(self, name: str) -> TensorSpec | None:
        """Return the spec of a tensor argument, None where it is not there or no tensor."""
        found = self.find(name)
        return found[1] if found and isinstance(found[1], TensorSpec) else None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor argument."""
        found = self.tensor(name)
        return None if found is None else found.shape

    def value(self, name: str, default: Any = None) -> Any:
        """Return a constant argument, a list of constants as a tuple."""
        found = self.find(name)
        spec = found[1] if found else None
        if isinstance(spec, SequenceSpec):
            return tuple(item.value if isinstance(item, Constant) else None for item in spec.items)
        return spec.value if isinstance(spec, Constant) else default

    def out_shape(self) -> tuple[int, ...] | None:
        """Return the shape of the first output."""
        first = self.record.outputs[0] if self.record.outputs else None
        return first.shape if isinstance(first, TensorSpec) else None


Rule = Callable[[Arguments], Role | None]


@dataclass(frozen=True, slots=True)
class RoleRow:
    """One order of arguments, and the rules of those that have a role."""

    names: tuple[str, ...]
    rules: dict[str, Rule]


def row(names: str, **rules: Rule) -> RoleRow:
    """Return a row; `names` are written with blanks between them."""
    return RoleRow(tuple(names.split()), rules)


def about(operators: str, *rows: RoleRow) -> tuple[str, tuple[RoleRow, ...]]:
    """Return an entry of the table: its operators, and a row for each of their orders of arguments."""
    return operators, rows


# What a capture looks at of an argument, beside rows: how many values differ.
INDICES, DIFFERENT = "indices", "different"


def looked_at(look: str, rule: Rule) -> Rule:
    """Return the rule of an argument at whose values a capture looks: `INDICES`, `DIFFERENT`, or rows."""
    rule.__dict__["look"] = look
    return rule


def always(role: Role) -> Rule:
    """Return the rule of an argument that means the same in every call."""

    def rule(_: Arguments) -> Role:
        return role

    if isinstance(role, Indices):
        return looked_at(INDICES, rule)
    return looked_at(role.look, rule) if isinstance(role, Rowwise) else rule


POSITIVE = always(Within(0.0, float("inf"), (0.5, 1.5)))


def _extent(arguments: Arguments, tensor: str, dim: str, default: int | None) -> int | None:
    """Return the extent of a dimension, of all elements where the call names no dimension."""
    shape, found = arguments.shape(tensor), arguments.find(dim)
    if shape is None or (found is not None and not isinstance(found[1], Constant)):
        return None
    at = arguments.value(dim, default)
    if at is None:
        return math.prod(shape)
    if type(at) is not int or not -len(shape) <= at < len(shape):
        return None
    return shape[at]


def along(tensor: str, dim: str = "dim", default: int | None = None) -> Rule:
    """Return the rule of an index into the dimension `dim` of a tensor."""

    def rule(arguments: Arguments) -> Role | None:
        extent = _extent(arguments, tensor, dim, default)
        return index_into(extent) if extent else None

    return looked_at(INDICES, rule)


def distinct_along(
    tensor: str, index: str, dim: str = "dim", *, unless: str = "", axis: int | None = None
) -> Rule:
    """Return the rule of an index that is written through, unless the call reduces (`unless`)."""

    def rule(arguments: Arguments) -> Role | None:
        extent = _extent(arguments, tensor, dim, None)
        if not extent:
            return None
        reduction = arguments.value(unless) if unless else None
        if reduction not in (None, False, "none"):
            return index_into(extent)
        at = arguments.value(dim, 0) if axis is None else axis
        shape = arguments.shape(index)
        # A dump can have any value here: null and text are no dimension.
        if shape is None or type(at) is not int or not -len(shape) <= at < max(len(shape), 1):
            return index_into(extent)
        return Distinct(extent, at)

    return rule


def rows_of(tensor: str) -> Rule:
    """Return the rule of an index into the first dimension of a tensor, never from the back."""

    def rule(arguments: Arguments) -> Role | None:
        shape = arguments.shape(tensor)
        return Indices(0, shape[0] - 1) if shape and shape[0] else None

    return looked_at(INDICES, rule)


def below(*names: str, of_output: bool = False) -> Rule:
    """Return the rule of a number below a constant argument, or below the last output's extent."""

    def rule(arguments: Arguments) -> Role | None:
        for name in names:
            limit = arguments.value(name)
            if type(limit) is int and limit > 0:
                return Indices(0, limit - 1)
        shape = arguments.out_shape()
        return Indices(0, shape[-1] - 1) if of_output and shape and shape[-1] else None

    return looked_at(INDICES, rule)


def coordinates(
    tensor: str = "", shape: str = "", *, distinct: bool = False, parted: bool = False
) -> Rule:
    """Return the rule of coordinates into a tensor, or into a shape that is an argument.

    With `parted` no place is addressed twice where gradients are compared: those of a product are not
    the ones of MindSpore there.
    """

    def rule(arguments: Arguments) -> Role | None:
        extents = arguments.value(shape) if shape else arguments.shape(tensor)
        if not isinstance(extents, tuple) or not all(type(e) is int for e in extents):
            return None
        return Coordinates(extents, distinct or (parted and arguments.record.has_backward))

    return rule


def classes(arguments: Arguments) -> Role | None:
    """Return the role of a loss's target: classes, or their probabilities."""
    shape, target = arguments.shape("input"), arguments.tensor("target")
    if not shape or target is None:
        return None
    axis = 1 if len(shape) > 1 else 0
    if DTYPES[target.dtype].kind == "float":
        return Probabilities(axis)
    ignored = arguments.value("ignore_index", -100)
    return Classes(shape[axis], ignored if type(ignored) is int else None)


looked_at(INDICES, classes)


def ctc_targets(arguments: Arguments) -> Role | None:
    """Return the role of ctc_loss's targets: classes without the blank."""
    shape, blank = arguments.shape("log_probs"), arguments.value("blank", 0)
    if not shape or shape[-1] < 2:
        return None
    first, last = (0, shape[-1] - 2) if blank == shape[-1] - 1 else (1, shape[-1] - 1)
    return Within(first, last, whole=True)


def ctc_target_lengths(arguments: Arguments) -> Role | None:
    """Return the role of ctc_loss's target lengths, of padded or of joined targets."""
    shape, targets = arguments.shape("log_probs"), arguments.shape("targets")
    if not shape or not targets:
        return None
    if len(targets) == 1:
        return Parts(targets[0])
    # Equal neighbours need a blank between them.
    return Lengths(max(1, min(targets[1], shape[0] // 2)))


def lengths_of(tensor: str, *, falling: bool = False) -> Rule:
    """Return the rule of lengths of sequences along dimension 0, or 1 with `batch_first`."""

    def rule(arguments: Arguments) -> Role | None:
        shape = arguments.shape(tensor)
        at = 1 if arguments.value("batch_first", False) is True else 0
        return Lengths(shape[at], falling) if shape and at < len(shape) else None

    return rule


def running_lengths(tensor: str) -> Rule:
    """Return the rule of running sums of lengths, as of sequences joined along the first axis."""

    def rule(arguments: Arguments) -> Role | None:
        shape = arguments.shape(tensor)
        return Parts(shape[0], running=True) if shape else None

    return rule


def packed_sizes(arguments: Arguments) -> Role | None:
    """Return the role of the sizes of packed sequences, which a recurrent layer gets beside them."""
    rows, sizes = arguments.shape("data"), arguments.shape("batch_sizes")
    return PackedSizes(rows[0]) if rows and sizes and len(rows) == 2 and len(sizes) == 1 else None


def bag_offsets(arguments: Arguments) -> Role | None:
    """Return the role of embedding_bag's offsets: where each bag begins, the first at 0.

    torch still takes the weight before the indices.
    """
    shapes = (arguments.shape(name) for name in ("input", "weight"))
    shape = next((each for each in shapes if each and len(each) == 1), None)
    if shape is None:
        return None
    whole = arguments.value("include_last_offset", False) is True
    return Parts(shape[0], running=True, from_zero=True, open_end=not whole)


def repeats(arguments: Arguments) -> Role | None:
    """Return the role of repeat_interleave's repeats: they add up to the output's extent."""
    out, dim = arguments.out_shape(), arguments.value("dim")
    if not out:
        return None
    if dim is None:
        return Parts(math.prod(out))
    return Parts(out[dim]) if type(dim) is int and -len(out) <= dim < len(out) else None


def segments(*, running: bool) -> Rule:
    """Return the rule of segment_reduce's lengths, which add up to the extent, or of its offsets."""

    def rule(arguments: Arguments) -> Role | None:
        shape, axis = arguments.shape("data"), arguments.value("axis", 0)
        if not shape or type(axis) is not int or not -len(shape) <= axis < len(shape):
            return None
        return Parts(shape[axis], running=running, from_zero=running)

    return rule


def scattered_mask(arguments: Arguments) -> Role | None:
    """Return the role of masked_scatter's mask: each True takes an element of the source."""
    shape, mask, source = (arguments.shape(name) for name in ("input", "mask", "source"))
    if shape is None or mask is None or source is None:
        return None
    # A mask of fewer dimensions is repeated.
    times = max(math.prod(shape) // max(math.prod(mask), 1), 1)
    return AtMost(math.prod(source) // times)


def sorted_without_sorter(arguments: Arguments) -> Role | None:
    """Return the role of searchsorted's sequence."""
    return Sorted() if arguments.tensor("sorter") is None else None


def target_probabilities(arguments: Arguments) -> Role | None:
    """Return the role of kl_div's target."""
    return None if arguments.value("log_target", False) is True else Probabilities()


def filled_mask(arguments: Arguments) -> Role | None:
    """Return the role of masked_fill's mask where it hides scores."""
    value = arguments.value("value")
    hides = isinstance(value, int | float) and value <= _HIDDEN_SCORE
    return Causal() if hides else None


def divisor(arguments: Arguments) -> Role | None:
    """Return the role of a divisor: 0 raises where the other operand is whole too."""
    return NonZero()


def _two_tensors(arguments: Arguments) -> tuple[str, TensorSpec, TensorSpec] | None:
    """Return the path and the spec of `tensor1`, and the spec of `tensor2`."""
    place, spec = arguments.find("tensor1"), arguments.tensor("tensor2")
    if place is None or spec is None or not isinstance(place[1], TensorSpec):
        return None
    return place[0], place[1], spec


def same_if_alike(arguments: Arguments) -> Role | None:
    """Return the role of addcmul's second factor: it is the first where all their statistics are alike."""
    found = _two_tensors(arguments)
    if found is None:
        return None
    path, other, spec = found
    told = None not in (spec.low, spec.high, spec.mean, spec.norm) and spec.low != spec.high
    first, second = ((s.dtype, s.shape, s.low, s.high, s.mean, s.norm) for s in (other, spec))
    return Same(path, other) if told and first == second else None


def ranked_like(arguments: Arguments) -> Role | None:
    """Return the role of addcdiv's divisor, which is positive and grows with its dividend."""
    found = _two_tensors(arguments)
    if found is None:
        return None
    path, other, spec = found
    divides = spec.low is not None and spec.low >= 0 and spec.shape == other.shape
    real = "complex" not in (DTYPES[spec.dtype].kind, DTYPES[other.dtype].kind)
    return Ranked(path, other) if divides and real else None


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
