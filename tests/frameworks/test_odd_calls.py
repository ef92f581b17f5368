"""Honest torch with odd arguments is not accused."""

import os
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from odd_calls import OddCall, by_hand, examined, of_op_db, reason

from ray_precheck.frameworks.pytorch.rows import interpolate, nextafter

pytestmark = pytest.mark.frameworks
# Nothing was computed in these calls, or nothing finite.
SKIPS = ("no element to compare: the output is empty", "no element to compare: all N are NaN")


@pytest.mark.parametrize(
    ("task", "pattern"),
    [("tensor", "*.bfloat16"), ("tensor", "*.float16"), ("statistics", "*.float32")],
)
def test_calls_with_odd_arguments_pass(task: str, pattern: str, tmp_path: Path) -> None:
    calls = [call for call in by_hand() if fnmatch(call.label, pattern)]
    found = examined(calls, task, tmp_path)
    assert found.calls > 150
    assert found.accused == []
    assert {
        reason(each) for each in found.skipped if not any(s in reason(each) for s in SKIPS)
    } == set()


@pytest.mark.parametrize(
    ("operators", "task"),
    [
        ("linalg.pinv linalg.slogdet linalg.tensorinv", "tensor"),  # complex inputs are moved, too
        ("masked.var", "tensor"),  # sums of complex numbers
        ("linalg.lu lu_unpack", "tensor"),  # an output that needs no gradient gets none
        ("half", "tensor"),  # a gradient of the other half type
        ("normal", "tensor"),  # complex draws
        ("nn.functional.alpha_dropout nn.functional.feature_alpha_dropout", "statistics"),
        ("sinc digamma special.airy_ai", "tensor"),  # floats of whole numbers
        ("special.i1e special.bessel_y1", "tensor"),
        ("polygamma", "tensor"),
        ("cross", "tensor"),
        ("nn.functional.adaptive_avg_pool3d", "tensor"),
        ("nn.functional.pad", "tensor"),
        ("index_reduce", "tensor"),
        ("floor_divide histc", "statistics"),
        ("native_layer_norm", "tensor"),
        ("nn.functional.interpolate", "statistics"),
        ("linalg.cond", "tensor"),
        ("qr", "statistics"),
        ("as_strided", "tensor"),  # memory around the input
        ("addmm", "tensor"),  # a complex scalar
        ("nn.functional.embedding_bag", "statistics"),  # the weight before the indices
        *(("*", task) for task in ("tensor", "statistics") if "EVERY" in os.environ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_samples_of_op_db_pass(operators: str, task: str, tmp_path: Path) -> None:
    found = examined(list(of_op_db(operators.split(), 3)), task, tmp_path)
    assert found.calls
    assert found.accused == []
    assert [each for each in found.skipped if " raised: " in each] == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_next_number_is_that_of_the_recorded_dtype(dtype: str) -> None:
    numbers = torch.tensor([0.0, -0.0, 1.0, -1.5, 3e-5, torch.inf, -torch.inf, torch.nan])
    numbers = numbers.to(getattr(torch, dtype))
    x, towards = numbers[:, None], numbers[None]
    found = nextafter(x.double(), towards.double(), dtype)
    assert torch.equal(found.nan_to_num(7.0), torch.nextafter(x, towards).double().nan_to_num(7.0))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_the_nearest_pixel_is_that_of_float32(mode: str) -> None:
    differs = 0
    for extent in (4, 12, 20, 32):
        x = torch.arange(float(extent)).reshape(1, 1, extent)
        for out in range(1, 150):
            tested = F.interpolate(x, size=out, mode=mode).double()
            assert torch.equal(interpolate(x.double(), mode, size=out), tested), out
            differs += not torch.equal(F.interpolate(x.double(), size=out, mode=mode), tested)
    assert differs


def test_complex_numbers_of_half_types_end_no_capture(tmp_path: Path) -> None:
    call = OddCall("complex32", lambda: torch.complex(torch.ones(3).half(), torch.ones(3).half()))
    found = examined([call], "tensor", tmp_path)
    assert found.records
    assert found.accused == []
