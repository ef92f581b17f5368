"""The plan of a comparison: what cannot be compared is said before anything is."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.commands.compare.job import ComparisonJob, tasks_of
from ray_precheck.commands.compare.options import ComparisonConfig
from ray_precheck.commands.compare.plan import ComparisonPlan, plan_comparison
from ray_precheck.commands.compare.rows import ComparisonInputFiles
from ray_precheck.errors import UsageError
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.unit

STATISTICS = {"Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": 2.0}


def written(folder: Path, operator: str, **values: Any) -> Path:
    """Write a dump of one call, whose tensor has these values."""
    folder.mkdir()
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 2], **values}
    record = {"input_args": [tensor], "input_kwargs": {}, "output": [tensor]}
    (folder / "dump.json").write_text(json.dumps({"data": {f"{operator}.0.forward": record}}))
    return folder / "dump.json"


def planned(target: Path, golden: Path, noise: Path | None = None) -> ComparisonPlan:
    options = ComparisonConfig(target=target, golden=golden, noise=noise)
    with open_side(target) as one, open_side(golden) as two:
        if noise is None:
            return plan_comparison(one, two, None, options)
        with open_side(noise) as third:
            return plan_comparison(one, two, third, options)


def test_digests_of_two_kinds_cannot_be_compared(tmp_path: Path) -> None:
    target = written(tmp_path / "crc", "Torch.add", md5="a6595bdc")
    golden = written(tmp_path / "xor", "Torch.add", md5="0x7ffade758139a620")
    with pytest.raises(
        UsageError, match=r"has digests and .* digests of another kind: nothing that"
    ):
        planned(target, golden)


def test_a_second_golden_run_without_a_common_call_is_an_error(tmp_path: Path) -> None:
    target, golden, noise = (
        written(tmp_path / name, "Torch.add", **STATISTICS) for name in ("a", "b", "c")
    )
    assert planned(target, golden, noise).noise_of
    other = written(tmp_path / "d", "Torch.linalg.inv", **STATISTICS | {"shape": [7]})
    with pytest.raises(UsageError, match=r"--noise .* has no call in common with"):
        planned(target, golden, other)


def test_a_backward_call_travels_with_the_files_of_its_forward_record(tmp_path: Path) -> None:
    def call(folder: str) -> Path:
        path = written(tmp_path / folder, "Torch.add", **STATISTICS)
        data = json.loads(path.read_text())["data"]
        data["Torch.add.0.backward"] = {"input": [], "output": []}
        forward = data["Torch.add.0.forward"]
        forward["input_args"] = [forward["output"][0] | {"data_name": "given.npy"}]
        path.write_text(json.dumps({"data": data}))
        return path

    target, golden = call("target"), call("golden")
    with open_side(target) as one, open_side(golden) as two:
        plan = plan_comparison(one, two, None, ComparisonConfig(target=target, golden=golden))
        job = ComparisonJob(one, two, plan.pieces, plan.settings)
        tasks = tasks_of(job, set(), plan.costs_s)
        input_files = ComparisonInputFiles(
            lambda task: job.payload(task).by_side(), plan.settings.folders
        )
        files = {task.name: sorted(input_files.limits(task, 1)) for task in tasks}
    both = ["golden/given.npy", "target/given.npy"]
    assert files == {"Torch.add.0.forward": both, "Torch.add.0.backward": both}
