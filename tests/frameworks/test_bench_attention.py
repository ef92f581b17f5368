"""Sums of the columns of attention are those of torch's results."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ray_precheck.bench.attention import sums_of_attention  # noqa: E402
from ray_precheck.bench.products import sums_of_rows  # noqa: E402

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_sums_of_columns_are_those_of_the_results(is_causal: bool, scale: float | None) -> None:
    rng = np.random.default_rng(0)
    # 200 rows are two tiles, and 20 columns no multiple of 8.
    query, key = (rng.normal(size=(2, 3, 200, 32)) for _ in range(2))
    value, incoming = (rng.normal(size=(2, 3, 200, 20)) for _ in range(2))
    inner, outer = rng.choice([-1.0, 1.0], (8, 4)), rng.choice([-1.0, 1.0], (8, 3))

    output, gradients = sums_of_attention(
        (query, key, value), incoming, (inner, outer), is_causal=is_causal, scale=scale
    )

    given = [torch.tensor(each, requires_grad=True) for each in (query, key, value)]
    result = torch.nn.functional.scaled_dot_product_attention(
        *given, is_causal=is_causal, scale=scale
    )
    expected = [result, *torch.autograd.grad(result, given, torch.tensor(incoming))]
    signs = (outer, inner, inner, outer)
    for mine, theirs, its in zip((output, *gradients), expected, signs, strict=True):
        sums = sums_of_rows(theirs.detach().numpy(), 3, its)
        assert np.allclose(mine, sums, rtol=0, atol=1e-12)
