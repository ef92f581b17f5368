"""The names of the arguments that dumps know by their places: `input.6` of batch_norm is its momentum.

Comes in: the key of a record, and the path of one of its inputs. Goes out: the path with the name. Called
where people are told of an argument. The order is that of torch 2.13 and of MindSpore 2.10 (`mint`), which
tests/frameworks/test_operators_claims.py holds against their signatures.
"""

from ray_precheck.operators.table import FactTable

_BOTH = "torch.nn.functional mindspore.mint.nn.functional"
_TORCH = "torch.nn.functional"

ARGUMENTS: FactTable[str] = FactTable(
    "names of arguments",
    [
        (
            f"{_BOTH}: batch_norm",
            "input running_mean running_var weight bias training momentum eps",
        ),
        (
            f"{_TORCH}: instance_norm",
            "input running_mean running_var weight bias use_input_stats momentum eps",
        ),
        (f"{_BOTH}: layer_norm", "input normalized_shape weight bias eps"),
        (f"{_BOTH}: group_norm", "input num_groups weight bias eps"),
        (f"{_TORCH}: rms_norm", "input normalized_shape weight eps"),
        (f"{_TORCH}: local_response_norm", "input size alpha beta k"),
        (f"{_BOTH}: linear", "input weight bias"),
        (f"{_TORCH}: bilinear", "input1 input2 weight bias"),
        (
            f"{_TORCH}: conv1d conv2d conv3d",
            "input weight bias stride padding dilation groups",
        ),
        (
            "mindspore.mint.nn.functional: conv2d",
            "input weight bias stride padding dilation groups",
        ),
        (
            f"{_TORCH}: conv_transpose1d conv_transpose2d conv_transpose3d",
            "input weight bias stride padding output_padding groups dilation",
        ),
        (
            f"{_TORCH}: embedding",
            "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
        ),
        (
            f"{_TORCH}: dropout dropout1d dropout2d dropout3d alpha_dropout",
            "input p training inplace",
        ),
        (f"{_TORCH}: celu elu", "input alpha inplace"),
        (f"{_TORCH}: leaky_relu", "input negative_slope inplace"),
        (f"{_TORCH}: hardtanh", "input min_val max_val inplace"),
        (f"{_TORCH}: softplus", "input beta threshold"),
        (f"{_TORCH}: threshold", "input threshold value inplace"),
        (f"{_TORCH}: avg_pool1d", "input kernel_size stride padding ceil_mode count_include_pad"),
        (
            f"{_BOTH}: avg_pool2d",
            "input kernel_size stride padding ceil_mode count_include_pad divisor_override",
        ),
        (
            f"{_TORCH}: avg_pool3d",
            "input kernel_size stride padding ceil_mode count_include_pad divisor_override",
        ),
        (
            f"{_TORCH}: max_pool1d max_pool2d",
            "input kernel_size stride padding dilation ceil_mode return_indices",
        ),
        (
            f"{_TORCH}: interpolate",
            "input size scale_factor mode align_corners recompute_scale_factor antialias",
        ),
        (f"{_BOTH}: grid_sample", "input grid mode padding_mode align_corners"),
        (f"{_BOTH}: pad", "input pad mode value"),
        (f"{_TORCH}: fold", "input output_size kernel_size dilation padding stride"),
        (f"{_TORCH}: unfold", "input kernel_size dilation padding stride"),
        (f"{_TORCH}: normalize", "input p dim eps out"),
        (f"{_TORCH}: cosine_similarity", "x1 x2 dim eps"),
        (f"{_TORCH}: gumbel_softmax", "logits tau hard eps dim"),
        (f"{_TORCH}: scaled_dot_product_attention", "query key value attn_mask dropout_p"),
        (
            f"{_TORCH}: cross_entropy",
            "input target weight size_average ignore_index reduce reduction label_smoothing",
        ),
        (f"{_TORCH}: nll_loss", "input target weight size_average ignore_index reduce reduction"),
        (f"{_TORCH}: binary_cross_entropy", "input target weight size_average reduce reduction"),
        (
            f"{_TORCH}: binary_cross_entropy_with_logits",
            "input target weight size_average reduce reduction pos_weight",
        ),
        (f"{_TORCH}: kl_div", "input target size_average reduce reduction log_target"),
        (f"{_TORCH}: l1_loss mse_loss", "input target size_average reduce reduction weight"),
        (f"{_TORCH}: smooth_l1_loss", "input target size_average reduce reduction beta"),
        (f"{_TORCH}: huber_loss", "input target reduction delta weight"),
        (
            f"{_TORCH}: ctc_loss",
            "log_probs targets input_lengths target_lengths blank reduction zero_infinity",
        ),
    ],
)


def with_name(key: str, path: str) -> str:
    """Return the path of an input of a forward record, `input.6`, with the argument's name: `input.6
    (momentum)`; as it is where that is not known."""
    call, _, direction = key.rpartition(".")
    part, _, place = path.partition(".")
    names = (
        ARGUMENTS.of(call.rpartition(".")[0])
        if direction == "forward" and part == "input"
        else None
    )
    number = place.partition(".")[0]
    if names is None or not number.isdigit() or int(number) >= len(names.split()):
        return path
    return f"{path} ({names.split()[int(number)]})"
