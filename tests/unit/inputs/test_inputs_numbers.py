"""What is drawn for many recorded statistics, dtypes and roles: these numbers, on every host.

Digests stand in `tests/data/expected`; with `RECORD_EXPECTED=1` in the environment they are written
anew. A change of them changes the inputs of every run, and so its results.
"""

import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_inputs_role_table import BROKEN, CASES, X, floats, ints, record

from ray_precheck.inputs.generate import GeneratedTensors, build_call, generated_tensors
from ray_precheck.inputs.roles.table import TABLE, roles_of
from ray_precheck.schema.values import HostTensor, TensorSpec

pytestmark = pytest.mark.unit

EXPECTED = Path(__file__).parents[2] / "data" / "expected"
RANGES = [(0.0, 1.0), (-1.0, 1.0), (-3.5, 0.0), (-0.25, 80.0), (99.0, 101.0), (-1e30, 2e30)]


def statistics() -> Iterator[TensorSpec]:
    """Yield what dumps may say of tensors; numbers that need no library but its square root."""
    for low, high in RANGES:
        for part, spread in ((0.02, 0.5), (0.3, 0.1), (0.5, 0.9), (0.9, 0.3), (0.5, 1.01)):
            mean = low + part * (high - low)
            variance = spread * part * (1 - part) * (high - low) * (high - low)
            for dtype, size in (("float32", 40), ("bfloat16", 6), ("float64", 3)):
                norm = math.sqrt((variance + mean * mean) * size)
                yield TensorSpec(dtype, (size,), low, high, mean=mean, norm=norm)
            yield TensorSpec("float32", (9, 4), low, high, mean=mean)
    for dtype in ("int8", "uint8", "int64", "bool", "float16", "complex64", "float8_e5m2"):
        for low, high in ((0, 1), (0, 7), (-3, 4), (-1000, 1000), (5, 5), (None, None)):
            for mean in (None, 0.25, 2.5, math.inf):
                yield TensorSpec(dtype, (30,), low, high, mean=mean)
    for bounds in ((-math.inf, 1.0), (0.0, math.inf), (-math.inf, math.inf), (math.nan, 1.0)):
        yield TensorSpec("float32", (20,), *bounds, mean=0.5)
    for shape in ((), (0,), (1,), (2,), (2, 3)):
        yield TensorSpec("float32", shape, -2.0, 3.0, mean=0.5, norm=4.0)
        yield TensorSpec("int32", shape, 2, 3, mean=2.5)


def digest(*tensors: Any) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype}{tensor.shape}".encode())
        found.update(np.ascontiguousarray(tensor.data).tobytes())
    return found.hexdigest()[:12]


def tensors_in(value: Any) -> Iterator[HostTensor]:
    if isinstance(value, HostTensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def draws() -> Iterator[str]:
    for number, spec in enumerate(statistics()):
        for distribution in ("recorded", "uniform"):
            tensor = GeneratedTensors(1, "Torch.x.0", distribution).tensor(spec, "input_args.0")
            yield f"{number} {spec.dtype} {distribution} {digest(tensor)}"


def calls() -> Iterator[str]:
    for name, call in [*((name, call) for name, (call, _) in CASES.items()), *enumerate(BROKEN)]:
        for distribution in ("recorded", "uniform"):
            built = build_call(call, generated_tensors(1, call, distribution))
            tensors = [*tensors_in(built.args), *tensors_in(built.kwargs)]
            yield f"{name} {distribution} {digest(*tensors)}"


ARGUMENTS = (
    (X, 1, ints(3, 4)),
    (X, ints(3)),
    (ints(5, 7), X, X),
    (X, X, 0, ints(3)),
    (floats(9, 4, 5), ints(4, 3), ints(4), ints(4)),
    (floats(4, 4), floats(4, 4), ints(4)),
    (X, floats(5, 7), floats(7), True),
)
MASK = TensorSpec("bool", (5, 7))
SUBSCRIPTS = (
    [None, ints(4)],
    [..., ints(4)],
    [2, ints(4)],
    [MASK, ints(4)],
    [ints(4), None, ints(4), ints(2, 4)],
    [ints(2, 1), ints(4)],
    [ints(4), 1, ints(4)],
    ints(4),
    MASK,
)


def roles() -> Iterator[str]:
    for number, subscript in enumerate(SUBSCRIPTS):
        for api in ("Tensor.__getitem__", "Tensor.__setitem__"):
            for path, role in roles_of(record(api, floats(5, 7, 3), subscript, X)).items():
                yield f"{api} {number} {path} {role}"
    # The names of one operator have the same row.
    apis = {str(TABLE.by_name[api]): api for api in sorted(TABLE.by_name, reverse=True)}
    for api in sorted(apis.values()):
        for number, arguments in enumerate(ARGUMENTS):
            for path, role in roles_of(record(api, *arguments)).items():
                yield f"{api} {number} {path} {role}"


@pytest.mark.parametrize("what", [draws, calls, roles], ids=lambda what: what.__name__)
def test_what_is_drawn_stays_as_it_was(what: Any) -> None:
    found = list(what())
    path = EXPECTED / f"datagen_{what.__name__}.txt"
    if os.environ.get("RECORD_EXPECTED"):
        path.write_text("\n".join([*found, ""]))
    assert found == path.read_text().splitlines()
