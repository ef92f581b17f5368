"""A real run with a standard that a user has written down."""

import os
from pathlib import Path

import pytest
from dumps import additions, large, write_dump

from ray_precheck import PrecheckReport, ResumeError, UsageError, precheck
from ray_precheck.accuracy.standards.base import ERROR_HEADINGS
from ray_precheck.cli import PASSED, main

pytestmark = pytest.mark.cluster

RULES = """\
standard: absolute
rules:
  - {api: matmul, standard: benchmark}
"""


def both_files(report: PrecheckReport) -> tuple[bytes, bytes]:
    return report.files.result.read_bytes(), report.files.details.read_bytes()


def test_a_users_standard_judges_on_every_worker_and_after_a_resume(
    tmp_path: Path, cluster_address: str
) -> None:
    dump = write_dump(tmp_path / "dump.json", {**additions(20), **large(size=300)})
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)

    def run(out: str, standard: Path, **options: object) -> PrecheckReport:
        folder = tmp_path / out
        return precheck(
            dump, out=folder, address=cluster_address, standard=str(standard), **options
        )

    one = run("one", rules)
    table = one.details.set_index("API Name")
    judged_by = table["Standard"]
    assert judged_by["Torch.matmul.0.forward.output.0"] == "benchmark L2"
    assert judged_by["Tensor.add.0.forward.output.0"] == "absolute"
    assert table[list(ERROR_HEADINGS)].notna().all(axis=None)

    two = run("two", rules, devices=[0, 1], bench_workers=1)
    assert both_files(two) == both_files(one)

    os.truncate(two.files.details, len(both_files(one)[1]) // 2)
    os.truncate(two.files.result, len(both_files(one)[0]) - 5)
    rules.rename(tmp_path / "moved.yml")
    (tmp_path / "other.yaml").write_text(RULES.replace("benchmark", "ulp"))
    for standard, error in (
        (rules, UsageError),  # it is gone
        (tmp_path / "other.yaml", ResumeError),
        (Path("absolute"), ResumeError),
    ):
        with pytest.raises(error):
            run("two", standard, resume_csv=two.files.result)
    again = run("two", tmp_path / "moved.yml", resume_csv=two.files.result)
    assert again.completed
    assert both_files(again) == both_files(one)


def test_two_runs_are_compared(
    tmp_path: Path, cluster_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(5))
    reports = [
        precheck(dump, out=tmp_path / name, address=cluster_address, standard=standard)
        for name, standard in (("npu", "benchmark"), ("gpu", "ulp"))
    ]
    paths = [str(report.files.details) for report in reports]
    assert main(["compare_results", *paths, "-o", str(tmp_path / "out")]) == PASSED
    assert capsys.readouterr().out.startswith("5 outputs compared: 5 pass, 0 error\n")
