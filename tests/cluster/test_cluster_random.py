"""Random calls of real runs: one row for each operator, the same bytes after every history."""

import os
from pathlib import Path

import pytest
from dumps import additions, forward, tensor, value, write_dump

from ray_precheck import PrecheckReport, precheck

pytestmark = pytest.mark.cluster


def files_of(report: PrecheckReport) -> tuple[bytes, bytes]:
    return report.files.result.read_bytes(), report.files.details.read_bytes()


def test_the_rows_of_distributions_are_the_same_on_two_devices_and_after_a_kill(
    tmp_path: Path, cluster_address: str
) -> None:
    x = tensor("float32", [32, 64], -1.0, 1.0)
    drops = forward(x, value(0.1), value(True), value(False))
    randn = {**forward(value(32), value(64)), "output": [tensor("float32", [32, 64], -3, 3)]}
    dump = write_dump(
        tmp_path / "dump.json",
        {f"Functional.dropout.{i}.forward": {**drops, "output": [x]} for i in range(4)},
        {f"Torch.randn.{i}.forward": randn for i in range(3)},
        additions(6),
    )
    one = precheck(dump, out=tmp_path / "one", address=cluster_address)
    undisturbed = files_of(one)
    details = one.details.set_index("API Name")
    for name, calls in (("Functional.dropout", 4), ("Torch.randn", 3)):
        row = details.loc[f"{name}.distribution"]
        assert row["Status"] == "pass"
        assert f"{calls * 3 * 2048:,} elements drawn in {calls} calls: " in row["Message"]
    two = precheck(dump, out=tmp_path / "two", address=cluster_address, devices=(0, 1))
    assert files_of(two) == undisturbed
    for path, data in zip((one.files.result, one.files.details), undisturbed, strict=True):
        os.truncate(path, len(data) // 2)
    again = precheck(dump, resume_csv=one.files.result, address=cluster_address)
    assert files_of(again) == undisturbed
    chosen = precheck(dump, out=tmp_path / "k", address=cluster_address, keywords=("dropout",))
    assert "Functional.dropout.distribution" in set(chosen.details["API Name"])
    assert "Torch.randn.distribution" not in set(chosen.details["API Name"])
