"""Arguments are told by their names where they are known."""

import pytest

from ray_precheck.operators.table import with_name

pytestmark = pytest.mark.unit
NORM = "Functional.batch_norm.0.forward"


@pytest.mark.parametrize(
    ("key", "path", "expected"),
    [
        (NORM, "input.6", "input.6 (momentum)"),
        (NORM, "input.6.0", "input.6.0 (momentum)"),
        ("MintFunctional.layer_norm.3.forward", "input.4", "input.4 (eps)"),
        # A keyword has its name; outputs, gradients, modules and unknown operators have none.
        *[(NORM, path, path) for path in ("input.eps", "output.0", "input.8", "input")],
        ("Functional.batch_norm.0.backward", "input.0", "input.0"),
        ("Module.bn.BatchNorm2d.forward.0", "input.0", "input.0"),
        ("Torch.mul.0.forward", "input.1", "input.1"),
    ],
)
def test_the_name_stands_behind_the_place(key: str, path: str, expected: str) -> None:
    assert with_name(key, path) == expected
