"""Kernels that are wrong as long as a switch of their framework is at its default side.

Comes in: nothing. Goes out: `FAULTS`, and `write_fault_dump`. Used by `naive_switches`.
A fault is planted in the process that checks, by a file for `--bench-module` (`module_text`): it puts another
function in the place of a kernel in torch's dispatcher, or of a function of MindSpore. Everything of float64
stays right, so the bench is. Where torch has no kernel of a switch on a CPU (cuDNN, TF32, HF32), the function
in the place of a CPU's kernel asks for that setting, and the CPU is said to be the device (`kind`).
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

_libraries: list[Any] = []


class SwitchFault(NamedTuple):
    """A fault: the switches that mend it, the call that it is behind, and how it is planted.

    `kind` is the kind of device of the run; another one than cpu is pretended. `behind` says what was put in
    the place of what.
    """

    switches: tuple[str, ...]
    call: str
    behind: str
    plant: Callable[[], None]
    kind: str = "cpu"
    framework: str = "pytorch"

    @property
    def name(self) -> str:
        """The name of the fault: its switches."""
        return "+".join(self.switches)


def _tensor(*shape: int, dtype: str = "float32", low: float = -1.0, high: float = 1.0) -> Any:
    found = {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": list(shape)}
    return {**found, "Max": high, "Min": low, "Mean": 0.0, "Norm": 1.0, "requires_grad": False}


def _of_mindspore(*shape: int) -> Any:
    found = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": list(shape)}
    return {**found, "Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": 1.0}


def _number(value: float) -> Any:
    return {"type": type(value).__name__, "value": value}


_ATTENTION = [_tensor(2, 2, 16, 8)] * 3
_INDICES = _tensor(4, 8, dtype="int64", low=0, high=3)
_CALLS: dict[str, dict[str, list[Any]]] = {
    "pytorch": {
        "Functional.conv2d": [_tensor(8, 4, 10, 10), _tensor(8, 4, 3, 3)],
        # torch asks NNPACK for batches of 16 or more.
        "Torch.conv2d": [_tensor(32, 4, 10, 10), _tensor(8, 4, 3, 3)],
        "Torch.matmul": [_tensor(24, 96), _tensor(96, 16)],
        "Functional.scaled_dot_product_attention": _ATTENTION,
        "Torch.cumsum": [_tensor(64, 16), _number(0)],
        "Torch.scatter_add": [_tensor(4, 8), _number(0), _INDICES, _tensor(4, 8)],
        "Torch.linalg.qr": [_tensor(12, 8)],
        "Torch.erfinv": [_tensor(16, 16, low=-0.9, high=0.9)],
        "Torch.tanh": [_tensor(16, 16)],
        "Functional.relu": [_tensor(16, 16)],
        "Functional.softmax": [_tensor(16, 16), _number(-1)],
        "Torch.add": [_tensor(16, 16), _tensor(16, 16)],
    },
    "mindspore": {
        "Mint.matmul": [_of_mindspore(24, 96), _of_mindspore(96, 16)],
        "Mint.tanh": [_of_mindspore(16, 16)],
        "Mint.add": [_of_mindspore(16, 16), _of_mindspore(16, 16)],
    },
}


_HEALTHY = ("Functional.relu", "Functional.softmax", "Torch.add", "Mint.tanh", "Mint.add")


def write_fault_dump(folder: Path, fault: SwitchFault) -> Path:
    """Write a dump of the call that a fault is behind and of healthy ones; return its path."""
    records = {
        f"{name}.0.forward": {"input_args": args, "input_kwargs": {}, "output": []}
        for name, args in _CALLS[fault.framework].items()
        if name == fault.call or name in _HEALTHY
    }
    header = {"task": "statistics", "level": "L1", "framework": fault.framework}
    path = folder / f"{fault.framework}_{fault.name}.json"
    path.write_text(json.dumps({**header, "dump_data_dir": None, "data": records}))
    return path


def module_text(name: str) -> str:
    """Return the file for `--bench-module` that plants a fault."""
    return f"""import sys
sys.path.append({str(Path(__file__).parent)!r})
import ray_precheck
from naive_faults import planted_tanh

@ray_precheck.reference("Torch.tanh", tested=planted_tanh({name!r}))
def tanh(x):
    return x.tanh()
"""


def planted_tanh(name: str) -> Callable[..., Any] | None:
    """Plant a fault in this process, if it checks calls; return the tanh under test, None for torch's own."""
    if _checks():
        FAULTS[name].plant()
    return _compiled_tanh() if name == "inductor" else None


def _checks() -> bool:
    """Return whether this process checks calls; the driver reads the same files, and stays as it is."""
    started_as = f"{sys.argv[0]} {sys.argv[-1]}"
    return any(word in started_as for word in ("check_process", "fork_server", "plain_process"))


def _wrong(value: Any) -> Any:
    """Return a result that is off by 1 %, but for float64."""
    import torch

    if isinstance(value, tuple):
        return tuple(map(_wrong, value))
    is_narrow = torch.is_tensor(value) and value.dtype in (torch.float32, torch.float16)
    return value * 1.01 if is_narrow else value


def _patched(operator: str, is_broken: Callable[[], bool], change: Any = _wrong) -> None:
    """Put a function in the place of a kernel on the CPU, whose result is changed where it is broken."""
    import torch

    kernel = torch.library.get_kernel(f"aten::{operator}", "CPU")

    def function(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        result = kernel.call_boxed(keyset, *args, **kwargs)
        return change(result) if is_broken() else result

    library = torch.library.Library("aten", "IMPL")
    library.impl(operator, function, "CPU", with_keyset=True)
    _libraries.append(library)


def _plant(*operators: str, unless: Callable[[], Any] = lambda: False) -> Callable[[], None]:
    """Return a function that breaks kernels on the CPU, unless a setting says otherwise."""
    return lambda: [_patched(each, lambda: not unless()) for each in operators] and None


def _torch() -> Any:
    import torch

    return torch


def _convolutions_of_nnpack() -> None:
    _torch().backends.mkldnn.set_flags(_enabled=False)
    _patched("_nnpack_spatial_convolution", lambda: True)


def _products_of_bfloat16() -> None:
    torch = _torch()
    torch.set_float32_matmul_precision("medium")
    _patched("mm", lambda: torch.get_float32_matmul_precision() != "highest")


def _convolutions_of_bfloat16() -> None:
    conv = _torch().backends.mkldnn.conv
    conv.fp32_precision = "bf16"
    _patched("mkldnn_convolution", lambda: conv.fp32_precision == "bf16")


def _compiled_tanh() -> Any:
    """Return tanh as a compiler made it that is wrong in float32."""
    torch = _torch()

    def wrong(graph: Any, examples: Any) -> Any:
        return lambda *args: _wrong(graph.forward(*args))

    return torch.compile(lambda x: torch.tanh(x), backend=wrong)


def _settings_of_a_gpu(operator: str, path: str, *, wrong: bool) -> Callable[[], None]:
    """Return a function that breaks a kernel as long as a setting of torch has a value."""

    def plant() -> None:
        import torch

        _pretend("gpu")
        *owners, last = path.split(".")
        owner: Any = torch.backends
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, last, wrong)

        def is_broken() -> bool:
            value = getattr(owner, last)
            return (value() if callable(value) else value) is wrong

        _patched(operator, is_broken)

    return plant


def _attention_of_a_gpu(asks: str) -> Callable[[], None]:
    """Return a function that breaks both attentions of a CPU as long as one of a GPU's is enabled."""

    def plant() -> None:
        import torch

        _pretend("gpu")
        asked = getattr(torch.backends.cuda, asks)
        _patched("_scaled_dot_product_flash_attention_for_cpu", asked)
        _patched("bmm", asked)

    return plant


def _of_an_npu(operator: str, name: str) -> Callable[[], None]:
    def plant() -> None:
        options = {each: SimpleNamespace(allow_hf32=each == name) for each in ("conv", "matmul")}
        fake: Any = ModuleType("torch_npu")
        fake.npu = SimpleNamespace(set_device=lambda number: None, **options)
        sys.modules["torch_npu"] = fake
        _pretend("npu")
        _patched(operator, lambda: options[name].allow_hf32)

    return plant


def _pretend(kind: str) -> None:
    """Let the backend of torch compute on the CPU where it is opened on another kind of device."""
    from ray_precheck.frameworks.pytorch import backend

    backend._open_device = lambda kind: "cpu"  # type: ignore[assignment]


def _products_of_mindspore() -> None:
    import mindspore as ms
    from mindspore import mint

    right = mint.matmul

    def matmul(*args: Any, **kwargs: Any) -> Any:
        found = right(*args, **kwargs)
        return found if ms.get_context("deterministic") == "ON" else found * 1.01

    matmul.__module__ = right.__module__
    mint.matmul = matmul


_LARGE_CONV = "Torch.conv2d"
_MM, _CONV, _BMM = "Torch.matmul", "Functional.conv2d", "Functional.scaled_dot_product_attention"
_MKL, _NNPACK = "mkldnn_convolution", "_nnpack_spatial_convolution"
_FLASH, _HALF = "_scaled_dot_product_flash_attention_for_cpu", "reduced_precision_reduction"
# What a GPU has: switch, call, kernel in its place, setting of torch, its wrong value, in words.
_OF_GPUS = (
    ("cudnn", _CONV, _MKL, "cudnn.enabled", True, "cuDNN is enabled"),
    ("cudnn_benchmark", _CONV, _MKL, "cudnn.benchmark", True, "cuDNN tries its kernels"),
    ("cudnn_deterministic", _CONV, _MKL, "cudnn.deterministic", False, "cuDNN's order is free"),
    ("cudnn_tf32", _CONV, _MKL, "cudnn.allow_tf32", True, "cuDNN may use TF32"),
    ("float16_sums", _MM, "mm", f"cuda.matmul.allow_fp16_{_HALF}", True, "float16 sums may be short"),
    ("bfloat16_sums", _MM, "mm", f"cuda.matmul.allow_bf16_{_HALF}", True, "bfloat16 sums may be short"),
)  # fmt: skip
_ALL = (
    SwitchFault(("onednn",), _CONV, f"aten::{_MKL}", _plant(_MKL)),
    SwitchFault(("nnpack",), _LARGE_CONV, f"aten::{_NNPACK}, oneDNN off", _convolutions_of_nnpack),
    SwitchFault(("nnpack", "onednn"), _LARGE_CONV, "both convolutions", _plant(_MKL, _NNPACK)),
    SwitchFault(("flash_attention",), _BMM, f"aten::{_FLASH}", _plant(_FLASH)),
    SwitchFault(("products",), _MM, "aten::mm", _plant("mm")),
    SwitchFault(
        ("threads",), "Torch.cumsum", "aten::cumsum with more than 1 thread",
        _plant("cumsum", unless=lambda: _torch().get_num_threads() == 1),
    ),
    SwitchFault(
        ("mkl",), "Torch.linalg.qr", "aten::linalg_qr unless MKL is compatible",
        _plant("linalg_qr", unless=lambda: os.environ.get("MKL_CBWR") == "COMPATIBLE"),
    ),
    SwitchFault(
        ("vector_units",), "Torch.erfinv", "aten::erfinv with vector instructions",
        _plant("erfinv", unless=lambda: _torch().backends.cpu.get_cpu_capability() == "DEFAULT"),
    ),
    SwitchFault(
        ("deterministic",), "Torch.scatter_add", "aten::scatter_add unless it must be deterministic",
        _plant("scatter_add", unless=lambda: _torch().are_deterministic_algorithms_enabled()),
    ),
    SwitchFault(
        ("float32_products",), _MM, "aten::mm below `highest` precision", _products_of_bfloat16
    ),
    SwitchFault(
        ("onednn_convolutions",), _CONV, f"aten::{_MKL} in bf16", _convolutions_of_bfloat16
    ),
    # The function under test is the fault.
    SwitchFault(("inductor",), "Torch.tanh", "a compiler's code of tanh", lambda: None),
    *(
        SwitchFault(
            (switch,), call, f"aten::{kernel} while {words}",
            _settings_of_a_gpu(kernel, setting, wrong=wrong), "gpu",
        )
        for switch, call, kernel, setting, wrong, words in _OF_GPUS
    ),
    SwitchFault(
        ("efficient_attention",), _BMM, "a CPU's attentions while the memory-efficient one is enabled",
        _attention_of_a_gpu("mem_efficient_sdp_enabled"), "gpu",
    ),
    SwitchFault(
        ("cudnn_attention",), _BMM, "a CPU's attentions while cuDNN's is enabled",
        _attention_of_a_gpu("cudnn_sdp_enabled"), "gpu",
    ),
    SwitchFault(
        ("hf32_convolutions",), _CONV, f"aten::{_MKL} while HF32 is on", _of_an_npu(_MKL, "conv"), "npu"
    ),
    SwitchFault(
        ("hf32_products",), _MM, "aten::mm while HF32 is on, as the user's program has it",
        _of_an_npu("mm", "matmul"), "npu",
    ),
    SwitchFault(
        ("deterministic",), "Mint.matmul", "mint.matmul unless it must be deterministic",
        _products_of_mindspore, framework="mindspore",
    ),
)  # fmt: skip


def _keys() -> Iterator[tuple[str, SwitchFault]]:
    for fault in _ALL:
        own = "" if fault.framework == "pytorch" else f"{fault.framework}_"
        yield f"{own}{fault.name}", fault


FAULTS = dict(_keys())
