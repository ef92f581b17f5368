"""The allowed multiple of the error of honest peers, and errors that are always allowed.

Comes in: an API and a dtype. Goes out: an `Allowed`. Called by `auto`. The numbers were chosen so
that, on the honest implementations and planted faults of `scripts/verdicts`, a limit lies between
the worst honest error and four times that; `compare/VERDICTS.md` is what comes of them.
"""

import functools
from dataclasses import dataclass, replace

from ray_precheck.schema.dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class Allowed:
    """What an error may be.

    `rmse`, `largest` and `relative` are factors of the worst honest peer's. `scatter` widens the
    first two for few elements, by 1 + scatter / sqrt(n). An error of `units` in the last place is
    always allowed where peers are not exact, a relative one of `least_relative` is too, and the
    `share` of the output's magnitude that approximations take; with `adds` an element's error may
    be so large however small the element is. What is below `flushed` may be 0. `input_units` is how
    far inputs may be off, in units in the last place: the backward error of a stable algorithm.
    """

    rmse: float
    largest: float
    scatter: float
    units: float
    relative: float = 64.0
    least_relative: float = 0.25
    share: float = 0.0
    adds: bool = False
    flushed: float = 0.0
    input_units: float = 0.5


# In half types rounding is nearly all of the error, and the peers know it well. Wider kernels
# differ in the order of their sums, by far less than what is worth finding.
_HALF = Allowed(rmse=2.4, largest=3.0, scatter=0.5, units=0.5)
_WIDE = Allowed(rmse=8.0, largest=8.0, scatter=1.0, units=8.0)
# Honest kernels flush the subnormals of formats with the exponents of float32 to 0 (MindSpore's on
# the CPU do); those of float16 are far too large for that.
_FLUSHED = 2.0 ** DTYPES["float32"].min_exponent
_BY_DTYPE = {
    "float16": _HALF,
    "bfloat16": replace(_HALF, flushed=_FLUSHED),
    "float32": replace(_WIDE, flushed=_FLUSHED),
    "complex64": replace(_WIDE, flushed=_FLUSHED),
}

# Fast approximations of elementary functions in float32, as a share of the output's magnitude:
# what MindSpore 2.10's CPU kernels take (tanh is the coarsest).
_APPROXIMATIONS = {
    2.0**-15: "exp exp_ exp2",
    2.0**-18: """expm1 log log_ log2 log10 log1p sigmoid sigmoid_ silu swiglu softmax log_softmax
        logsumexp logaddexp cross_entropy nll_loss binary_cross_entropy kl_div pow pow_ __pow__
        __rpow__ erf erfc erfinv softplus logsigmoid elu selu celu gelu npu_swiglu npu_gelu
        binary_cross_entropy_with_logits scaled_dot_product_attention flash_attention_score
        npu_fusion_attention npu_fast_gelu fast_gelu""",
    2.0**-14: "tanh tanh_ mish npu_mish",
}
# Those of these operators that compute a product: where the result is small, its error is small
# too.
_PRODUCTS = frozenset(
    "exp exp_ exp2 sigmoid sigmoid_ silu swiglu npu_swiglu softmax pow pow_ __pow__ __rpow__".split()
)
# Factorisations and what is made of them. They are exact for a matrix that is off by a modest multiple
# of one rounding of its norm (LAPACK Users' Guide, 3rd ed., sections 4.7 to 4.10), of which elements
# that are small beside the norm have many units.
_FACTORISATIONS = frozenset(
    """cholesky cholesky_inverse cholesky_ex cholesky_solve cond det eig eigh eigvals eigvalsh
    householder_product inv inv_ex inverse ldl_factor ldl_solve logdet lstsq lu lu_factor lu_solve
    lu_unpack matrix_exp matrix_power matrix_rank multi_dot norm nuclear_norm orgqr ormqr pinv
    pinverse qr slogdet solve solve_ex solve_triangular svd svd_lowrank svdvals tensorinv tensorsolve
    triangular_solve pca_lowrank lobpcg geqrf matrix_norm""".split()
)
# Interpolations find their places by coordinates that are rounded beside 1, however small they are.
_BY_COORDINATES = frozenset("grid_sample grid_sampler grid_sampler_2d grid_sampler_3d".split())
_SHARES = {api: share for share, apis in _APPROXIMATIONS.items() for api in apis.split()}
_IN_FLOAT32 = ("float32", "complex64")
# Dtypes in which kernels also compute, so that inputs and each step may be off by some of its units.
# A kernel of a half type computes in float32, and errs far less than its inputs' units.
COMPUTED_IN = ("float32", "float64", "complex64", "complex128")


@functools.cache
def allowed(type_name: str, dtype: str) -> Allowed:
    """Return what is allowed for an API, `Mint.matmul`, and a dtype of floats."""
    rule = _BY_DTYPE.get(dtype, _WIDE if DTYPES[dtype].bits >= 64 else _HALF)
    api = type_name.rsplit(".", 1)[-1]
    if api in _FACTORISATIONS | _BY_COORDINATES and dtype in COMPUTED_IN:
        return replace(rule, input_units=2.0)
    if dtype not in _IN_FLOAT32 or api not in _SHARES:
        return rule
    return replace(rule, share=_SHARES[api], adds=api not in _PRODUCTS)
