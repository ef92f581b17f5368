"""The descriptor of MSAdapter (MindTorch) as a framework under test; data alone, read through
`descriptors.descriptor`. Its functions are torch's, its tensors and devices MindSpore's."""

from ray_precheck.descriptors.descriptor import Framework, Script
from ray_precheck.frameworks.mindspore import descriptor as mindspore
from ray_precheck.frameworks.pytorch import descriptor as pytorch

FRAMEWORK = Framework(
    name="mindtorch",
    title="MindTorch",
    package="mindtorch",
    # msprobe takes dumps of mindtorch with -f mindspore.
    asked_as=("mindspore",),
    prefixes=("Functional", "Tensor", "Torch"),
    tensor_types=mindspore.TENSOR_TYPES,
    # It has the names of torch.
    namespaces=pytorch.NAMESPACES,
    # MindSpore has no API under this prefix.
    told_by="Torch",
    value_types=mindspore.VALUE_TYPES,
    dtype_names=mindspore.DTYPE_NAMES,
    needs=("mindspore",),
    install=mindspore.INSTALL,
    distributions=("mindspore",),
    require="ray_precheck.frameworks.mindtorch.paths:require_torches",
    backend="ray_precheck.frameworks.mindtorch.backend:MindTorchBackend",
    accelerators=mindspore.ACCELERATORS,
    bench=pytorch.RESOLVE,
    fused=(pytorch.NPU_ROWS,),
    unlisted=pytorch.UNLISTED,
    frames=("msadapter",),
    script=Script(
        writer=pytorch.WRITER,
        module="torch",
        roots=pytorch.ROOTS,
        note="Run it where MSAdapter's torch comes before the native one in PYTHONPATH.",
    ),
)
