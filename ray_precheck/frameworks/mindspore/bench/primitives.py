"""The table of references of the primitives of `mindspore.ops`, and those that torch has no namesake for.

Comes in: torch tensors (float64 in place of floats), MindSpore's arguments, and the attributes with which the
primitive was made, by name. Goes out: the results according to MindSpore's documentation. Named by `mapping`.

A record of a primitive has the arguments of its call by position, and its attributes by name; a row has both.
How a signature is written: `frameworks.pytorch.signatures`. Checked against MindSpore 2.10 and torch 2.13. A
primitive without a row is recorded, and is not checked.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.mindspore.bench import indexed, references
from ray_precheck.frameworks.mindspore.bench.references import cast, to_float
from ray_precheck.frameworks.mindspore.bench.rows import elementwise
from ray_precheck.frameworks.pytorch.signatures import Row, rows
from ray_precheck.operators.table import ACTIVATIONS, OF_ONE, OF_TWO, one_table
from ray_precheck.schema.result import Uncompared

Tensor = torch.Tensor
_KEPT = Uncompared("it is what the kernel keeps for its backward pass")
_ND = "input_x indices updates"
_CONV = (
    "x w>weight * out_channel> kernel_size> mode> pad_mode pad stride dilation group data_format in_channel>"
    " pad_list>"
)
_INPUT_GRADIENT = _CONV.replace("weight *", "weight input_size *")
_POOL = "x * kernel_size strides pad_mode data_format"
_REDUCED = "x axis * keep_dims skip_mode>"


def matmul(
    left: Tensor, right: Tensor, transpose_a: bool = False, transpose_b: bool = False
) -> Tensor:
    """Multiply matrices, each one transposed first where its attribute says so."""
    return (left.mT if transpose_a else left) @ (right.mT if transpose_b else right)


def div_no_nan(left: Tensor, right: Tensor) -> Tensor:
    """Divide, with 0 where the divisor is 0."""
    return torch.where(right == 0, 0.0, left / torch.where(right == 0, 1.0, right))


def reduced(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a reduction over an axis, several, or all of them where there is none."""

    def reduce(tensor: Tensor, axis: Any = (), keep_dims: bool = False, **_: Any) -> Tensor:
        axes = [axis] if isinstance(axis, int) else list(axis or range(tensor.ndim))
        for dim in sorted((each % max(1, tensor.ndim) for each in axes), reverse=True):
            tensor = function(tensor, dim, keep_dims)
        return tensor

    return reduce


def extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what gives the index of an extreme along an axis, and its value."""

    def found(tensor: Tensor, axis: int = 0, keep_dims: bool = False) -> Any:
        values, indices = function(tensor, axis, keep_dims)
        return indices, values

    return found


def index_of_extreme(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what gives the index of an extreme along an axis, in a dtype."""

    def found(tensor: Tensor, axis: int = -1, output_type: Any = torch.int32) -> Tensor:
        return function(tensor, axis).to(output_type)

    return found


def squeeze(tensor: Tensor, axis: int | Sequence[int] = ()) -> Tensor:
    """Drop dimensions of size 1, all of them where none are named."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    return torch.squeeze(tensor, axes) if axes else torch.squeeze(tensor)


def split(tensor: Tensor, axis: int = 0, output_num: int = 1) -> Any:
    """Split into parts of one size."""
    return torch.split(tensor, tensor.shape[axis] // output_num, axis)


def cumsum(tensor: Tensor, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Sum up along an axis, from its end, or without the element itself."""
    values = tensor.flip(axis) if reverse else tensor
    total = torch.cumsum(values, axis)
    total = total - values if exclusive else total
    return total.flip(axis) if reverse else total


def scalar_to_tensor(value: Any, dtype: Any = None) -> Tensor:
    """Return a tensor without dimensions."""
    return torch.tensor(value, dtype=dtype or torch.float64)


def mixed_cast(dtype: Any, tensor: Tensor) -> Tensor:
    """Convert floats to a dtype of floats."""
    return cast(tensor, dtype) if tensor.is_floating_point() else tensor


def pad(tensor: Tensor, paddings: Sequence[Sequence[int]]) -> Tensor:
    """Pad with zeros, given the widths before and after for each dimension."""
    return functional.pad(tensor, [width for pair in reversed(paddings) for width in pair])


def strided_slice(
    tensor: Tensor, begin: Any, end: Any, strides: Any, shrink_axis_mask: int = 0, **masks: int
) -> Tensor:
    """Take a slice of each dimension; those of a mask are indexed."""
    if any(masks.values()):
        raise NotCheckable(f"a StridedSlice with {', '.join(masks)} has no bench")
    if not shrink_axis_mask:
        return indexed.strided_slice(tensor, begin, end, strides)
    index = tuple(
        first if shrink_axis_mask >> dim & 1 else slice(first, last, step)
        for dim, (first, last, step) in enumerate(zip(begin, end, strides, strict=True))
    )
    return tensor[index]


def l2_normalize(tensor: Tensor, axis: Any = 0, epsilon: float = 1e-4) -> Tensor:
    """Divide by the norm along an axis, whose square is at least epsilon."""
    axes = axis if isinstance(axis, int) else tuple(axis)
    return tensor / tensor.square().sum(axes, keepdim=True).clamp(min=epsilon).sqrt()


def softmax(tensor: Tensor, axis: int | Sequence[int] = -1) -> Tensor:
    """Return the softmax along an axis, which may be the only one of a tuple."""
    return torch.softmax(tensor, axis if isinstance(axis, int) else int(*axis))


def layer_norm(
    tensor: Tensor,
    gamma: Tensor,
    beta: Tensor,
    begin_norm_axis: int = 1,
    begin_params_axis: int = 1,
    epsilon: float = 1e-7,
) -> Any:
    """Normalise over the last dimensions; the third output is the variance on one device, and 1 / standard
    deviation on another."""
    dims = tuple(range(begin_norm_axis % tensor.ndim, tensor.ndim))
    variance, mean = torch.var_mean(tensor, dims, correction=0, keepdim=True)
    normal = (tensor - mean) * torch.rsqrt(variance + epsilon)
    return normal * gamma + beta, mean, _KEPT


def batch_norm(
    tensor: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    is_training: bool = False,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
    data_format: str = "NCHW",
) -> Any:
    """Normalise each channel, with the batch's statistics in training; mean and variance then move towards
    these by the momentum. The other outputs are what the kernel of a device keeps."""
    given = tensor if data_format == "NCHW" else tensor.movedim(-1, 1)
    found = functional.batch_norm(
        given, mean, variance, scale, bias, is_training, momentum, epsilon
    )
    return (found if data_format == "NCHW" else found.movedim(1, -1)), _KEPT, _KEPT, _KEPT, _KEPT


def _pairs(value: Any, count: int) -> list[int]:
    """Return a number for each spatial dimension; four numbers are those of NCHW."""
    numbers = [value] * count if isinstance(value, int) else list(value)
    return numbers[-count:]


def _same(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the padding before and after with which the output has ceil(size / stride) elements."""
    need = (math.ceil(size / stride) - 1) * stride + dilation * (kernel - 1) + 1 - size
    return max(need, 0) // 2, max(need, 0) - max(need, 0) // 2


def _paddings(
    pad_mode: str, pad: Any, sizes: Sequence[int], windows: Sequence[tuple[int, int, int]]
) -> list[int]:
    """Return the padding before and after each spatial dimension, the first one first."""
    mode = str(pad_mode).lower()
    if mode == "same":
        found = (_same(size, *window) for size, window in zip(sizes, windows, strict=True))
        return [width for pair in found for width in pair]
    if mode == "pad":
        widths = [pad] if isinstance(pad, int) else list(pad)
        return widths * 2 * len(sizes) if len(widths) == 1 else widths
    return [0] * 2 * len(sizes)


def _padded(tensor: Tensor, widths: Sequence[int], value: float = 0.0) -> Tensor:
    pairs = [widths[place : place + 2] for place in range(0, len(widths), 2)]
    return functional.pad(
        tensor, [width for pair in reversed(pairs) for width in pair], value=value
    )


def _windows(weight: Sequence[int], stride: Any, dilation: Any) -> list[tuple[int, int, int]]:
    count = len(weight)
    return list(zip(weight, _pairs(stride, count), _pairs(dilation, count), strict=True))


def _require_channels_first(data_format: str) -> None:
    if not data_format.startswith("NC"):
        raise NotCheckable(f"the bench knows no data_format {data_format!r} of this primitive")


def conv(
    tensor: Tensor,
    weight: Tensor,
    pad_mode: str = "valid",
    pad: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    group: int = 1,
    data_format: str = "NCHW",
    **_: Any,
) -> Tensor:
    """Convolve over two dimensions or three."""
    _require_channels_first(data_format)
    windows = _windows(weight.shape[2:], stride, dilation)
    widths = _paddings(pad_mode, pad, tensor.shape[2:], windows)
    function = functional.conv2d if weight.ndim == 4 else functional.conv3d
    strides, dilations = ([each[place] for each in windows] for place in (1, 2))
    result: Tensor = function(
        _padded(tensor, widths), weight, stride=strides, dilation=dilations, groups=group
    )
    return result


def conv_transpose(
    tensor: Tensor,
    weight: Tensor,
    input_size: Any,
    pad_mode: str = "valid",
    pad: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    group: int = 1,
    data_format: str = "NCHW",
    **_: Any,
) -> Tensor:
    """Return the gradient of a convolution's input, which has a given size."""
    _require_channels_first(data_format)
    sizes = [int(each) for each in input_size][2:]
    windows = _windows(weight.shape[2:], stride, dilation)
    widths = _paddings(pad_mode, pad, sizes, windows)
    strides, dilations = ([each[place] for each in windows] for place in (1, 2))
    full = functional.conv_transpose2d(
        tensor, weight, stride=strides, dilation=dilations, groups=group
    )
    for dim, size in enumerate(sizes):
        before, after = widths[2 * dim : 2 * dim + 2]
        lacking = size + before + after - full.shape[dim + 2]
        full = _padded(full, [0, lacking] if dim else [0, lacking, 0, 0])
        full = full.narrow(dim + 2, before, size)
    return full


def _pool(
    tensor: Tensor, kernel_size: Any, strides: Any, pad_mode: str, data_format: str
) -> tuple[list[int], list[int], list[int]]:
    """Return the windows' sizes, their steps, and the padding of each spatial dimension."""
    _require_channels_first(data_format)
    windows = _windows(_pairs(kernel_size, 2), strides, 1)
    widths = _paddings(pad_mode, 0, tensor.shape[2:], windows)
    return [w[0] for w in windows], [w[1] for w in windows], widths


def max_pool(
    tensor: Tensor,
    kernel_size: Any = 1,
    strides: Any = 1,
    pad_mode: str = "valid",
    data_format: str = "NCHW",
) -> Tensor:
    """Take the maximum of each window."""
    kernel, step, widths = _pool(tensor, kernel_size, strides, pad_mode, data_format)
    result: Tensor = functional.max_pool2d(_padded(tensor, widths, -math.inf), kernel, step)
    return result


def avg_pool(
    tensor: Tensor,
    kernel_size: Any = 1,
    strides: Any = 1,
    pad_mode: str = "valid",
    data_format: str = "NCHW",
) -> Tensor:
    """Take the mean of each window, without the padding."""
    kernel, step, widths = _pool(tensor, kernel_size, strides, pad_mode, data_format)
    total = functional.avg_pool2d(_padded(tensor, widths), kernel, step)
    share = functional.avg_pool2d(_padded(torch.ones_like(tensor[:1, :1]), widths), kernel, step)
    return total / share


def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Any:
    """Return the loss of each row, and its gradient."""
    log_probability = torch.log_softmax(logits, -1)
    loss = -(labels * log_probability).sum(-1)
    return loss, (log_probability.exp() - labels).detach()


def sparse_softmax_cross_entropy(logits: Tensor, labels: Tensor, is_grad: bool = False) -> Tensor:
    """Return the mean loss, or its gradient."""
    if not is_grad:
        return functional.cross_entropy(logits, labels.long())
    hot = functional.one_hot(labels.long(), logits.shape[-1])
    return (torch.softmax(logits, -1) - hot) / labels.numel()


def nll_loss(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Any:
    """Return the negative log likelihood, and the sum of the weights."""
    loss = functional.nll_loss(
        logits, labels.long(), weight, ignore_index=ignore_index, reduction=reduction
    )
    used = labels[labels != ignore_index].long()
    return loss, weight[used].sum() if reduction != "none" else _KEPT


def lstm(
    tensor: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: Tensor,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    has_bias: bool = True,
    bidirectional: bool = False,
    dropout: float = 0.0,
    proj_size: int = 0,
) -> Any:
    """Run one layer in one direction, with the weights in one tensor as the CPU's kernel has them."""
    if num_layers != 1 or bidirectional or proj_size or dropout:
        raise NotCheckable(
            "an LSTM of several layers, two directions, or with dropout has no bench"
        )
    parts = [
        4 * hidden_size * input_size,
        4 * hidden_size * hidden_size,
        4 * hidden_size * has_bias,
    ]
    if weights.numel() != sum(parts):
        raise NotCheckable("the weights of this LSTM are not in the order that the CPU has")
    flat = to_float(weights.reshape(-1))
    into, within, bias = torch.split(flat, parts)
    state, memory, outputs = hidden[0], cell[0], []
    for step in tensor:
        gates = step @ into.reshape(-1, input_size).T + state @ within.reshape(-1, hidden_size).T
        gates = gates + bias if has_bias else gates
        entry, forget, new, exit_gate = gates.chunk(4, -1)
        memory = torch.sigmoid(forget) * memory + torch.sigmoid(entry) * torch.tanh(new)
        state = torch.sigmoid(exit_gate) * torch.tanh(memory)
        outputs.append(state)
    return torch.stack(outputs), state.unsqueeze(0), memory.unsqueeze(0), _KEPT, _KEPT


_LAYERS: dict[str, tuple[Row, ...]] = {
    "AvgPool": rows(avg_pool, _POOL),
    "BatchMatMul": rows(matmul, "x y>right * transpose_a transpose_b"),
    "BatchNorm": rows(
        batch_norm,
        "x scale bias mean variance * is_training epsilon momentum data_format",
    ),
    "BCEWithLogitsLoss": rows(
        "Functional.binary_cross_entropy_with_logits",
        "input target weight posWeight>pos_weight * reduction",
    ),
    "BiasAdd": rows(references.bias_add, "x bias * data_format"),
    "BinaryCrossEntropy": rows(
        "Functional.binary_cross_entropy", "input target weight * reduction"
    ),
    "Conv2D": rows(conv, _CONV),
    "Conv2DBackpropInput": rows(conv_transpose, _INPUT_GRADIENT),
    "Conv2DTranspose": rows(conv_transpose, _INPUT_GRADIENT),
    "Conv3D": rows(conv, _CONV),
    "Dense": rows("Functional.linear", "input weight bias"),
    "Dropout": rows("Functional.dropout", "x * keep_prob> Seed0> Seed1>"),
    "Elu": rows("Functional.elu", "x * alpha"),
    "GeLU": rows(torch.nn.functional.gelu, "x * approximate='tanh'"),
    "HShrink": rows("Functional.hardshrink", "x * lambd"),
    "KLDivLoss": rows("Functional.kl_div", "logits labels>target * reduction"),
    "L2Normalize": rows(l2_normalize, "x * axis epsilon"),
    "LayerNorm": rows(layer_norm, "x gamma beta * begin_norm_axis begin_params_axis epsilon"),
    "LogSoftmax": rows("Functional.log_softmax", "x * axis>dim=-1"),
    "LSTM": rows(
        lstm,
        "x h>hidden c>cell w>weights * input_size hidden_size num_layers has_bias bidirectional dropout"
        " proj_size",
    ),
    "MatMul": rows(matmul, "a b>right * transpose_a transpose_b"),
    "MatMulExt": rows("Torch.matmul", "input other"),
    "MaxPool": rows(max_pool, _POOL),
    "NLLLoss": rows(nll_loss, "logits labels weight * reduction ignore_index"),
    "PReLU": rows("Functional.prelu", "x weight"),
    "SmoothL1Loss": rows("Functional.smooth_l1_loss", "x target * beta reduction='none'"),
    "Softmax": rows(softmax, "x * axis"),
    "softmax_impl": rows(softmax, "x axis"),
    "SoftmaxCrossEntropyWithLogits": rows(softmax_cross_entropy, "x labels"),
    "SoftShrink": rows("Functional.softshrink", "x * lambd"),
    "SparseSoftmaxCrossEntropyWithLogits": rows(sparse_softmax_cross_entropy, "x labels * is_grad"),
    "SquaredDifference": rows(lambda x, y: (x - y) ** 2, "x y"),
}

_SHAPES: dict[str, tuple[Row, ...]] = {
    "BroadcastTo": rows("Torch.broadcast_to", "x * shape>size"),
    "Cast": rows(references.cast, "x dtype"),
    "MixedPrecisionCast": rows(mixed_cast, "dtype x>tensor"),
    "Concat": rows("Torch.cat", "tensors * axis>dim=0"),
    "concat_impl": rows("Torch.cat", "tensors axis>dim=0"),
    "ExpandDims": rows("Torch.unsqueeze", "x axis>dim"),
    "Fill": rows(references.filled, "type>dtype dims>shape value"),
    "Flatten": rows(references.flatten_batch, "x"),
    "Identity": rows("Torch.clone", "x"),
    "MirrorPad": rows(references.mirror_pad, "x paddings * mode"),
    "Pad": rows(pad, "x * paddings"),
    "Reshape": rows("Torch.reshape", "x shape"),
    "ReverseV2": rows(references.reverse, "x * axis"),
    "ScalarToTensor": rows(scalar_to_tensor, "x dtype"),
    "Select": rows("Torch.where", "condition x>input y>other"),
    "Slice": rows(indexed.slice_of, "x begin size"),
    "Split": rows(split, "x * axis output_num"),
    "Squeeze": rows(squeeze, "x * axis"),
    "squeeze_impl": rows(squeeze, "x axis"),
    "Stack": rows("Torch.stack", "tensors * axis>dim=0"),
    "StridedSlice": rows(
        strided_slice,
        "x begin end strides * begin_mask end_mask ellipsis_mask new_axis_mask shrink_axis_mask",
    ),
    "Tile": rows("Torch.tile", "x multiples>dims"),
    "Transpose": rows("Torch.permute", "x dims"),
    "Tril": rows("Torch.tril", "x * diagonal"),
    "Triu": rows("Torch.triu", "x * diagonal"),
    "Unstack": rows("Torch.unbind", "x * axis>dim num>"),
}

_REDUCTIONS: dict[str, tuple[Row, ...]] = {
    "Argmax": rows(index_of_extreme(torch.argmax), "x * axis output_type"),
    "Argmin": rows(index_of_extreme(torch.argmin), "x * axis output_type"),
    "ArgMaxWithValue": rows(extreme(torch.max), "x * axis keep_dims"),
    "ArgMinWithValue": rows(extreme(torch.min), "x * axis keep_dims"),
    "AddN": rows(references.add_all, "x"),
    "CumSum": rows(cumsum, "x axis * exclusive reverse"),
    "L2Loss": rows(lambda x: (x * x).sum() / 2, "x"),
    "ReduceAll": rows(reduced(torch.all), _REDUCED),
    "ReduceAny": rows(reduced(torch.any), _REDUCED),
    "ReduceMax": rows(reduced(torch.amax), _REDUCED),
    "ReduceMean": rows(reduced(torch.mean), _REDUCED),
    "ReduceMin": rows(reduced(torch.amin), _REDUCED),
    "ReduceProd": rows(reduced(torch.prod), _REDUCED),
    "ReduceSum": rows(reduced(torch.sum), _REDUCED),
}

_REST: dict[str, tuple[Row, ...]] = {
    "Assign": rows("Tensor.copy_", "variable value>other"),
    "AssignAdd": rows("Tensor.add_", "variable value>other"),
    "AssignSub": rows("Tensor.sub_", "variable value>other"),
    "DivNoNan": rows(div_no_nan, "x& y>right&"),
    "Gather": rows(indexed.gather, "x indices axis * batch_dims"),
    "GatherD": rows("Torch.gather", "x dim index^"),
    "GatherNd": rows(indexed.gather_nd, "x indices^"),
    "Lerp": rows("Torch.lerp", "x end weight"),
    "MaskedFill": rows("Torch.masked_fill", "x mask value"),
    "OneHot": rows(references.one_hot, "indices depth on_value off_value * axis"),
    "Range": rows("Torch.arange", "start end step * maxlen>"),
    "ScatterNd": rows(indexed.scatter_nd, "indices updates shape"),
    "TensorScatterAdd": rows(indexed.scatter_nd_add, _ND),
    "TensorScatterUpdate": rows(indexed.scatter_nd_update, _ND),
    "TopK": rows("Torch.topk", "x k * sorted"),
    "UnsortedSegmentSum": rows(indexed.segment_sum, "x segment_ids num_segments"),
}

PRIMITIVE_ROWS: dict[str, tuple[Row, ...]] = {
    f"Primitive.{name}": row
    for name, row in one_table(
        "references of primitives",
        {name: rows(f"Torch.{target}", "x") for name, target in OF_ONE.items()},
        {name: elementwise(target, "x", "y") for name, target in OF_TWO.items()},
        {name: rows(f"Functional.{target}", "x") for name, target in ACTIVATIONS.items()},
        _LAYERS,
        _SHAPES,
        _REDUCTIONS,
        _REST,
    ).items()
}
