"""Honest results of inputs on which implementations differ by more than rounding after each step."""

import pytest

torch = pytest.importorskip("torch")

from ray_precheck.accuracy.standards.auto import Auto  # noqa: E402
from ray_precheck.schema.result import Verdict  # noqa: E402
from scripts.bench_verdicts.benches import EXACT, checker_of, known_settings  # noqa: E402
from scripts.bench_verdicts.records import EVERY  # noqa: E402
from scripts.bench_verdicts.subject import Subject  # noqa: E402

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize(
    ("label", "dtype", "hard", "seed"),
    [
        # A fused backward pass has the log-sum-exp of scores up to 10^4 in float32.
        ("scaled_dot_product_attention llama-3 gqa", "float32", "one huge row", 0),
        # In rows of zeros all results are 1/768, which bfloat16 rounds in one direction.
        ("softmax", "bfloat16", "zero rows", 0),
        ("softmax", "bfloat16", "zero rows", 5),
        # The 54 smallest gradients are all of one channel, and share the error of its mean.
        ("batch_norm", "bfloat16", "mean beyond std", 0),
    ],
)
def test_torchs_own_results_are_not_accused(label: str, dtype: str, hard: str, seed: int) -> None:
    known = next(each for each in EVERY if each.label == label)
    checker = checker_of(Auto(), EXACT)
    settings = known_settings(Auto(), EXACT)
    subject = Subject(known, dtype, hard, seed, checker, settings)
    assert subject.cotangents
    results = subject.honest if dtype == "float32" else subject.computed(wide=False)
    found = checker.check(subject.payload, measured=subject.measured(results))
    assert (found.forward, found.backward) == (Verdict.PASS, Verdict.PASS), found.message
