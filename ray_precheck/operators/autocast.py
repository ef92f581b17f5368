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
