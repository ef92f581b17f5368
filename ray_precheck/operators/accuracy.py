"""How accurate single operators have to be, by the standards.

Goes out: `PUBLISHED_STANDARD`, `LEVEL`, `ALLOWANCE`, `ROUNDED_ONCE`. Called by the standards. Limits by
dtype, which hold for all operators, are in `accuracy.thresholds` and `accuracy.thresholds`.
"""

from dataclasses import dataclass

from ray_precheck.operators.table import FactTable

# Source of these lists: mindstudio-probe 26.2, msprobe/pytorch/api_accuracy_checker/compare/
# api_precision_standard.yaml, whose keys are named beside them. It names operators of torch; the same
# lists hold for MindSpore's namesakes.
# AbsoluteThreshStandard: operators that round each element once, or a few times.
_ABSOLUTE = """
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops:
        mul add div divide reciprocal rsqrt square sub
    torch.Tensor mindspore.Tensor:
        mul_ __mul__ __imul__ __rmul__ add_ __add__ __iadd__ __radd__ div_ sub_ __isub__ __sub__
    torch.Tensor: __div__ __idiv__ divide_
    torch torch.Tensor: reciprocal_ rsqrt_ square_
    torch: rsub
    torch torch.nn.functional torch.Tensor mindspore.mint.nn.functional mindspore.ops: prelu
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops: leaky_relu
    torch.nn.functional: leaky_relu_
"""
# BinaryCompareStandard: data movement, comparisons, and other operators that do not round.
_BINARY = """
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops:
        abs argmin bitwise_and ceil equal floor gather greater greater_equal histc isfinite
        isnan less less_equal logical_and logical_not logical_or maximum minimum neg nonzero
        not_equal reshape select sign sort tile topk transpose tril triu
    torch torch.Tensor: abs_ ceil_ neg_ round_
    torch torch.Tensor mindspore.Tensor mindspore.ops: absolute floor_ masked_fill
    torch.Tensor:
        absolute_ bitwise_and_ greater_ greater_equal_ less_ less_equal_ logical_and_
        logical_not_ logical_or_ not_equal_ transpose_ tril_ triu_
    torch torch.Tensor mindspore.mint mindspore.mint.nn.functional mindspore.Tensor mindspore.ops:
        broadcast_to flatten
    torch torch.Tensor mindspore.Tensor: fill_
    torch.Tensor mindspore.Tensor: masked_fill_ sign_
    torch.Tensor mindspore.Tensor mindspore.ops: type_as
    torch torch.Tensor torch.special: round
    mindspore.mint mindspore.mint.special mindspore.Tensor mindspore.ops: round
    torch torch.nn.functional torch.Tensor mindspore.mint.nn.functional mindspore.ops: relu
    torch torch.nn.functional mindspore.ops: max_pool3d
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops: one_hot pad
"""
# ULPStandard: sums of products.
_ULP = """
    torch.Tensor mindspore.Tensor: __matmul__ addmm_
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: addbmm addmm baddbmm bmm mm
    torch.Tensor: addbmm_ baddbmm_
    torch torch.nn.functional: bilinear
    torch: chain_matmul hspmm
    torch torch.Tensor: smm sspaddmm
    torch torch.Tensor torch.linalg mindspore.mint mindspore.Tensor mindspore.ops: matmul
    torch torch.Tensor mindspore.mint mindspore.ops: mv
    torch.nn.functional mindspore.mint.nn.functional: linear
"""
# ThousandthStandard: convolutions.
_THOUSANDTH = """
    torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops: conv1d
    torch torch.nn.functional mindspore.mint mindspore.mint.nn.functional mindspore.ops: conv2d
"""
# Operators without a row are judged by `benchmark`.
PUBLISHED_STANDARD: FactTable[str] = FactTable(
    "published standard",
    [
        (_ABSOLUTE, "absolute"),
        (_BINARY, "binary"),
        (_ULP, "ulp"),
        (_THOUSANDTH, "thousandth"),
    ],
)

# Source: the same tool, precision_standard/standard_config.py, L1_API_LIST and L2_API_LIST; all others
# are L0. Those lists have backward kernels by their own names (npu_rms_norm_backward); here the backward
# check of an API has the level of its forward check. `flash_attention_score`, `cross_entropy`, `gelu` and
# `rms_norm` are names of PyTorch and MindSpore for operators of the lists ("GELU" there is a module).
_L1 = """
    torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops: embedding
    torch.Tensor mindspore.Tensor: scatter_ scatter_add_
    torch_npu mindspeed: npu_fusion_attention
    mindspore.ops: flash_attention_score
"""
_L2 = """
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: addmm mm nonzero sum
    torch torch.Tensor torch.linalg mindspore.mint mindspore.Tensor mindspore.ops: matmul
    torch.Tensor mindspore.Tensor mindspore.ops: index
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops: cross_entropy gelu one_hot
    torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops: layer_norm
    torch torch.nn.functional mindspore.ops: rms_norm
    torch_npu: npu_cross_entropy_loss npu_rms_norm
"""
LEVEL: FactTable[str] = FactTable("level", [(_L1, "L1"), (_L2, "L2")])
# Fast approximations of elementary functions, as MindSpore 2.10's CPU kernels have them (tanh is the
# coarsest). First the operators that compute a product: where their result is small, so is its error.
_COARSE_PRODUCTS = """
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: exp
    torch torch.Tensor mindspore.Tensor: exp_
    torch torch.Tensor torch.special mindspore.mint mindspore.mint.special mindspore.ops: exp2
"""
_FINE_PRODUCTS = """
    torch torch.nn.functional torch.Tensor: sigmoid
    mindspore.mint mindspore.mint.nn.functional mindspore.Tensor mindspore.ops: sigmoid
    torch torch.Tensor mindspore.mint.nn.functional mindspore.Tensor: sigmoid_
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops: silu
    torch torch.nn.functional torch.Tensor torch.special: softmax
    mindspore.mint mindspore.mint.nn.functional mindspore.Tensor mindspore.ops: softmax
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: pow
    torch.Tensor: pow_
    torch.Tensor mindspore.Tensor: __pow__ __rpow__
    mindspore.ops: swiglu
    torch_npu: npu_swiglu
    torch.special: i1e
"""
_FINE_SUMS = """
    torch torch.Tensor torch.special mindspore.mint mindspore.Tensor mindspore.ops:
        expm1 log1p erf erfc erfinv logsumexp
    mindspore.mint.special: expm1 log1p erfc log_softmax
    torch.special: bessel_j0 bessel_j1 bessel_y0 bessel_y1
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: log log2 log10 logaddexp
    torch torch.Tensor mindspore.Tensor: log_
    torch torch.nn.functional torch.Tensor torch.special: log_softmax
    mindspore.mint.nn.functional mindspore.ops: log_softmax
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops:
        nll_loss binary_cross_entropy softplus logsigmoid elu gelu
    torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops:
        kl_div selu binary_cross_entropy_with_logits
    torch torch.nn.functional mindspore.ops: celu
    mindspore.mint mindspore.ops torch_npu: npu_gelu
    mindspore.ops torch_npu: fast_gelu
    torch_npu: npu_fast_gelu
    torch.nn.functional: scaled_dot_product_attention
    mindspore.ops: flash_attention_score
    torch_npu mindspeed: npu_fusion_attention
"""
# With label smoothing torch's kernel makes it of the loss of the labels, that of all classes, and their
# weighted sum, each rounded (aten/src/ATen/native/LossNLL.cpp, cross_entropy_loss_label_smoothing). The
# result is mostly one element, for which one implementation's error says little of another's.
_SUMS_IN_STEPS = """
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops: cross_entropy
"""
# With max_norm: a row's norm is rounded to the half type, then the row times what it is of the norm.
_NORMED_ROWS = """
    torch.nn.functional: embedding embedding_bag
    torch: embedding_renorm_
    torch torch.Tensor: renorm
    torch.Tensor: renorm_
"""
_COARSE_SUMS = """
    torch torch.nn.functional torch.Tensor: tanh
    mindspore.mint mindspore.mint.nn.functional mindspore.Tensor mindspore.ops: tanh
    torch torch.Tensor mindspore.Tensor mindspore.ops: tanh_
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops: mish
    torch_npu: npu_mish
"""
# Factorisations, and operators that use them. A result is exact for a matrix that differs from the input
# by a small multiple of one rounding of its norm (LAPACK Users' Guide, 3rd ed., sections 4.7 to 4.10);
# for elements that are small beside the norm that is many units: 3.4 for the gradient of a condition
# number of 27 (torch 2.13 on the CPU, op_db).
_FACTORISATIONS = """
    torch torch.Tensor torch.linalg mindspore.Tensor mindspore.ops:
        cholesky det lstsq lu_solve matrix_power slogdet svd
    torch.linalg:
        cholesky_ex eigh eigvalsh householder_product inv_ex ldl_factor ldl_solve lu_factor
        multi_dot solve_ex svdvals tensorinv tensorsolve
    torch torch.Tensor mindspore.Tensor mindspore.ops:
        cholesky_inverse cholesky_solve geqrf logdet orgqr ormqr
    torch.linalg mindspore.ops: cond
    torch torch.Tensor torch.linalg mindspore.ops: eig matrix_exp
    torch.linalg mindspore.Tensor mindspore.ops: eigvals
    torch.linalg mindspore.mint.linalg: inv
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: inverse triangular_solve
    torch: lobpcg nuclear_norm pca_lowrank svd_lowrank
    torch torch.Tensor torch.linalg: lu solve
    torch mindspore.ops: lu_unpack
    torch.linalg mindspore.mint.linalg mindspore.ops: matrix_norm
    torch torch.linalg: matrix_rank
    torch torch.Tensor torch.linalg: norm
    mindspore.mint mindspore.mint.linalg mindspore.Tensor mindspore.ops: norm
    torch.linalg mindspore.ops: pinv solve_triangular
    torch torch.Tensor: pinverse
    torch torch.Tensor torch.linalg mindspore.mint.linalg mindspore.Tensor mindspore.ops: qr
"""
# Interpolations compute places from coordinates plus 1, so that small coordinates are rounded like 1.
_BY_COORDINATES = """
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops: grid_sample
    torch: grid_sampler grid_sampler_2d grid_sampler_3d
    torch.nn.functional: interpolate upsample upsample_bilinear
"""
# What IEEE 754 asks every device to round to the nearest, in float32, too.
_ROUNDED_ONCE = """
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: add mul sub
    torch.Tensor mindspore.Tensor: add_ mul_ sub_
    torch.Tensor mindspore.Tensor:
        __add__ __iadd__ __radd__ __mul__ __imul__ __rmul__ __sub__ __isub__ __rsub__
"""
ROUNDED_ONCE: FactTable[bool] = FactTable("rounded once", [(_ROUNDED_ONCE, True)])


@dataclass(frozen=True, slots=True)
class Allowance:
    """The error that `auto` allows an operator besides rounding its result once.

    `share` is the error of a fast approximation as a share of the output's magnitude: with `adds` of
    the largest element, else of each element. `input_units` is the error of the inputs that a stable
    algorithm may have the effect of (its backward error), in units in the last place; 0 for the value
    that holds for all operators. Both are for float32. `half_units` is the error in a half type, in units in
    the last place, of an operator that rounds its result in several steps there; 0 for the value of all.
    """

    share: float = 0.0
    adds: bool = False
    input_units: float = 0.0
    half_units: float = 0.0


ALLOWANCE: FactTable[Allowance] = FactTable(
    "allowance of auto",
    [
        (_COARSE_PRODUCTS, Allowance(share=2.0**-15)),
        (_FINE_PRODUCTS, Allowance(share=2.0**-18)),
        (_FINE_SUMS, Allowance(share=2.0**-18, adds=True)),
        (_SUMS_IN_STEPS, Allowance(share=2.0**-18, adds=True, half_units=2.0)),
        (_NORMED_ROWS, Allowance(half_units=2.0)),
        (_COARSE_SUMS, Allowance(share=2.0**-14, adds=True)),
        (_FACTORISATIONS, Allowance(input_units=4.0)),
        (_BY_COORDINATES, Allowance(input_units=2.0)),
    ],
)
