"""The switches of torch between fast kernels and slow, plain ones.

Goes out: `TORCH_SWITCHES`, loaded through the descriptor. Each stands here once: what it turns off, how it is
read and set, and on which kinds of devices it has a meaning. A switch that the installed torch lacks is left
out when the board is made.

torch has no switch that turns its BLAS off (MKL, and oneDNN for half types): the switch `products` puts plain
loops in its place. NumPy's einsum multiplies and adds in a loop of its own, in the dtype of the tensors; half
types are widened to float32 and the result is rounded once, as kernels do.
"""

import json
import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from ray_precheck import private_parts
from ray_precheck.frameworks.switches import KernelSwitch
from ray_precheck.schema.dtypes import Array

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


def _write_deterministic(value: bool) -> None:
    torch.use_deterministic_algorithms(value, warn_only=value)


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
        write=_write_deterministic,
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
    KernelSwitch(
        name="flash_attention",
        title="flash attention behind scaled_dot_product_attention",
        advice="torch.backends.cuda.enable_flash_sdp(False)",
        read=torch.backends.cuda.flash_sdp_enabled,
        write=torch.backends.cuda.enable_flash_sdp,
        plain=False,
    ),
    KernelSwitch(
        name="efficient_attention",
        title="memory-efficient attention behind scaled_dot_product_attention",
        advice="torch.backends.cuda.enable_mem_efficient_sdp(False)",
        read=torch.backends.cuda.mem_efficient_sdp_enabled,
        write=torch.backends.cuda.enable_mem_efficient_sdp,
        plain=False,
        kinds=_GPU,
    ),
    KernelSwitch(
        name="cudnn_attention",
        title="cuDNN's attention behind scaled_dot_product_attention",
        advice="torch.backends.cuda.enable_cudnn_sdp(False)",
        read=lambda: _cuda.cudnn_sdp_enabled(),
        write=lambda value: _cuda.enable_cudnn_sdp(value),
        plain=False,
        kinds=_GPU,
    ),
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
