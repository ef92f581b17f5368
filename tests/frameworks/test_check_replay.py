"""Calls whose captured results are not finite are replayed on the CPU: msprobe 8's `run_overflow_check`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_precheck.capture import Capture
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.settings import CheckSettings
from ray_precheck.cli import main
from ray_precheck.commands.overflow.replay import ReplayOpener, overflowed, replay_overflows
from ray_precheck.dump.parse import open_dump
from ray_precheck.replay.config import RunConfig
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.task import DeviceSlot, Task
from ray_precheck.store.tables import decode_row

pytestmark = pytest.mark.frameworks
SLOT = DeviceSlot("cpu", 0, "node", "here", "")


def dump_of(folder: Path, action: Any, **options: Any) -> Path:
    with Capture(folder, step_by="manual", framework="pytorch", **options):
        action()
    (dump,) = folder.glob("step0/*/dump.json")
    return dump


def replayed(path: Path) -> dict[str, list[str]]:
    """Return the cells of each call that overflowed, replayed in this process."""
    with open_dump(path) as dump:
        dump.calls = overflowed(dump)
        options = CheckOptions(tested="device")
        settings = CheckSettings("pytorch", dump.task, dump.data_folder, options)
        runner = ReplayOpener(settings).open(SLOT, lambda phase: None)
        found = {}
        for index, call in enumerate(dump.calls):
            done = runner.run(dump.payload(Task(index, call.name, 1.0)), Stage.CHECK)
            found[call.name] = decode_row(done.row)[1:]
        return found


def step() -> None:
    x = torch.ones(4, requires_grad=True)
    (torch.exp(x * 1000) + 1).sum()
    torch.neg(x)
    torch.sqrt(x * 0).sum().backward()


def test_a_result_that_the_cpu_has_too_is_a_normal_overflow(tmp_path: Path) -> None:
    found = replayed(dump_of(tmp_path, step, task="tensor"))
    assert "Torch.neg.0" not in found
    forward, _, message = found["Torch.exp.0"]
    assert (forward, message) == (
        "pass",
        "forward: normal overflow: the CPU's result is not finite either",
    )
    assert found["Torch.sqrt.0"][1] == "pass"
    assert "backward: normal overflow" in found["Torch.sqrt.0"][2]


def test_a_result_that_the_cpu_does_not_have_is_abnormal(tmp_path: Path) -> None:
    path = dump_of(tmp_path, lambda: torch.exp(torch.ones(4)), task="tensor")
    text = json.loads(path.read_text())
    (key,) = (each for each in text["data"] if "exp" in each)
    text["data"][key]["output"][0]["Max"] = float("inf")
    path.write_text(json.dumps(text))
    assert replayed(path)["Torch.exp.0"] == [
        "error",
        "",
        "forward: abnormal overflow: the CPU's result is finite",
    ]


def test_nan_that_statistics_cannot_give_back_is_not_judged(tmp_path: Path) -> None:
    def action() -> None:
        torch.neg(torch.tensor([1.0, torch.nan]))

    verdict, _, message = replayed(dump_of(tmp_path, action))["Torch.neg.0"]
    assert verdict == "SKIP"
    assert message.startswith("Torch.neg.0.forward.input.0 held NaN")


def test_a_dump_whose_results_are_finite_starts_nothing(tmp_path: Path) -> None:
    path = dump_of(tmp_path / "dump", lambda: torch.neg(torch.ones(3)))
    report = replay_overflows(RunConfig(dump=path, out=tmp_path / "out"))
    assert (report.files, report.completed) == (None, True)
    assert not (tmp_path / "out").exists()


def test_the_command_tells_an_abnormal_overflow_as_data(tmp_path: Path) -> None:
    path = dump_of(tmp_path / "dump", lambda: torch.exp(torch.ones(4)), task="tensor")
    text = json.loads(path.read_text())
    (key,) = (each for each in text["data"] if "exp" in each)
    text["data"][key]["output"][0]["Max"] = float("inf")
    path.write_text(json.dumps(text))
    found = tmp_path / "found.json"
    words = ["run_overflow_check", "-api_info", str(path), "-o", str(tmp_path / "out")]
    assert main([*words, "--json", str(found)]) == 1
    (view,) = json.loads(found.read_text())["views"]
    assert (view["exit_code"], view["state"]) == (1, "finished")
    (card,) = view["cards"]
    assert (card["name"], card["why"]) == (
        "Torch.exp.0",
        "forward: abnormal overflow: the CPU's result is finite.",
    )
    assert card["source"].startswith(f"{__file__}:")
    assert [line["text"].strip() for line in card["code"] if line["is_here"]] == [
        'path = dump_of(tmp_path / "dump", lambda: torch.exp(torch.ones(4)), task="tensor")'
    ]
    (given,) = card["inputs"]
    assert given["value"].startswith("float32 [4]")
    assert "max inf" in card["facts"][0]["value"]
    assert card["reproduce"] in view["advice"][0]["commands"]
