"""The descriptor of MindSpore as a framework under test; data alone, as `descriptors.descriptor` has it."""

from ray_precheck.descriptors.descriptor import Accelerator, Capturing, Framework, Script

ACCELERATORS = (
    Accelerator(
        kind="npu",
        plugin="mindspore:npu",
        package="mindspore",
        files="lib/**/libmindspore_ascend*",
        lacks="its mindspore is built without Ascend",
        remedy="install the mindspore for Ascend (https://www.mindspore.cn/install)",
    ),
)
TENSOR_TYPES = (
    "mindspore.Tensor",
    "mindspore.Parameter",
    "mindspore.common.parameter.Parameter",
)
VALUE_TYPES = {"mindspore.dtype": "dtype"}
DTYPE_NAMES = {
    **{f"float{bits}": f"Float{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2",
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)},
    "bool": "Bool",
    "complex64": "Complex64",
    "complex128": "Complex128",
}
INSTALL = "pip install mindspore (for an NPU as https://www.mindspore.cn/install says)"

FRAMEWORK = Framework(
    name="mindspore",
    title="MindSpore",
    package="mindspore",
    prefixes=("Mint", "MintFunctional", "Tensor", "Functional", "Primitive"),
    tensor_types=TENSOR_TYPES,
    namespaces={
        "Mint": "mindspore.mint",
        "MintFunctional": "mindspore.mint.nn.functional",
        "Tensor": "mindspore.Tensor",
        "Functional": "mindspore.ops",
        "Primitive": "mindspore.ops.operations",
        "MintDistributed": "mindspore.mint.distributed",
    },
    value_types=VALUE_TYPES,
    dtype_names=DTYPE_NAMES,
    autocast_is_told=True,
    install=INSTALL,
    backend="ray_precheck.frameworks.mindspore.backend:MindSporeBackend",
    accelerators=ACCELERATORS,
    switches="ray_precheck.frameworks.mindspore.backend:MINDSPORE_SWITCHES",
    bench="ray_precheck.frameworks.mindspore.bench.mapping:resolve_mindspore",
    fused=("ray_precheck.bench.fused.table:MINDSPORE_ROWS",),
    capturing=Capturing(
        model="mindspore.nn.Cell",
        probe="ray_precheck.capture.mindspore.probe:MindSporeProbe",
        saved_values="ray_precheck.capture.mindspore.elements:SavedMindSporeTensors",
        tracing_probe="ray_precheck.capture.mindspore.verifying:MindSporeTracingProbe",
    ),
    script=Script(
        writer="ray_precheck.commands.repro.mindspore:mindspore_script",
        module="ms",
        roots={
            "Mint": "ms.mint.",
            "MintFunctional": "ms.mint.nn.functional.",
            "Tensor": "ms.Tensor.",
            "Functional": "ms.ops.",
            "Primitive": "ms.ops.operations.",
        },
        symbols={"bool": "bool_"},
        takes_tuples=True,
    ),
)
