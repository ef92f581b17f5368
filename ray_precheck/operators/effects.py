"""Properties of operators that a check must know: in place, reading bits, size by values, linear.

Goes out: tables. Called by `plan.select` and by the checks.
"""

from ray_precheck.operators.table import table_of_names

# Operators that change their first argument although their name does not end in one underscore.
AUGMENTED = table_of_names(
    "in place",
    """
    torch.Tensor mindspore.Tensor:
        __iadd__ __ifloordiv__ __imod__ __imul__ __isub__ __itruediv__ __setitem__
    torch.Tensor: __iand__ __idiv__ __ilshift__ __ior__ __ipow__ __irshift__ __ixor__
    """,
)
# Operators that read the bits of their input as another dtype, if a dtype is among their arguments.
READS_BITS = table_of_names("reads bits", "torch.Tensor mindspore.Tensor: view")
# Operators the shape of whose output depends on the values of their input.
SIZED_BY_VALUES = table_of_names(
    "sized by values",
    """
    torch torch.Tensor mindspore.Tensor mindspore.ops: argwhere
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops:
        bincount masked_select nonzero repeat_interleave unique unique_consecutive where
    mindspore.Tensor mindspore.ops: unique_with_pad
    """,
)
# Operators that are linear in each tensor: with absolute values as inputs they compute the sum of the
# magnitudes of the terms, which bounds the error of any order of summation.
MULTILINEAR = table_of_names(
    "multilinear",
    """
    torch.Tensor mindspore.Tensor:
        __add__ __iadd__ __imul__ __matmul__ __mul__ __radd__ __rmatmul__ __rmul__ add_
        index_add_ mul_ scatter_add_
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops:
        add addbmm addmm addmv baddbmm bmm cumsum dot index_add mean mm mul nansum outer
        scatter_add sum trace
    torch torch.Tensor mindspore.mint mindspore.ops: mv vdot
    torch torch.Tensor mindspore.Tensor mindspore.ops: addr inner
    torch torch.Tensor torch.linalg mindspore.mint mindspore.Tensor mindspore.ops: matmul
    torch: chain_matmul tensordot
    torch mindspore.mint mindspore.ops: einsum
    torch torch.nn.functional: bilinear conv_transpose1d conv_transpose3d
    torch torch.nn.functional mindspore.mint mindspore.mint.nn.functional mindspore.ops: conv2d
    torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops:
        adaptive_avg_pool1d avg_pool1d conv1d conv3d conv_transpose2d embedding
    torch.nn.functional mindspore.mint.nn.functional mindspore.ops:
        adaptive_avg_pool2d adaptive_avg_pool3d avg_pool2d avg_pool3d interpolate
    torch.nn.functional mindspore.mint.nn.functional: linear
    mindspore.ops: dense
    """,
)
