"""The table of references: the primitives of `mindspore.ops`.

A record of a primitive has the arguments of its call by position, and the attributes with which it was made
by name; a row has both. How a signature is written: `frameworks.pytorch.signatures`. Checked against
MindSpore 2.10 and torch 2.13. A primitive without a row is recorded, and is not checked.
"""

import torch

from ray_precheck.frameworks.mindspore.bench import indexed, primitives, references
from ray_precheck.frameworks.mindspore.bench.rows import elementwise
from ray_precheck.frameworks.pytorch.signatures import Row, rows
from ray_precheck.operators.primitives import ACTIVATIONS, OF_ONE, OF_TWO
from ray_precheck.operators.table import one_table

_ND = "input_x indices updates"
_CONV = (
    "x w>weight * out_channel> kernel_size> mode> pad_mode pad stride dilation group data_format in_channel>"
    " pad_list>"
)
_INPUT_GRADIENT = _CONV.replace("weight *", "weight input_size *")
_POOL = "x * kernel_size strides pad_mode data_format"
_REDUCED = "x axis * keep_dims skip_mode>"

_LAYERS: dict[str, tuple[Row, ...]] = {
    "AvgPool": rows(primitives.avg_pool, _POOL),
    "BatchMatMul": rows(primitives.matmul, "x y>right * transpose_a transpose_b"),
    "BatchNorm": rows(
        primitives.batch_norm,
        "x scale bias mean variance * is_training epsilon momentum data_format",
    ),
    "BCEWithLogitsLoss": rows(
        "Functional.binary_cross_entropy_with_logits",
        "input target weight posWeight>pos_weight * reduction",
    ),
    "BiasAdd": rows(primitives.bias_add, "x bias * data_format"),
    "BinaryCrossEntropy": rows(
        "Functional.binary_cross_entropy", "input target weight * reduction"
    ),
    "Conv2D": rows(primitives.conv, _CONV),
    "Conv2DBackpropInput": rows(primitives.conv_transpose, _INPUT_GRADIENT),
    "Conv2DTranspose": rows(primitives.conv_transpose, _INPUT_GRADIENT),
    "Conv3D": rows(primitives.conv, _CONV),
    "Dense": rows("Functional.linear", "input weight bias"),
    "Dropout": rows("Functional.dropout", "x * keep_prob> Seed0> Seed1>"),
    "Elu": rows("Functional.elu", "x * alpha"),
    "GeLU": rows(torch.nn.functional.gelu, "x * approximate='tanh'"),
    "HShrink": rows("Functional.hardshrink", "x * lambd"),
    "KLDivLoss": rows("Functional.kl_div", "logits labels>target * reduction"),
    "L2Normalize": rows(primitives.l2_normalize, "x * axis epsilon"),
    "LayerNorm": rows(
        primitives.layer_norm, "x gamma beta * begin_norm_axis begin_params_axis epsilon"
    ),
    "LogSoftmax": rows("Functional.log_softmax", "x * axis>dim=-1"),
    "LSTM": rows(
        primitives.lstm,
        "x h>hidden c>cell w>weights * input_size hidden_size num_layers has_bias bidirectional dropout"
        " proj_size",
    ),
    "MatMul": rows(primitives.matmul, "a b>right * transpose_a transpose_b"),
    "MatMulExt": rows("Torch.matmul", "input other"),
    "MaxPool": rows(primitives.max_pool, _POOL),
    "NLLLoss": rows(primitives.nll_loss, "logits labels weight * reduction ignore_index"),
    "PReLU": rows("Functional.prelu", "x weight"),
    "SmoothL1Loss": rows("Functional.smooth_l1_loss", "x target * beta reduction='none'"),
    "Softmax": rows(primitives.softmax, "x * axis"),
    "softmax_impl": rows(primitives.softmax, "x axis"),
    "SoftmaxCrossEntropyWithLogits": rows(primitives.softmax_cross_entropy, "x labels"),
    "SoftShrink": rows("Functional.softshrink", "x * lambd"),
    "SparseSoftmaxCrossEntropyWithLogits": rows(
        primitives.sparse_softmax_cross_entropy, "x labels * is_grad"
    ),
    "SquaredDifference": rows(lambda x, y: (x - y) ** 2, "x y"),
}

_SHAPES: dict[str, tuple[Row, ...]] = {
    "BroadcastTo": rows("Torch.broadcast_to", "x * shape>size"),
    "Cast": rows(references.cast, "x dtype"),
    "MixedPrecisionCast": rows(primitives.mixed_cast, "dtype x>tensor"),
    "Concat": rows("Torch.cat", "tensors * axis>dim=0"),
    "concat_impl": rows("Torch.cat", "tensors axis>dim=0"),
    "ExpandDims": rows("Torch.unsqueeze", "x axis>dim"),
    "Fill": rows(primitives.fill, "type>dtype dims>shape value"),
    "Flatten": rows(references.flatten_batch, "x"),
    "Identity": rows(references.identity, "x"),
    "MirrorPad": rows(primitives.mirror_pad, "x paddings * mode"),
    "Pad": rows(primitives.pad, "x * paddings"),
    "Reshape": rows("Torch.reshape", "x shape"),
    "ReverseV2": rows(references.reverse, "x * axis"),
    "ScalarToTensor": rows(primitives.scalar_to_tensor, "x dtype"),
    "Select": rows("Torch.where", "condition x>input y>other"),
    "Slice": rows(indexed.slice_of, "x begin size"),
    "Split": rows(primitives.split, "x * axis output_num"),
    "Squeeze": rows(primitives.squeeze, "x * axis"),
    "squeeze_impl": rows(primitives.squeeze, "x axis"),
    "Stack": rows("Torch.stack", "tensors * axis>dim=0"),
    "StridedSlice": rows(
        primitives.strided_slice,
        "x begin end strides * begin_mask end_mask ellipsis_mask new_axis_mask shrink_axis_mask",
    ),
    "Tile": rows("Torch.tile", "x multiples>dims"),
    "Transpose": rows("Torch.permute", "x dims"),
    "Tril": rows("Torch.tril", "x * diagonal"),
    "Triu": rows("Torch.triu", "x * diagonal"),
    "Unstack": rows("Torch.unbind", "x * axis>dim num>"),
}

_REDUCTIONS: dict[str, tuple[Row, ...]] = {
    "Argmax": rows(primitives.index_of_extreme(torch.argmax), "x * axis output_type"),
    "Argmin": rows(primitives.index_of_extreme(torch.argmin), "x * axis output_type"),
    "ArgMaxWithValue": rows(primitives.extreme(torch.max), "x * axis keep_dims"),
    "ArgMinWithValue": rows(primitives.extreme(torch.min), "x * axis keep_dims"),
    "AddN": rows(references.add_all, "x"),
    "CumSum": rows(primitives.cumsum, "x axis * exclusive reverse"),
    "L2Loss": rows(lambda x: (x * x).sum() / 2, "x"),
    "ReduceAll": rows(primitives.reduced(torch.all), _REDUCED),
    "ReduceAny": rows(primitives.reduced(torch.any), _REDUCED),
    "ReduceMax": rows(primitives.reduced(torch.amax), _REDUCED),
    "ReduceMean": rows(primitives.reduced(torch.mean), _REDUCED),
    "ReduceMin": rows(primitives.reduced(torch.amin), _REDUCED),
    "ReduceProd": rows(primitives.reduced(torch.prod), _REDUCED),
    "ReduceSum": rows(primitives.reduced(torch.sum), _REDUCED),
}

_REST: dict[str, tuple[Row, ...]] = {
    "Assign": rows(primitives.assign, "variable value"),
    "AssignAdd": rows(primitives.assign_add, "variable value"),
    "AssignSub": rows(primitives.assign_sub, "variable value"),
    "DivNoNan": rows(primitives.div_no_nan, "x& y>right&"),
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
