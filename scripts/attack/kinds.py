"""The kinds of wrong kernels: which kernel, when it is wrong, how, and which call of which program shows it.

`api` is the name in dumps of the calls that count, without their number; `kernels` are operators of torch's
dispatcher, which autograd and composites call.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from scripts.attack import conditions as on
from scripts.attack import damages as by
from scripts.attack.calls import KernelCall
from scripts.attack.conditions import At, Condition
from scripts.attack.damages import Damage

ALL = ("float32", "bfloat16", "float16")
FLOAT32 = ("float32",)
HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class WrongKind:
    """A kernel that is wrong under one condition."""

    group: str
    name: str
    program: str
    api: str
    kernels: tuple[str, ...]
    when: Condition
    wrong: Damage
    dtypes: tuple[str, ...] = ALL


def _kinds_of(group: str, program: str) -> Callable[..., WrongKind]:
    """Return what makes the kinds of a group in a program; kernels are parted by blanks."""

    def kind(
        name: str,
        api: str,
        kernels: str,
        when: Condition,
        wrong: Damage,
        dtypes: tuple[str, ...] = ALL,
    ) -> WrongKind:
        return WrongKind(group, name, program, api, tuple(kernels.split()), when, wrong, dtypes)

    return kind


def _misreading(
    group: str, when: Callable[[At], Condition], wrong: Callable[[At], Damage], table: str
) -> Iterator[WrongKind]:
    """Yield the kinds of a table: name, program, api, kernel and the argument that is misread."""
    for line in table.strip().splitlines():
        name, program, api, kernel, at = (word.strip() for word in line.split("|"))
        api, kernel = _LONG.get(api, api), _LONG.get(kernel, kernel)
        yield WrongKind(group, name, program, api, (kernel,), when(int(at)), wrong(int(at)))


_LONG = {
    "ATTENTION": "Functional.scaled_dot_product_attention",
    "FLASH": "_scaled_dot_product_flash_attention_for_cpu",
}
_STRIDED = """
gelu                      | gated     | Functional.gelu          | gelu                 | 0
softmax over dimension 1  | gated     | Torch.softmax            | _softmax             | 0
layer_norm                | gated     | Functional.layer_norm    | native_layer_norm    | 0
cumsum                    | gated     | Torch.cumsum             | cumsum               | 0
flip                      | gated     | Tensor.flip              | flip                 | 0
cat                       | attention | Torch.cat                | cat                  | 0
attention, heads          | attention | ATTENTION | FLASH | 0
reshape                   | attention | Tensor.reshape           | clone                | 0
contiguous                | attention | Tensor.contiguous        | clone                | 0
copy_ of                  | serving   | Tensor.copy_             | copy_                | 1
clone                     | serving   | Torch.clone              | clone                | 0
to                        | serving   | Tensor.to                | _to_copy             | 0
triu                      | serving   | Torch.triu               | triu                 | 0
roll                      | serving   | Torch.roll               | roll                 | 0
index_copy_               | serving   | Tensor.index_copy_       | index_copy_          | 3
cross_entropy             | language  | Functional.cross_entropy | _log_softmax         | 0
embedding, tokens         | language  | Functional.embedding     | embedding            | 1
fft                       | complexes | Torch.fft.fft            | _fft_c2c             | 0
"""
_CHANNELS_LAST = """
conv2d              | pictures | Functional.conv2d              | convolution              | 0
conv2d, weight      | pictures | Functional.conv2d              | convolution              | 1
batch_norm          | pictures | Functional.batch_norm          | native_batch_norm        | 0
group_norm          | pictures | Functional.group_norm          | native_group_norm        | 0
max_pool2d          | pictures | Functional.max_pool2d          | max_pool2d_with_indices  | 0
avg_pool2d          | pictures | Functional.avg_pool2d          | avg_pool2d               | 0
adaptive_avg_pool2d | pictures | Functional.adaptive_avg_pool2d | _adaptive_avg_pool2d     | 0
interpolate         | pictures | Functional.interpolate         | upsample_nearest2d       | 0
pad                 | pictures | Functional.pad                 | constant_pad_nd          | 0
pixel_shuffle       | pictures | Functional.pixel_shuffle       | pixel_shuffle            | 0
relu                | pictures | Functional.relu                | relu                     | 0
conv2d, gradient    | pictures | Functional.conv2d              | convolution_backward     | 0
"""
_EXPANDED = """
masked_fill, mask      | attention | Torch.masked_fill  | masked_fill | 1
reshape of shared keys | attention | Tensor.reshape     | clone       | 0
gather, index          | graph     | Torch.gather       | gather      | 2
scatter_add, index     | graph     | Tensor.scatter_add | scatter_add | 2
"""
_GRADIENT = """
gelu        | gradients | Functional.gelu        | gelu_backward              | 0
layer_norm  | gradients | Functional.layer_norm  | native_layer_norm_backward | 0
softmax     | gradients | Torch.softmax          | _softmax_backward_data     | 0
tanh        | gradients | Torch.tanh             | tanh_backward              | 0
conv1d      | gradients | Functional.conv1d      | convolution_backward       | 0
log_softmax | gradients | Functional.log_softmax | _log_softmax_backward_data | 0
embedding   | language  | Functional.embedding   | embedding_dense_backward   | 0
"""
_OFFSET = """
difference of shifted rows | gated     | Tensor.__sub__ | sub     | 0
product with a chunk       | gated     | Tensor.__mul__ | mul     | 1
negative of a half         | gated     | Tensor.neg     | neg     | 0
sigmoid of the last rows   | gated     | Torch.sigmoid  | sigmoid | 0
attention, values          | attention | ATTENTION | FLASH | 2
"""
_STEPPED = """
sin of every second  | gated | Torch.sin  | sin  | 0
tanh of every second | gated | Torch.tanh | tanh | 0
exp of every fourth  | gated | Torch.exp  | exp  | 0
"""


def _layouts() -> Iterator[WrongKind]:
    yield from _misreading("transposed", on.strided, by.misread, _STRIDED)
    yield from _misreading("channels_last", on.channels_last, by.misread, _CHANNELS_LAST)
    yield from _misreading("expanded", on.expanded, by.misread, _EXPANDED)
    yield from _misreading("expanded gradient", on.expanded, by.misread, _GRADIENT)
    yield from _misreading("offset", on.offset, by.from_the_beginning, _OFFSET)
    yield from _misreading("large strides", on.stepped, by.misread, _STEPPED)
    turned = "transposed gradient"
    for name, kernel in (("silu", "silu_backward"), ("contiguous", "clone")):
        api = {"silu": "Functional.silu", "contiguous": "Tensor.contiguous"}[name]
        yield WrongKind(turned, name, "gradients", api, (kernel,), on.strided(), by.misread())


def _memory() -> Iterator[WrongKind]:
    """One memory twice; destinations; conjugates and negatives that are not computed yet."""
    kind, same = _kinds_of("one memory twice", "serving"), on.same_memory(0, 1)
    wrong = by.editing(by.larger())
    yield kind("product with itself", "Torch.mul", "mul", same, wrong)
    yield kind("mul_ by itself", "Tensor.mul_", "mul_", same, wrong)
    yield kind("sum with itself, out=", "Torch.add", "add", same, wrong)
    yield kind("mm with its transpose", "Torch.mm", "mm", same, by.rolling)
    kind = _kinds_of("destination", "serving")
    into = on.both(on.not_contiguous(0), on.dims(0, 4))
    yield kind("copy_ into a slice", "Tensor.copy_", "copy_", into, by.rolling)
    yield kind("setitem", "Tensor.__setitem__", "copy_", on.offset(), by.rolling)
    kind, bits, wrong = (
        _kinds_of("conj and neg bits", "complexes"),
        on.conjugated(),
        by.bits_ignored(),
    )
    for name, kernel in (("mm", "mm"), ("mul", "clone"), ("add", "clone")):
        yield kind(name, f"Torch.{name}", kernel, bits, wrong, FLOAT32)


def _sparse() -> Iterator[WrongKind]:
    kind, wrong, last = _kinds_of("sparse", "sparse_graph"), by.rolling, by.coalesced_last
    csr, coo = on.in_layout(0, torch.sparse_csr), on.in_layout(1, torch.sparse_coo)
    product = "_sparse_addmm _sparse_mm"
    yield kind("CSR product", "Tensor.__matmul__", "mm", csr, wrong, FLOAT32)
    yield kind("COO product", "Torch.sparse.mm", product, coo, wrong, FLOAT32)
    yield kind("coalesce", "Tensor.coalesce", "_coalesce", on.index_repeats(0), last, FLOAT32)


_UPDATES = """
embedding, gradient    | language | Functional.embedding | embedding_dense_backward | 1 | 0 |
indexing, gradient     | graph    | Tensor.__getitem__   | index_put                | 1 | 2 |
index_select, gradient | graph    | Tensor.index_select  | index_add                | 2 | 3 | 1
index_add              | graph    | Tensor.index_add     | index_add                | 2 | 3 | 1
index_add_             | graph    | Tensor.index_add_    | index_add_               | 2 | 3 | 1
index_put_             | graph    | Tensor.index_put_    | index_put_               | 1 | 2 |
scatter_add            | graph    | Tensor.scatter_add   | scatter_add              | 2 | 3 | 1
gather, gradient       | graph    | Torch.gather         | scatter_add              | 2 | 3 | 1
"""


def _repeated() -> Iterator[WrongKind]:
    group = "repeated indices"
    for line in _UPDATES.strip().splitlines():
        name, program, api, kernel, *places = (word.strip() for word in line.split("|"))
        index, values = int(places[0]), int(places[1])
        dim = int(places[2]) if places[2] else None
        when = on.index_repeats(index) if dim is None else on.index_repeats_along(index, dim)
        wrong = by.updates_lost(index, values, dim)
        yield WrongKind(group, name, program, api, (kernel,), when, wrong)
    once = by.editing(by.at_most_one)
    yield WrongKind(
        group, "bincount", "graph", "Torch.bincount", ("bincount",), on.index_repeats(0), once
    )


def _masked() -> Iterator[WrongKind]:
    kind, kernel = _kinds_of("masked rows", "attention"), "_softmax"
    whole, partly = on.row_where(on.masked_whole), on.row_where(on.masked_partly)
    ones, zeros = (by.rows_spoiled(on.masked_whole, value) for value in (1.0, 0.0))
    yield kind("softmax of -inf", "Torch.softmax", kernel, whole, ones)
    yield kind("softmax of the smallest", "Tensor.softmax", kernel, whole, zeros)
    yield kind("softmax, in part", "Torch.softmax", kernel, partly, by.mask_ignored())
    attention, flash, mask = _LONG["ATTENTION"], _LONG["FLASH"], "attn_mask"
    empty, opened = on.masked_rows_of(mask), by.mask_opened(mask)
    yield kind("attention without keys", attention, flash, empty, opened)
    kind, doubled = _kinds_of("masked rows", "language"), by.editing(by.larger(2.0))
    ignored = on.argument(1, lambda labels: bool((labels == -100).any()))
    for way, when in (("forward", ignored), ("backward", on.always)):
        name, loss = f"ignored labels, {way}", "Functional.cross_entropy"
        yield kind(name, loss, f"nll_loss2d_{way}", when, doubled)


def _values() -> Iterator[WrongKind]:
    """Ties, rows of zeros, channels that are far from zero."""
    kind, ties = _kinds_of("ties", "choices"), on.row_where(on.repeats_values)
    yield kind("stable sort", "Torch.sort", "sort", ties, by.unstable)
    yield kind("stable argsort", "Torch.argsort", "sort", ties, by.unstable)
    yield kind("gradient of amax", "Torch.amax", "eq", on.always, by.editing(by.only_first))
    yield kind("topk", "Torch.topk", "topk", ties, by.editing(by.first_place_twice, 1))
    kind, zeros = _kinds_of("rows of zeros", "choices"), on.row_where(on.zero)
    norm, layer, kernel = "Torch.linalg.vector_norm", "Functional.layer_norm", "native_layer_norm"
    yield kind("norm", norm, "linalg_vector_norm", zeros, by.rows_spoiled(on.zero, 1.0))
    yield kind("gradient of norm", norm, "masked_fill_", on.always, by.not_done)
    yield kind("layer_norm", layer, kernel, zeros, by.rows_spoiled(on.zero, float("nan")))
    kind, far = _kinds_of("far from zero", "choices"), on.row_where(on.far_from_zero)
    wrong = by.one_pass()
    yield kind("layer_norm", layer, kernel, far, wrong)
    yield kind("var", "Torch.var", "var", far, wrong)
    yield kind("std", "Tensor.std", "std", far, wrong)
    kind, far = _kinds_of("far from zero", "pictures"), on.channels_far_from_zero()
    yield kind("batch_norm", "Functional.batch_norm", "native_batch_norm", far, wrong)


def _changed() -> Iterator[WrongKind]:
    """Arguments that a call changes."""
    group = "changed argument"
    kind, norm = _kinds_of(group, "pictures"), "Functional.batch_norm"
    for name, factor in (("running_mean", 3.0), ("running_var", 5.0)):
        wrong = by.leaving(name, factor)
        yield kind(f"batch_norm, {name}", norm, "native_batch_norm", on.always, wrong)
    norm, one = "Functional.instance_norm", on.dims(0, 1)
    yield kind("instance_norm", norm, "copy_", one, by.leaving(0))
    kind = _kinds_of(group, "serving")
    for name, at in (("values", "max"), ("indices", "max_values")):
        yield kind(f"max, out= {name}", "Torch.max", "max", on.always, by.leaving(at))
    kind, wrong = _kinds_of(group, "language"), by.editing(by.last_row_scaled)
    bounded = "Functional.embedding"
    yield kind("embedding, max_norm", bounded, "embedding_renorm_", on.always, wrong)
    kind = _kinds_of(group, "updates")
    for name in ("_foreach_lerp_", "_foreach_mul_"):
        yield kind(name, f"Torch.{name}", name, on.always, by.editing(by.larger(), 1))
    for name, kernel, at in (
        ("AdamW, exp_avg", "addcdiv_", 1),
        ("AdamW, exp_avg_sq", "addcmul_", 0),
        ("Adam, fused, exp_avgs", "_fused_adam_", 2),
        ("Adam, fused, exp_avg_sqs", "_fused_adam_", 3),
        ("SGD, momentum", "_foreach_add_", 1),
    ):
        yield kind(name, f"Optimizer.{name.partition(',')[0]}", kernel, on.always, by.leaving(at))


def _shapes() -> Iterator[WrongKind]:
    kind, lost = _kinds_of("odd tail", "shapes"), by.editing(by.tail_lost())
    for api, kernel, at in (
        ("Functional.gelu", "gelu", 0),
        ("Functional.layer_norm", "native_layer_norm", 0),
        ("Tensor.softmax", "_softmax", 0),
        ("Tensor.cumsum", "cumsum", 0),
        ("Functional.linear", "addmm", 2),
    ):
        yield kind(kernel, api, kernel, on.odd_tail(at), lost)
    kind, wrong = _kinds_of("dimension of 1", "shapes"), by.editing(by.larger())
    yield kind("mean", "Tensor.mean", "mean", on.single(0, 1), wrong)
    yield kind("softmax", "Functional.softmax", "_softmax", on.single(0, -1), wrong)
    kind, two = _kinds_of("both broadcast", "shapes"), on.both_broadcast(0, 1)
    for name in ("sub", "maximum"):
        yield kind(name, f"Torch.{name}", name, two, by.rolling)
    kind, number = _kinds_of("number as a tensor", "serving"), on.number(1)
    for name in ("mul", "div"):
        yield kind(name, f"Torch.{name}", name, number, wrong)


# The name, the API, its kernel, and the damage.
_EXACT = """
eq, always False              | Torch.eq            | eq              | never
ne, always True               | Torch.ne            | ne              | ever
ge for gt                     | Torch.gt            | gt              | ge
gt for ge                     | Torch.ge            | ge              | gt
le for lt                     | Torch.lt            | lt              | le
lt for le                     | Torch.le            | le              | lt
bool, always True             | Tensor.bool         | _to_copy        | ever
logical_not, always False     | Torch.logical_not   | logical_not     | never
logical_and, inverted         | Torch.logical_and   | logical_and     | inverted
count_nonzero, one more       | Torch.count_nonzero | count_nonzero   | more
searchsorted, on the right    | Torch.searchsorted  | searchsorted    | right
bucketize, on the right       | Torch.bucketize     | bucketize       | right
nonzero, rows apart           | Torch.nonzero       | nonzero         | more
isin, always False            | Torch.isin          | isin            | never
argmax, the next one          | Torch.argmax        | argmax          | more
int, rounded up               | Tensor.int          | _to_copy        | more
round, as floor               | Torch.round         | round           | floor
floor, as trunc               | Torch.floor         | floor           | trunc
ceil, one unit off            | Torch.ceil          | ceil            | unit
trunc, one unit off           | Torch.trunc         | trunc           | unit
sign, one unit off            | Torch.sign          | sgn sign        | unit
abs, one unit off             | Torch.abs           | abs             | unit
to a half type, cut off       | Tensor.to           | _to_copy        | cut
double, one unit off          | Tensor.double       | _to_copy        | unit
clone, one unit off           | Tensor.clone        | clone           | unit
clamp, one unit off           | Torch.clamp         | clamp           | unit
where, one unit off           | Torch.where         | where           | unit
maximum, one unit off         | Torch.maximum       | maximum         | unit
max, one unit off             | Torch.max           | max             | unit
sort, one unit off            | Torch.sort          | sort            | unit
topk, one unit off            | Torch.topk          | topk            | unit
gather, one unit off          | Torch.gather        | gather          | unit
index_select, one unit off    | Torch.index_select  | index_select    | unit
masked_select, one unit off   | Torch.masked_select | masked_select   | unit
masked_fill, one unit off     | Torch.masked_fill   | masked_fill     | unit
cat, one unit off             | Torch.cat           | cat             | unit
stack, one unit off           | Torch.stack         | stack           | unit
flip, one unit off            | Torch.flip          | flip            | unit
pad, one unit off             | Functional.pad      | constant_pad_nd | unit
embedding, one unit off       | Functional.embedding | embedding      | unit
relu, one unit off            | Functional.relu     | relu            | unit
add of integers, one more     | Torch.add           | add             | more
sum of integers, one more     | Torch.sum           | sum             | more
bitwise_and, one more         | Torch.bitwise_and   | bitwise_and     | more
bincount, one more            | Torch.bincount      | bincount        | more
"""
_EXACT_DAMAGES: dict[str, Damage] = {
    "never": by.in_bits(by.constant(0)),
    "ever": by.in_bits(by.constant(1)),
    "inverted": by.in_bits(by.inverted),
    "more": by.in_bits(by.more_by_one),
    "unit": by.in_bits(by.one_unit_off),
    "right": by.with_flag("right"),
    "cut": by.truncating,
    **{name: by.of_kernel(name) for name in ("ge", "gt", "le", "lt", "floor", "trunc")},
}


def _exact() -> Iterator[WrongKind]:
    """Functions with one right answer, which must be equal to the bit."""
    kind = _kinds_of("exact functions", "decisions")
    for line in _EXACT.strip().splitlines():
        name, api, kernels, wrong = (word.strip() for word in line.split("|"))
        yield kind(name, api, kernels, on.always, _EXACT_DAMAGES[wrong])


# The name, the API, its kernel, and the rounding.
_ROUNDED = """
add                  | Torch.add             | add         | zero up chance | 3
sub                  | Torch.sub             | sub         | zero chance    | 3
mul                  | Torch.mul             | mul         | zero chance    | 3
matmul               | Torch.matmul          | mm          | zero chance    | 2
linear               | Functional.linear     | addmm       | zero chance    | 2
bmm                  | Torch.bmm             | bmm         | zero           | 2
conv2d               | Functional.conv2d     | convolution | zero           | 2
gelu                 | Functional.gelu       | gelu        | zero           | 2
layer_norm           | Functional.layer_norm | native_layer_norm | zero     | 2
softmax              | Torch.softmax         | _softmax    | zero           | 2
gradient of linear   | Functional.linear     | mm          | zero chance    | 2
"""
_ROUNDINGS = {
    "zero": ("towards zero", by.towards_zero),
    "up": ("upwards", by.upwards),
    "chance": ("by chance", by.by_chance),
}


def _roundings() -> Iterator[WrongKind]:
    """Results that are not rounded to the nearest: each element is a unit in the last place off at most."""
    kind = _kinds_of("rounding", "rounded")
    for line in _ROUNDED.strip().splitlines():
        name, api, kernel, ways, count = (word.strip() for word in line.split("|"))
        for way in ways.split():
            words, rounding = _ROUNDINGS[way]
            wrong, dtypes = by.computed(KernelCall.run, rounding), ALL if count == "3" else HALF
            yield kind(f"{name}, {words}", api, kernel, on.always, wrong, dtypes)


def _gelu(call: KernelCall) -> torch.Tensor:
    return torch.nn.functional.gelu(call.args[0], approximate="tanh")


def _quick_gelu(call: KernelCall) -> torch.Tensor:
    return call.args[0] * torch.sigmoid(1.702 * call.args[0])


def _tanh_by_a_fraction(call: KernelCall) -> torch.Tensor:
    """Lambert's continued fraction, cut off early: 0.06 % off at 2, 0.5 % at 3."""
    x = call.args[0].clamp(-3.0, 3.0)
    square = x * x
    return x * (105 + square * 10) / (105 + square * (45 + square))


def _unbiased(call: KernelCall) -> Any:
    """layer_norm by the variance with n - 1."""
    out, mean, deviation = call.run()
    n = call.args[0].shape[-1]
    return out * ((n - 1) / n) ** 0.5, mean, deviation


def _shapes_of_errors() -> Iterator[WrongKind]:
    """Formulas and numbers that are wrong by less than a few units in the last place of a half type."""
    group, program = "shape of the error", "rounded"

    def kind(name: str, api: str, kernel: str, wrong: Damage) -> WrongKind:
        return WrongKind(group, name, program, api, (kernel,), on.always, wrong)

    def given(at: int, value: float) -> Damage:
        return by.computed(
            lambda call: call.with_argument(at, lambda _: value).run(), by.to_nearest
        )

    def other(exactly: Callable[[KernelCall], Any]) -> Damage:
        return by.computed(exactly, by.to_nearest)

    larger = lambda factor, only=None: by.in_bits(by.scaled_by(factor), only)  # noqa: E731
    gelu, norm = "Functional.gelu", "Functional.layer_norm"
    yield kind("tanh-gelu for erf-gelu", gelu, "gelu", other(_gelu))
    yield kind("sigmoid-gelu for erf-gelu", gelu, "gelu", other(_quick_gelu))
    yield kind("tanh by a short fraction", "Torch.tanh", "tanh", other(_tanh_by_a_fraction))
    yield kind("layer_norm, eps 1e-6", norm, "native_layer_norm", given(4, 1e-6))
    yield kind("layer_norm, n - 1", norm, "native_layer_norm", other(_unbiased))
    yield kind("group_norm, eps 1e-6", "Functional.group_norm", "native_group_norm", given(7, 1e-6))
    for factor in (1.05, 1.01):
        name = f"weight gradient x {factor}"
        yield kind(name, "Functional.linear", "mm", larger(factor))
    yield kind("matmul x 1.003", "Torch.matmul", "mm", larger(1.003))
    yield kind("linear x 1.003", "Functional.linear", "addmm", larger(1.003))
    yield kind("conv2d x 1.003", "Functional.conv2d", "convolution", larger(1.003))
    yield kind("softmax x 1.004", "Torch.softmax", "_softmax", larger(1.004))
    yield kind("exp x 1.003", "Torch.exp", "exp", larger(1.003))
    yield kind("sigmoid x 1.003", "Torch.sigmoid", "sigmoid", larger(1.003))
    gradient = larger(1.004)
    yield kind("gradient of silu x 1.004", "Functional.silu", "silu_backward", gradient)
    yield kind("gradient of softmax x 1.004", "Torch.softmax", "_softmax_backward_data", gradient)
    yield kind("gradient of layer_norm x 1.004", norm, "native_layer_norm_backward", gradient)
    pool = "Functional.avg_pool2d"
    yield kind("avg_pool2d x 1.004", pool, "avg_pool2d", gradient)
    yield kind("attention, scale 1 % off", _LONG["ATTENTION"], _LONG["FLASH"], _scaled(1.01))


def _random() -> Iterator[WrongKind]:
    """Random calls that draw wrongly by so little that all calls of an operator are needed to see it."""

    def kind(name: str, api: str, kernels: str, wrong: Damage) -> WrongKind:
        return WrongKind("random", name, "drawing", api, tuple(kernels.split()), on.always, wrong)

    def dropping(factor: float) -> Damage:
        return by.changed(1, lambda keeps: 1 - factor * (1 - keeps))

    randn, dropout, attention = "Torch.randn", "Functional.dropout", _LONG["ATTENTION"]
    yield kind("randn, std 1.01", randn, "randn", by.in_bits(by.scaled_by(1.01)))
    yield kind("randn, the same each time", randn, "randn", by.seeded_alike)
    yield kind("dropout, 0.11 for 0.1", dropout, "bernoulli_", dropping(1.1))
    yield kind("dropout, the same mask", dropout, "bernoulli_", by.seeded_alike)
    yield kind("attention, 0.2 for 0.1", attention, "bernoulli_ div_", dropping(2.0))
    yield kind("attention, the same mask", attention, "bernoulli_", by.seeded_alike)
    larger = by.changed(0, lambda chances: chances * 1.1)
    yield kind("bernoulli, 10 % more", "Torch.bernoulli", "bernoulli", larger)
    shorter = by.changed(0, lambda high: high - 1)
    yield kind("randint, 999 never drawn", "Torch.randint", "randint", shorter)


def _scaled(factor: float) -> Damage:
    """Attention whose scale is off by a factor."""

    def exactly(call: KernelCall) -> Any:
        q, k, v = call.args[:3]
        scores = q @ k.transpose(-2, -1) * (factor / q.shape[-1] ** 0.5)
        return scores.softmax(-1) @ v

    return by.computed(exactly, by.to_nearest)


KINDS: tuple[WrongKind, ...] = (
    *_layouts(),
    *_memory(),
    *_sparse(),
    *_repeated(),
    *_masked(),
    *_values(),
    *_changed(),
    *_shapes(),
    *_exact(),
    *_roundings(),
    *_shapes_of_errors(),
    *_random(),
)
# Why a kind may pass in half types, as far as honest implementations explain it.
HIDDEN = {
    "rounding: linear, by chance": "a product that is rounded before the bias is added looks alike",
    "shape of the error: tanh-gelu for erf-gelu": "a composed gelu that rounds 1 + erf is farther off",
    "shape of the error: group_norm, eps 1e-6": "a composed group_norm is biased as much by its rstd",
}
