"""Random calls of real runs: one row for each operator, the same bytes after every history."""

import os
from pathlib import Path

import pytest
from dumps import additions, forward, tensor, value, write_dump
from test_cluster_command import both_files, the_file
from test_cluster_command import precheck as command

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


SLIGHTLY_WRONG = """
import sys
if "ray_precheck.runtime.workers." in " ".join(sys.orig_argv):
    import torch
    randn, attention = torch.randn, torch.nn.functional.scaled_dot_product_attention
    torch.randn = lambda *size: randn(*size) * 1.01
    def dropout(x, p, *_):
        return torch.where(torch.rand_like(x) < 1.1 * p, 0 * x, x / (1 - p))
    torch.nn.functional.dropout = dropout
    def twice(query, key, value, mask, p):
        return attention(query, key, value, mask, 2 * p)
    torch.nn.functional.scaled_dot_product_attention = twice
"""


@pytest.mark.exhaustive  # Which it accuses: tests/frameworks/test_check_random.py.
def test_the_command_accuses_slightly_wrong_generators_after_every_history(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLIGHTLY_WRONG)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    wide, heads = tensor("float32", [64, 128], -1.0, 1.0), tensor("float32", [2, 2, 64, 16], -1, 1)
    randn = {**forward(value(64), value(128)), "output": [wide]}
    drops = {**forward(wide, value(0.1), value(True)), "output": [wide]}
    attends = {**forward(heads, heads, heads, None, value(0.1)), "output": [heads]}
    dump = write_dump(
        tmp_path / "dump.json",
        {f"Torch.randn.{i}.forward": randn for i in range(15)},
        {f"Functional.dropout.{i}.forward": drops for i in range(3)},
        {f"Functional.scaled_dot_product_attention.{i}.forward": attends for i in range(2)},
    )
    start = ["run_ut", "--device-type", "cpu", "-api_info", dump]
    assert command(*start, "-o", tmp_path / "a", **environment).returncode == 1
    undisturbed = both_files(tmp_path / "a")
    names = [row.partition(b",")[0] for row in undisturbed[1].splitlines() if b",error," in row]
    assert names == [
        b"Torch.randn.distribution",
        b"Functional.dropout.distribution",
        b"Functional.scaled_dot_product_attention.distribution",
    ]
    result = the_file(tmp_path / "a", "result")
    for part, kept in zip(("result", "details"), (0.3, 0.6), strict=True):
        path = the_file(tmp_path / "a", part)
        os.truncate(path, int(len(path.read_bytes()) * kept))
    assert command(*start, "-csv_path", result, **environment).returncode == 1
    assert both_files(tmp_path / "a") == undisturbed
    assert command(*start, "-k", "randn", "-o", tmp_path / "k", **environment).returncode == 1
    for part, whole in zip(("result", "details"), undisturbed, strict=True):
        its = [row for row in whole.splitlines() if row.startswith(b"Torch.randn")]
        assert the_file(tmp_path / "k", part).read_bytes().splitlines()[1:] == its
