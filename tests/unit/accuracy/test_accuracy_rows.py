"""What each standard says of many outputs, honest and faulty, word for word; see `expected_texts`."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from expected_texts import assert_expected

from ray_precheck.accuracy.outputs import Judge, check_output
from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.result import Uncompared
from ray_precheck.schema.values import HostTensor

pytestmark = pytest.mark.unit

SHAPE = (6, 8)
BENCH = (np.arange(48.0).reshape(SHAPE) - 11.0) / 7.0
SPECIAL = np.where(np.arange(48).reshape(SHAPE) % 11 == 0, np.nan, BENCH)


def at(values: Array, place: tuple[int, int], value: float) -> Array:
    found = values.copy()
    found[place] = value
    return found


# The device's output, given a bench.
FAULTS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "one part in 300": lambda x: x * (1 + 1 / 300),
    "noise": lambda x: x * (1 + 1e-3 * np.cos(np.arange(48.0).reshape(SHAPE))),
    "much noise": lambda x: x + 0.05 * np.cos(np.arange(48.0).reshape(SHAPE)),
    "an offset": lambda x: x + 0.25,
    "one element": lambda x: at(x, (2, 3), 9.0),
    "one small element": lambda x: at(x, (1, 3), 1e-3),
    "NaN": lambda x: at(x, (1, 2), np.nan),
    "infinity": lambda x: at(x, (5, 7), np.inf),
    "zeros": np.zeros_like,
    "a row of zeros": lambda x: x * (np.arange(6.0)[:, None] != 4),
    "signs": lambda x: np.where(np.abs(x) < 0.5, -x, x),
    "shifted": lambda x: np.roll(x, 1, 0),
    "transposed": lambda x: x.T.reshape(x.shape),
    "clamped": lambda x: np.clip(x, -1.0, 2.0),
    "bfloat16 inside": lambda x: round_to_dtype(x, "bfloat16").astype(np.float64),
}
APIS = ("Torch.add", "Torch.exp", "Mint.matmul", "Functional.softmax", "NPU.npu_fusion_attention")


def tensor(values: Any, dtype: str) -> HostTensor:
    return HostTensor(dtype, round_to_dtype(np.asarray(values), dtype))


def implementations_of(bench: Array, dtype: str) -> list[Array]:
    waves = [np.cos((number + 2) * np.arange(48.0)).reshape(SHAPE) for number in range(2)]
    unit = 2.0 ** -DTYPES[dtype].mantissa_bits
    return [round_to_dtype(bench * (1 + 2 * unit * wave), dtype) for wave in waves]


def cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def row(tested: Any, bench: Any, judge: Judge, implementations: Any = tuple) -> str:
    found = check_output("X.0.forward.output.0", tested, bench, judge, implementations)
    cells = [found.bench_dtype, found.tested_dtype, found.shape, found.verdict.name]
    cells += [f"{name}={cell(value)}" for name, value in found.columns]
    if (metrics := found.metrics) is not None:
        numbers = (metrics.cosine, metrics.max_abs_err, metrics.max_rel_err, metrics.left_out)
        cells += map(cell, numbers)
    return " | ".join([*cells, found.message])


def of_floats() -> Iterator[str]:
    for number, (name, fault) in enumerate(FAULTS.items()):
        for dtype in ("float32", "bfloat16", "float16"):
            for standard in STANDARDS:
                for bench in (BENCH, SPECIAL, 1e-6 * BENCH)[: 3 if dtype == "float32" else 1]:
                    api, direction = APIS[number % 5], ("forward", "backward")[number % 2]
                    judge = Judge("pytorch", STANDARDS[standard](), api, direction)
                    implementations = implementations_of(bench, dtype)
                    said = row(
                        tensor(fault(bench), dtype),
                        tensor(bench, "float64"),
                        judge,
                        lambda p=implementations: p,
                    )
                    yield f"{name} | {dtype} | {standard} | {api} | {said}"


def of_others() -> Iterator[str]:
    whole = np.arange(-9, 9)
    pairs: list[tuple[Any, Any]] = [
        (HostTensor("int64", whole), HostTensor("int64", whole)),
        (HostTensor("int64", whole), HostTensor("int64", whole[::-1].copy())),
        (HostTensor("int32", whole.astype(np.int32)), tensor(whole + 0.5, "float64")),
        (HostTensor("bool", whole > 0), HostTensor("bool", whole >= 0)),
        (tensor(whole * (1 + 2j), "complex64"), tensor(whole * (1 + 2.01j), "complex128")),
        (tensor(BENCH * 1.1, "float8_e5m2"), tensor(BENCH, "float64")),
        (tensor(FAULTS["much noise"](BENCH), "float16"), tensor(BENCH, "float64")),
        (tensor(BENCH, "float32"), tensor(BENCH.reshape(8, 6), "float64")),
        (tensor(np.zeros((0, 3)), "float32"), tensor(np.zeros((0, 3)), "float64")),
        (tensor([np.nan, np.inf], "float32"), tensor([np.nan, np.inf], "float64")),
        (tensor(2.5, "float32"), 2.5),
        (3, tensor(3.5, "float64")),
        (2**70, tensor(2.0**70, "float64")),
        (True, HostTensor("bool", np.array(False))),
        (2.5, 2.5),
        (float("nan"), float("nan")),
        (float("nan"), 1.0),
        ((1, [2.0, "a"]), [1, (2.0, "a")]),
        ([1, 2], [1, 2, 3]),
        ("a" * 100, "b" * 100),
        (tensor(1.0, "float32"), None),
        (None, Uncompared("it is random")),
        (tensor(1.0, "float32"), Uncompared("it is random")),
    ]
    for standard in STANDARDS:
        for number, (tested, bench) in enumerate(pairs):
            judge = Judge("mindspore", STANDARDS[standard](), "Mint.sort")
            yield f"{number} | {standard} | {row(tested, bench, judge)}"


def test_rows_say_what_is_expected() -> None:
    with np.errstate(all="ignore"):
        found = [*of_floats(), *of_others()]
    assert_expected(found, "rows.txt", tolerance=1e-12)
