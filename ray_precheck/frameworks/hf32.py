"""HF32 on Ascend: it is to the NPU what TensorFloat-32 is to a GPU.

Comes in: the framework's module. Goes out: what is on, and a sentence where it cannot be switched. Called by
the backends of an NPU and by captures. With HF32 the convolutions and products of float32 have 11 bits of
fraction, and the operator would be blamed for the error; CANN has it on for convolutions by default.
Written after the documentation (torch.npu.conv.allow_hf32, torch.npu.matmul.allow_hf32;
mindspore.device_context.ascend.op_precision) and looked up in the releases (ASCEND.md); not run on an NPU.
"""

from typing import Any

from ray_precheck.schema.dtypes import FULL, Float32

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


def mindspore_hf32(ms: Any) -> Float32:
    """Return for what HF32 is on in MindSpore on an NPU, as far as it can be read: until it is set, CANN's
    default holds. Releases before 2.5 cannot be read; they say full float32."""
    try:
        # What its public functions ask before they set; a build without Ascend lacks it.
        there = ms.device_context.ascend.op_precision.AscendOpPrecisionConf.get_instance()
        products, convolutions = there.matmul_allow_hf32(), there.conv_allow_hf32()
    except AttributeError:
        return Float32()
    return hf32_in(products=products == "1", convolutions=convolutions != "0")


def mindspore_compute_in(ms: Any, wanted: Float32) -> tuple[Float32, str]:
    """Switch HF32 in MindSpore, by the device context (2.5 and later) or the context (before); return what it
    is then, and a sentence where that is not what is wanted.

    A process can switch it once.
    """
    is_on = {"conv": wanted.convolutions == "hf32", "matmul": wanted.products == "hf32"}
    stays = []
    for name, value in is_on.items():
        option = f"{name}_allow_hf32"
        try:
            precision = getattr(getattr(ms, "device_context", None), "ascend", None)
            if precision is not None:
                getattr(precision.op_precision, option)(value)
            else:
                ms.set_context(ascend_config={option: value})
        except (AttributeError, RuntimeError, TypeError, ValueError):
            stays.append(name)  # it was set before
    now = {name: value != (name in stays) for name, value in is_on.items()}
    found = hf32_in(products=now["matmul"], convolutions=now["conv"])
    if not wanted:
        return found, _sentence(stays)
    return found, "" if found == wanted else differs(wanted, "NPU", found)


def hf32_in(*, products: bool, convolutions: bool) -> Float32:
    """Return the formats of an NPU, where recurrent layers are made of matrix products."""
    name = "hf32" if products else FULL
    return Float32(name, "hf32" if convolutions else FULL, recurrent=name)


def differs(wanted: Float32, device: str, found: Float32) -> str:
    """Return the sentence about a device that computes in other formats than the program did."""
    return f"the program computed with {wanted}, and this {device} with {found}"


def _sentence(stays: list[str]) -> str:
    if not stays:
        return ""
    which = " and ".join(_MEANING[name] for name in stays)
    return f"HF32 could not be switched off on this NPU: float32 {which} may have 11 bits of fraction only"
