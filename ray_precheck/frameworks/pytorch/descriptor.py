"""The descriptor of PyTorch as a framework under test; data alone, read through `descriptors.descriptor`."""

from ray_precheck.descriptors.descriptor import Accelerator, Capturing, Framework, Script

_OWN = "--bench-module FILE can add one"
# Prefixes whose operators are in no framework's list: their benches are in the tables of `fused`.
UNLISTED = {
    "NPU": f"it is an operator of torch_npu without a built-in one; {_OWN}",
    "MindSpeed": f"it is an operator of MindSpeed without a built-in one; {_OWN}",
    "Aten": f"capture the API that calls it (level L1); {_OWN}",
    "quantized": f"it is an operator of torch.ops.quantized without a built-in one; {_OWN}",
    "Optimizer": f"the updates of SGD, Adam, AdamW, RMSprop, Adafactor and Lion have one; {_OWN}",
}
ROOTS = {
    "Functional": "torch.nn.functional.",
    "Tensor": "torch.Tensor.",
    "Torch": "torch.",
    "VF": "torch.",
    "NPU": "torch_npu.",
    "Aten": "torch.ops.aten.",
    "quantized": "torch.ops.quantized.",
}
NAMESPACES = {
    "Torch": "torch",
    "Functional": "torch.nn.functional",
    "Tensor": "torch.Tensor",
    # torch._VF holds the same functions as torch itself.
    "VF": "torch",
    "NPU": "torch_npu",
    "MindSpeed": "mindspeed",
    "Aten": "torch.ops.aten",
    "quantized": "torch.ops.quantized",
    "Optimizer": "torch.optim",
    "Distributed": "torch.distributed",
}
WRITER = "ray_precheck.commands.repro.torch:torch_script"
RESOLVE = "ray_precheck.frameworks.pytorch.names:resolve_torch"
NPU_ROWS = "ray_precheck.bench.fused.table:NPU_ROWS"
BESSEL_ROWS = "ray_precheck.bench.fused.table:BESSEL_ROWS"
QUANTIZED_ROWS = "ray_precheck.bench.fused.table:QUANTIZED_ROWS"
OPTIMIZER_ROWS = "ray_precheck.bench.optimizers:OPTIMIZER_ROWS"
_DTYPES = """float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int8 int16 int32 int64 uint8 uint16
    uint32 uint64 bool complex64 complex128"""

FRAMEWORK = Framework(
    name="pytorch",
    title="PyTorch",
    package="torch",
    prefixes=("Functional", "Tensor", "Torch", "VF", "NPU", "Optimizer", "quantized"),
    tensor_types=("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.Parameter"),
    namespaces=NAMESPACES,
    value_types={
        "torch.Size": "size",
        "torch.dtype": "dtype",
        "torch.device": "device",
        "torch.memory_format": "memory_format",
    },
    dtype_names={name: f"torch.{name}" for name in _DTYPES.split()},
    node_gradients=True,
    install="pip install torch (for an NPU the version for which its torch_npu is made)",
    distributions=("torch", "torch_npu"),
    backend="ray_precheck.frameworks.pytorch.backend:TorchBackend",
    accelerators=(
        Accelerator(
            kind="npu",
            plugin="pytorch:npu",
            package="torch_npu",
            lacks="PyTorch needs torch_npu to use an NPU, and it is not installed",
            # Without a version pip would take the newest, and replace torch by the one that it needs.
            remedy="install the torch_npu that fits torch {version} (pip install 'torch_npu=={release}.*')",
        ),
        Accelerator(
            kind="gpu",
            plugin="pytorch:gpu",
            package="torch",
            # A torch that is built without GPUs has None there; its version number does not tell.
            files="version.py",
            text=r"""(?m)^(?:cuda|hip)\b[^=\n]*=\s*['"]""",
            lacks="its torch {version} is built without CUDA",
            remedy="install a torch with CUDA (https://pytorch.org/get-started/locally)",
        ),
    ),
    switches="ray_precheck.frameworks.pytorch.switches:TORCH_SWITCHES",
    bench=RESOLVE,
    fused=(
        NPU_ROWS,
        "ray_precheck.frameworks.pytorch.rows:TORCH_ROWS",
        OPTIMIZER_ROWS,
        BESSEL_ROWS,
        QUANTIZED_ROWS,
    ),
    unlisted=UNLISTED,
    is_bench=True,
    capturing=Capturing(
        model="torch.nn.Module",
        probe="ray_precheck.capture.pytorch.probe:TorchProbe",
        saved_values="ray_precheck.capture.pytorch.elements:SavedTorchTensors",
        tracing_probe="ray_precheck.capture.pytorch.verifying:TorchTracingProbe",
    ),
    script=Script(writer=WRITER, module="torch", roots=ROOTS),
)
