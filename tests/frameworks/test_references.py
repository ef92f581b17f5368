"""The bench is what NumPy, SciPy and plain loops say (`bench_references`), and a test that it can fail."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

from bench_references import CASES, check_all, chosen, disagreement  # noqa: E402

from ray_precheck.bench.run import Bench  # noqa: E402

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


def test_every_bench_agrees_with_its_reference() -> None:
    assert len({case.api for case in CASES}) >= 300
    assert check_all(CASES) == []


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("layer_norm", "where the reference has"),
        ("Functional.one_hot", "shape"),
        ("topk", "outputs"),
    ],
)
def test_a_bench_that_differs_is_named(part: str, said: str) -> None:
    (case, *_) = chosen([part])
    right = case.reference

    def wrong(*args: object, **kwargs: object) -> object:
        found = right(*args, **kwargs)
        if part == "topk":
            return (*found, found[0])
        return found[..., :-1] if part.endswith("one_hot") else found * (1 + 1e-8)

    assert said in disagreement(replace(case, reference=wrong), Bench("pytorch"))
