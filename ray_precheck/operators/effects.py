"""Properties of operators that a check must know: what they change, read and cast.

Goes out: tables. Called by `bench.checkable` and by the checks.
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
