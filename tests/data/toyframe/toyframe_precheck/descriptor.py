"""The descriptor of toyframe, data alone: it imports neither toyframe nor torch."""

from ray_precheck.descriptors.descriptor import Capturing, Framework

FRAMEWORK = Framework(
    name="toyframe",
    title="Toyframe",
    package="toyframe",
    prefixes=("Toy",),
    tensor_types=("toyframe.Tensor",),
    value_types={"toyframe.dtype": "dtype"},
    dtype_names={"float16": "f2", "float32": "f4", "float64": "f8", "int32": "i4", "int64": "i8"},
    backend="toyframe_precheck.backend:ToyBackend",
    bench="toyframe_precheck.bench:resolve",
    capturing=Capturing(model="toyframe", probe="toyframe_precheck.capturing:ToyProbe"),
    refused={"Toy.save": "it writes files"},
)
