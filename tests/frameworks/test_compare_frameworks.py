"""A captured step of MindSpore is compared with the same step of PyTorch, with mapping files and without."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from two_frameworks import captured_mindspore, captured_torch

from ray_precheck.check.checker import Checker
from ray_precheck.commands.compare.run import ComparisonReport, compare_captures
from ray_precheck.trace.alignment.calls import family_of

pytestmark = pytest.mark.frameworks
TASKS = ("tensor", "statistics")
FORWARD, BACKWARD = 21, 21


@pytest.fixture(scope="module")
def captures(
    tmp_path_factory: pytest.TempPathFactory, mindspore_checker: Checker
) -> dict[str, Path]:
    """Return captures by framework and task; the checker has set MindSpore's device."""
    folder = tmp_path_factory.mktemp("captures")
    made = {}
    for task in TASKS:
        made[f"mindspore {task}"] = captured_mindspore(folder / f"mindspore_{task}", task)
        made[f"torch {task}"] = captured_torch(folder / f"torch_{task}", task)
    made["wrong"] = captured_mindspore(folder / "wrong", "tensor", gain=1.1)
    return made


def compared(target: Path, golden: Path, out: Path, **options: Any) -> ComparisonReport:
    (report,) = compare_captures(target, golden, out=out, standard="auto", **options).reports
    return report


def partners(report: ComparisonReport) -> dict[str, str]:
    """Return the golden call of each call of the target."""
    calls = report.calls
    return dict(zip(calls["Call"], calls["Golden Call"], strict=True))


@pytest.mark.parametrize("task", TASKS)
def test_every_call_has_its_partner_without_a_mapping_file_and_none_is_an_error(
    captures: dict[str, Path], tmp_path: Path, task: str
) -> None:
    report = compared(captures[f"mindspore {task}"], captures[f"torch {task}"], tmp_path)
    found = partners(report)
    # MindSpore's Tensor is a class, torch.tensor a function that is captured.
    assert found.pop("Torch.tensor.0.forward@golden") == "Torch.tensor.0.forward"
    assert len(found) == FORWARD + BACKWARD
    for name, golden in found.items():
        (ours, number, direction), (theirs, *rest) = (
            each.rsplit(".", 2) for each in (name, golden)
        )
        assert rest == [number, direction]
        assert family_of(ours) == family_of(theirs)
    assert report.summary.results == Counter({"pass": FORWARD + BACKWARD, "unmatched": 1})


def test_a_wrong_weight_is_found_at_the_first_call_that_has_it(
    captures: dict[str, Path], tmp_path: Path
) -> None:
    report = compared(captures["wrong"], captures["torch tensor"], tmp_path)
    assert report.summary.first[0].name == "Tensor.__mul__.2.forward"
    assert report.summary.first[0].message.startswith("input.1: ")


def test_operators_are_paired_as_the_file_of_am_says(
    captures: dict[str, Path], tmp_path: Path
) -> None:
    mapping = tmp_path / "apis.yaml"
    mapping.write_text(
        "- ms_api: MintFunctional.linear\n  pt_api: Functional.linear\n"
        "  ms_args: [0, 1]\n  pt_args: [0, 1]\n  ms_outputs: [0]\n  pt_outputs: [0]\n"
    )
    sides = captures["mindspore tensor"], captures["torch tensor"]
    report = compared(*sides, tmp_path / "out", api_mapping=mapping)
    matches = report.calls.set_index("Call")["Match"]
    assert {matches[f"MintFunctional.linear.{number}.forward"] for number in range(5)} == {"mapped"}
    rows = report.results.set_index("NPU Name")
    bias = rows.loc["MintFunctional.linear.3.forward.input.2"]
    assert bias["Result"] == "unmatched"
    assert "the file of -am lists no partner" in bias["Err_message"]
    assert rows.loc["MintFunctional.linear.3.forward.output.0"]["Result"] == "pass"
    assert not report.summary.results["error"]


def test_values_are_paired_as_the_file_of_dm_says(
    captures: dict[str, Path], tmp_path: Path
) -> None:
    mapping = tmp_path / "values.yaml"
    names = {f"Mint.add.0.forward.input.{x}": f"Torch.add.0.forward.input.{1 - x}" for x in (0, 1)}
    mapping.write_text("".join(f"{ours}: {theirs}\n" for ours, theirs in names.items()))
    sides = captures["mindspore tensor"], captures["torch tensor"]
    report = compared(*sides, tmp_path / "out", data_mapping=mapping)
    rows = report.results.set_index("NPU Name")
    for ours, theirs in names.items():
        assert rows.loc[ours]["Bench Name"] == theirs
        # They are other values: the file is wrong on purpose.
        assert rows.loc[ours]["Result"] == "error"
    assert rows.loc["Mint.add.0.forward.output.0"]["Result"] == "pass"
