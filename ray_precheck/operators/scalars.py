"""In which precision operators take Python's numbers among their operands.

Goes out: `SCALARS`. Called by `check.by_dtype`, which rounds such a number for the bench as the kernels do.
"""

from ray_precheck.operators.table import FactTable

# torch 2.13, ATen/native/cpu and ATen/native/cuda: the number is a tensor without dimensions that is cast to
# the dtype of the others (comparisons, remainder, fmod, searches, the
# gradient of clamp), or is taken as `scalar_t` (hardshrink).
_IN_DTYPE = """
    torch torch.Tensor:
        eq ne lt le gt ge greater greater_equal less less_equal not_equal remainder fmod isin clamp clip
        clamp_min clamp_max
        bucketize searchsorted
    torch.Tensor:
        eq_ ne_ lt_ le_ gt_ ge_ greater_ greater_equal_ less_ less_equal_ not_equal_ remainder_ fmod_ clamp_
        clip_ clamp_min_ clamp_max_
        __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __mod__ __imod__ __rmod__ __rfloordiv__
    mindspore.mint mindspore.Tensor mindspore.ops:
        eq ne lt le gt ge greater greater_equal less less_equal not_equal
    mindspore.Tensor: __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    torch torch.nn.functional: hardshrink
    torch.Tensor: hardshrink
"""
# The number is taken in the type in which the kernel computes: float32 for half types, too (opmath_t). Of
# sums kernels of half types on the CPU take it in the half type, those on GPUs in float32; both are honest.
# Powers round it for each kernel that they call (x**2.3, and x**1.3 backward), as `bench.rounded` does.
_AS_COMPUTED = """
    torch torch.Tensor:
        add sub subtract mul multiply div divide true_divide floor_divide
        addcmul addcdiv addmm addmv addbmm baddbmm addr xlogy pow
    torch: rsub
    torch.Tensor:
        add_ sub_ subtract_ mul_ multiply_ div_ divide_ true_divide_ floor_divide_ addcmul_ addcdiv_ addmm_
        addmv_ addbmm_ baddbmm_ addr_ xlogy_ pow_
        __add__ __iadd__ __radd__ __sub__ __isub__ __rsub__ __mul__ __imul__ __rmul__ __truediv__
        __itruediv__ __rtruediv__ __floordiv__ __ifloordiv__ __div__ __idiv__
        __pow__ __ipow__ __rpow__
    torch torch.nn.functional: threshold threshold_ rrelu celu selu
    torch.nn.functional:
        softshrink softplus leaky_relu leaky_relu_ elu elu_ hardtanh hardtanh_ hinge_embedding_loss
        margin_ranking_loss
"""
# "dtype": in the dtype of the tensors; "computed": at least in float32.
SCALARS: FactTable[str] = FactTable(
    "precision of scalars", [(_IN_DTYPE, "dtype"), (_AS_COMPUTED, "computed")]
)
