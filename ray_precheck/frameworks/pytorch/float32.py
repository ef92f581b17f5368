"""The formats in which torch computes float32 products on a kind of device: read, and set.

Comes in: a kind of device (cpu, gpu, npu), and the formats of a capture. Goes out: `Float32`. Called by
captures, which write what they read into the header, and by the backend, which sets it again. The switches
of `naive` turn the same settings.

torch 2.9 has settings by name (`fp32_precision`) beside the old ones (`allow_tf32`), and the old ones raise
where a program has set new ones; the new ones know of both (at::Context::float32Precision). They are read
where they are there.
"""

import sys
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch

from ray_precheck.foreign import caught
from ray_precheck.frameworks.hf32 import differs, hf32_in, torch_hf32_off
from ray_precheck.frameworks.pytorch.switches import hf32_of_convolutions, hf32_of_products
from ray_precheck.schema.dtypes import FRACTION_BITS, FULL, Float32

# What this package calls torch's types of devices.
KINDS = {"cpu": "cpu", "cuda": "gpu", "npu": "npu"}
_NEW = "fp32_precision"
# The setting of each kind of product, an object of `torch.backends`.
_SETTINGS = {
    "gpu": {"products": "cuda.matmul", "convolutions": "cudnn.conv", "recurrent": "cudnn.rnn"},
    "cpu": {"products": "mkldnn.matmul", "convolutions": "mkldnn.conv", "recurrent": "mkldnn.rnn"},
}
_FORMATS = {"gpu": ("tf32",), "cpu": ("tf32", "bf16")}
# Where the settings of a GPU have `allow_tf32`; that of cuDNN is of recurrent layers, too.
_OLD = {"products": "cuda.matmul", "convolutions": "cudnn", "recurrent": "cudnn"}
# The words of `set_float32_matmul_precision` for oneDNN.
_WORDS = {FULL: "highest", "tf32": "high", "bf16": "medium"}
# Ampere is the first generation with TF32.
_FIRST_WITH_TF32 = 8
# A number of 12 bits of fraction, one more than HF32 has.
_FINE = 1.0 + 2.0**-12


def formats_of(kind: str) -> Float32:
    """Return what the settings say for a kind of device, whether or not it can; full for unknown kinds."""
    if kind == "npu":
        # A process that has not imported it has computed nothing on an NPU.
        return _of_npu() if "torch_npu" in sys.modules else Float32()
    found = {each: _read(kind, each, path) for each, path in _SETTINGS.get(kind, {}).items()}
    return Float32(**found)


def computed_in(kind: str, said: Float32) -> Float32:
    """Return in what a device computes that has these settings: it may lack the format.

    A CPU is asked by small products, because torch does not say what oneDNN makes of the setting.
    """
    if not said or kind == "npu":
        return said
    if kind == "gpu":
        has, _ = caught(_gpu_has_tf32)
        return said if has else Float32()
    rounds, _ = caught(_cpu_rounds)
    products, convolutions = rounds or (False, False)
    return Float32(
        said.products if products else FULL,
        said.convolutions if convolutions else FULL,
        said.recurrent if products else FULL,
    )


def compute_in(kind: str, wanted: Float32) -> tuple[Float32, str]:
    """Set the formats of a device; return those that it has then, and a sentence where they are others."""
    caveat = ""
    if kind == "npu":
        import torch_npu

        caveat = torch_hf32_off(torch_npu.npu)
        if wanted.products == "hf32":
            caught(partial(hf32_of_products, True))
        if wanted.convolutions == "hf32":
            caught(partial(hf32_of_convolutions, True))
    else:
        for each, path in _SETTINGS[kind].items():
            name = getattr(wanted, each)
            _write(kind, each, path, name if name in _FORMATS[kind] else FULL)
    found = computed_in(kind, formats_of(kind))
    if wanted and found != wanted:
        caveat = differs(wanted, kind.upper(), found)
    return found, caveat


def _read(kind: str, each: str, path: str) -> str:
    value, error = caught(partial(_setting(path), torch.backends))
    if error is None:
        return value if value in FRACTION_BITS else FULL  # "none": nothing is said
    if kind == "gpu":
        return "tf32" if attrgetter(f"{_OLD[each]}.allow_tf32")(torch.backends) else FULL
    word = torch.get_float32_matmul_precision()
    names = {word: name for name, word in _WORDS.items()}
    return names.get(word, FULL) if each == "products" else FULL


@cache
def _setting(path: str) -> Callable[[Any], Any]:
    """Return what reads a setting by name; it is read before each call."""
    return attrgetter(f"{path}.{_NEW}")


def _write(kind: str, each: str, path: str, name: str) -> None:
    if _read(kind, each, path) == name:
        return
    if kind == "gpu" and each != "recurrent":
        # The old one sets both, so that who reads it does not find that they contradict each other.
        attrgetter(_OLD[each])(torch.backends).allow_tf32 = name == "tf32"
    elif each == "products":
        torch.set_float32_matmul_precision(_WORDS[name])
    owner, _ = caught(lambda: attrgetter(path)(torch.backends))
    if hasattr(owner, _NEW) and _read(kind, each, path) != name:
        setattr(owner, _NEW, name)


def _of_npu() -> Float32:
    products, _ = caught(hf32_of_products)
    convolutions, _ = caught(hf32_of_convolutions)
    return hf32_in(products=bool(products), convolutions=bool(convolutions))


def _gpu_has_tf32() -> bool:
    major, _ = torch.cuda.get_device_capability()
    return torch.version.hip is None and major >= _FIRST_WITH_TF32


def _cpu_rounds() -> tuple[bool, bool]:
    """Return whether products and convolutions of float32 round their operands on this CPU."""
    options: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        unit = torch.eye(64, **options)
        rows = torch.full((64, 64), _FINE, **options)
        image = torch.full((4, 64, 16, 16), _FINE, **options)
        product = torch.mm(rows, unit)
        convolved = torch.conv2d(image, unit.reshape(64, 64, 1, 1))
        return bool((product != rows).any()), bool((convolved != image).any())
