"""The table of references: operators of `mindspore.ops`, and methods, that models rarely call.

How a signature is written: `frameworks.pytorch.signatures`. Checked against MindSpore 2.10 and
torch 2.13.
"""

from torch.nn import functional

from ray_precheck.frameworks.mindspore.bench import indexed, references
from ray_precheck.frameworks.mindspore.bench.rows import alike
from ray_precheck.frameworks.pytorch.signatures import Row, rows

_ROW_WRITE = "input_x indices updates"
_UNPOOL = "x indices^ kernel_size stride? padding output_size?"
_WINDOW = "window_length periodic"
_SEGMENTS = "x segment_ids num_segments"
_BESSEL = {
    **dict.fromkeys(["i0", "i0e", "i1", "i1e"], "{}"),
    **dict.fromkeys(["k0", "k1"], "modified_bessel_{}"),
}

_OPS: dict[str, tuple[Row, ...]] = {
    **alike("Functional", _UNPOOL, "max_unpool1d max_unpool2d max_unpool3d"),
    **{f"bessel_{n}": rows("Torch.special." + form.format(n), "x") for n, form in _BESSEL.items()},
    **{
        f"bessel_{n}e": rows(f"Torch.special.scaled_modified_bessel_{n}", "x") for n in ("k0", "k1")
    },
    **{
        f"scatter_{how}": rows(indexed.of_rows(write), _ROW_WRITE)
        for how, write in indexed.SCATTER_ND.items()
    },
    **{
        f"scatter_nd_{how}": rows(write, f"{_ROW_WRITE} use_locking>")
        for how, write in indexed.SCATTER_ND.items()
    },
    "accumulate_n": rows(references.add_all, "x"),
    "adaptive_avg_pool2d_ext": rows("Functional.adaptive_avg_pool2d", "input output_size"),
    "adaptive_max_pool3d": rows(
        "Functional.adaptive_max_pool3d", "input output_size return_indices"
    ),
    "affine_grid": rows("Functional.affine_grid", "theta size align_corners=False"),
    "assign": rows(references.overwrite, "variable value"),
    "assign_add": rows("Torch.add", "variable value>other"),
    "assign_sub": rows("Torch.sub", "variable value>other"),
    "baddbmm_ext": rows("Torch.baddbmm", "input batch1 batch2 * beta alpha"),
    "bartlett_window": rows(references.bartlett_window, f"{_WINDOW} * dtype"),
    "batch_dot": rows(references.batch_dot, "x1 x2 axes"),
    "batch_to_space_nd": rows(references.batch_to_space_nd, "input_x block_shape crops"),
    "blackman_window": rows(references.blackman_window, f"{_WINDOW} * dtype"),
    "channel_shuffle": rows("Torch.channel_shuffle", "x groups"),
    "clip_by_global_norm": rows(references.clip_by_global_norm, "x clip_norm use_norm"),
    "clip_by_norm": rows(references.clip_by_norm, "x max_norm norm_type error_if_nonfinite"),
    "col2im": rows(
        references.col2im, "input_x output_size kernel_size dilation padding_value>padding stride"
    ),
    # The condition number of a matrix; torch.cond chooses between two functions.
    "cond": rows("Torch.linalg.cond", "A p"),
    "conv3d_transpose": rows(
        references.conv(functional.conv_transpose3d),
        "inputs weight pad_mode padding stride dilation group>groups output_padding",
    ),
    "diff_ext": rows("Torch.diff", "input n dim prepend append"),
    "eig": rows("Torch.linalg.eig", "A"),
    "eigvals": rows("Torch.linalg.eigvals", "A"),
    "einsum_ext": rows("Torch.einsum", "*operands"),
    "erfinv_": rows("Tensor.erfinv_", "input"),
    "expand": rows(references.expand, "input_x size"),
    "fftfreq": rows("Torch.fft.fftfreq", "n d dtype"),
    "fill": rows(references.filled, "type shape value"),
    "float_power_ext": rows("Torch.float_power", "input& exponent&"),
    "fold": rows(references.fold, "input output_size kernel_size dilation padding stride"),
    "geqrf": rows("Torch.geqrf", "input"),
    "hamming_window": rows("Torch.hamming_window", f"{_WINDOW} alpha beta * dtype"),
    "hann_window": rows("Torch.hann_window", f"{_WINDOW} * dtype"),
    "inplace_add": rows(references.inplace_add, "x v indices"),
    "inplace_index_add": rows("Torch.index_add", "var indices>index updates>source axis>dim"),
    "inplace_sigmoid": rows("Torch.sigmoid", "input"),
    "inplace_sub": rows(references.inplace_add, "x v indices alpha=-1"),
    "inplace_update": rows(references.inplace_update, "x v indices"),
    "intopk": rows(references.in_top_k, "x1 x2>targets k"),
    "is_nonzero": rows("Torch.is_nonzero", "input"),
    "kaiser_window": rows("Torch.kaiser_window", f"{_WINDOW} beta * dtype"),
    "logspace": rows("Torch.logspace", "start end steps base * dtype"),
    "lrn": rows(references.local_response_norm, "x depth_radius bias alpha beta norm_region"),
    "lu_solve": rows("Torch.lu_solve", "b LU_data LU_pivots"),
    "lu_unpack": rows("Torch.lu_unpack", "LU_data LU_pivots unpack_data unpack_pivots"),
    "matrix_diag": rows(references.matrix_diag, "x k num_rows num_cols padding_value align"),
    "mirror_pad": rows(references.mirror_pad, "input_x paddings mode"),
    "mse_loss_ext": rows("Functional.mse_loss", "input target reduction"),
    "multilabel_margin_loss": rows("Functional.multilabel_margin_loss", "input target^ reduction"),
    "orgqr": rows("Torch.orgqr", "input input2"),
    "ormqr": rows("Torch.ormqr", "input tau>input2 other>input3 left transpose"),
    "padding": rows(references.pad_last, "x pad_dim_size"),
    "polygamma": rows(references.polygamma, "n input>tensor"),
    "population_count": rows(references.population_count, "input_x"),
    "put_": rows("Tensor.put_", "input index^ source accumulate"),
    "reshape_": rows("Torch.reshape", "input shape"),
    "rfftfreq": rows("Torch.fft.rfftfreq", "n d dtype"),
    "shape": rows(references.shape, "input_x"),
    "shape_": rows(references.shape, "x"),
    "space_to_batch_nd": rows(references.space_to_batch_nd, "input_x block_size paddings"),
    "stft": rows(
        references.stft,
        "x n_fft hop_length win_length window center pad_mode normalized onesided return_complex",
    ),
    "stop_gradient_": rows("Tensor.detach", "input"),
    "tensor_range": rows("Torch.arange", "start end step"),
    "unique_with_pad": rows(references.unique_with_pad, "x pad_num"),
    "unsorted_segment_max": rows(indexed.segment_max, _SEGMENTS),
    "unsorted_segment_min": rows(indexed.segment_min, _SEGMENTS),
    "vander": rows("Torch.vander", "x N"),
    "zeta": rows("Torch.special.zeta", "input& other&"),
}

_METHODS: dict[str, tuple[Row, ...]] = {
    **alike("Tensor", "self", "is_contiguous is_pinned tolist"),
    "choose": rows(references.choose, "self choices mode"),
    "col2im": rows(
        references.col2im, "self output_size kernel_size dilation padding_value>padding stride"
    ),
    "eigvals": rows("Torch.linalg.eigvals", "self"),
    "geqrf": rows("Torch.geqrf", "self"),
    "index": rows(references.index_by, "self indices"),
    "inplace_update": rows(references.inplace_update, "self v indices"),
    "stride": rows("Tensor.stride", "self dim"),
    "to_": rows("Torch.clone", "self device> non_blocking>"),
    "unique_with_pad": rows(references.unique_with_pad, "self pad_num"),
    "unsorted_segment_max": rows(indexed.segment_max, "self segment_ids num_segments"),
    "unsorted_segment_min": rows(indexed.segment_min, "self segment_ids num_segments"),
}

# Operators that `mindspore.mint` shows beside those of its documentation.
_MINT: dict[str, tuple[Row, ...]] = {
    "Mint.cdist_": rows("Torch.cdist", "x1 x2 p"),
    "Mint.equal_ext_op": rows("Torch.equal", "input other"),
    "Mint.flatten_ext": rows("Torch.flatten", "input start_dim end_dim"),
    "Mint.item": rows("Tensor.item", "input"),
    "Mint.softmax_ext": rows("Torch.softmax", "input dim * dtype", "input dim dtype"),
    "Mint.special.round_op": rows("Torch.round", "input decimals"),
    "MintFunctional.adaptive_avg_pool3d_ext": rows(
        "Functional.adaptive_avg_pool3d", "input output_size"
    ),
    "MintFunctional.hardtanh_op": rows("Functional.hardtanh", "input min_val max_val"),
    "MintFunctional.inplace_elu": rows("Functional.elu", "input alpha"),
    "MintFunctional.inplace_silu": rows("Functional.silu", "input"),
    "MintFunctional.norm_ext": rows("Torch.norm", "input p dim keepdim * dtype"),
    "MintFunctional.silu_func": rows("Functional.silu", "input"),
    "MintFunctional.threshold_op": rows("Functional.threshold", "input threshold value"),
}

RARE_ROWS: dict[str, tuple[Row, ...]] = {
    **{f"Functional.{name}": row for name, row in _OPS.items()},
    **{f"Tensor.{name}": row for name, row in _METHODS.items()},
    **_MINT,
}
