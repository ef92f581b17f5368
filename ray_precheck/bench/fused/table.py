"""The fused operators that have a reference, and the mapping of their arguments.

Read by the registry. How a signature is written: `frameworks.pytorch.signatures`. Those of
torch_npu are the schemas of Ascend/op-plugin (docs/context/*.md,
op_plugin/config/op_plugin_functions.yaml), where the first tensor is called self or input; those of
MindSpore are mindspore.ops 2.10.
"""

from ray_precheck.bench.fused import (
    activations,
    attention,
    gating,
    losses,
    norms,
    optimizers,
    rotary,
    tensors,
)
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
    "NPU.fast_gelu": rows(activations.fast_gelu, "self", "input"),
    "NPU.npu_add_rms_norm": rows(norms.add_rms_norm, "x1 x2 gamma epsilon"),
    "NPU.npu_apply_adam": rows(optimizers.adam, _ADAM),
    "NPU.npu_apply_adam_w": rows(optimizers.adam_w, _ADAM_W),
    "NPU.npu_confusion_transpose": rows(
        tensors.confusion_transpose,
        "self perm shape transpose_first",
        "input perm shape transpose_first",
    ),
    "NPU.npu_cross_entropy_loss": rows(
        losses.cross_entropy_loss, f"input {_CROSS_ENTROPY}", f"self {_CROSS_ENTROPY}"
    ),
    "NPU.npu_fast_gelu": rows(activations.fast_gelu, "self", "input"),
    "NPU.npu_fusion_attention": rows(attention.npu_fusion_attention, _ATTENTION),
    "NPU.npu_fusion_attention_v2": rows(attention.npu_fusion_attention, _ATTENTION_V2),
    "NPU.npu_gelu": rows(activations.gelu, "self approximate", "input approximate"),
    "NPU.npu_group_norm_silu": rows(
        norms.group_norm_silu, "input weight bias group eps", "self weight bias group eps"
    ),
    "NPU.npu_layer_norm_eval": rows(
        norms.layer_norm,
        "input normalized_shape weight bias eps",
        "self normalized_shape weight bias eps",
    ),
    "NPU.npu_linear": rows(tensors.linear, "input weight bias", "self weight bias"),
    "NPU.npu_mish": rows(activations.mish, "self", "input"),
    "NPU.npu_moe_gating_top_k_softmax": rows(gating.top_k_softmax, "x finished k"),
    "NPU.npu_rms_norm": rows(norms.rms_norm, "self gamma epsilon", "input gamma epsilon"),
    "NPU.npu_rotary_mul": rows(
        rotary.rotary_mul,
        "self r1>cos r2>sin rotary_mode>mode rotate>:unused",
        "input r1>cos r2>sin rotary_mode>mode rotate>:unused",
        "x r1>cos r2>sin rotary_mode>mode rotate>:unused",
    ),
    "NPU.npu_scaled_masked_softmax": rows(
        activations.scaled_masked_softmax, "x mask scale fixed_triu_mask"
    ),
    "NPU.npu_silu": rows(activations.silu, "self", "input"),
    "NPU.npu_sort_v2": rows(
        tensors.sort_values, "self dim descending * out>", "input dim descending * out>"
    ),
    "NPU.npu_swiglu": rows(activations.swiglu, "self dim", "input dim"),
    "MindSpeed.npu_fusion_attention": rows(attention.npu_fusion_attention, _ATTENTION_V2),
}
MINDSPORE_ROWS: dict[str, tuple[Row, ...]] = {
    "Functional.add_rms_norm": rows(norms.add_rms_norm, "x1 x2 gamma epsilon"),
    "Functional.cross_entropy_loss": rows(losses.cross_entropy_loss, f"input {_CROSS_ENTROPY}"),
    "Functional.fast_gelu": rows(activations.fast_gelu, "x"),
    "Functional.flash_attention_score": rows(attention.fusion_attention, _FLASH_ATTENTION_SCORE),
    "Functional.rms_norm": rows(norms.rms_norm, "x gamma epsilon"),
    "Functional.rotary_position_embedding": rows(rotary.rotary_mul, "x cos sin mode"),
    "Functional.speed_fusion_attention": rows(attention.npu_fusion_attention, _ATTENTION_V2),
    "Functional.swiglu": rows(activations.swiglu, "input dim"),
}
