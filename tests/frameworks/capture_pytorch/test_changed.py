"""The tensors that a call changes stand in its record as it left them, and are checked."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from records import capture_settings, payloads_of
from torch.nn.functional import batch_norm

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.capture import Capture
from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import TaskResult, Verdict

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
TASKS = pytest.mark.parametrize("task", ["tensor", "statistics"])
Records = dict[str, dict[str, Any]]


def captured(folder: Path, program: Callable[[], object], task: str) -> tuple[Path, Records]:
    with Capture(folder, step_by="manual", framework="pytorch", task=task):
        program()
    dump = folder / "step0" / f"proc{os.getpid()}"
    return dump, json.loads((dump / "dump.json").read_text())["data"]


def changes(records: Records) -> dict[str, list[str]]:
    """Return the paths of what each call changed; calls that say nothing of it are left out."""
    return {
        key.removesuffix(".forward"): list(record["changed"])
        for key, record in records.items()
        if "changed" in record
    }


def network() -> Callable[[], None]:
    """Return a step of layers that keep statistics, renormalise their weight, and evaluate."""
    torch.manual_seed(0)
    norm, planes = torch.nn.BatchNorm1d(3), torch.nn.InstanceNorm1d(3, track_running_stats=True)
    average = torch.nn.BatchNorm1d(3, momentum=None)
    plain = torch.nn.BatchNorm1d(3, track_running_stats=False)
    words = torch.nn.Embedding(5, 3, max_norm=0.5)
    half, mixed = torch.nn.BatchNorm1d(3).bfloat16(), torch.nn.BatchNorm1d(3)

    def step() -> None:
        x = torch.randn(8, 3)
        norm(average(plain(x))).sum().backward()
        planes(torch.randn(4, 3, 5))
        words(torch.tensor([1, 2]))
        half(x.bfloat16())
        batch_norm(x.half(), mixed.running_mean, mixed.running_var, training=True)
        norm.eval()(x)
        with torch.inference_mode():
            average(x)

    return step


@TASKS
def test_running_statistics_and_weights_stand_in_the_records_and_pass(
    task: str, tmp_path: Path
) -> None:
    dump, records = captured(tmp_path, network(), task)
    both = ["input_args.1", "input_args.2"]
    assert changes(records) == {
        **{f"Functional.batch_norm.{n}": both for n in (1, 2, 3, 4, 6)},
        "Functional.batch_norm.5": [],  # evaluated; the first one has no statistics
        "Functional.instance_norm.0": both,
        "Functional.embedding.0": ["input_args.1"],
    }
    results = checked(dump)
    names = {check.name: check for result in results for check in result.checks}
    for key, paths in changes(records).items():
        found = {name for name in names if name.startswith(f"{key}.forward.changed.")}
        assert len(found) == len(paths), names
    assert [each.message for each in results if each.forward is Verdict.ERROR] == []


def checked(dump: Path, **options: Any) -> list[TaskResult]:
    settings = replace(capture_settings(str(dump), standard=STANDARDS["auto"]()), **options)
    checker = Checker(settings, "cpu")
    return [checker.check(payload) for payload in payloads_of(str(dump))]


def test_the_values_are_those_after_the_call(tmp_path: Path) -> None:
    norm = torch.nn.BatchNorm1d(3)
    dump, records = captured(tmp_path, lambda: norm(torch.randn(8, 3)), "tensor")
    record = records["Functional.batch_norm.0.forward"]
    files = dump / "dump_tensor_data"
    for path, after in (("1", norm.running_mean), ("2", norm.running_var)):
        element = record["changed"][f"input_args.{path}"]
        assert after is not None
        assert element["Mean"] == pytest.approx(float(after.mean()))
        assert torch.equal(torch.load(files / element["data_name"]), after)
        assert element["data_name"] != record["input_args"][int(path)]["data_name"]


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
def test_captured_statistics_that_are_wrong_are_found(name: str, tmp_path: Path) -> None:
    dump, records = captured(tmp_path, network(), "tensor")
    path = "input_args.1" if name == "running_mean" else "input_args.2"
    key = "Functional.batch_norm.4"
    file = dump / "dump_tensor_data" / records[f"{key}.forward"]["changed"][path]["data_name"]
    values = torch.load(file)
    file.unlink()  # a later call has got these values, and has the same file
    torch.save(values * 3, file)
    wrong = [
        check.name for r in checked(dump) for check in r.checks if check.verdict is Verdict.ERROR
    ]
    assert wrong == [f"{key}.forward.changed.{name}"]


def test_a_dump_that_lacks_them_says_so(tmp_path: Path) -> None:
    dump, _ = captured(tmp_path, network(), "tensor")
    data = json.loads((dump / "dump.json").read_text())
    for record in data["data"].values():
        record.pop("changed", None)  # as msprobe's dumps
    (dump / "dump.json").write_text(json.dumps(data))
    results = {result.name: result for result in checked(dump)}
    told = results["Functional.batch_norm.2"]
    assert told.forward is Verdict.PASS
    lacks = "the dump does not hold running_mean, running_var after the call: not compared"
    assert lacks in told.message
    assert not results["Functional.batch_norm.5"].message  # it was evaluated
    again = checked(dump, tests_dump=False)
    rows = [check.name for result in again for check in result.checks]
    assert "Functional.batch_norm.2.forward.changed.running_var" in rows


def test_lists_views_and_outputs(tmp_path: Path) -> None:
    """What is an output, or shares its memory, is no second change; what is put back is none."""
    ones = [torch.ones(3)]
    states = [[torch.zeros(3)], [torch.zeros(3)]]
    base, out = torch.zeros(2, 3), (torch.empty(2), torch.empty(2, dtype=torch.long))

    def program() -> None:
        torch._fused_adam_(
            *([torch.ones(3)], ones, *states, [], [torch.ones(())]),
            amsgrad=False,
            lr=0.1,
            beta1=0.9,
            beta2=0.9,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
        base[0].add_(base[1])
        torch.max(base, 1, out=out)
        torch._foreach_lerp_([base[0]], ones, 0.5)
        base.t().copy_(torch.ones(3, 2))

    _, records = captured(tmp_path, program, "statistics")
    assert changes(records) == {"Torch._fused_adam_.0": ["input_args.2.0", "input_args.3.0"]}
    for name in ("Torch._foreach_lerp_.0", "Torch._fused_adam_.0"):
        assert records[f"{name}.forward"]["output"][0]["shape"] == [3]


def test_an_operator_of_a_package_is_asked_for_its_schema(tmp_path: Path) -> None:
    library = torch.library.Library("changes_here", "DEF")
    library.define("twice(Tensor x, Tensor(a!) count, Tensor(b!) kept) -> Tensor")

    def twice(x: torch.Tensor, count: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        count.data.add_(1)  # without a new version
        return x * 2

    library.impl("twice", twice, "CPU")
    count = torch.zeros(2)
    operator = torch.ops.changes_here.twice
    _, records = captured(
        tmp_path, lambda: operator(torch.ones(2), count, torch.ones(2)), "statistics"
    )
    assert changes(records) == {"changes_here.twice.0": ["input_args.1"]}
