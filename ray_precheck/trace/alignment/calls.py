"""The calls of a capture, as the alignment sees them.

Comes in: a `CaptureSide`. Goes out: a `Call` for each call, module call, update of an optimizer and set of
gradients, in the order of the file. Called by the jobs that compare captures, before `align`.

The operator that a call's name stands for, whatever prefix, spelling or framework it comes from. A name
that no table has is its own family, without prefix, the underscores of Python's operators and the
underscore of a change in place.

Names of MindSpore that differ from torch's are those of the bench (`frameworks.mindspore.bench`), which
cannot be asked here, because it imports torch; tests/frameworks/test_alignment_families.py holds the two
together.

The calls of both sides as numbers, so that comparing two calls is comparing integers.
Equal numbers mean equal things on both sides.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from ray_precheck.numerics.statistics import MAX, NORM
from ray_precheck.operators.table import FUNCTIONS
from ray_precheck.trace.items import GRADIENTS as GRADIENTS_PART
from ray_precheck.trace.items import INPUT, OUTPUT, Item, items_of
from ray_precheck.trace.side import (
    API,
    BACKWARD,
    FORWARD,
    GRADIENTS,
    MODULE,
    CaptureSide,
    RecordEntry,
)


def _pairs(text: str) -> dict[str, str]:
    """Read `family: name name; family: name` as {name: family}."""
    found: dict[str, str] = {}
    for row in text.split(";"):
        family, _, names = row.partition(":")
        found |= dict.fromkeys(names.split(), family.strip())
    return found


@functools.lru_cache(1 << 14)
def family_of(type_name: str) -> str:
    """Return the family of `Prefix.api`; of a name without a prefix the name itself.

    Calls of one family do the same to the same inputs up to the arguments that are no tensors.
    """
    prefix, _, api = type_name.partition(".")
    if not api or prefix in _OWN_NAMES:
        return type_name
    if type_name in _FULL_NAMES:
        return _FULL_NAMES[type_name]
    if prefix == "Primitive":
        return family_of(f"Functional.{FUNCTIONS.get(api, api.lower())}")
    namespace, _, name = api.rpartition(".")
    name = _plain(name)
    if namespace in _SPELLED_OUT:
        name = f"{namespace}.{name}"
    return _SYNONYMS.get(name, name)


def _plain(name: str) -> str:
    """Return a name without what Python's operators and changes in place add to it."""
    if name.startswith("__") and name.endswith("__") and len(name) > 4:
        name = name[2:-2]
        return _OPERATORS.get(name, name)
    for ending in _ENDINGS:
        if name.endswith(ending) and name != ending:
            return name.removesuffix(ending)
    stripped = name.rstrip("_")
    return stripped or name


# The classes of modules and optimizers are no operators.
_OWN_NAMES = frozenset(("Module", "Cell", "Optimizer"))
# Namespaces in which a name means something else than outside: `linalg.norm` is not `norm`.
_SPELLED_OUT = frozenset(("linalg", "fft", "special", "sparse", "hub"))
# What MindSpore appends to the names of a function's newer form.
_ENDINGS = ("_ext_op", "_ext", "_op", "_func")

# Python's operators whose name is not that of the function; those in place and reflected are derived.
_OPERATORS: dict[str, str] = _pairs(
    """
    div: truediv itruediv rtruediv idiv rdiv; floor_divide: floordiv ifloordiv rfloordiv;
    remainder: mod imod rmod; add: iadd radd; sub: isub rsub; mul: imul rmul; pow: ipow rpow;
    matmul: imatmul rmatmul; bitwise_and: and iand rand; bitwise_or: or ior ror;
    bitwise_xor: xor ixor rxor; bitwise_not: invert; bitwise_left_shift: lshift ilshift rlshift;
    bitwise_right_shift: rshift irshift rrshift; eq: req; positive: pos
    """
)
# Names of one operator within a framework: https://docs.pytorch.org/docs/stable/torch.html calls them
# aliases. `view` and `reshape` give the same values, and so do the casts and the products of matrices.
_SYNONYMS: Mapping[str, str] = _pairs(
    """
    mul: multiply tensor_mul tensor_muls; div: divide true_divide tensor_div;
    sub: subtract tensor_sub; add: tensor_add; pow: pows tensor_pow; neg: negative;
    abs: absolute; clamp: clip; cat: concat concatenate; eq: tensor_eq; ne: not_equal;
    lt: less tensor_lt; le: less_equal tensor_le; gt: greater tensor_gt; ge: greater_equal tensor_ge;
    floor_divide: floor_div floordiv tensor_floordiv; remainder: floor_mod floormod tensor_mod;
    fmod: truncate_mod; exp: tensor_exp; expm1: tensor_expm1;
    acos: arccos; acosh: arccosh; asin: arcsin; asinh: arcsinh; atan: arctan; atanh: arctanh;
    atan2: arctan2; trunc: fix; transpose: swapaxes swapdims; movedim: moveaxis;
    reshape: view view_as reshape_as; expand: expand_as broadcast_to; flip: reverse;
    to: float double half bfloat16 int long short bool type type_as astype cast cuda npu cpu;
    matmul: mm bmm spmm dsmm; hspmm: hsmm; sspaddmm: saddmm;
    det: linalg.det matrix_determinant; inverse: linalg.inv;
    unsqueeze: expand_dims; unbind: unstack; topk: top_k; detach: stop_gradient;
    gather: gather_d gather_elements; where: select_where; linear: dense; bilinear: bidense;
    amax: reduce_max; amin: reduce_min; sum: reduce_sum; mean: reduce_mean;
    softmax: special.softmax; log_softmax: special.log_softmax; round: special.round;
    sigmoid: special.expit inplace_sigmoid; elu: inplace_elu; silu: inplace_silu;
    gelu: npu_gelu fast_gelu npu_fast_gelu; softshrink: soft_shrink; interpolate: upsample;
    slogdet: log_matrix_determinant linalg.slogdet; tensordot: tensor_dot;
    repeat_interleave: repeat_elements; trapezoid: trapz; ger: outer;
    scaled_dot_product_attention: flash_attention_score npu_fusion_attention npu_prompt_flash_attention;
    rms_norm: npu_rms_norm; rotary_embedding: npu_rotary_mul rotary_position_embedding;
    swiglu: npu_swiglu; all_reduce: all_reduce_async; i0: special.i0; erf: special.erf
    """
)
# Names whose meaning hangs on the prefix: `Functional` is mindspore.ops in dumps of MindSpore, and torch
# has no function of these names there.
_FULL_NAMES: Mapping[str, str] = {
    "Functional.transpose": "permute",
    "Functional.equal": "eq",
    "Functional.inv": "reciprocal",
    "Tensor.inv": "reciprocal",
    "Functional.invert": "bitwise_not",
    "Tensor.invert": "bitwise_not",
    "Functional.select": "where",
    "Functional.rank": "dim",
    "Functional.size": "numel",
    "Functional.range": "arange",
    "Functional.tensor_range": "arange",
    "Functional.norm": "linalg.norm",
    "Functional.matrix_norm": "linalg.matrix_norm",
    "Functional.matrix_solve": "linalg.solve",
    "Functional.vector_norm": "linalg.vector_norm",
    "Functional.vecdot": "linalg.vecdot",
    "Functional.pinv": "linalg.pinv",
    "Functional.qr": "linalg.qr",
    "Functional.cond": "linalg.cond",
    "Functional.eig": "linalg.eig",
    "Functional.eigvals": "linalg.eigvals",
    "Tensor.eigvals": "linalg.eigvals",
    "Functional.zeta": "special.zeta",
    "Functional.assign_add": "add",
    "Functional.assign_sub": "sub",
    **{
        f"Functional.{name}": f"fft.{name}"
        for name in """fft ifft rfft irfft hfft ihfft fft2 fftn ifft2 ifftn rfft2 rfftn irfft2
        irfftn hfft2 hfftn ihfft2 ihfftn fftshift ifftshift fftfreq rfftfreq""".split()
    },
    **{
        f"Functional.bessel_{name}": f"special.{name}"
        if name[0] == "i"
        else f"special.bessel_{name}"
        for name in "i0e i1 i1e j0 j1 y0 y1".split()
    },
    "Functional.bessel_i0": "i0",
}

Shape = tuple[int, ...]
OF_LAYOUT = -2
_RECOMPUTE = "recompute"
_GIVEN = (OUTPUT, GRADIENTS_PART)


class Call(NamedTuple):
    """A call as the alignment sees it.

    `name` is `RecordEntry.call` ("Torch.add.3"), `kind` one of `trace.side` (API, ...), `type_name` the name
    without number, `family` the operator whatever its spelling ("add"). `inputs` and `outputs` are the
    shapes of tensors, `digests` and `norms` are of the output tensors: () where the capture has no
    digests, NaN for a norm that is not known. `recompute_of` is the name of the first call if this one
    computes it again, else "". `origins` are the names of the model's operators that it stands for, where a
    capture of a compiled graph says so. `pair` is the number of the pair that it is of where two runs of
    other layouts were put together (`trace.layouts`), `OF_LAYOUT` where only the layout of its run has it,
    else -1.
    """

    name: str
    kind: str
    type_name: str
    family: str
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    digests: tuple[str, ...] = ()
    norms: tuple[float, ...] = ()
    recompute_of: str = ""
    origins: tuple[str, ...] = ()
    pair: int = -1


def calls_of(side: CaptureSide) -> list[Call]:
    """Return the calls of a capture in the order of the file.

    The forward record tells of a call; where there is none, the backward record tells the shapes, and no
    values; gradients come last first, so that calls in a row of which there is nothing else are turned round.
    A record that cannot be read is a call without shapes.
    """
    chosen: dict[str, RecordEntry] = {}
    for entry in side.entries:
        held = chosen.get(entry.call)
        if held is None or (held.direction == BACKWARD and entry.direction != BACKWARD):
            chosen[entry.call] = entry
    runs = groupby(chosen.values(), key=lambda entry: entry.direction == BACKWARD)
    ordered = (
        entry for is_turned, run in runs for entry in (reversed([*run]) if is_turned else run)
    )
    return [_call(entry, side.record(entry)) for entry in ordered]


def _call(entry: RecordEntry, record: Mapping[str, Any]) -> Call:
    type_name = _type_name(entry)
    inputs: list[Shape] = []
    outputs: list[Shape] = []
    given: list[Item] = []
    for item in items_of(record, entry.key):
        if item.element is None or "shape" not in item.element:
            continue
        shape = item.shape
        if shape is None:
            continue
        if item.part == INPUT:
            inputs.append(shape)
        elif item.part in _GIVEN and not item.is_changed:  # which dumps of others do not have
            outputs.append(shape)
            given.append(item)
    family = _family(entry, type_name)
    if entry.direction == BACKWARD:
        # The gradients that come in have the shapes of the outputs, those that go out of the inputs.
        return Call(
            entry.call, entry.kind, type_name, family, tuple(outputs), tuple(inputs),
            pair=_pair_of(record),
        )  # fmt: skip
    digests = tuple([item.digest for item in given])
    first = record.get(_RECOMPUTE)
    return Call(
        entry.call,
        entry.kind,
        type_name,
        family,
        tuple(inputs),
        tuple(outputs),
        digests if any(digests) else (),
        tuple([_size(item) for item in given]),
        first.removesuffix(f".{FORWARD}") if isinstance(first, str) else "",
        _origins(record) if "operator" in record else (),
        _pair_of(record),
    )


def _pair_of(record: Mapping[str, Any]) -> int:
    if "pair" in record and type(record["pair"]) is int:
        return int(record["pair"])
    return OF_LAYOUT if record.get("layout") is True else -1


def _origins(record: Mapping[str, Any]) -> tuple[str, ...]:
    operator = record["operator"]
    found = operator.get("origins") if isinstance(operator, dict) else None
    return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()


def _type_name(entry: RecordEntry) -> str:
    before, _, number = entry.call.rpartition(".")
    return before if before and number.isdigit() else entry.call


def _family(entry: RecordEntry, type_name: str) -> str:
    """Return the family of an operator, and the class of a module, whose path may differ."""
    if entry.kind == API:
        return family_of(type_name)
    if entry.kind == MODULE:
        return type_name.rpartition(".")[2]
    if entry.kind == GRADIENTS:
        return ".".join(type_name.split(".")[-2:])
    return type_name


def _size(item: Item) -> float:
    """Return the norm of a tensor, its largest value where there is none; NaN where neither is known."""
    norm = item.statistic(NORM)
    if type(norm) is float:  # nearly all of them
        return norm
    for name in (NORM, MAX):
        found = item.number(name)
        if found is not None:
            return found
    return math.nan


# So many common tokens, as a share of the common operators, are enough to go by shapes, too.
_ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class Features:
    """The calls of one side, each list of the same length.

    `tokens` number family, input shapes and output shapes together, `steps` are what the edit script
    compares: `tokens`, or less where the shapes differ throughout. `families`, `inputs` and `outputs`
    number each alone. `outside` has the shapes of the inputs that are not outputs of the call before.
    """

    calls: Sequence[Call]
    tokens: list[int]
    steps: list[int]
    families: list[int]
    inputs: list[int]
    outputs: list[int]
    outside: list[list[Shape]]


def features_of(target: Sequence[Call], golden: Sequence[Call]) -> tuple[Features, Features]:
    """Return the features of both sides.

    Runs with another batch size or another layout have no call with the same shapes: the edit script then
    compares operators and numbers of dimensions, or operators alone. It goes by the finest of these that
    has half as many calls in common as the operators have.
    """
    tokens = _numbered(target, golden, lambda call: (call.family, call.inputs, call.outputs))
    families = _numbered(target, golden, lambda call: call.family)
    ranks = _numbered(target, golden, _ranks)
    needed = _ENOUGH * _in_common(*families)
    steps = next((each for each in (tokens, ranks) if _in_common(*each) >= needed), families)
    inputs = _numbered(target, golden, lambda call: call.inputs)
    outputs = _numbered(target, golden, lambda call: call.outputs)
    first, second = (
        Features(
            calls,
            tokens[side],
            steps[side],
            families[side],
            inputs[side],
            outputs[side],
            _outside(calls),
        )
        for side, calls in enumerate((target, golden))
    )
    return first, second


def _outside(calls: Sequence[Call]) -> list[list[Shape]]:
    found = []
    given: tuple[Shape, ...] = ()
    for call in calls:
        inputs = list(call.inputs)
        for shape in given:
            if shape in inputs:
                inputs.remove(shape)
        found.append(inputs)
        given = call.outputs
    return found


def _ranks(call: Call) -> Hashable:
    return call.family, tuple(map(len, call.inputs)), tuple(map(len, call.outputs))


def _numbered(
    target: Sequence[Call], golden: Sequence[Call], key: Callable[[Call], Hashable]
) -> tuple[list[int], list[int]]:
    numbers: dict[Hashable, int] = {}
    return (
        [numbers.setdefault(key(call), len(numbers)) for call in target],
        [numbers.setdefault(key(call), len(numbers)) for call in golden],
    )


def _in_common(target: Iterable[int], golden: Iterable[int]) -> int:
    """Return how many elements the two have in common, each as often as both have it."""
    return (Counter(target) & Counter(golden)).total()


def are_close(target: Sequence[float], golden: Sequence[float], within: float) -> bool | None:
    """Return whether norms agree within a share of the larger one; None where that is not known.

    NaN and infinities say nothing: a wrong run has them where the right one has numbers.
    """
    if not target or len(target) != len(golden):
        return None
    known = False
    for first, second in zip(target, golden, strict=True):
        if not (math.isfinite(first) and math.isfinite(second)):
            continue
        if abs(first - second) > within * max(abs(first), abs(second)):
            return False
        known = True
    return known or None
