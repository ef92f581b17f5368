"""Which published standard is meant for which API and dtype.

Comes in: an API and a dtype. Goes out: the name of a standard. Called by `published`.

Source of the lists: mindstudio-probe 26.2, msprobe/pytorch/api_accuracy_checker/compare/
api_precision_standard.yaml, whose keys are named beside them; by dtype: precision_standard/
standard_register.py, _get_standard_category (integers and booleans binary, fp8 outputs by units in
the last place, `benchmark` for what no list has), and for MindSpore's names the same operators.
msprobe 26.2 itself judges every float16, bfloat16 and float32 output by `benchmark` before it looks
into the lists; its versions up to 25 looked into them first, as is done here.
"""

from ray_precheck.schema.dtypes import DTYPES

# AbsoluteThreshStandard: one rounding of each element, or few.
_ABSOLUTE = """mul mul_ __mul__ __imul__ __rmul__ add add_ __add__ __iadd__ __radd__ div div_ __div__
    __idiv__ divide divide_ leaky_relu leaky_relu_ prelu reciprocal reciprocal_ rsqrt rsqrt_ square
    square_ sub sub_ rsub __isub__ __sub__"""
# BinaryCompareStandard: data movement, comparisons, and what rounds nothing.
_BINARY = """abs abs_ absolute absolute_ argmin bitwise_and bitwise_and_ broadcast_to ceil ceil_ equal
    fill_ flatten floor floor_ gather greater greater_ greater_equal greater_equal_ histc isfinite
    isnan less less_ less_equal less_equal_ logical_and logical_and_ logical_not logical_not_
    logical_or logical_or_ masked_fill masked_fill_ max_pool3d maximum minimum neg neg_ nonzero
    not_equal not_equal_ one_hot pad relu reshape round round_ select sign sign_ sort tile topk
    transpose transpose_ tril tril_ triu triu_ type_as"""
# ULPStandard: sums of products.
_ULP = """__matmul__ addbmm addbmm_ addmm addmm_ baddbmm baddbmm_ bilinear bmm chain_matmul hspmm linear
    matmul mm mv smm sspaddmm"""
# ThousandthStandard: convolutions.
_THOUSANDTH = "conv1d conv2d"

STANDARD_OF_API: dict[str, str] = {
    api: standard
    for standard, apis in (
        ("absolute", _ABSOLUTE),
        ("binary", _BINARY),
        ("ulp", _ULP),
        ("thousandth", _THOUSANDTH),
    )
    for api in apis.split()
}
_FP8 = ("float8_e4m3fn", "float8_e5m2")


def published_standard(type_name: str, dtype: str, direction: str) -> str:
    """Return the name of the standard that is published for an API, `Mint.matmul`, and a dtype.

    The lists are of forward operators: what moves data forward may sum backward (`gather`), so a
    float gradient is judged by `benchmark` where the list says `binary`.
    """
    if DTYPES[dtype].kind not in ("float", "complex"):
        return "binary"
    if dtype in _FP8:
        return "ulp"
    standard = STANDARD_OF_API.get(type_name.rsplit(".", 1)[-1], "benchmark")
    return "benchmark" if (standard, direction) == ("binary", "backward") else standard
