"""The fused operators that have a reference, and the mapping of their arguments.

Read by the registry. How a signature is written: `frameworks.pytorch.signatures`. Those of
torch_npu are the schemas of Ascend/op-plugin (docs/context/*.md,
op_plugin/config/op_plugin_functions.yaml), where the first tensor is called self or input; those of
MindSpore are mindspore.ops 2.10.
"""

from ray_precheck.bench.fused import attention, formulas, quantized
from ray_precheck.frameworks.pytorch.signatures import Row, rows

_QKV = "query key value head_num"
_TOKENS = "pre_tokens next_tokens"
# What torch_npu 2.6 and 2.7 added; the seed and the offset are those of a dropout mask.
_SINCE_2_6 = "sink>:unused dropout_mask>:unused seed> offset>"
_ATTENTION = f"""{_QKV} input_layout pse padding_mask atten_mask scale keep_prob
    pre_tockens>pre_tokens next_tockens>next_tokens inner_precise> prefix actual_seq_qlen
    actual_seq_kvlen sparse_mode gen_mask_parallel> sync> softmax_layout> {_SINCE_2_6}"""
_ATTENTION_V2 = f"""{_QKV} input_layout * pse padding_mask atten_mask query_rope>:unused
    key_rope>:unused scale keep_prob {_TOKENS} inner_precise> prefix actual_seq_qlen actual_seq_kvlen
    sparse_mode gen_mask_parallel> sync> pse_type q_start_idx>:unused kv_start_idx>:unused
    softmax_layout> {_SINCE_2_6}"""
_FLASH_ATTENTION_SCORE = f"""{_QKV} real_shift>pse drop_mask padding_mask attn_mask>atten_mask prefix
    actual_seq_qlen actual_seq_kvlen keep_prob scalar_value>scale {_TOKENS} inner_precise>
    input_layout sparse_mode"""
_CROSS_ENTROPY = """target weight reduction ignore_index label_smoothing
    lse_square_scale_for_zloss return_zloss"""
_ADAM = "beta1_power beta2_power lr beta1 beta2 epsilon grad use_locking> use_nesterov * out!"
_ADAM_W = """beta1_power beta2_power lr weight_decay beta1 beta2 epsilon grad max_grad_norm amsgrad
    maximize * out!"""

NPU_ROWS: dict[str, tuple[Row, ...]] = {
    "NPU.fast_gelu": rows(formulas.fast_gelu, "self", "input"),
    "NPU.npu_add_rms_norm": rows(formulas.add_rms_norm, "x1 x2 gamma epsilon"),
    "NPU.npu_apply_adam": rows(formulas.adam, _ADAM),
    "NPU.npu_apply_adam_w": rows(formulas.adam_w, _ADAM_W),
    "NPU.npu_confusion_transpose": rows(
        formulas.confusion_transpose,
        "self perm shape transpose_first",
        "input perm shape transpose_first",
    ),
    "NPU.npu_cross_entropy_loss": rows(
        formulas.cross_entropy_loss, f"input {_CROSS_ENTROPY}", f"self {_CROSS_ENTROPY}"
    ),
    "NPU.npu_fast_gelu": rows(formulas.fast_gelu, "self", "input"),
    "NPU.npu_fusion_attention": rows(attention.npu_fusion_attention, _ATTENTION),
    "NPU.npu_fusion_attention_v2": rows(attention.npu_fusion_attention, _ATTENTION_V2),
    "NPU.npu_gelu": rows(formulas.gelu, "self approximate", "input approximate"),
    "NPU.npu_group_norm_silu": rows(
        formulas.group_norm_silu, "input weight bias group eps", "self weight bias group eps"
    ),
    "NPU.npu_layer_norm_eval": rows(
        formulas.layer_norm,
        "input normalized_shape weight bias eps",
        "self normalized_shape weight bias eps",
    ),
    "NPU.npu_linear": rows(formulas.linear, "input weight bias", "self weight bias"),
    "NPU.npu_mish": rows(formulas.mish, "self", "input"),
    "NPU.npu_moe_gating_top_k_softmax": rows(formulas.top_k_softmax, "x finished k"),
    "NPU.npu_rms_norm": rows(formulas.rms_norm, "self gamma epsilon", "input gamma epsilon"),
    "NPU.npu_rotary_mul": rows(
        formulas.rotary_mul,
        "self r1>cos r2>sin rotary_mode>mode rotate>:unused",
        "input r1>cos r2>sin rotary_mode>mode rotate>:unused",
        "x r1>cos r2>sin rotary_mode>mode rotate>:unused",
    ),
    "NPU.npu_scaled_masked_softmax": rows(
        formulas.scaled_masked_softmax, "x mask scale fixed_triu_mask"
    ),
    "NPU.npu_silu": rows(formulas.silu, "self", "input"),
    "NPU.npu_sort_v2": rows(
        formulas.sort_values, "self dim descending * out>", "input dim descending * out>"
    ),
    "NPU.npu_swiglu": rows(formulas.swiglu, "self dim", "input dim"),
    "MindSpeed.npu_fusion_attention": rows(attention.npu_fusion_attention, _ATTENTION_V2),
}
MINDSPORE_ROWS: dict[str, tuple[Row, ...]] = {
    **{
        f"Functional.bessel_{name}": rows(getattr(formulas, name), "x")
        for name in ("j0", "j1", "y0", "y1")
    },
    "Functional.add_rms_norm": rows(formulas.add_rms_norm, "x1 x2 gamma epsilon"),
    "Functional.cross_entropy_loss": rows(formulas.cross_entropy_loss, f"input {_CROSS_ENTROPY}"),
    "Functional.fast_gelu": rows(formulas.fast_gelu, "x"),
    "Functional.flash_attention_score": rows(attention.fusion_attention, _FLASH_ATTENTION_SCORE),
    "Functional.rms_norm": rows(formulas.rms_norm, "x gamma epsilon"),
    "Functional.rotary_position_embedding": rows(formulas.rotary_mul, "x cos sin mode"),
    "Functional.speed_fusion_attention": rows(attention.npu_fusion_attention, _ATTENTION_V2),
    "Functional.swiglu": rows(formulas.swiglu, "input dim"),
}
_ASKED = "packed scale zero_point"
BESSEL_ROWS: dict[str, tuple[Row, ...]] = {
    **{
        f"Torch.special.bessel_{name}": rows(getattr(formulas, name), "input")
        for name in ("j0", "j1", "y0", "y1")
    },
    "Torch.special.airy_ai": rows(formulas.airy_ai, "x>input", "input"),
}
# Names of torch's own functions, and those of `torch.ops.quantized`.
QUANTIZED_ROWS: dict[str, tuple[Row, ...]] = {
    "Torch.quantize_per_tensor": rows(
        quantized.quantize_per_tensor,
        "input scale zero_point dtype",
        "self>input scale zero_point dtype",
    ),
    "Torch.quantize_per_channel": rows(
        quantized.quantize_per_channel, "input scales zero_points axis dtype"
    ),
    "Torch.quantize_per_tensor_dynamic": rows(
        quantized.quantize_per_tensor_dynamic, "input dtype reduce_range"
    ),
    "Torch.dequantize": rows(quantized.dequantize, "input"),
    "Tensor.dequantize": rows(quantized.dequantize, "self"),
    "Torch.int_repr": rows(quantized.int_repr, "input"),
    "Tensor.int_repr": rows(quantized.int_repr, "self"),
    "Tensor.q_per_channel_scales": rows(quantized.scales, "self"),
    "Torch.q_per_channel_scales": rows(quantized.scales, "input"),
    "Tensor.q_per_channel_zero_points": rows(quantized.zero_points, "self"),
    "Torch.q_per_channel_zero_points": rows(quantized.zero_points, "input"),
    "Torch.fake_quantize_per_tensor_affine": rows(
        quantized.fake_quantize, "input scale zero_point quant_min quant_max"
    ),
    "Torch.fake_quantize_per_channel_affine": rows(
        quantized.fake_quantize_channels, "input scale zero_point axis quant_min quant_max"
    ),
    "Torch._fake_quantize_learnable_per_tensor_affine": rows(
        quantized.learnable, "input scale zero_point quant_min quant_max grad_factor"
    ),
    "Torch._fake_quantize_learnable_per_channel_affine": rows(
        quantized.learnable_channels, "input scale zero_point axis quant_min quant_max grad_factor"
    ),
    "Torch.fused_moving_avg_obs_fake_quant": rows(
        quantized.observed_fake_quantize,
        """input observer_on fake_quant_on running_min running_max scale zero_point averaging_const
        quant_min quant_max ch_axis per_row_fake_quant symmetric_quant""",
    ),
    "Torch._scaled_mm": rows(
        quantized.scaled_mm,
        "input mat2 scale_a scale_b bias scale_result out_dtype> use_fast_accum>",
        "self mat2 scale_a scale_b bias scale_result out_dtype> use_fast_accum>",
    ),
    "quantized.linear": rows(quantized.linear, f"x {_ASKED}"),
    "quantized.linear_relu": rows(quantized.linear_relu, f"x {_ASKED}"),
    "quantized.linear_dynamic": rows(quantized.linear_dynamic, "x packed reduce_range"),
    "quantized.linear_relu_dynamic": rows(quantized.linear_relu_dynamic, "x packed reduce_range"),
    **{f"quantized.conv{n}d": rows(quantized.convolution, f"x {_ASKED}") for n in (1, 2, 3)},
    **{
        f"quantized.conv{n}d_relu": rows(quantized.convolution_relu, f"x {_ASKED}")
        for n in (1, 2, 3)
    },
    "quantized.add": rows(quantized.add, "x other scale zero_point"),
    "quantized.add_relu": rows(quantized.add_relu, "x other scale zero_point"),
    "quantized.mul": rows(quantized.mul, "x other scale zero_point"),
    "quantized.mul_relu": rows(quantized.mul_relu, "x other scale zero_point"),
    "quantized.cat": rows(quantized.cat, "x dim scale zero_point"),
}
