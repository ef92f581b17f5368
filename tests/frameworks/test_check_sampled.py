"""Large products are judged by a sample, and by the whole bench where that leaves a doubt."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ray_precheck.accuracy.standards.user_file import STANDARDS  # noqa: E402
from ray_precheck.bench.run import Bench  # noqa: E402
from ray_precheck.capture import Capture  # noqa: E402
from ray_precheck.check.checker import Checker  # noqa: E402
from ray_precheck.check.settings import CheckSettings  # noqa: E402
from ray_precheck.dump.parse import open_dump  # noqa: E402
from ray_precheck.schema.result import TaskResult, Verdict  # noqa: E402
from ray_precheck.schema.task import Task  # noqa: E402
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
    "masked": Case(
        "Functional.scaled_dot_product_attention",
        (*(T((2, 16, 96, 32)),) * 3, T((96, 96), grad=False)),
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


def test_samples_alone_say_where_they_leave_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    # No whole is as good as a sample then.
    monkeypatch.setattr("ray_precheck.check.sampled.parts._ALIKE", 1e-3)
    subject = subject_of("linear", "float32")
    with computes_nothing_whole():
        result = check(subject, subject.honest, "sampled")
    assert (result.forward, result.backward) == (Verdict.SKIP, Verdict.PASS)
    assert "`--bench auto` computes it whole" in result.message
    # That of the bias is a sum, and passes; the others are named all the same.
    assert [each.verdict for each in result.checks] == [Verdict.SKIP] * 3 + [Verdict.PASS]
    assert "backward.output.1: in doubt" in result.message

    assert set(benches(check(subject, subject.honest))) == {"exact"}


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


def test_features_that_are_exchanged_within_their_sums_are_seen() -> None:
    # Sums without signs stay the same.
    subject = subject_of("linear", "bfloat16")
    data = subject.honest["forward", 0].data.copy()
    apart = data.shape[1] // 8
    some, others = slice(100, 104), slice(100 + apart, 104 + apart)
    data[:, some], data[:, others] = data[:, others].copy(), data[:, some].copy()
    result = check(subject, {**subject.honest, ("forward", 0): HostTensor("bfloat16", data)})
    assert result.forward is Verdict.ERROR


def _trained() -> None:
    """A step whose linear, convolution and attention are large."""
    functional = torch.nn.functional
    torch.manual_seed(0)

    def drawn(*shape: int) -> "torch.Tensor":
        return torch.randn(*shape, requires_grad=True)

    heads = [drawn(2, 16, 96, 32) for _ in range(3)]
    results = (
        functional.linear(drawn(2, 64, 256), drawn(384, 256), drawn(384)),
        functional.conv2d(drawn(2, 64, 14, 14), drawn(96, 64, 3, 3), drawn(96)),
        functional.scaled_dot_product_attention(*heads, is_causal=True),
    )
    torch.stack([each.square().mean() for each in results]).sum().backward()


@pytest.mark.parametrize("spoils", [False, True])
def test_captured_results_and_gradients_are_sampled(tmp_path: Path, spoils: bool) -> None:
    with Capture(tmp_path, task="tensor", step_by="manual", framework="pytorch", stacks=False):
        _trained()
    (path,) = tmp_path.glob("step0/*/dump.json")
    if spoils:
        (file,) = path.parent.glob("dump_tensor_data/*linear.0.backward.output.1.pt")
        gradient = torch.load(file)
        gradient[100, 200] += 0.01 * gradient.std()
        torch.save(gradient, file)
    with open_dump(path) as dump:
        options = {"standard": STANDARDS["auto"](), "tests_dump": True}
        checker = Checker(CheckSettings("pytorch", "tensor", dump.data_folder, **options), "cpu")
        wanted = {"linear", "conv2d", "scaled_dot_product_attention"}
        payloads = [dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)]
        results = [checker.check(each) for each in payloads if each.name.split(".")[1] in wanted]

    assert len(results) == 3
    for result in results:
        is_wrong = spoils and "linear" in result.name
        assert result.forward is Verdict.PASS, result.message
        assert result.backward is (Verdict.ERROR if is_wrong else Verdict.PASS), result.message
        assert len(result.checks) == 4
        assert ("exact" not in benches(result)[:2]) is not is_wrong


def test_a_call_that_is_examined_has_the_whole_bench_beside_it() -> None:
    # What `repro` saves, and a replay shows.
    subject = subject_of("linear", "float32")
    checker = checker_of(STANDARDS["auto"](), "auto")
    result, judged = checker.examine(subject.payload)
    assert judged is not None
    assert set(benches(result)) == {"exact"}
    assert all(isinstance(row.bench, HostTensor) for row in judged.rows)
