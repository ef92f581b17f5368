"""What values are called in messages, and factors between two tensors."""

import pytest

from ray_precheck.commands.locate.walk.naming import factor_between, value_in_words
from ray_precheck.trace.items import Item
from tests.unit.commands.locate.run_records import MeasuredForTest, record, tensor, walked

pytestmark = pytest.mark.unit


def _item(number: float, **more: object) -> Item:
    return Item("input.0", "input", {**tensor(number), **more})


@pytest.mark.parametrize(
    ("target", "factor"), [(2.0, 2.0), (0.25, 0.25), (1.7, 1.7), (1.00001, None)]
)
def test_one_ratio_of_all_statistics_is_a_factor(target: float, factor: float | None) -> None:
    found = factor_between(_item(target), _item(1.0))
    assert found == (None if factor is None else pytest.approx(factor))


def test_a_turned_sign_turns_max_and_min() -> None:
    turned = _item(1.0, Max=1.0, Min=-2.0, Mean=-0.25, Norm=4.0)
    assert factor_between(turned, _item(1.0)) == pytest.approx(-2.0)


def test_other_values_have_no_factor() -> None:
    assert factor_between(_item(2.0, Mean=0.1), _item(1.0)) is None
    assert factor_between(_item(2.0, Min=-0.5), _item(1.0)) is None


def test_a_single_element_has_one_where_it_is_a_small_number() -> None:
    one = {"shape": [], "Min": 1.0, "Mean": 1.0, "Norm": 1.0}
    for number, factor in ((4.0, 4.0), (1 / 8, 1 / 8), (1.37, None)):
        other = {"shape": [], "Min": number, "Mean": number, "Norm": number}
        assert factor_between(_item(number, **other), _item(1.0, **one)) == factor


def test_values_of_an_update_are_called_by_their_parameters() -> None:
    group = {
        "names": [{"type": "str", "value": "module.n.weight"}],
        "grads": [tensor(1.0)],
        "betas": [{"type": "float", "value": 0.9}],
    }
    update = record("Optimizer.Adam.0.forward", [group], [{"params": [tensor(2.0)]}])
    called = {item.path: value_in_words(update, item) for item in update.items}
    assert called["input.0.grads.0"] == (
        "the gradient of n.weight (Optimizer.Adam.0.forward.input.0.grads.0)"
    )
    assert called["output.0.params.0"].startswith("the parameter n.weight (")
    assert called["input.0.betas.0"] == "Optimizer.Adam.0.forward.input.0.betas.0"


def test_views_of_a_buffer_that_a_later_call_only_writes_into_are_nobodys_error() -> None:
    view, copy = "Tensor.view.0.forward", "fsdp.split_with_sizes_copy.0.forward"
    run = [
        record(view, [tensor(7e30)], [tensor(7e30, shape=(2, 8))]),
        record(copy, [tensor(1.0)], [], out=[tensor(7e30, shape=(2, 8))]),
    ]
    differences = {(view, "input.0"): 1e30, (view, "output.0"): 1e30, (copy, "input.out.0"): 1e30}
    assert walked(run, MeasuredForTest(differences=differences), run).roots == []
    # Of a call that reads its input the same is an error.
    reads = [run[0], record("Torch.exp.0.forward", [tensor(7e30, shape=(2, 8))], [tensor(1.0)])]
    assert walked(reads, MeasuredForTest(differences=differences), reads).roots != []
