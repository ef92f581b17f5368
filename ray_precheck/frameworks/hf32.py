"""Full float32 on Ascend: HF32 is to the NPU what TensorFloat-32 is to a GPU.

Comes in: the framework's module. Goes out: a sentence if HF32 stays on, "" if it is off. Called by the
backends when they open an NPU. With HF32 the convolutions and products of float32 have 11 bits of
fraction, and the operator would be blamed for the error; CANN has it on for convolutions by default.
Written after the documentation (torch.npu.conv.allow_hf32, torch.npu.matmul.allow_hf32;
mindspore.device_context.ascend.op_precision) and looked up in the releases (ASCEND.md); not run on an NPU.
"""

from typing import Any

_MEANING = {"conv": "convolutions", "matmul": "products"}


def torch_hf32_off(npu: Any) -> str:
    """Switch HF32 off in `torch_npu.npu`; the value that it reports afterwards counts."""
    stays = []
    for name in _MEANING:
        try:
            options = getattr(npu, name)
            options.allow_hf32 = False
            is_off = not options.allow_hf32
        except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError):
            is_off = False  # another version of torch_npu, or a device without the option
        if not is_off:
            stays.append(name)
    return _sentence(stays)


def mindspore_hf32_off(ms: Any) -> str:
    """Switch HF32 off in MindSpore, by the device context (2.5 and later) or the context (before)."""
    stays = []
    for name in _MEANING:
        option = f"{name}_allow_hf32"
        try:
            precision = getattr(getattr(ms, "device_context", None), "ascend", None)
            if precision is not None:
                getattr(precision.op_precision, option)(False)
            else:
                ms.set_context(ascend_config={option: False})
        except (AttributeError, RuntimeError, TypeError, ValueError):
            stays.append(name)  # it can be set only once, and was set before
    return _sentence(stays)


def _sentence(stays: list[str]) -> str:
    if not stays:
        return ""
    which = " and ".join(_MEANING[name] for name in stays)
    return f"HF32 could not be switched off on this NPU: float32 {which} may have 11 bits of fraction only"
