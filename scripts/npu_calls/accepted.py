"""What some releases lack, and why that is right. Read by the command and shown on the page."""

# What is used -> what we do where it is missing.
_SKIP = "its calls are SKIP, with the sentence that it is not an operator of this torch_npu"
_SEEDS = (
    "not seen by this look-up, since `mindspore.common` has a function `seed`, too; without it a step with a"
    " random operator is told not to repeat itself when it is verified"
)
_AMP = (
    "not seen by this look-up, which reads no modules inside of the extension; without it calls are checked"
    " with the dtypes that they were given, also where amp cast these"
)
ACCEPTED: dict[str, str] = {
    "mindspore._c_expression.BackwardNodePy.register_hook": (
        "asked of the installed MindSpore; without it a capture has the gradients that arrive alone"
    ),
    "mindspore.__file__": "every module has it",
    "mindspore._c_expression.amp.get_curr_amp_strategy": _AMP,
    "mindspore._c_expression.amp.get_curr_amp_strategy()": _AMP,
    "mindspore.common.seed._KERNEL_SEED": _SEEDS,
    "mindspore.common.seed._KERNEL_SEED.clear()": _SEEDS,
    "mindspore.common.seed._KERNEL_SEED.update(_)": _SEEDS,
    "torch_npu.npu_cross_entropy_loss": _SKIP,
    "torch_npu.npu_fusion_attention_v2": _SKIP,
    "torch_npu.npu_gelu": _SKIP,
}
