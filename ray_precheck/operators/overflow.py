"""Properties of operators by which a value that is not finite is explained.

Goes out: tables. Called by `trace.overflow`, which follows NaN and infinities through a capture.
"""

from ray_precheck.operators.table import table_of_names

# Operators that give the values of their input in another dtype.
CASTS = table_of_names(
    "casts",
    """
    torch.Tensor: __setitem__ bfloat16 copy_ double float half index_put_ int long to type type_as
    torch: as_tensor tensor
    mindspore.Tensor: __setitem__ astype bfloat16 copy_ float half int long to type type_as
    mindspore.ops: cast
    """,
)
# Operators that make a tensor of values from outside the program's operators.
BRINGS_IN = table_of_names(
    "brings in",
    """
    torch: as_tensor frombuffer from_numpy full full_like scalar_tensor tensor
    torch.Tensor: fill_ new_full new_tensor
    mindspore.mint: full full_like
    mindspore.ops: full full_like
    """,
)
# Operators that can take away some values of what they get: they choose others, or put others in their place.
# No product is one, since 0 x inf and 0 x NaN are NaN.
MASKS = table_of_names(
    "masks",
    """
    torch torch.Tensor:
        gather index_fill index_put index_select masked_fill masked_scatter masked_select nan_to_num
        narrow select take take_along_dim where
    torch.Tensor:
        __getitem__ __setitem__ index_fill_ index_put_ masked_fill_ masked_scatter_ nan_to_num_
    torch: nan_to_num_
    mindspore.mint: gather index_select masked_fill masked_select nan_to_num narrow select where
    mindspore.ops: gather index_select masked_fill masked_select nan_to_num narrow select where
    mindspore.Tensor:
        __getitem__ __setitem__ gather index_select masked_fill masked_fill_ masked_select nan_to_num narrow
        select where
    """,
)
# Operators whose results are whatever stands in the memory that they get.
UNINITIALISED = table_of_names(
    "uninitialised",
    """
    torch: empty empty_like empty_permuted empty_strided
    torch.Tensor: new_empty new_empty_strided resize_ resize_as_
    mindspore.mint: empty empty_like
    """,
)
# Operators that read the shape and the dtype of their first argument, and none of its values.
READS_NO_VALUES = table_of_names(
    "reads no values",
    """
    torch: empty_like full_like ones_like rand_like randint_like randn_like zeros_like
    torch.Tensor: bernoulli_ cauchy_ copy_ dim expand_as exponential_ fill_ geometric_ log_normal_
        new_empty new_full new_ones new_zeros normal_ numel random_ size uniform_ zero_
    torch.nn.init:
        constant_ eye_ kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_ trunc_normal_ uniform_
        xavier_normal_ xavier_uniform_ zeros_
    mindspore.mint: empty_like full_like ones_like rand_like randint_like randn_like zeros_like
    mindspore.ops: full_like ones_like rand_like randint_like randn_like zeros_like
    """,
)
