"""The yardstick of cheaper benches (`scripts/bench_verdicts`) sees what a bench misses, and nothing else."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ray_precheck.accuracy.standards.user_file import STANDARDS  # noqa: E402
from ray_precheck.numerics.arrays import root_mean_square  # noqa: E402
from scripts.bench_verdicts.benches import EXACT, WEAK, checker_of, known_settings  # noqa: E402
from scripts.bench_verdicts.faults import EDITS, edited, wrong_runs  # noqa: E402
from scripts.bench_verdicts.main import Yardstick, is_good, report  # noqa: E402
from scripts.bench_verdicts.records import EVERY, HARD, Known  # noqa: E402
from scripts.bench_verdicts.subject import Subject  # noqa: E402
from scripts.verdicts.cases import Case, DrawnArgument  # noqa: E402

pytestmark = pytest.mark.frameworks
_ARGS = DrawnArgument((48, 64)), DrawnArgument((32, 64)), DrawnArgument((32,))
_LINEAR = Known(Case("Functional.linear", _ARGS), 1e5, k=(0, -1), bias=2)
_OUTPUT = ("forward", 0)


def _subject(known: Known = _LINEAR, dtype: str = "float32", hard: str = "recorded") -> Subject:
    standard = STANDARDS["msprobe"]()
    checker, settings = checker_of(standard, EXACT), known_settings(standard, EXACT)
    subject = Subject(known, dtype, hard, 0, checker, settings)
    assert subject.cotangents
    return subject


def _judged(bench: str, standard: str) -> Yardstick:
    subject, rng = _subject(), np.random.default_rng(0)
    edits = [edited(subject, at, name, rng) for name in EDITS for at in sorted(subject.honest)]
    runs = wrong_runs(subject, 100, rng)
    stick = Yardstick(standard, bench)
    stick.judge(subject, [*filter(None, edits), *runs], [subject.computed(wide=False)])
    return stick


@pytest.mark.parametrize("standard", ["msprobe", "auto"])
def test_the_exact_bench_agrees_with_itself(standard: str) -> None:
    # The one side remembers the bench, its gradients and other implementations, the other does not.
    counts = _judged(EXACT, standard).counts
    assert counts.faults > 100
    assert counts.hits == counts.faults
    assert not counts.more
    assert not counts.skipped
    assert is_good(counts)


def test_a_bench_that_sees_every_16th_row_is_caught() -> None:
    counts = _judged(WEAK, "auto").counts
    assert 0 < counts.hits < 0.9 * counts.faults
    assert not is_good(counts)
    for name in ("NaN", "element 50 %", "rows swapped"):
        planted, found = counts.planted["fault", name], counts.found["fault", name]
        assert found < planted, name
    assert "missed: linear, float32, recorded, 0: " in report("auto", counts, verbose=True)


def test_no_fault_is_as_good_as_a_miss() -> None:
    assert not is_good(Yardstick("auto", EXACT).counts)


def test_an_element_is_off_by_5_percent_of_the_rms_and_nothing_else_is() -> None:
    subject = _subject()
    fault = edited(subject, _OUTPUT, "element 5 %, corner", np.random.default_rng(0))
    assert fault is not None
    right, wrong = subject.honest[_OUTPUT].data, fault[2][_OUTPUT].data
    off = (wrong - right).ravel()
    assert np.flatnonzero(off).tolist() == [right.size - 1]
    assert abs(off[-1]) == pytest.approx(0.05 * root_mean_square(right), rel=1e-3)
    for at in subject.honest:
        assert at == _OUTPUT or fault[2][at] is subject.honest[at]


def test_a_lost_tail_of_k_is_what_it_says() -> None:
    subject = _subject()
    found = {
        name: results for name, _, results in wrong_runs(subject, 100, np.random.default_rng(1))
    }
    call = subject.inputs.call
    data, weight, bias = (each.data.astype(np.float64) for each in call.args)
    for lost in (1, 8, 32):
        name = f"k without its last {lost}"
        wanted = data[:, :-lost] @ weight[:, :-lost].T + bias
        results = found.get(name) or found[f"{name}, one part"]
        right = np.abs(results[_OUTPUT].data - wanted).max(1) < 1e-4
        assert np.count_nonzero(right) == (len(right) if name in found else 1)


@pytest.mark.parametrize("hard", HARD)
def test_hard_inputs_are_those_of_both_sides(hard: str) -> None:
    subject = _subject(dtype="bfloat16", hard=hard)
    stick = Yardstick("auto", EXACT)
    stick.judge(subject, [], [])
    assert stick.counts.honest == 4
    assert not stick.counts.alarms[EXACT]
    assert np.isfinite(subject.inputs.call.args[0].data).all()


def test_records_have_distinct_names() -> None:
    labels = [each.label for each in EVERY]
    assert len(set(labels)) == len(labels)
