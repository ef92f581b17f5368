"""Properties of operators: what they change, read and cast, and how values that are not finite come in.

Goes out: tables. Called by `bench.checkable` and by the checks, and by `trace.overflow`, which follows NaN
and infinities through a capture.
"""

from ray_precheck.operators.table import FactTable, table_of_names

# Operators that change their first argument although their name does not end in one underscore.
AUGMENTED = table_of_names(
    "in place",
    """
    torch.Tensor mindspore.Tensor:
        __iadd__ __ifloordiv__ __imod__ __imul__ __isub__ __itruediv__ __setitem__
    torch.Tensor: __iand__ __idiv__ __ilshift__ __ior__ __ipow__ __irshift__ __ixor__
    """,
)
# Tensors that operators change beside what they return and beside a first argument in place: the parameters
# up to the last such one, which has a !. What follows it is the name of another parameter, without which
# this one stays as it is, and which stands here, too. torch's own schemas have the same (`Tensor(a!)`), but
# for those of batch_norm.
_STATISTICS = "running_mean! running_var!"
_WITH_WEIGHTS = f"input weight bias {_STATISTICS}"
CHANGES: FactTable[str] = FactTable(
    "changes",
    [
        (
            """
            torch.nn.functional: batch_norm instance_norm
            mindspore.mint.nn.functional mindspore.ops: batch_norm
            """,
            f"input {_STATISTICS}",
        ),
        (
            """
            torch:
                batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm
                _native_batch_norm_legit
            """,
            _WITH_WEIGHTS,
        ),
        ("mindspore.ops.operations: BatchNorm", "input_x scale bias mean! variance!"),
        (
            "torch: batch_norm_gather_stats batch_norm_gather_stats_with_counts",
            f"input mean invstd {_STATISTICS}",
        ),
        ("torch: batch_norm_update_stats", f"input {_STATISTICS}"),
        (
            """
            torch.nn.functional mindspore.mint.nn.functional: embedding
            """,
            "input weight!max_norm padding_idx max_norm",
        ),
        ("torch.nn.functional: embedding_bag", "input weight!max_norm offsets max_norm"),
        (
            "torch: fused_moving_avg_obs_fake_quant _fused_moving_avg_obs_fq_helper",
            "self observer_on fake_quant_on running_min! running_max! scale! zero_point!",
        ),
        ("torch: _amp_foreach_non_finite_check_and_unscale_", "self found_inf!"),
        ("torch: _amp_update_scale_", "self growth_tracker!"),
        (
            "torch: _fused_adam_ _fused_adamw_",
            "self grads! exp_avgs! exp_avg_sqs! max_exp_avg_sqs!",
        ),
        ("torch: _fused_sgd_", "self grads! momentum_buffer_list!"),
        ("torch: _fused_adagrad_", "self grads! state_sums! state_steps!"),
    ],
)
# Operators that read the bits of their input as another dtype, if a dtype is among their arguments.
READS_BITS = table_of_names("reads bits", "torch.Tensor mindspore.Tensor: view")
# Operators whose results depend on how their input lies in memory.
READS_LAYOUT = table_of_names(
    "reads the layout",
    """
    torch: as_strided as_strided_ as_strided_copy as_strided_scatter
    torch.Tensor: as_strided as_strided_ as_strided_scatter dim_order is_contiguous storage_offset stride
    """,
)
# Operators that compute nothing: what may be wrong in them is how they read and write memory.
ONLY_LAYOUT = table_of_names(
    "only the layout",
    """
    torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops:
        broadcast_to flatten permute reshape squeeze transpose unsqueeze
    torch torch.Tensor mindspore.mint mindspore.Tensor: clone
    torch torch.Tensor: adjoint moveaxis movedim swapaxes swapdims t unflatten
    torch torch.Tensor mindspore.mint: narrow
    torch.Tensor mindspore.Tensor: __getitem__ contiguous copy_ expand expand_as view view_as
    torch.Tensor: bfloat16 cpu cuda double float half to type type_as
    mindspore.Tensor: astype swapaxes to
    torch torch.Tensor: ravel
    """,
)
# Operators whose input is sparse, quantized or nested: others they do not take, or compute in another way.
OF_A_STORAGE = table_of_names(
    "of a storage",
    """
    torch.sparse: mm addmm sum softmax log_softmax sampled_addmm spsolve
    torch torch.Tensor: smm sspaddmm dequantize int_repr q_per_channel_axis
        q_per_channel_scales q_per_channel_zero_points
    torch: hspmm
    torch.Tensor: sparse_mask coalesce indices values crow_indices col_indices ccol_indices row_indices
        to_padded_tensor
    torch.nested: to_padded_tensor
    """,
)
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

# https://docs.pytorch.org/docs/stable/amp.html, "Autocast Op Reference", and the operators that are made
# of these alone.
CASTS_ARGUMENTS = table_of_names(
    "autocast to a lower precision",
    """
    torch torch.Tensor: addbmm addmm addmv addr baddbmm bmm inner matmul mm mv prelu
    torch.Tensor: __matmul__ __rmatmul__
    torch: chain_matmul einsum tensordot
    torch torch.nn.functional: conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    torch.nn.functional: linear multi_head_attention_forward prelu scaled_dot_product_attention
    torch: conv_tbc gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell
    torch.linalg: multi_dot vecdot
    """,
)
# On accelerators autocast leaves these alone, and sees the operators that they are made of: the steps before
# the first one of `IN_FLOAT32` are rounded to the half type of the inputs, though the result is float32. (The
# cross entropy takes the logarithm of the softmax in the dtype of its input.) The CPU has another list, with
# cross_entropy in float32 (aten/src/ATen/autocast_mode.cpp).
NARROW_INSIDE = table_of_names(
    "half steps in a float32 result",
    """
    torch.nn.functional: cross_entropy gaussian_nll_loss local_response_norm
    torch.nn.functional: multilabel_soft_margin_loss triplet_margin_with_distance_loss
    torch torch.nn.functional: pairwise_distance
    """,
)
# Operators of torch's dispatcher that autocast has in float32 (aten/src/ATen/autocast_mode.h, AT_FORALL_FP32
# and those with an own dtype), as far as they are steps of the functions above.
IN_FLOAT32 = frozenset(
    """exp expm1 log log10 log1p log2 reciprocal rsqrt pow softplus logsumexp sum prod cumsum cumprod
    norm linalg_vector_norm nll_loss_forward nll_loss2d_forward""".split()
)
# Which keep the dtype of all tensors but the first, where MindSpore casts what an operator gets: their
# signatures say that they write into these.
KEEPS_ALL_BUT_FIRST = table_of_names(
    "write into all arguments but the first", "mindspore.ops.operations: BatchNorm"
)
# Which add up the gradients of their weights in the type of their input: see `bench.rounded`.
SUMS_NARROWLY = table_of_names(
    "gradients of weights summed in the type of the input",
    """
    torch torch.nn.functional: layer_norm rms_norm
    torch: native_layer_norm
    """,
)
# Whose running statistics take the type of an input of a half type on their way, though they are kept in
# float32: torch 2.13 on the CPU, where the weights are not float32.
NARROW_STATISTICS = table_of_names(
    "running statistics by way of the type of the input",
    "torch torch.nn.functional: instance_norm",
)

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
