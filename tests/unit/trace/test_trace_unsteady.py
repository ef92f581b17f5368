"""Which parameters honest updates move by nothing but rounding."""

from ray_precheck.capture.recording.arguments import without_names
from ray_precheck.trace.difference.unsteady import unsteady_parameters
from ray_precheck.trace.items import items_of


def _tensor(*numbers: float) -> dict[str, object]:
    names = dict(zip(("Max", "Min", "Norm"), numbers, strict=True))
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Mean": 0.0, **names}


def _update(before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
    group = {"lr": {"type": "float", "value": 0.01}, "params": [before]}
    group["grads"] = [_tensor(1e-9, -1e-9, 2e-9)]
    return {"input_args": [group], "input_kwargs": {}, "output": [{"params": [after]}]}


def test_a_parameter_before_its_first_update_lends_its_mark_to_no_other_tensor() -> None:
    key = "Optimizer.Adam.0.forward"
    zero, moved = _tensor(0.0, 0.0, 0.0), _tensor(0.01, -0.01, 0.02)
    items = items_of(_update(zero, moved), key)
    found = unsteady_parameters(items, items, 1, is_plain=False)
    assert list(found) == [(4, 0.01, -0.01, 0.02, "")]
    items = items_of(_update(zero, zero), key)
    assert unsteady_parameters(items, items, 1, is_plain=False) == {}


def test_names_with_quotes_are_left_out_of_a_record_that_is_sought() -> None:
    assert without_names(r', "argument": "a\"b", "stride": [1]') == ', "stride": [1]'
