"""Rules of roles at their limits: the first and the last dimension, defaults, too few classes."""

from dataclasses import replace

import pytest
from test_inputs_role_table import ARGS, GRAD, INDEX, ROOT, X, floats, ints, record

from ray_precheck.inputs.roles.role import (
    AtMost,
    Classes,
    Coordinates,
    Distinct,
    Indices,
    Parts,
    Ranked,
    Role,
    Within,
)
from ray_precheck.inputs.roles.rowwise import Causal
from ray_precheck.inputs.roles.table import roles_of
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.unit

BAG = floats(20, 3)
MASK = TensorSpec("bool", (7, 7))
OFFSETS = Parts(10, running=True, from_zero=True, open_end=True)
WEIGHT_ROWS = Indices(0, 19)
CASES: dict[str, tuple[ApiRecord, dict[str, Role]]] = {
    "gather beyond the last dimension": (record("Torch.gather", X, 2, INDEX), {}),
    "scatter along the first dimension": (
        record("Torch.scatter", X, -2, INDEX, X),
        {"2": Distinct(5, -2)},
    ),
    "scatter_nd with a list for its shape": (
        record("Functional.scatter_nd", ints(3, 2), floats(3), [5, 7]),
        {"0": Coordinates((5, 7))},
    ),
    "scatter_nd with a tensor in its shape": (
        record("Functional.scatter_nd", ints(3, 2), floats(3), [5, X]),
        {},
    ),
    "one_hot of a single number": (
        record("Functional.one_hot", ints(), -1, out=ints(6)),
        {"0": Indices(0, 5)},
    ),
    "one_hot with a second dimension": (
        record("Functional.one_hot", ints(3, 4), -1, out=ints(3, 4, 6)),
        {"0": Indices(0, 5)},
    ),
    "cross_entropy of one sample": (
        record("Functional.cross_entropy", floats(5), ints()),
        {"1": Classes(5, -100)},
    ),
    "embedding_bag": (
        record("Functional.embedding_bag", ints(10), BAG, ints(4)),
        {"0": WEIGHT_ROWS, "2": OFFSETS},
    ),
    "embedding_bag with the end of the last bag": (
        record("Functional.embedding_bag", ints(10), BAG, ints(4), include_last_offset=True),
        {"0": WEIGHT_ROWS, "2": replace(OFFSETS, open_end=False)},
    ),
    "embedding_bag of bags of one length": (
        record("Functional.embedding_bag", ints(4, 10), BAG, ints(4)),
        {"0": WEIGHT_ROWS},
    ),
    "segment_reduce by lengths": (
        record("Torch.segment_reduce", X, "sum", lengths=ints(3), axis=0),
        {"lengths": Parts(5)},
    ),
    "segment_reduce by offsets": (
        record("Torch.segment_reduce", X, "sum", offsets=ints(5, 3), axis=1),
        {"offsets": Parts(7, running=True, from_zero=True)},
    ),
    "segment_reduce along the first dimension": (
        record("Torch.segment_reduce", X, "sum", lengths=ints(3), axis=-2),
        {"lengths": Parts(5)},
    ),
    "segment_reduce before the first dimension": (
        record("Torch.segment_reduce", X, "sum", lengths=ints(3), axis=-3),
        {},
    ),
    "masked_scatter of a mask of one row": (
        record("Tensor.masked_scatter", X, TensorSpec("bool", (7,)), floats(11)),
        {"1": AtMost(2)},
    ),
    "repeat_interleave along the first dimension": (
        record("Torch.repeat_interleave", X, ints(5), dim=-2, out=floats(9, 7)),
        {"1": Parts(9)},
    ),
    "repeat_interleave before the first dimension": (
        record("Torch.repeat_interleave", X, ints(5), dim=-3, out=floats(9, 7)),
        {},
    ),
    "repeat_interleave of all elements": (
        record("Torch.repeat_interleave", X, ints(35), out=floats(70)),
        {"1": Parts(70)},
    ),
    "a subscript that is not there": (record("Tensor.__getitem__", X), {}),
    "a subscript of a number": (record("Tensor.__getitem__", 3, ints(3)), {}),
    "masked_fill of low scores": (record("Tensor.masked_fill", X, MASK, -1e4), {"1": Causal()}),
    "masked_fill of higher ones": (record("Tensor.masked_fill", X, MASK, -9999.0), {}),
    "a divisor from 0 on": (
        record("Tensor.addcdiv_", GRAD, GRAD, replace(ROOT, low=0.0)),
        {"2": Ranked(f"{ARGS}.1", GRAD)},
    ),
    "a divisor of another shape": (
        record("Tensor.addcdiv_", GRAD, GRAD, replace(ROOT, shape=(1,))),
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_argument_at_a_limit_has_the_role_of_its_side(name: str) -> None:
    call, expected = CASES[name]
    found = {path.split(".", 1)[1]: role for path, role in roles_of(call).items()}
    assert found == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((9, 4, 2), Within(1, 1, whole=True)),
        ((9, 1, 4), Within(1, 3, whole=True)),
        ((9, 4, 1), None),  # the blank alone
    ],
)
def test_targets_of_ctc_loss_are_classes_without_the_blank(
    shape: tuple[int, ...], expected: Role | None
) -> None:
    call = record("Functional.ctc_loss", floats(*shape), ints(4, 3), ints(4), ints(4))
    assert roles_of(call).get(f"{ARGS}.1") == expected
