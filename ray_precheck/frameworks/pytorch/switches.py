"""The settings of torch that choose kernels and formats of numbers: how each is read and set.

Goes out: `TORCH_SWITCHES` between fast kernels and slow, plain ones, loaded through the descriptor. Each
stands here once: what it turns off, how it is read and set, and on which kinds of devices it has a meaning. A
switch that the installed torch lacks is left out when the board is made.

torch has no switch that turns its BLAS off (MKL, and oneDNN for half types): the switch `products` puts plain
loops in its place. NumPy's einsum multiplies and adds in a loop of its own, in the dtype of the tensors; half
types are widened to float32 and the result is rounded once, as kernels do.

The formats in which float32 products are computed on a kind of device (cpu, gpu, npu) are read by captures,
which write them into the header as `Float32`, and set again by the backend. torch 2.9 has settings by name
(`fp32_precision`) beside the old ones (`allow_tf32`), and the old ones raise where a program has set new
ones; the new ones know of both (at::Context::float32Precision). They are read where they are there.
"""

import json
import math
import sys
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from ray_precheck import private_parts
from ray_precheck.foreign import caught
from ray_precheck.frameworks.hf32 import differs, hf32_in, torch_hf32_off
from ray_precheck.frameworks.switches import KernelSwitch
from ray_precheck.schema.dtypes import FRACTION_BITS, FULL, Array, Float32

_ATEN = torch.ops.aten
_DISPATCH_MODE: Any = private_parts.find(private_parts.DISPATCH_MODE)
# Larger products are made by NumPy's BLAS, which is another one than torch's in NumPy's own wheels: a core
# makes 6e9 multiplications a second in einsum's loop.
_MOST_MULTIPLICATIONS = 1 << 34
_HALVES = (torch.float16, torch.bfloat16)
_open: list[Any] = []
# The threads of the default side on a CPU: a number of its own, so that rows do not depend on the machine.
_THREADS = 4
# Functions without types.
_onednn: Any = torch.backends.mkldnn
_nnpack: Any = torch.backends.nnpack
_cuda: Any = torch.backends.cuda
_stances: list[str] = ["default"]
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


def are_plain() -> bool:
    """Return whether products are plain loops now."""
    return bool(_open)


def make_plain(value: bool) -> None:
    """Make products plain loops, or end that; the calls are nested as brackets are."""
    if value:
        mode = _PlainProducts()
        mode.__enter__()
        _open.append(mode)
    else:
        _open.pop().__exit__(None, None, None)


def can_be_plain() -> bool:
    """Return whether this torch lets the package see every product."""
    return _DISPATCH_MODE is not None


class _PlainProducts(_DISPATCH_MODE or object):  # type: ignore[misc]
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        product = _PRODUCTS.get(func)
        tensors = [each for each in args if torch.is_tensor(each)]
        if product is None or any(not _is_plain(each) for each in tensors):
            return func(*args, **kwargs)
        return product(*args, **kwargs)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor


def _loop(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return `(..., m, k) @ (..., k, n)`, widened."""
    one, other = _array(left), _array(right)
    count = math.prod(left.shape) * right.shape[-1]
    with np.errstate(all="ignore"):
        return torch.from_numpy(_product(one, other, is_small=count <= _MOST_MULTIPLICATIONS))


def _array(tensor: torch.Tensor) -> Array:
    return np.asarray(_wide(tensor).detach().resolve_conj().resolve_neg().numpy())


def _product(one: Array, other: Array, *, is_small: bool) -> Array:
    if not is_small:
        return np.asarray(np.matmul(one, other))
    # Both have k last, so that the loop runs along memory.
    rows, columns = np.ascontiguousarray(one), np.ascontiguousarray(other.swapaxes(-1, -2))
    return np.asarray(np.einsum("...ik,...jk->...ij", rows, columns, optimize=False))


def _mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return _loop(left, right).to(left.dtype)


def _mv(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return _mm(left, right[:, None])[:, 0]


def _dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return _mm(left[None, :], right[:, None])[0, 0]


def _added(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return `beta * added + alpha * product`, rounded once."""

    def function(
        added: torch.Tensor, left: Any, right: Any, *, beta: Any = 1, alpha: Any = 1
    ) -> torch.Tensor:
        made = product(_wide(left), _wide(right)) * alpha
        # With beta = 0 NaN in what is added does not count.
        whole: torch.Tensor = made if beta == 0 else made + _wide(added) * beta
        return whole.to(added.dtype)

    return function


_PRODUCTS: dict[Any, Callable[..., torch.Tensor]] = {
    _ATEN.mm.default: _mm,
    _ATEN.bmm.default: _mm,
    _ATEN.mv.default: _mv,
    _ATEN.dot.default: _dot,
    _ATEN.addmm.default: _added(_mm),
    _ATEN.baddbmm.default: _added(_mm),
    _ATEN.addmv.default: _added(_mv),
}

_CPU, _GPU, _NPU = ("cpu",), ("gpu",), ("npu",)


def _flag(name: str, title: str, path: str, plain: bool | str, **others: Any) -> KernelSwitch:
    """Return the switch that is an attribute of torch, such as `backends.cudnn.enabled`."""
    owner, _, last = path.rpartition(".")
    return KernelSwitch(
        name=name,
        title=title,
        advice=f"torch.{path} = {json.dumps(plain) if isinstance(plain, str) else plain}",
        read=lambda: attrgetter(path)(torch),
        write=lambda value: setattr(attrgetter(owner)(torch), last, value),
        plain=plain,
        **others,
    )


def _read_nnpack() -> bool:
    (value,) = _nnpack.set_flags(True)
    _nnpack.set_flags(value)
    return bool(value)


def _write_stance(value: str) -> None:
    _stances[0] = value
    # Importing the compiler takes a second, and a process that has not done so has compiled nothing.
    if private_parts.is_loaded(private_parts.COMPILER):
        torch.compiler.set_stance(value)


def hf32_of_convolutions(value: bool | None = None) -> bool:
    """Return whether HF32 is on for convolutions; set it where a value is given."""
    import torch_npu

    if value is not None:
        torch_npu.npu.conv.allow_hf32 = value
    return bool(torch_npu.npu.conv.allow_hf32)


def hf32_of_products(value: bool | None = None) -> bool:
    """Return whether HF32 is on for products; set it where a value is given."""
    import torch_npu

    if value is not None:
        torch_npu.npu.matmul.allow_hf32 = value
    return bool(torch_npu.npu.matmul.allow_hf32)


def _attention(kernel: str, title: str, word: str, kinds: tuple[str, ...]) -> KernelSwitch:
    """Return the switch of a kernel behind `scaled_dot_product_attention`."""
    return KernelSwitch(
        name=f"{kernel}_attention",
        title=f"{title} attention behind scaled_dot_product_attention",
        advice=f"torch.backends.cuda.enable_{word}_sdp(False)",
        read=lambda: getattr(_cuda, f"{word}_sdp_enabled")(),
        write=lambda value: getattr(_cuda, f"enable_{word}_sdp")(value),
        plain=False,
        kinds=kinds,
    )


# Switches of a narrow meaning first: where several of them mend a call, the first one is named.
TORCH_SWITCHES = (
    KernelSwitch(
        name="float32_products",
        title="float32 products of fewer bits (TF32, bfloat16)",
        advice='torch.set_float32_matmul_precision("highest")',
        read=torch.get_float32_matmul_precision,
        write=torch.set_float32_matmul_precision,
        plain="highest",
        kinds=_CPU + _GPU,
    ),
    _flag(
        "onednn_convolutions",
        "float32 convolutions of fewer bits (TF32, bfloat16) in oneDNN",
        "backends.mkldnn.conv.fp32_precision",
        "ieee",
        kinds=_CPU,
    ),
    _flag("cudnn_tf32", "TF32 in cuDNN", "backends.cudnn.allow_tf32", False, kinds=_GPU),
    KernelSwitch(
        name="hf32_convolutions",
        title="HF32 in convolutions",
        advice="torch.npu.conv.allow_hf32 = False",
        read=hf32_of_convolutions,
        write=hf32_of_convolutions,
        plain=False,
        kinds=_NPU,
    ),
    KernelSwitch(
        name="hf32_products",
        title="HF32 in products",
        advice="torch.npu.matmul.allow_hf32 = False",
        read=hf32_of_products,
        write=hf32_of_products,
        plain=False,
        kinds=_NPU,
    ),
    _flag(
        "float16_sums",
        "sums of float16 products in fewer bits",
        "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
        False,
        kinds=_GPU,
    ),
    _flag(
        "bfloat16_sums",
        "sums of bfloat16 products in fewer bits",
        "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
        False,
        kinds=_GPU,
    ),
    _flag(
        "cudnn_benchmark",
        "the choice of cuDNN's fastest kernel by trials",
        "backends.cudnn.benchmark",
        False,
        kinds=_GPU,
    ),
    _flag(
        "cudnn_deterministic",
        "cuDNN's kernels that are not deterministic",
        "backends.cudnn.deterministic",
        True,
        kinds=_GPU,
    ),
    KernelSwitch(
        name="deterministic",
        title="algorithms that are not deterministic",
        advice="torch.use_deterministic_algorithms(True, warn_only=True)",
        read=torch.are_deterministic_algorithms_enabled,
        write=lambda value: torch.use_deterministic_algorithms(value, warn_only=value),
        plain=True,
    ),
    KernelSwitch(
        name="threads",
        title="computing with several threads",
        advice="torch.set_num_threads(1)",
        read=torch.get_num_threads,
        write=torch.set_num_threads,
        plain=1,
        default=_THREADS,
        kinds=_CPU,
    ),
    _flag(
        "einsum_order",
        "another order of products in einsum, which opt_einsum chooses",
        "backends.opt_einsum.enabled",
        False,
        exists=lambda: torch.backends.opt_einsum.is_available(),
    ),
    KernelSwitch(
        name="inductor",
        title="compiled code (torch.compile)",
        advice='torch.compiler.set_stance("force_eager")',
        read=lambda: _stances[0],
        write=_write_stance,
        plain="force_eager",
        exists=lambda: hasattr(torch.compiler, "set_stance"),
    ),
    _attention("flash", "flash", "flash", ()),
    _attention("efficient", "memory-efficient", "mem_efficient", _GPU),
    _attention("cudnn", "cuDNN's", "cudnn", _GPU),
    KernelSwitch(
        name="nnpack",
        title="the convolutions of NNPACK",
        advice="torch.backends.nnpack.set_flags(False)",
        read=_read_nnpack,
        write=_nnpack.set_flags,
        plain=False,
        kinds=_CPU,
        exists=torch.backends.nnpack.is_available,
    ),
    KernelSwitch(
        name="onednn",
        title="the kernels of oneDNN",
        advice="torch.backends.mkldnn.enabled = False",
        read=lambda: torch.backends.mkldnn.enabled,
        write=_onednn.set_flags,
        plain=False,
        kinds=_CPU,
        exists=torch.backends.mkldnn.is_available,
    ),
    _flag("cudnn", "the kernels of cuDNN", "backends.cudnn.enabled", False, kinds=_GPU),
    KernelSwitch(
        name="products",
        title="the BLAS that multiplies matrices (MKL, oneDNN), in whose place a plain loop multiplies",
        advice="no setting of torch turns its BLAS off: run with another build, or MKL_CBWR=COMPATIBLE in"
        " the environment",
        read=are_plain,
        write=make_plain,
        plain=True,
        kinds=_CPU,
        exists=can_be_plain,
    ),
    KernelSwitch(
        name="mkl",
        title="the fast code paths of MKL (products, LAPACK)",
        advice="MKL_CBWR=COMPATIBLE in the environment",
        environment={"MKL_CBWR": "COMPATIBLE"},
        kinds=_CPU,
        exists=torch.backends.mkl.is_available,
    ),
    KernelSwitch(
        name="vector_units",
        title="the vector instructions in torch's own kernels (AVX2, AVX-512)",
        advice="ATEN_CPU_CAPABILITY=default in the environment",
        environment={"ATEN_CPU_CAPABILITY": "default"},
        kinds=_CPU,
    ),
)


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
    value, error = caught(_setting(path))
    if error is None:
        return value if value in FRACTION_BITS else FULL  # "none": nothing is said
    if kind == "gpu":
        return "tf32" if attrgetter(f"{_OLD[each]}.allow_tf32")(torch.backends) else FULL
    word = torch.get_float32_matmul_precision()
    names = {word: name for name, word in _WORDS.items()}
    return names.get(word, FULL) if each == "products" else FULL


@cache
def _setting(path: str) -> Callable[[], Any]:
    """Return what reads a setting by name; it is read before each call."""
    return partial(attrgetter(f"{path}.{_NEW}"), torch.backends)


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
