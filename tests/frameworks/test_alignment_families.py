"""The families of the alignment say of MindSpore's names what the bench says."""

import pytest

from ray_precheck.trace.alignment.calls import family_of

pytestmark = pytest.mark.frameworks

# Not one family, though the bench computes one with the other.
APART = {
    "Tensor.__invert__": "of truth values alone",
    "Tensor.equal": "in torch one truth value for two tensors",
    "Tensor.norm": "torch has Tensor.norm too",
    "Functional.bessel_k0": "rare",
    "Functional.bessel_k1": "rare",
    "Functional.bessel_k0e": "rare",
    "Functional.bessel_k1e": "rare",
    "Functional.truncate_div": "its rounding is an argument in torch",
    "Functional.inplace_index_add": "rare",
    # Copies and fills, which no program makes in both frameworks at the same places.
    **dict.fromkeys(
        "Tensor.copy Tensor.value Tensor.to_ Functional.identity Primitive.Identity".split(),
        "a copy",
    ),
    **dict.fromkeys("Tensor.fill Tensor.fills Functional.fills".split(), "a fill"),
    **dict.fromkeys(
        "Primitive.Assign Primitive.AssignAdd Primitive.AssignSub".split(), "an update"
    ),
}


def test_an_operator_of_mindspore_has_the_family_of_its_reference() -> None:
    from ray_precheck.frameworks.mindspore.bench.mapping import ROWS

    wrong = {}
    for name, rows in ROWS.items():
        target = rows[0].target
        if isinstance(target, str) and family_of(name) != family_of(target):
            wrong[name] = (target, family_of(name), family_of(target))
    assert wrong.keys() == APART.keys(), wrong
