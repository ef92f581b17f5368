"""Operators of rows are benched and compared in tiles, and have the rows of the whole bench."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ray_precheck.accuracy.standards.user_file import STANDARDS  # noqa: E402
from ray_precheck.bench import rows  # noqa: E402
from ray_precheck.bench.run import Bench  # noqa: E402
from ray_precheck.check.checker import Checker  # noqa: E402
from ray_precheck.check.sampled import tiles  # noqa: E402
from ray_precheck.check.settings import CheckSettings  # noqa: E402
from ray_precheck.dump.parse import open_dump  # noqa: E402
from ray_precheck.replay.planner import plan_tasks  # noqa: E402
from ray_precheck.schema.result import OutputCheck, TaskResult, Verdict  # noqa: E402
from ray_precheck.schema.values import HostTensor  # noqa: E402
from scripts.bench_verdicts.benches import EXACT, checker_of, known_settings  # noqa: E402
from scripts.bench_verdicts.faults import edited  # noqa: E402
from scripts.bench_verdicts.records import Known  # noqa: E402
from scripts.bench_verdicts.subject import Subject, Tensors  # noqa: E402
from scripts.verdicts.cases import Case, DrawnArgument  # noqa: E402

pytestmark = pytest.mark.frameworks
T = DrawnArgument
X = T((4, 24, 40), -4.0, 4.0)
CALLS = {
    "silu": Case("Functional.silu", (X,)),
    "gelu": Case("Functional.gelu", (X,), {"approximate": "tanh"}),
    "relu": Case("Functional.relu", (X,)),
    "exp": Case("Torch.exp", (X,)),
    "softmax": Case("Functional.softmax", (X,), {"dim": -1}),
    "softmax of columns": Case("Functional.softmax", (T((4, 6, 24, 40), -4.0, 4.0), 2)),
    "log_softmax": Case("Torch.log_softmax", (X, -1)),
    "layer_norm": Case("Functional.layer_norm", (X, (40,), T((40,)), T((40,)))),
    "rms_norm": Case("Functional.rms_norm", (X, (40,))),
    "a column added": Case("Torch.add", (X, T((24, 1)))),
    "division": Case("Tensor.__truediv__", (X, T((4, 1, 40), 1.0, 2.0))),
    "a learned scale": Case("Torch.mul", (X, T((), 0.5, 2.0))),
    "a number": Case("Tensor.mul", (X, 0.3)),
    "masked": Case(
        "Tensor.masked_fill", (X, T((24, 40), 0.0, 1.0, "bool", grad=False), float("-inf"))
    ),
}


@pytest.fixture(autouse=True)
def small_tiles() -> object:
    least = mock.patch.object(tiles, "LEAST_ELEMENTS", 1000)
    with least, mock.patch.object(rows, "CACHED_ELEMENTS", 100):
        yield


def subject_of(call: str, dtype: str) -> Subject:
    standard = STANDARDS["msprobe"]()
    settings = known_settings(standard, EXACT)
    return Subject(Known(CALLS[call], 0), dtype, "normal", 0, checker_of(standard, EXACT), settings)


def check(subject: Subject, results: Tensors, bench: str = EXACT) -> TaskResult:
    checker = checker_of(STANDARDS["auto"](), bench)
    return checker.check(subject.payload, measured=subject.measured(results))


def whole(subject: Subject, results: Tensors) -> TaskResult:
    with mock.patch.object(tiles, "LEAST_ELEMENTS", 1 << 30):
        return check(subject, results)


def tiled(subject: Subject, results: Tensors) -> TaskResult:
    with mock.patch.object(Bench, "forward", side_effect=AssertionError("the whole bench")):
        return check(subject, results)


def assert_alike(mine: OutputCheck, other: OutputCheck) -> None:
    """Assert that two rows have the same cells, but for the order of sums."""
    assert mine.metrics is not None
    assert other.metrics is not None
    cosine = other.metrics.cosine
    assert replace(mine, metrics=None, columns=()) == replace(other, metrics=None, columns=())
    assert mine.metrics == replace(other.metrics, cosine=mine.metrics.cosine)
    assert mine.metrics.cosine == (cosine and pytest.approx(cosine, rel=1e-12))
    assert dict(mine.columns).keys() == dict(other.columns).keys()
    for name, cell in mine.columns:
        theirs = dict(other.columns)[name]
        assert cell == (theirs if isinstance(theirs, str) else pytest.approx(theirs, rel=1e-9)), (
            name
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_right_has_the_rows_of_the_whole_bench(call: str, dtype: str) -> None:
    subject = subject_of(call, dtype)
    has_sums = len({each.shape for each in subject.honest.values()}) > 1
    if has_sums and dtype == "float32":
        pytest.skip("sums in float32 are computed whole")

    found = tiled(subject, subject.honest)

    assert (found.forward, found.backward) == (Verdict.PASS, Verdict.PASS), found.message
    expected = whole(subject, subject.honest)
    assert found.message == expected.message
    for mine, other in zip(found.checks, expected.checks, strict=True):
        assert_alike(mine, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_wrong_has_the_rows_of_the_whole_bench(call: str, dtype: str) -> None:
    subject, rng = subject_of(call, dtype), np.random.default_rng(3)
    places = sorted(subject.honest)
    faults = ("element 1 RMS", "rows swapped", "row reversed", "all x 1.003")
    seen = 0
    for number, name in enumerate(faults):
        fault = edited(subject, places[number % len(places)], name, rng)
        if fault is None:
            continue
        expected = whole(subject, fault[2])
        found = check(subject, fault[2])
        assert (found.forward, found.backward) == (expected.forward, expected.backward), name
        seen += Verdict.ERROR in (expected.forward, expected.backward)
    assert seen >= 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_on_one_side_is_no_right_one(value: float) -> None:
    subject = subject_of("silu", "bfloat16")
    data = subject.honest["forward", 0].data.copy()
    data[3, 23, 39] = value

    found = check(subject, {**subject.honest, ("forward", 0): HostTensor("bfloat16", data)})

    assert found.forward is Verdict.ERROR
    assert "[3, 23, 39]" in found.message


@pytest.mark.parametrize(
    ("shape", "free"), [((4, 24, 40), 3), ((7,), 1), ((3, 5, 2, 300), 3), ((1, 9), 1)]
)
def test_tiles_hold_each_element_once_and_stay_small(shape: tuple[int, ...], free: int) -> None:
    subject = subject_of("silu", "float32")
    call = replace(subject.inputs.call, args=(HostTensor("float32", np.zeros(shape, np.float32)),))
    name, call = (
        ("Functional.silu", call)
        if free == len(shape)
        else ("Functional.softmax", replace(call, args=(*call.args, free)))
    )
    places = np.arange(int(np.prod(shape))).reshape(shape)

    found = rows.tiles_of(name, "pytorch", call, shape)

    assert found is not None
    cut = [tile.of(places).reshape(-1) for tile in found]
    assert [int(each[0]) for each in cut] == [tile.start for tile in found]
    assert np.array_equal(np.concatenate(cut), places.reshape(-1))
    assert max(map(len, cut)) <= max(100, int(np.prod(shape[free:])))


def test_tensors_that_are_no_part_of_the_result_are_not_cut() -> None:
    call = subject_of("a column added", "float32").inputs.call
    assert rows.tiles_of("Torch.add", "pytorch", call, (4, 24, 40)) is not None
    assert rows.tiles_of("Torch.add", "pytorch", call, (24, 40)) is None
    assert rows.tiles_of("Torch.sum", "pytorch", call, (4, 24, 40)) is None


def test_captured_calls_of_mindspore_have_the_verdicts_of_the_whole_bench() -> None:
    pytest.importorskip("mindspore")
    path = Path(__file__).parents[1] / "data" / "mindspore_llm_tensor" / "dump.json"
    tiled = mock.Mock(wraps=tiles.TiledCall)

    def checked(least: int) -> list[TaskResult]:
        standard = STANDARDS["auto"]()
        with open_dump(path) as dump, mock.patch.object(tiles, "LEAST_ELEMENTS", least):
            settings = CheckSettings(dump.framework, dump.task, dump.data_folder, standard=standard)
            checker = Checker(replace(settings, tests_dump=True), "cpu")
            tasks = plan_tasks(dump, dump.framework, set()).tasks
            return [checker.check(dump.payload(task)) for task in tasks]

    with mock.patch.object(tiles, "TiledCall", tiled):
        mine = checked(64)

    assert tiled.call_count >= 8
    for found, expected in zip(mine, checked(1 << 30), strict=True):
        assert (found.forward, found.backward) == (expected.forward, expected.backward)
        assert [each.message for each in found.checks] == [each.message for each in expected.checks]
