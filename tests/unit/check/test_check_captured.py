"""Captured results of a call, matched with what is computed."""

from dataclasses import replace

import numpy as np
import pytest

from ray_precheck.check.tested import captured_gradients, captured_outputs
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import (
    Constant,
    HostTensor,
    MappingSpec,
    SequenceSpec,
    TensorSpec,
    UnknownSpec,
    ValueSpec,
)

pytestmark = pytest.mark.unit

Shapes = list[tuple[int, ...] | None]


class Paths:
    """A source that notes which paths it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        self.asked.append(path)
        return HostTensor(spec.dtype, np.zeros(spec.shape, np.float32))


def record(
    outputs: tuple[ValueSpec, ...] = (), grads: tuple[ValueSpec, ...] | None = None
) -> ApiRecord:
    return ApiRecord(ApiName("Mint", "add", 0), (), (), outputs, grads_in=grads, grads_out=grads)


def tensor(*shape: int) -> TensorSpec:
    return TensorSpec("float32", shape)


def matched(grads: tuple[ValueSpec, ...], shapes: Shapes) -> dict[int, int]:
    """Return which computed gradient is compared with which captured one."""
    source = Paths()
    found = captured_gradients(record(grads=grads), source, shapes)
    assert source.asked == [f"backward output.{theirs}" for theirs, _ in found.values()]
    return {mine: theirs for mine, (theirs, _) in found.items()}


def test_outputs_are_flattened_as_a_backend_flattens_them() -> None:
    source = Paths()
    outputs = (
        tensor(2),
        SequenceSpec((tensor(3), Constant(None), SequenceSpec((tensor(4),)))),
        SequenceSpec((Constant(1), Constant(2))),
        Constant(True),
    )
    leaves = captured_outputs(record(outputs), source)
    assert leaves is not None
    assert [getattr(leaf, "shape", leaf) for leaf in leaves] == [
        (2,),
        (3,),
        None,
        (4,),
        [1, 2],
        True,
    ]
    assert source.asked == ["output.0", "output.1.0", "output.1.2.0"]


def test_the_groups_of_an_optimizer_are_flattened_in_their_order() -> None:
    states = MappingSpec(
        (("step", SequenceSpec((tensor(4),))), ("exp_avg", SequenceSpec((tensor(3),))))
    )
    group = MappingSpec((("params", SequenceSpec((tensor(2),))), ("state", states)))
    update = replace(record((group,)), name=ApiName("Optimizer", "AdamW", 0))
    source = Paths()
    leaves = captured_outputs(update, source)
    assert [getattr(leaf, "shape", leaf) for leaf in leaves or []] == [(2,), (3,), (4,)]
    assert source.asked == [
        "output.0.params.0",
        "output.0.state.exp_avg.0",
        "output.0.state.step.0",
    ]


def test_a_record_without_outputs_has_none() -> None:
    assert captured_outputs(record(), Paths()) is None


@pytest.mark.parametrize("output", [UnknownSpec("why"), MappingSpec((("a", tensor(2)),))])
def test_an_output_that_is_not_described_is_named(output: ValueSpec) -> None:
    with pytest.raises(NotCheckable, match=r"^output\.1: the dump does not describe"):
        captured_outputs(record((tensor(2), output)), Paths())


def test_gradients_match_by_position_where_both_lists_are_equally_long() -> None:
    assert matched((tensor(2), Constant(None), tensor(3)), [(2,), None, (3,)]) == {0: 0, 2: 2}


def test_a_gradient_that_only_was_computed_is_left_out() -> None:
    assert matched((Constant(None), tensor(3)), [(2,), (3,)]) == {1: 1}


def test_gradients_match_in_order_where_there_are_as_many_tensors() -> None:
    assert matched((Constant(None), tensor(2), tensor(3)), [(2,), None, None, (3,)]) == {0: 1, 3: 2}


@pytest.mark.parametrize("grads", [(), (Constant(None),), (SequenceSpec((tensor(2),)),)])
def test_a_dump_without_gradients_matches_nothing(grads: tuple[ValueSpec, ...]) -> None:
    assert matched(grads, [(2,)]) == {}


@pytest.mark.parametrize(
    ("grads", "shapes"),
    [
        ((tensor(3),), [(2,)]),
        ((tensor(2), tensor(2)), [(2,), (2,), (2,)]),
        ((tensor(2),), [None]),
        ((tensor(2), tensor(3)), [(3,), (2,)]),
    ],
)
def test_gradients_of_something_else_are_named_with_both_shapes(
    grads: tuple[ValueSpec, ...], shapes: Shapes
) -> None:
    with pytest.raises(
        NotCheckable, match=r"the captured gradients have shapes .* those of the call"
    ):
        matched(grads, shapes)
