"""Large products are judged by a sample, and by the whole bench where that leaves a doubt."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ray_precheck.accuracy.standards.user_file import STANDARDS  # noqa: E402
from ray_precheck.bench.run import Bench  # noqa: E402
from ray_precheck.check.checker import Checker  # noqa: E402
from ray_precheck.schema.result import TaskResult, Verdict  # noqa: E402
from ray_precheck.schema.values import HostTensor  # noqa: E402
from scripts.bench_verdicts.benches import EXACT, checker_of, known_settings  # noqa: E402
from scripts.bench_verdicts.faults import edited  # noqa: E402
from scripts.bench_verdicts.records import Known  # noqa: E402
from scripts.bench_verdicts.subject import Place, Subject, Tensors  # noqa: E402
from scripts.verdicts.cases import Case, DrawnArgument  # noqa: E402

pytestmark = pytest.mark.frameworks
T = DrawnArgument
CALLS = {
    "linear": Case("Functional.linear", (T((128, 256)), T((384, 256)), T((384,)))),
    "linear of samples": Case("Functional.linear", (T((2, 64, 256)), T((384, 256)))),
    "matmul": Case("Torch.matmul", (T((8, 64, 256)), T((8, 256, 96)))),
    "addmm": Case("Torch.addmm", (T((384,)), T((128, 256)), T((256, 384))), {"beta": 0.5}),
    "einsum": Case("Torch.einsum", ("bqd,dhk->bhqk", [T((2, 64, 256)), T((256, 4, 96))])),
    "convolution": Case("Functional.conv2d", (T((2, 64, 14, 14)), T((96, 64, 3, 3)), T((96,)), 1)),
    "transposed": Case("Functional.conv_transpose2d", (T((2, 64, 16, 16)), T((64, 96, 2, 2)))),
    "attention": Case(
        "Functional.scaled_dot_product_attention", (T((2, 16, 96, 32)),) * 3, {"is_causal": True}
    ),
}
DTYPES = ("float32", "bfloat16", "float16")


def subject_of(call: str, dtype: str, hard: str = "normal") -> Subject:
    standard = STANDARDS["msprobe"]()
    settings = known_settings(standard, EXACT)
    known = Known(CALLS[call], 2e7)
    subject = Subject(known, dtype, hard, 0, checker_of(standard, EXACT), settings)
    assert subject.cotangents
    return subject


def check(
    subject: Subject, results: Tensors, bench: str = "auto", name: str = "auto"
) -> TaskResult:
    checker = checker_of(STANDARDS[name](), bench)
    return checker.check(subject.payload, measured=subject.measured(results))


def benches(result: TaskResult) -> list[str]:
    """What the rows say of the bench."""
    return [str(dict(each.columns).get("Bench", "")) for each in result.checks]


def computes_nothing_whole() -> object:
    return mock.patch.object(Bench, "forward", side_effect=AssertionError("the whole bench"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_right_is_seen_without_the_whole_bench(call: str, dtype: str) -> None:
    subject = subject_of(call, dtype)

    with computes_nothing_whole():
        result = check(subject, subject.honest)

    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.PASS), result.message
    whole = check(subject, subject.honest, EXACT)
    assert set(benches(whole)) == {"exact"}
    for mine, other in zip(result.checks, whole.checks, strict=True):
        assert mine.shape == other.shape
        # The gradient of a bias is a sum, which is computed.
        assert (
            str(dict(mine.columns)["Bench"]).startswith("sampled 1/") or mine.shape.count(",") == 1
        )
        assert float(dict(mine.columns)["RMSE"]) == pytest.approx(
            dict(other.columns)["RMSE"], rel=0.25
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", CALLS)
def test_wrong_results_have_the_rows_of_the_whole_bench(call: str, dtype: str) -> None:
    subject, rng = subject_of(call, dtype), np.random.default_rng(3)
    faults = ("element 1 RMS", "rows swapped", "tile 16 0", "row reversed")
    places = sorted(subject.honest)
    seen = 0
    for number, name in enumerate(faults):
        place = places[number % len(places)]
        fault = edited(subject, place, name, rng)
        if fault is None:
            continue
        whole = check(subject, fault[2], EXACT)
        assert check(subject, fault[2]).checks == whole.checks, name
        seen += Verdict.ERROR in (whole.forward, whole.backward)
    assert seen >= 2


@pytest.mark.parametrize("call", ["linear", "convolution", "attention"])
@pytest.mark.parametrize("place", [("forward", 0), ("backward", 1)])
def test_samples_alone_name_the_wrong_element(call: str, place: Place) -> None:
    subject = subject_of(call, "bfloat16")
    data = subject.honest[place].data.copy()
    at = tuple(length - 3 if length > 3 else 0 for length in data.shape)
    data[at] += 4.0 * float(np.std(data))
    wrong = {**subject.honest, place: HostTensor("bfloat16", data)}

    with computes_nothing_whole():
        result = check(subject, wrong, "sampled")

    row = next(each for each in result.checks if each.verdict is Verdict.ERROR)
    assert row.name.endswith(f"{place[0]}.output.{place[1]}")
    assert f"at index {list(at)}" in row.message
    assert row.shape == str(data.shape)
    assert dict(row.columns)["Bench"].startswith("sampled 1/")


def test_samples_alone_say_where_they_leave_a_doubt() -> None:
    # So little in each element that no row shows it, and in one direction of the signs alone.
    subject = subject_of("attention", "float32")
    honest = subject.honest["forward", 0]
    data = honest.data.copy()
    data[:, 1::2] += 3e-6 * np.std(data) * np.sign(data[:, 1::2])
    wrong = {**subject.honest, ("forward", 0): HostTensor("float32", data)}
    result = check(subject, wrong, "sampled")
    assert result.forward in (Verdict.SKIP, Verdict.ERROR)
    if result.forward is Verdict.SKIP:
        assert "`--bench auto` computes it whole" in result.message


def test_infinities_and_nan_are_computed_whole() -> None:
    subject = subject_of("linear", "bfloat16")
    data = subject.honest["forward", 0].data.copy()
    data[5, 7] = np.nan
    result = check(subject, {**subject.honest, ("forward", 0): HostTensor("bfloat16", data)})
    assert result.forward is Verdict.ERROR
    assert set(benches(result)) == {"exact"}


def test_only_auto_is_sampled() -> None:
    subject = subject_of("linear", "float32")
    for bench, name in ((EXACT, "auto"), ("auto", "benchmark")):
        result = check(subject, subject.honest, bench, name)
        assert set(benches(result)) <= {"exact", ""}


def test_what_a_call_changes_is_computed_whole() -> None:
    known = Known(Case("Torch.Tensor.addmm_", (T((128, 384)), T((128, 256)), T((256, 384)))), 1e7)
    del known
    subject = subject_of("linear", "float32")
    payload = replace(subject.payload, name="Functional.linear_.0")
    checker: Checker = checker_of(STANDARDS["auto"](), "auto")
    assert checker.check(payload, measured=subject.measured(subject.honest)).checks == ()
