"""The table of references: `mindspore.ops`.

Many of these share a name with torch and differ in the meaning, the order or the defaults of their
arguments. `OPS_NAMESAKES` have the same parameters in the same order with the same defaults in
both, compared one by one; all others have rows, or no bench. How a signature is written:
`frameworks.pytorch.signatures`. Checked against MindSpore 2.10 and torch 2.13.
"""

import torch
from torch.nn import functional

from ray_precheck.frameworks.mindspore.bench import indexed, references
from ray_precheck.frameworks.mindspore.bench.rows import (
    ELEMENTWISE,
    MORE_ELEMENTWISE,
    alike,
    elementwise,
)
from ray_precheck.frameworks.pytorch.signatures import Row, names, rows
from ray_precheck.operators.table import one_table

OPS_NAMESAKES = names(
    """abs absolute acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    addbmm addmm addmv angle arccos arccosh arcsinh arctan arctanh argmax argwhere asin asinh
    atan atanh bincount block_diag cartesian_prod cdist ceil cholesky_solve clamp clip
    column_stack combinations conj conv_transpose2d cos cosh cosine_similarity cov cross det
    diag_embed diagflat diagonal diagonal_scatter digamma dist dstack einsum erf erfc erfinv
    exp exp2 expm1 flip fliplr flipud floor full full_like ger grid_sample group_norm
    hardshrink hardsigmoid hardswish hardtanh histc hstack huber_loss i0 imag inner
    interpolate inverse is_complex is_floating_point isfinite isinf isnan isneginf isposinf
    isreal kron layer_norm lerp lgamma linspace log log10 log1p log2 logdet logical_not logit
    logsumexp masked_select matmul matrix_exp matrix_power mm msort mvlgamma nan_to_num neg
    negative nonzero numel ones_like outer pdist pixel_shuffle pixel_unshuffle polar positive
    prelu ravel real reciprocal reshape row_stack rsqrt sgn sigmoid sign signbit silu sin sinc
    sinh slogdet softplus softshrink square swapaxes swapdims t tan tanh tanhshrink tile trace
    tril triu trunc unbind unfold unique_consecutive unsqueeze view_as_real where zeros_like"""
)

_ND = "input_x indices updates"
_WRITES = ("add", "sub", "mul", "div", "max", "min")
_KEEP = "keepdims>keepdim"
_POOL = "kernel_size=1 stride=1 padding ceil_mode count_include_pad"
_MAX_POOL = "x kernel_size stride padding dilation"
_CONV = "input weight bias stride pad_mode padding dilation groups"
_VARIANCE = f"input axis>dim=None ddof>correction=0 {_KEEP}=False"
_NORM = "dim keepdim * dtype"

# Names that MindSpore has beside the torch-like one, or with other words for the same arguments.
_SYNONYMS: dict[str, tuple[Row, ...]] = {
    "approximate_equal": rows(references.approximate_equal, "x y>other tolerance"),
    "cat": rows("Torch.cat", "tensors axis>dim"),
    "concat": rows("Torch.cat", "tensors axis>dim"),
    "dense": rows("Functional.linear", "input weight bias"),
    "bidense": rows("Functional.bilinear", "input1 input2 weight bias"),
    "equal": elementwise("eq"),
    "expand_as": rows("Tensor.expand_as", "input other"),
    "expand_dims": rows("Torch.unsqueeze", "input_x axis>dim"),
    "floor_div": elementwise("floor_divide", "x", "y"),
    "floor_mod": elementwise("remainder", "x", "y"),
    "floordiv": elementwise("floor_divide"),
    "floormod": elementwise("remainder", "x", "y"),
    "gather_d": rows("Torch.gather", "x dim index^"),
    "gather_elements": rows("Torch.gather", "input dim index^"),
    # mindspore.ops.inv is 1 / x element by element; the matrix's inverse is ops.inverse.
    "inv": rows("Torch.reciprocal", "x"),
    "invert": rows("Torch.bitwise_not", "x"),
    "isnan_ext": rows("Torch.isnan", "tensor"),
    "log_matrix_determinant": rows("Torch.slogdet", "input"),
    "matrix_determinant": rows("Torch.det", "input"),
    "matrix_norm": rows(
        "Torch.linalg.matrix_norm", "A ord='fro' axis>dim=(-2,-1) keepdims>keepdim * dtype"
    ),
    "matrix_solve": rows("Torch.linalg.solve", "matrix rhs>B"),
    "norm": rows("Torch.linalg.norm", f"A ord {_NORM}"),
    "pinv": rows("Torch.linalg.pinv", "x * atol rtol hermitian"),
    "pows": elementwise("pow"),
    "rank": rows("Tensor.dim", "input_x"),
    "size": rows("Torch.numel", "input_x"),
    "soft_shrink": rows("Functional.softshrink", "input lambd"),
    "stop_gradient": rows("Tensor.detach", "value"),
    "tensor_add": elementwise("add"),
    "tensor_div": elementwise("div", "x", "y"),
    "tensor_dot": rows("Torch.tensordot", "x1 x2>b axes>dims"),
    "tensor_exp": rows("Torch.exp", "input"),
    "tensor_expm1": rows("Torch.expm1", "input"),
    "tensor_floordiv": elementwise("floor_divide"),
    "tensor_ge": elementwise("ge"),
    "tensor_gt": elementwise("gt"),
    "tensor_le": elementwise("le"),
    "tensor_lt": elementwise("lt"),
    "tensor_mod": elementwise("remainder", "x", "y"),
    "tensor_mul": elementwise("mul"),
    "tensor_muls": elementwise("mul"),
    "tensor_pow": elementwise("pow"),
    "tensor_sub": elementwise("sub"),
    "top_k": rows("Torch.topk", "input_x k sorted"),
    "true_divide": elementwise("div", "dividend", "divisor"),
    "truncate_div": rows("Torch.div", "x y>other * rounding_mode='trunc'"),
    "truncate_mod": elementwise("fmod", "x", "y"),
    "unstack": rows("Torch.unbind", "input_x axis>dim"),
    "vecdot": rows("Torch.linalg.vecdot", "x y * axis>dim"),
    "vector_norm": rows(
        "Torch.linalg.vector_norm", "x ord=2 axis>dim=None keepdims>keepdim * dtype"
    ),
    "xdivy": rows(references.xdivy, "x>tensor y>other"),
}

_ONE_DIMENSION = "fft ifft rfft irfft hfft ihfft"
_MORE_DIMENSIONS = "fft2 fftn ifft2 ifftn rfft2 rfftn irfft2 irfftn hfft2 hfftn ihfft2 ihfftn"
_FOURIER: dict[str, tuple[Row, ...]] = {
    **{name: rows(f"Torch.fft.{name}", "input n dim norm") for name in _ONE_DIMENSION.split()},
    **{name: rows(f"Torch.fft.{name}", "input s dim norm") for name in _MORE_DIMENSIONS.split()},
    "fftshift": rows("Torch.fft.fftshift", "input dim"),
    "ifftshift": rows("Torch.fft.ifftshift", "input dim"),
}

_NETWORK: dict[str, tuple[Row, ...]] = {
    **alike("Functional", "x", "logsigmoid mish relu6 softsign"),
    **alike("Functional", "input target reduction", "l1_loss mse_loss soft_margin_loss"),
    **alike("Functional", "input p training", "dropout1d dropout2d dropout3d"),
    **alike("Functional", f"input_x {_POOL}", "avg_pool1d avg_pool2d avg_pool3d"),
    "adaptive_max_pool1d": rows("Functional.adaptive_max_pool1d", "input output_size"),
    "adaptive_max_pool2d": rows(
        "Functional.adaptive_max_pool2d", "input output_size return_indices"
    ),
    "batch_norm": rows(
        "Functional.batch_norm",
        "input_x running_mean running_var weight bias training momentum eps",
    ),
    "bias_add": rows(references.bias_add, "input_x bias"),
    "binary_cross_entropy": rows(
        "Functional.binary_cross_entropy", "logits labels>target weight reduction"
    ),
    "binary_cross_entropy_with_logits": rows(
        "Functional.binary_cross_entropy_with_logits", "input target weight pos_weight reduction"
    ),
    "celu": rows("Functional.celu", "x alpha"),
    "conv1d": rows(references.conv(functional.conv1d), _CONV),
    "conv2d": rows(references.conv(functional.conv2d), _CONV),
    "conv3d": rows(references.conv(functional.conv3d), _CONV),
    "cosine_embedding_loss": rows(
        "Functional.cosine_embedding_loss", "input1 input2 target margin reduction"
    ),
    "cross_entropy": rows(
        "Functional.cross_entropy", "input target^ weight ignore_index reduction label_smoothing"
    ),
    "dropout": rows("Functional.dropout", "input p training seed>"),
    "elu": rows("Functional.elu", "input_x alpha"),
    "embedding": rows(
        "Functional.embedding", "input weight padding_idx max_norm norm_type scale_grad_by_freq"
    ),
    "gaussian_nll_loss": rows("Functional.gaussian_nll_loss", "x target var full eps reduction"),
    "gelu": rows("Functional.gelu", "input approximate"),
    "glu": rows("Functional.glu", "x axis>dim"),
    "hinge_embedding_loss": rows(
        "Functional.hinge_embedding_loss", "inputs targets>target margin reduction"
    ),
    "kl_div": rows("Functional.kl_div", "logits labels>target reduction"),
    "leaky_relu": rows("Functional.leaky_relu", "input alpha>negative_slope=0.2"),
    "log_softmax": rows("Functional.log_softmax", "logits axis>dim=-1"),
    "lp_pool1d": rows("Functional.lp_pool1d", "x norm_type kernel_size stride ceil_mode"),
    "lp_pool2d": rows("Functional.lp_pool2d", "x norm_type kernel_size stride ceil_mode"),
    "margin_ranking_loss": rows(
        "Functional.margin_ranking_loss", "input1 input2 target margin reduction"
    ),
    "max_pool2d": rows("Functional.max_pool2d", f"{_MAX_POOL} return_indices ceil_mode"),
    "max_pool3d": rows("Functional.max_pool3d", f"{_MAX_POOL} ceil_mode return_indices"),
    "multi_margin_loss": rows(
        "Functional.multi_margin_loss", "input target^ p margin weight reduction"
    ),
    "multilabel_soft_margin_loss": rows(
        "Functional.multilabel_soft_margin_loss", "input target weight reduction"
    ),
    "nll_loss": rows("Functional.nll_loss", "inputs target^ weight ignore_index reduction"),
    "pad": rows("Functional.pad", "input_x padding>pad mode value"),
    "relu": rows("Functional.relu", "input inplace"),
    "selu": rows("Functional.selu", "input_x"),
    "smooth_l1_loss": rows("Functional.smooth_l1_loss", "input target beta reduction='none'"),
    "softmax": rows("Torch.softmax", "input axis>dim=-1 * dtype"),
    "softmin": rows("Functional.softmin", "x axis>dim=-1 * dtype"),
    "threshold": rows("Functional.threshold", "input thr>threshold value"),
    "upsample": rows(
        "Functional.interpolate",
        "input size scale_factor mode align_corners recompute_scale_factor",
    ),
}

_INDEXING: dict[str, tuple[Row, ...]] = {
    **{f"tensor_scatter_{how}": rows(indexed.SCATTER_ND[how], _ND) for how in _WRITES},
    "gather": rows(indexed.gather, "input_params input_indices>indices axis batch_dims"),
    "gather_nd": rows(indexed.gather_nd, "input_x indices^"),
    "index_add": rows(
        "Torch.index_add", "x indices>index y>source axis>dim use_lock> check_index_bound>"
    ),
    "index_fill": rows("Torch.index_fill", "x axis>dim index^ value"),
    "index_select": rows("Torch.index_select", "input axis>dim index"),
    "masked_fill": rows("Torch.masked_fill", "input_x mask value"),
    "narrow": rows("Torch.narrow", "input axis>dim start length"),
    "one_hot": rows(references.one_hot, "indices depth on_value off_value axis"),
    "reverse": rows(references.reverse, "x axis"),
    "reverse_sequence": rows(indexed.reverse_sequence, "x seq_lengths seq_dim batch_dim"),
    "scatter": rows(indexed.scatter, "input axis>dim index src"),
    "scatter_nd": rows(indexed.scatter_nd, "indices updates shape"),
    "searchsorted": rows(
        "Torch.searchsorted",
        "sorted_sequence values>input * out_int32=False right=False side? sorter?",
    ),
    # mindspore.ops.select chooses by a condition, torch.select takes one slice.
    "select": rows("Torch.where", "condition input other"),
    "select_scatter": rows("Torch.select_scatter", "input src axis>dim index"),
    "sequence_mask": rows(indexed.sequence_mask, "lengths maxlen"),
    "slice": rows(indexed.slice_of, "input_x begin size"),
    "slice_scatter": rows("Torch.slice_scatter", "input src axis>dim start end step"),
    "strided_slice": rows(indexed.strided_slice, "input_x begin end strides"),
    "take": rows("Torch.take", "input index^"),
    "tensor_scatter_elements": rows(
        indexed.scatter, "input_x indices>index updates>src axis>dim=0 reduction>reduce"
    ),
    "tensor_scatter_update": rows(indexed.scatter_nd_update, _ND),
    "tensor_slice": rows(indexed.slice_of, "input begin size"),
    "unique": rows(references.unique, "input"),
    "unsorted_segment_prod": rows(indexed.segment_prod, "x segment_ids num_segments"),
    "unsorted_segment_sum": rows(indexed.segment_sum, "input_x segment_ids num_segments"),
}

_REST: dict[str, tuple[Row, ...]] = {
    **alike("Torch", _VARIANCE, "std std_mean var var_mean"),
    **alike("Torch", "input axis>dim", "cummax cummin logcumsumexp"),
    **alike("Torch", "inputs", "atleast_1d atleast_2d atleast_3d vstack"),
    **alike("Torch", "x", "adjoint arcsin deg2rad frac rad2deg sqrt"),
    "add": elementwise("add"),
    "addcdiv": rows(references.linear_quotient, "input tensor1>left tensor2>right value"),
    "addcmul": rows(references.linear_combination, "input tensor1>left tensor2>right value"),
    "addn": rows(references.add_all, "x"),
    "addr": rows("Torch.addr", "x vec1 vec2 * beta alpha"),
    "all": rows("Torch.all", "input axis>dim? keep_dims>keepdim"),
    "amax": rows("Torch.amax", f"input axis>dim?=() {_KEEP} * initial>:unused where>:unused"),
    "amin": rows("Torch.amin", f"input axis>dim?=() {_KEEP} * initial>:unused where>:unused"),
    "aminmax": rows("Torch.aminmax", f"input * axis>dim=0 {_KEEP}"),
    "any": rows("Torch.any", "input axis>dim? keep_dims>keepdim"),
    # torch takes the number or the indices by position alone.
    "dsplit": rows(lambda x, parts: torch.dsplit(x, parts), "input indices_or_sections>parts"),
    "hsplit": rows(lambda x, parts: torch.hsplit(x, parts), "input indices_or_sections>parts"),
    "vsplit": rows(lambda x, parts: torch.vsplit(x, parts), "input indices_or_sections>parts"),
    "fills": rows("Torch.full_like", "x value>fill_value?=0"),
    "identity": rows("Torch.clone", "x"),
    "tanh_": rows("Tensor.tanh_", "input"),
    "zero_": rows("Tensor.zero_", "input"),
    "arange": rows("Torch.arange", "end * dtype", "start end step=1 * dtype"),
    "argmin": rows("Torch.argmin", f"input axis>dim {_KEEP}"),
    "argsort": rows("Torch.argsort", "input axis>dim descending"),
    "baddbmm": rows("Torch.baddbmm", "input batch1 batch2 beta alpha"),
    "bmm": rows("Torch.bmm", "input_x mat2"),
    "broadcast_to": rows("Torch.broadcast_to", "input shape>size"),
    "bucketize": rows(references.bucketize, "input boundaries * right"),
    "cast": rows(references.cast, "input dtype"),
    "cholesky": rows("Torch.cholesky", "input_x upper"),
    "cholesky_inverse": rows("Torch.cholesky_inverse", "input_x upper"),
    "chunk": rows("Torch.chunk", "input chunks axis>dim"),
    "clip_by_value": rows(references.clip_by_value, "x clip_value_min clip_value_max"),
    "clamp_": rows("Tensor.clamp_", "input min max"),
    "copysign": elementwise("copysign", "x"),
    "count_nonzero": rows(references.count_nonzero, "x axis keep_dims dtype"),
    "cumprod": rows("Torch.cumprod", "input dim dtype"),
    "cumsum": rows("Torch.cumsum", "x axis>dim dtype"),
    "diag": rows(references.diag, "input"),
    "diff": rows("Torch.diff", "x n axis>dim prepend append"),
    "dot": rows(references.dot, "input other"),
    "eye": rows("Torch.eye", "n m? dtype"),
    "flatten": rows(references.flatten_batch, "input order * start_dim end_dim"),
    "ldexp": elementwise("ldexp", "x"),
    "matrix_band_part": rows(references.band_part, "x lower upper"),
    "meshgrid": rows("Torch.meshgrid", "*inputs * indexing='xy'"),
    "max": rows(references.max_with_index, "input axis keepdims * initial>:unused where>:unused"),
    "mean": rows("Torch.mean", "x axis>dim=None keep_dims>keepdim"),
    "median": rows("Torch.median", f"input axis>dim=-1 {_KEEP}=False"),
    "min": rows(references.min_with_index, "input axis keepdims * initial>:unused where>:unused"),
    "moveaxis": rows("Torch.moveaxis", "x source destination"),
    "movedim": rows("Torch.movedim", "x source destination"),
    "multiply": elementwise("mul"),
    "mv": rows("Torch.mv", "mat vec"),
    "nanmean": rows("Torch.nanmean", f"input axis>dim=None {_KEEP} * dtype"),
    "nanmedian": rows("Torch.nanmedian", f"input axis>dim=-1 {_KEEP}=False"),
    "nanquantile": rows("Torch.nanquantile", f"input q axis>dim {_KEEP}"),
    "nansum": rows("Torch.nansum", f"input axis>dim=None {_KEEP} * dtype"),
    "ones": rows("Torch.ones", "shape dtype"),
    "permute": rows("Torch.permute", "input axis>dims"),
    "prod": rows(references.prod, "input axis>dim keep_dims>keepdim dtype"),
    "qr": rows("Torch.linalg.qr", "input mode='reduced'"),
    "quantile": rows("Torch.quantile", f"input q axis>dim {_KEEP}"),
    "range": rows("Torch.arange", "start end step maxlen>"),
    "reduce_max": rows("Torch.amax", "x axis>dim=()"),
    "reduce_mean": rows("Torch.mean", "x axis>dim=()"),
    "reduce_min": rows("Torch.amin", "x axis>dim=()"),
    "reduce_sum": rows("Torch.sum", "x axis>dim=()"),
    "renorm": rows("Torch.renorm", "input p axis>dim maxnorm"),
    "repeat_elements": rows("Torch.repeat_interleave", "x rep>repeats axis>dim=0"),
    "repeat_interleave": rows(references.repeat_interleave, "input repeats axis"),
    "roll": rows("Torch.roll", "input shifts dims?"),
    "rot90": rows("Torch.rot90", "input k dims"),
    "round": rows("Torch.round", "input * decimals"),
    "sort": rows("Torch.sort", "input_x axis>dim descending"),
    "split": rows("Torch.split", "tensor split_size_or_sections axis>dim"),
    "squeeze": rows("Torch.squeeze", "input axis>dim?"),
    "stack": rows("Torch.stack", "tensors axis>dim"),
    "sub": elementwise("sub"),
    "subtract": rows("Torch.sub", "input& other& * alpha"),
    "sum": rows("Torch.sum", "input dim=None keepdim=False * dtype"),
    "lstsq": rows(references.lstsq, "input>tensor A>a"),
    "svd": rows(references.singular_values, "input full_matrices compute_uv"),
    "tensor_split": rows(references.tensor_split, "input indices_or_sections axis"),
    "topk": rows("Torch.topk", "input k dim? largest sorted"),
    "transpose": rows("Torch.permute", "input dims"),
    "trapz": rows("Torch.trapezoid", "y * dx dim", "y x? * dim"),
    "triplet_margin_loss": rows(
        "Functional.triplet_margin_loss", "anchor positive negative margin p eps swap reduction"
    ),
    "tril_indices": rows("Torch.tril_indices", "row col offset * dtype"),
    "triu_indices": rows("Torch.triu_indices", "row col offset * dtype"),
    "type_as": rows("Tensor.type_as", "input other"),
    "view_as": rows("Tensor.view_as", "input other"),
    "zeros": rows("Torch.zeros", "size dtype"),
}

# Elementwise operators that call their operands otherwise than the rest.
_OWN_OPERANDS = names("true_divide copysign ldexp")
OPS_ROWS: dict[str, tuple[Row, ...]] = {
    f"Functional.{name}": row
    for name, row in (
        one_table(
            "references of mindspore.ops",
            {name: elementwise(name) for name in (ELEMENTWISE | MORE_ELEMENTWISE) - _OWN_OPERANDS},
            _SYNONYMS,
            _FOURIER,
            _NETWORK,
            _INDEXING,
            _REST,
        )
    ).items()
}
