"""The switches of torch between fast kernels and slow, plain ones.

Goes out: `TORCH_SWITCHES`, loaded through the descriptor. Each stands here once: what it turns off, how it is
read and set, and on which kinds of devices it has a meaning. A switch that the installed torch lacks is left
out when the board is made.
"""

import json
from operator import attrgetter
from typing import Any

import torch

from ray_precheck import private_parts
from ray_precheck.frameworks.pytorch import plain_products
from ray_precheck.frameworks.switches import KernelSwitch

_CPU, _GPU, _NPU = ("cpu",), ("gpu",), ("npu",)
# The threads of the default side on a CPU: a number of its own, so that rows do not depend on the machine.
_THREADS = 4


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


# Functions without types.
_onednn: Any = torch.backends.mkldnn
_nnpack: Any = torch.backends.nnpack
_cuda: Any = torch.backends.cuda


def _read_nnpack() -> bool:
    (value,) = _nnpack.set_flags(True)
    _nnpack.set_flags(value)
    return bool(value)


_stances: list[str] = ["default"]


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
        read=plain_products.are_plain,
        write=plain_products.make_plain,
        plain=True,
        kinds=_CPU,
        exists=plain_products.can_be_plain,
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
