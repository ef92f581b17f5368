"""Statistics that a device computes while the program goes on, driven with tensors on the CPU."""

import json
from typing import Any

import pytest
import torch

from ray_precheck.capture.pytorch.tensors import values as of_values
from ray_precheck.capture.pytorch.tensors.values import MARK, DeviceValues, values_look

pytestmark = pytest.mark.frameworks

TENSORS = [
    torch.tensor([1.0, -2.0, 4.0]),
    torch.tensor([1.0, -2.0]).half(),
    torch.tensor([1.0, -2.0]).bfloat16(),
    torch.tensor([1.0, 3.0], dtype=torch.float64),
    torch.tensor(2.5, dtype=torch.float64),
    torch.tensor(7),
    torch.tensor([1, -5, 2**40]),
    torch.tensor([True, False]),
    torch.tensor([3 + 4j, 1j]),
    torch.tensor([float("nan"), 1.0]),
    torch.empty(0),
]


def fields(text: str) -> Any:
    return json.loads(f"{{{text}}}")


def test_they_are_those_of_the_host() -> None:
    look, _ = values_look("statistics")
    written: list[tuple[str, str]] = []
    values = DeviceValues(lambda text, key: written.append((key, text)))
    for index, tensor in enumerate(TENSORS):
        values.record(values.text(tensor), str(index))
    assert not written
    values.finish()
    assert [key for key, _ in written] == [str(index) for index in range(len(TENSORS))]
    for (_, text), tensor in zip(written, TENSORS, strict=True):
        found, expected = fields(text), fields(look(tensor))
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert type(found[name]) is type(value), (tensor, name)
            same = value is None or found[name] == pytest.approx(value, rel=1e-6, nan_ok=True)
            assert same, (tensor, name)


def test_records_keep_their_order_and_wait_for_no_later_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_values, "_BATCH", 2)
    written: list[str] = []
    values = DeviceValues(lambda text, key: written.append(key))
    first, second = values.text(torch.ones(2)), values.text(torch.zeros(2))
    values.record(f"{first} and {second}", "both")
    values.record(values.text(torch.ones(3)), "later")
    assert not written  # the batch was sent before the record came
    values.text(torch.ones(4))
    assert written == ["both", "later"]


def test_a_batch_that_is_under_way_is_waited_for_at_the_end_alone() -> None:
    class Event:
        passed = False

        def query(self) -> bool:
            return self.passed

        def synchronize(self) -> None:
            self.passed = True

    written: list[str] = []
    values = DeviceValues(lambda text, key: written.append(key))
    values.record(values.text(torch.ones(2)), "one")
    values._send()
    event = Event()
    values._under_way[0].events.append(event)
    values._receive(wait=False)
    assert not written
    assert not event.passed
    values.finish()
    assert written == ["one"]
    assert event.passed


def test_a_capture_of_a_device_is_that_of_the_cpu(
    captured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray_precheck.capture.pytorch.recorder import TorchRecorder

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU())
    x = torch.randn(5, 4)

    def action() -> None:
        model.zero_grad()
        model(x).square().sum().backward()

    plain = captured(action, level="mix", model=model)
    monkeypatch.setattr(TorchRecorder, "_values", lambda self, tensor: self._device.text(tensor))
    assert MARK not in json.dumps(plain)
    found = captured(action, level="mix", model=model)
    assert set(found) == set(plain)
    for key, record in plain.items():
        for name in ("input_args", "output", "input"):
            for ours, theirs in zip(found[key].get(name, []), record.get(name, []), strict=True):
                if ours is not None and "Max" in ours:
                    assert ours["Max"] == theirs["Max"]
                    assert ours["Norm"] == pytest.approx(theirs["Norm"], rel=1e-5)
