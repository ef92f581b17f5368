"""The operator that a call's name stands for, whatever prefix, spelling or framework it comes from.

Comes in: `Prefix.api` of a dump. Goes out: its family, such as "add" for `Torch.add`, `Tensor.__iadd__`
and `Mint.add`. Called by `calls`. A name that no table has is its own family, without prefix, the
underscores of Python's operators and the underscore of a change in place.

Names of MindSpore that differ from torch's are those of the bench (`frameworks.mindspore.bench`), which
cannot be asked here, because it imports torch; tests/frameworks/test_alignment_families.py holds the two
together.
"""

import functools
from collections.abc import Mapping

from ray_precheck.operators.table import FUNCTIONS


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
