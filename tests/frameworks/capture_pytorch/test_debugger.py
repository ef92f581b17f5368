"""PrecisionDebugger under msprobe's name."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ray_precheck.capture import PrecisionDebugger  # noqa: E402
from ray_precheck.capture.pytorch.tensors.values import sliced, values_look  # noqa: E402
from ray_precheck.capture.settings import TensorSlice  # noqa: E402
from ray_precheck.errors import UsageError  # noqa: E402

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("one_debugger")]


def made(tmp_path: Path, **found: Any) -> Any:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"dump_path": str(tmp_path / "dump"), "risk_level": "ALL", **found}))
    # Another test of this process may have imported MindSpore, too.
    return PrecisionDebugger(str(path), framework="pytorch")


def records(tmp_path: Path, step: int = 0, file: str = "dump.json") -> dict[str, Any]:
    (found,) = (tmp_path / "dump").glob(f"step{step}/*/{file}")
    return dict(json.loads(found.read_text())["data"])


def test_what_runs_between_starts_and_stops_of_a_step_is_one_dump(tmp_path: Path) -> None:
    debugger = made(tmp_path)
    x = torch.ones(2, requires_grad=True)
    debugger.start()
    y = torch.exp(x)
    debugger.stop()
    torch.neg(x)
    PrecisionDebugger.start()
    torch.exp(x)
    PrecisionDebugger.stop()
    y.sum().backward()  # recorded as with msprobe, because the call was
    debugger.step()
    found = records(tmp_path)
    assert {key for key in found if key.startswith("Torch")} == {
        "Torch.exp.0.forward",
        "Torch.exp.0.backward",
        "Torch.exp.1.forward",
    }
    debugger.start()
    torch.neg(x)
    debugger.stop()
    debugger.step()
    assert list(records(tmp_path, 1)) == ["Torch.neg.0.forward"]


def test_a_second_debugger_is_the_first_one(tmp_path: Path) -> None:
    debugger = made(tmp_path)
    assert PrecisionDebugger("nowhere.json") is debugger


def test_methods_without_a_debugger_say_what_to_do() -> None:
    with pytest.raises(UsageError, match="make one before"):
        PrecisionDebugger.start()


def test_steps_are_those_of_the_configuration(tmp_path: Path) -> None:
    debugger = made(tmp_path, step=[1])
    for _ in range(3):
        debugger.start()
        torch.neg(torch.ones(2))
        debugger.stop()
        debugger.step()
    assert [path.name for path in (tmp_path / "dump").glob("step*")] == ["step1"]


def test_the_risk_level_leaves_out_views_by_default(tmp_path: Path) -> None:
    debugger = made(tmp_path, risk_level="FOCUS")
    debugger.start()
    torch.neg(torch.cat([torch.ones(2), torch.ones(2)]))
    debugger.step()
    assert list(records(tmp_path)) == ["Torch.neg.0.forward"]


def test_functions_of_the_script_are_recorded_while_they_are_registered(tmp_path: Path) -> None:
    class Mine:
        @staticmethod
        def double(x: Any) -> Any:
            return torch.add(x, x)

    debugger, x = made(tmp_path), torch.ones(2)
    debugger.register_custom_api(Mine, "double", "Mine")
    debugger.start()
    Mine.double(x)
    debugger.restore_custom_api(Mine, "double")
    Mine.double(x)
    debugger.step()
    assert list(records(tmp_path)) == ["Mine.double.0.forward", "Torch.add.0.forward"]


def test_values_are_saved_by_name_with_their_gradients(tmp_path: Path) -> None:
    debugger = made(tmp_path, level="debug")
    x = torch.ones(2, requires_grad=True)
    debugger.save({"x": x, "n": 3}, "start")
    (x * 2).sum().backward()
    debugger.step()
    found = records(tmp_path, file="debug.json")
    assert found["start.0.debug"]["n"] == {"type": "int", "value": 3}
    assert found["start.0.debug"]["x"]["Max"] == 1.0
    assert found["start_grad.0.debug"]["x"]["Max"] == 2.0


def test_dump_enable_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray_precheck.capture import debugger as module

    monkeypatch.setattr(module, "_INTERVAL_OFF_S", 0.0)
    debugger = made(tmp_path, dump_enable=False)
    debugger.start()
    torch.neg(torch.ones(2))
    debugger.stop()
    debugger.step()
    assert not (tmp_path / "dump").exists()
    found = {"dump_path": str(tmp_path / "dump"), "risk_level": "ALL", "dump_enable": True}
    (tmp_path / "config.json").write_text(json.dumps(found))
    debugger.start()
    torch.neg(torch.ones(2))
    debugger.stop()
    debugger.step()
    assert len(list((tmp_path / "dump").glob("*/*/dump.json"))) == 1


def test_a_range_of_tokens_is_counted_by_calls_of_the_model(tmp_path: Path) -> None:
    debugger = made(tmp_path)
    model = torch.nn.ReLU()
    debugger.start(model, token_range=[1, 2])
    for _ in range(5):
        model(torch.ones(2))
    debugger.stop()
    debugger.step()
    assert [key for key in records(tmp_path) if "relu" in key] == [
        "Functional.relu.0.forward",
        "Functional.relu.1.forward",
    ]


def test_an_entry_of_the_list_that_met_no_call_is_named_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one_debugger: Callable[[], None]
) -> None:
    debugger = made(tmp_path, task="statistics", statistics={"list": ["Torch.expp"]})
    debugger.start()
    torch.exp(torch.ones(2))
    debugger.stop()
    debugger.step()
    one_debugger()
    said = capsys.readouterr().err
    assert "'Torch.expp' of the scope or list met no call; the nearest names are Torch.exp" in said


def test_checksums_are_those_of_the_bytes() -> None:
    values = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t()
    raw = values.contiguous().view(torch.uint8).numpy().tobytes()
    with_md5, ordered = values_look("md5")
    assert ordered
    assert with_md5(values).endswith(f'"md5": "{zlib.crc32(raw):08x}"')
    with_xor, _ = values_look("xor")
    words = raw.ljust(16, b"\0")
    expected = int.from_bytes(words[:8], "little") ^ int.from_bytes(words[8:], "little")
    assert with_xor(values) == f'"md5": "0x{expected:016x}"'
    assert with_xor(torch.tensor(1.5)) == '"md5": 1.5'
    assert with_xor(torch.empty(0)) == '"md5": null'
    assert with_xor(torch.tensor(1 + 0j)) == '"md5": "0x000000003f800000"'


def test_a_slice_is_cut_where_the_dimension_and_its_size_fit() -> None:
    x = torch.arange(24.0).reshape(4, 6).requires_grad_()
    part = sliced(x, [TensorSlice(dim=0, begin=1, end=3), TensorSlice(dim=1, begin=2, size=5)])
    assert part.shape == (2, 6)
    assert part.requires_grad
    assert sliced(x, [TensorSlice(dim=2)]) is x
    negative = sliced(x, [TensorSlice(dim=1, begin=-2)])
    assert negative.shape == (4, 2)
