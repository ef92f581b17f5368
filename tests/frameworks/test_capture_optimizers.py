"""Updates of optimizers are recorded as they are, one record for each step."""

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from optimizer_records import Lion, Mode, Records, captured, learn, recorded, small_model

from ray_precheck.capture.pytorch import updates
from ray_precheck.capture.pytorch.calls import CallMode
from ray_precheck.capture.pytorch.names import FunctionNames
from ray_precheck.capture.pytorch.probe import TorchModuleNames
from ray_precheck.capture.pytorch.updates import OptimizerSteps
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.dump.decode import decode_record
from ray_precheck.schema.values import MappingSpec

pytestmark = pytest.mark.frameworks

STATES = {
    "SGD": ["momentum_buffer"],
    "Adam": ["exp_avg", "exp_avg_sq", "step"],
    "AdamW": ["exp_avg", "exp_avg_sq", "step"],
    "Adafactor": ["col_var", "row_var", "step", "variance"],
    "Lion": ["exp_avg"],
}


def kind_of(name: str) -> Any:
    return Lion if name == "Lion" else getattr(torch.optim, name)


def plain(element: Any) -> Any:
    """Return the values of constants in the place of their descriptions."""
    if isinstance(element, list):
        return [plain(each) for each in element]
    if isinstance(element, dict) and set(element) == {"type", "value"}:
        return element["value"]
    if isinstance(element, dict):
        return {key: plain(each) for key, each in element.items()}
    return element


@pytest.mark.parametrize("name", STATES)
def test_each_step_has_a_record_with_what_was_before_and_after(name: str) -> None:
    options: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {}
    records = captured(kind_of(name), steps=2, **options)
    assert list(records.texts) == [f"Optimizer.{name}.{n}.forward" for n in range(2)]
    assert records.callers == ["learn", "learn"]
    first, second = (plain(records.record(f"Optimizer.{name}.{n}")) for n in range(2))
    (group,) = first["input_args"]
    assert group["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert "state" not in group
    assert (group["group"], group["param_dtype"]) == (0, "torch.float32")
    assert sorted(first["output"][0]["state"]) == STATES[name]
    assert first["input_kwargs"]["without_gradient"] == 0
    assert first["input_kwargs"]["optimizer"].endswith(f".{name}")
    # What the first step has made is what the second one gets.
    made = {stats(each) for group in first["output"] for each in group["params"]}
    given = {stats(each) for group in second["input_args"] for each in group["params"]}
    assert made == given
    states = {name for group in second["input_args"] for name in group["state"]}
    assert sorted(states) == STATES[name]


def stats(tensor: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(tensor["shape"]), tensor["Max"], tensor["Min"], tensor["Norm"]


def test_the_record_is_a_call_that_the_precheck_reads() -> None:
    payload = captured(torch.optim.AdamW, steps=2, lr=0.5).payload("Optimizer.AdamW.1")
    record = decode_record(payload.name, payload.forward, None, "pytorch")
    (group,) = record.args
    assert isinstance(group, MappingSpec)
    assert record.name.type_name == "Optimizer.AdamW"
    assert len(list(record.input_tensors())) == 4 * 5


def gradients_of(model: torch.nn.Module) -> Callable[[], torch.Tensor]:
    def closure() -> torch.Tensor:
        model.zero_grad()
        loss: torch.Tensor = model(torch.ones(2, 16)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return closure


@pytest.mark.parametrize("by_keyword", [False, True])
def test_the_gradients_that_a_closure_makes_are_those_of_the_step(by_keyword: bool) -> None:
    model, records, mode = small_model(), Records(), Mode()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []

    def closure() -> torch.Tensor:
        seen.append(mode.paused)
        return gradients_of(model)()

    with recorded(records, mode):
        optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
    record = plain(records.record("Optimizer.AdamW.0"))
    assert (seen, mode.paused) == ([False], False)
    assert record["input_kwargs"]["closure"] is True
    assert len(record["input_args"][0]["grads"]) == 4


def test_an_optimizer_that_calls_its_closure_often_has_one_record() -> None:
    model, records = small_model(), Records()
    optimizer: Any = torch.optim.LBFGS(model.parameters(), max_iter=3)
    with recorded(records):
        optimizer.step(gradients_of(model))
        optimizer.step(gradients_of(model))
    assert list(records.texts) == ["Optimizer.LBFGS.0.forward", "Optimizer.LBFGS.1.forward"]
    before = plain(records.record("Optimizer.LBFGS.1"))["input_args"]
    assert sorted(len(group["params"]) for group in before) == [1, 3]  # the first has all states


def test_the_calls_of_a_step_are_not_those_of_the_model() -> None:
    called: list[str] = []

    def see(call: SeenCall) -> Any:
        called.append(call.name.key)
        return call.run()

    model, records = small_model(), Records()
    mode = CallMode(FunctionNames(), see)
    optimizer = Lion(model.parameters())
    with mode, recorded(records, mode):
        learn(model, optimizer)
        before = list(called)
        optimizer.step()
        torch.ones(2).exp()
    assert before.count("Functional.linear") == 2
    assert called[len(before) :] == ["Torch.ones", "Tensor.exp"]
    assert not {"Tensor.mul_", "Tensor.sign_"} & set(called)


def test_parameters_without_a_gradient_are_counted_and_others_have_their_numbers() -> None:
    model, records = small_model(), Records()
    next(model.parameters()).requires_grad_(False)
    with recorded(records):
        learn(model, torch.optim.SGD(model.parameters(), lr=0.1))
    record = plain(records.record("Optimizer.SGD.0"))
    assert record["input_kwargs"]["without_gradient"] == 1
    assert record["input_args"][0]["names"] == ["1", "2", "3"]


def test_a_group_with_two_dtypes_stands_in_two_dicts() -> None:
    params = [torch.nn.Parameter(torch.ones(3, dtype=d)) for d in (torch.float32, torch.bfloat16)]
    groups: list[dict[str, Any]] = [{"params": params, "lr": 0.5}, {"params": []}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for param in params:
        param.grad = torch.ones_like(param)
    records = Records()
    with recorded(records):
        optimizer.step()
    written = plain(records.record("Optimizer.SGD.0"))["input_args"]
    found = [(group["param_dtype"], group["group"], group["lr"]) for group in written]
    assert found == [("torch.float32", 0, 0.5), ("torch.bfloat16", 0, 0.5)]


@pytest.mark.parametrize("way", [{"foreach": True}, {"fused": True}])
def test_every_way_to_compute_an_update_has_the_same_record(way: dict[str, bool]) -> None:
    def of(**options: Any) -> Any:
        record = plain(captured(torch.optim.AdamW, steps=2, **options).record("Optimizer.AdamW.1"))
        for group in record["input_args"]:
            group |= {"foreach": None, "fused": None}
        return dict(leaves(record))

    found, expected = of(**way), of(foreach=False)
    assert list(found) == list(expected)
    for place, each in expected.items():
        # Kernels round in different ways.
        near = pytest.approx(each, rel=1e-3, abs=1e-6) if isinstance(each, float) else each
        assert found[place] == near, place


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what stands in nested dicts and lists, with its place."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner:
        if isinstance(each, dict | list):
            yield from leaves(each, f"{path}.{key}")
        else:
            yield f"{path}.{key}", each


def test_a_large_optimizer_has_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def of() -> list[tuple[list[int], int, int]]:
        records = captured(torch.optim.AdamW, steps=1)
        found = [plain(json.loads(text)) for text in records.texts.values()]
        return [
            (
                [each["shape"][0] for group in record["input_args"] for each in group["params"]],
                record["input_kwargs"].get("part", -1),
                record["input_kwargs"].get("parts", -1),
            )
            for record in found
        ]

    assert of() == [([32, 32, 8, 8], -1, -1)]
    monkeypatch.setattr(updates, "MOST_PARAMETERS", 3)
    assert of() == [([32, 32, 8], 0, 2), ([8], 1, 2)]
    monkeypatch.setattr(updates, "MOST_ELEMENTS", 300)
    assert of() == [([32], 0, 2), ([32, 8, 8], 1, 2)]


def scaled_step(scaler: Any, model: Any, optimizer: Any, factor: float) -> None:
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(2, 16)).square().mean() * factor).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_has_no_record(fused: bool) -> None:
    model, records, mode = small_model(), Records(), Mode()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with recorded(records, mode):
        scaled_step(scaler, model, optimizer, float("inf"))
        assert (records.texts, mode.paused) == ({}, False)
        scaled_step(scaler, model, optimizer, 1.0)
    about = plain(records.record("Optimizer.AdamW.0"))["input_kwargs"]
    assert about.get("grad_scale", {}).get("Max") == (512.0 if fused else None)


def test_a_sparse_gradient_is_named() -> None:
    model, records = torch.nn.Embedding(10, 4, sparse=True), Records()
    with recorded(records, name_of=TorchModuleNames(model).of_parameter):
        model(torch.tensor([1, 3])).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    record = plain(records.record("Optimizer.SGD.0"))
    assert record["input_kwargs"]["sparse"] == ["weight"]
    assert record["input_args"][0]["grads"][0]["layout"] == "torch.sparse_coo"


def test_a_class_that_calls_the_step_of_its_base_has_one_record() -> None:
    class Base(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    class Derived(Base):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    model, records, mode = small_model(), Records(), Mode()
    Base(model.parameters(), lr=0.1), torch.optim.SGD(model.parameters())
    with recorded(records, mode):
        learn(model, Derived(model.parameters(), lr=0.1))
    assert (list(records.texts), mode.paused) == (["Optimizer.Derived.0.forward"], False)


def test_a_step_that_raises_has_no_record_and_the_next_one_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing(Lion):
        fails = True

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            if self.fails:
                raise RuntimeError("no memory")
            super().step(closure)

    model, records, mode = small_model(), Records(), Mode()
    optimizer = Failing(model.parameters())
    with recorded(records, mode):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no memory"):
                learn(model, optimizer)
        assert records.texts == {}
        optimizer.fails = False
        learn(model, optimizer)
        assert (len(records.texts), mode.paused) == (1, False)
        optimizer.fails = True
        with pytest.raises(RuntimeError, match="no memory"):
            learn(model, optimizer)
    assert (len(records.texts), mode.paused) == (1, False)


def test_a_capture_that_ends_in_a_hook_after_the_step_has_its_record() -> None:
    """The first step of the next optimizer ends the captured step, from a hook of the session's."""
    model, records, mode = small_model(), Records(), Mode()
    sink: Any = records
    steps = OptimizerSteps(sink, cast("Any", mode), lambda _: "", are_recorded=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(steps.before)
    optimizer.register_step_post_hook(lambda *_: steps.close())
    learn(model, optimizer)
    assert (list(records.texts), mode.paused) == (["Optimizer.SGD.0.forward"], False)
    assert records.forgotten == 1


def test_a_step_that_is_out_of_scope_has_no_record() -> None:
    model, records = small_model(), Records()
    records.refused = {"Optimizer.SGD.0.forward"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(records):
        learn(model, optimizer)
        learn(model, optimizer)
    assert list(records.texts) == ["Optimizer.SGD.1.forward"]


def test_options_of_the_optimizer_itself_are_told() -> None:
    model, records = small_model(), Records()
    optimizer = Lion(model.parameters())
    optimizer.decoupled_wd = True  # type: ignore[attr-defined]
    with recorded(records):
        learn(model, optimizer)
    assert plain(records.record("Optimizer.Lion.0"))["input_kwargs"]["options"] == {
        "decoupled_wd": True
    }
