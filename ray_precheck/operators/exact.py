"""Operators with one right result, and operators with several.

The former move, compare, count or choose numbers, and round nothing. Goes out: `EXACT`, and `exactness`,
which finds the row of an operator in place, too. The latter return indices of equal values, vectors up to a
factor, signs of sums that are nearly 0, or integers of floats that they do not hold. Goes out: `AMBIGUOUS`.
Called by `accuracy.ambiguous`, which says of a call whether its results must be those of the bench, and takes
the tested side's choice for the bench.
"""

from dataclasses import dataclass
from typing import TypeAlias

from ray_precheck.operators.table import FactTable

_TENSORS = "torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops"
_FUNCTIONS = "torch torch.nn.functional mindspore.mint mindspore.mint.nn.functional mindspore.ops"
_COMPARISONS = f"""
    {_TENSORS}:
        all any bucketize count_nonzero eq equal ge greater greater_equal gt isfinite isinf isin isnan le less
        less_equal logical_and logical_not logical_or logical_xor lt ne not_equal searchsorted
    torch torch.Tensor mindspore.Tensor mindspore.ops: isneginf isposinf isreal signbit
    torch.Tensor mindspore.Tensor: __eq__ __ge__ __gt__ __le__ __lt__ __ne__ __contains__
    torch torch.Tensor: is_nonzero
"""
_SEARCHES = f"""
    {_TENSORS}: argwhere nonzero unique unique_consecutive
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops mindspore.mint: one_hot
    torch mindspore.mint mindspore.ops: tril_indices triu_indices
"""
_BITS = f"""
    {_TENSORS}:
        bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor gcd lcm
    torch.Tensor mindspore.Tensor:
        __and__ __iand__ __ilshift__ __invert__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rand__
        __rlshift__ __ror__ __rrshift__ __rshift__ __rxor__ __xor__
    mindspore.ops: invert
"""
_CASTS = """
    torch.Tensor:
        bfloat16 bool byte char clone contiguous copy_ cpu cuda detach double float half int long short to
        type type_as
    torch: as_tensor asarray clone detach detach_copy scalar_tensor tensor
    mindspore.Tensor:
        astype bfloat16 bool byte copy copy_ clone contiguous double float half int long short to type
        type_as
    mindspore.ops: cast deepcopy stop_gradient type_as
    mindspore.mint: clone
"""
_VIEWS = f"""
    {_TENSORS}:
        broadcast_to expand_as expand_dims flatten movedim moveaxis narrow permute ravel reshape squeeze
        swapaxes swapdims t transpose unflatten unsqueeze view_as_complex view_as_real
    torch torch.Tensor: adjoint
    torch.Tensor mindspore.Tensor: __getitem__ expand mT mH H T unfold view view_as
    torch mindspore.ops: real imag atleast_1d atleast_2d atleast_3d
    torch torch.Tensor: as_strided conj conj_physical resolve_conj resolve_neg
"""
_MOVES = f"""
    {_TENSORS}:
        cat chunk concat diag diag_embed diagonal flip fliplr flipud gather hsplit index_fill index_select
        masked_fill masked_scatter masked_select repeat repeat_interleave roll rot90 select
        select_scatter slice_scatter split stack take take_along_dim tensor_split tile tril triu unbind
        unstack vsplit where
    torch torch.Tensor: diagonal_scatter diagflat dsplit index_copy split_with_sizes
    torch mindspore.mint mindspore.ops:
        block_diag broadcast_tensors cartesian_prod column_stack combinations concatenate dstack eye full
        full_like hstack meshgrid ones ones_like row_stack vstack zeros zeros_like
    torch.Tensor mindspore.Tensor: fill __setitem__ new_full new_ones new_zeros zero
    {_FUNCTIONS}: channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle
    {_FUNCTIONS}: constant_pad_nd pad unfold
    mindspore.ops:
        broadcast gather_d gather_elements gather_nd reverse strided_slice slice
        space_to_batch_nd tensor_scatter_update
"""
_CHOICES = f"""
    {_TENSORS}:
        amax amin aminmax argmax argmin argsort clamp clamp_max clamp_min clip cummax cummin fmax fmin
        kthvalue max maximum median min minimum msort nanmedian sort topk
    {_FUNCTIONS}: hardtanh relu relu6
    torch.Tensor mindspore.Tensor: argmax_with_value argmin_with_value relu
    mindspore.ops: top_k clip_by_value
"""
_STEPS = (
    f"{_TENSORS}: ceil copysign fix floor frac heaviside nan_to_num neg negative positive trunc"
)
_MAGNITUDES = f"""
    {_TENSORS}: abs absolute sgn sign
    torch.Tensor mindspore.Tensor: __abs__
"""
_POOLS = f"""
    {_FUNCTIONS}:
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool1d max_pool2d max_pool3d
    torch.nn.functional:
        adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices
        adaptive_max_pool3d_with_indices max_pool1d_with_indices max_pool2d_with_indices
        max_pool3d_with_indices
    torch: max_pool1d_with_indices
"""
# Their floats are rounded; of integers they are exact, modulo two to the number of bits.
_ARITHMETIC = f"""
    {_TENSORS}:
        add addbmm addcmul addmm addmv addr baddbmm bmm cross cumprod cumsum diff div divide dot
        floor_divide fmod index_add inner kron matmul mm mul multiply mv nansum outer pow
        prod remainder scatter_add square sub subtract sum trace vdot
    torch torch.Tensor: index_reduce ldexp scatter_reduce
    torch: einsum tensordot rsub vander
    mindspore.mint mindspore.ops: einsum tensordot
    torch.linalg mindspore.mint.linalg: cross matmul vecdot
    torch.Tensor mindspore.Tensor:
        __add__ __div__ __floordiv__ __iadd__ __ifloordiv__ __imod__ __imul__ __ipow__ __isub__ __matmul__
        __mod__ __mul__ __pow__ __radd__ __rfloordiv__ __rmatmul__ __rmod__ __rmul__ __rpow__ __rsub__
        __sub__
    torch mindspore.mint mindspore.ops: arange range
    mindspore.ops: tensor_scatter_add unsorted_segment_sum
"""


@dataclass(frozen=True, slots=True)
class Exactness:
    """Which results of an operator are exact functions of its arguments.

    The first `outputs` results are (None: all); without `floats` only those that are integers or booleans, as
    of sums, whose floats are rounded. Without `of_complex` none is where an argument is complex: magnitudes
    are computed then. One that `compares` numbers may round some of them first, to the type of the others
    (`x == 0.1`): it is exact where that changes none. `unless` are parameters with which it computes: a
    name, and its position if it can stand among the others. One that is None, False or 0 counts as not given.
    """

    floats: bool = True
    of_complex: bool = True
    outputs: int | None = None
    compares: bool = False
    unless: tuple[tuple[str, int | None], ...] = ()


EXACT: FactTable[Exactness] = FactTable(
    "exact",
    [
        (_COMPARISONS, Exactness(compares=True)),
        (_SEARCHES, Exactness()),
        (_BITS, Exactness()),
        (_CASTS, Exactness()),
        (_VIEWS, Exactness()),
        (_MOVES, Exactness()),
        (_CHOICES, Exactness()),
        (_STEPS, Exactness()),
        ("torch.Tensor mindspore.Tensor: __neg__ __pos__", Exactness()),
        (_MAGNITUDES, Exactness(of_complex=False)),
        # Of equal values a pool may name the place of any.
        (_POOLS, Exactness(outputs=1)),
        (_ARITHMETIC, Exactness(floats=False)),
        (f"{_TENSORS}: round", Exactness(unless=(("decimals", 1),))),
        (f"{_TENSORS}: bincount", Exactness(unless=(("weights", 1),))),
        (f"{_TENSORS}: scatter", Exactness(unless=(("reduce", None),))),
        (
            "torch torch.Tensor mindspore.mint mindspore.Tensor: index_put",
            Exactness(unless=(("accumulate", 3),)),
        ),
        ("torch torch.Tensor: put", Exactness(unless=(("accumulate", 3),))),
        (
            "torch.nn.functional mindspore.mint.nn.functional: embedding",
            Exactness(unless=(("max_norm", 3),)),
        ),
        ("torch: embedding", Exactness()),
    ],
)


def exactness(type_name: str, framework: str = "") -> Exactness | None:
    """Return what is exact of the operator that a dump calls `Prefix.api`, None if nothing is known to be.

    An operator in place has the row of its namesake without the underscore.
    """
    own = EXACT.of(type_name, framework)
    if own is None and type_name.endswith("_") and not type_name.endswith("__"):
        return EXACT.of(type_name[:-1], framework)
    return own


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """How an operator's indices select from its first argument.

    `position` is the position of the dimension among the arguments, `default` the dimension if the
    call gives none (None: the flattened input). An `ordered` operator selects each index once.
    `outputs` is the number of outputs of a call whose last output holds indices: `max` of all
    elements has one output, which is a value.
    """

    position: int
    default: int | None
    ordered: bool = False
    outputs: int = 2


@dataclass(frozen=True, slots=True)
class Basis:
    """The outputs of a decomposition that hold vectors, by their positions.

    The columns of the output `vectors` may have another factor of magnitude 1 (a sign) on each side.
    The rows of the output `rows` then have the inverse factor, the columns of the output `columns`
    the same factor. The elements of the output `values` may be in another order, with the columns.
    """

    vectors: int
    rows: int | None = None
    columns: int | None = None
    values: int | None = None


@dataclass(frozen=True, slots=True)
class SignOfSum:
    """An optimizer's step whose direction is the sign of a sum, which rounding decides near 0."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """Numbers that are rounded to steps of the second argument: half way between two, either is right.

    `axis` is the position of the dimension that has a step for each place, None where there is one step.
    One that `observes` chooses the steps itself.
    """

    axis: int | None = None
    observes: bool = False


@dataclass(frozen=True, slots=True)
class ToWhole:
    """A cast, perhaps of floats to integers: of NaN, and of what the integers do not hold, it may give any.

    C++ says so (ISO C++17, 7.10 [conv.fpint]), and torch's kernels give what the machine does. `source` is
    the position of the argument that is cast.
    """

    source: int = 0


Ambiguity: TypeAlias = IndexChoice | Basis | SignOfSum | Stepped | ToWhole

AMBIGUOUS: FactTable[Ambiguity] = FactTable(
    "ambiguous outputs",
    [
        (f"{_TENSORS}: argmax argmin", IndexChoice(1, None, outputs=1)),
        (f"{_TENSORS}: max min cummax cummin", IndexChoice(1, None)),
        ("mindspore.Tensor: argmax_with_value argmin_with_value", IndexChoice(1, 0)),
        (f"{_TENSORS}: median", IndexChoice(1, -1)),
        ("torch torch.Tensor mindspore.Tensor mindspore.ops: nanmedian", IndexChoice(1, -1)),
        ("torch torch.Tensor: mode", IndexChoice(1, -1)),
        (f"{_TENSORS}: kthvalue", IndexChoice(2, -1)),
        (f"{_TENSORS}: topk", IndexChoice(2, -1, ordered=True)),
        # It has no argument for the dimension (9 is beyond all arguments): it uses the last one.
        ("mindspore.Tensor mindspore.ops: top_k", IndexChoice(9, -1, ordered=True)),
        (f"{_TENSORS}: sort", IndexChoice(1, -1, ordered=True)),
        (f"{_TENSORS}: argsort", IndexChoice(1, -1, ordered=True, outputs=1)),
        # (u, s, v^H): the rows of v^H have the inverse factors of the columns of u.
        ("torch.linalg: svd", Basis(0, rows=2)),
        # (u, s, v): the columns of v have the factors of the columns of u.
        ("torch torch.Tensor: svd", Basis(0, columns=2)),
        # (s, u, v).
        ("mindspore.Tensor mindspore.ops: svd", Basis(1, columns=2)),
        (
            "torch torch.Tensor torch.linalg mindspore.mint.linalg mindspore.Tensor mindspore.ops: qr",
            Basis(0, rows=1),
        ),
        ("torch.linalg: eigh", Basis(1)),
        ("torch torch.Tensor torch.linalg mindspore.ops: eig", Basis(1, values=0)),
        ("torch.linalg mindspore.Tensor mindspore.ops: eigvals", Basis(-1, values=0)),
        ("torch.optim: Lion", SignOfSum()),
        (
            """
            torch.Tensor mindspore.Tensor: byte int long short to type type_as
            torch.Tensor: char
            torch: as_tensor tensor
            mindspore.Tensor: astype
            mindspore.ops: cast type_as
            """,
            ToWhole(),
        ),
        ("torch.Tensor mindspore.Tensor: copy_", ToWhole(1)),
        (
            "torch: fake_quantize_per_tensor_affine _fake_quantize_learnable_per_tensor_affine",
            Stepped(),
        ),
        (
            "torch: fake_quantize_per_channel_affine _fake_quantize_learnable_per_channel_affine",
            Stepped(3),
        ),
        ("torch: fused_moving_avg_obs_fake_quant", Stepped(10, observes=True)),
    ],
)
