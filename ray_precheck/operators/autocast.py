"""Operators that compute in a lower precision than some of their arguments have.

Goes out: tables. Called by `check.inputs`. To those of the first one PyTorch's autocast hands arguments that
it has cast to a lower precision; the arguments of the bench are cast in the same way. The
lists of torch's devices differ a little; a call counts only if its recorded outputs have the dtype of
autocast.
"""

from ray_precheck.operators.table import table_of_names

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
