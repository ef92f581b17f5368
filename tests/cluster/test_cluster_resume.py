"""Resumes of real runs: cut files, other settings, rows to retry, files that cannot be written."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dumps import additions, killer, write_dump

from ray_precheck import PrecheckReport, ResumeError, UsageError, precheck
from ray_precheck.store.tables import RunFiles

pytestmark = pytest.mark.cluster


def run(dump: Path, out: Path, address: str, **options: object) -> PrecheckReport:
    return precheck(dump, out=out, address=address, **options)


def both_files(files: RunFiles) -> tuple[bytes, bytes]:
    return files.result.read_bytes(), files.details.read_bytes()


def rows(report: PrecheckReport) -> dict[str, tuple[str, str]]:
    """The verdict and the message of each row."""
    table = report.results
    return {
        name: (verdict, message)
        for name, verdict, message in zip(
            table["API Name"], table["Forward Test Success"], table["Message"], strict=True
        )
    }


def edit_row(path: Path, name: str, row: str) -> None:
    """Put another row in the place of the one of a call."""
    text = path.read_bytes().decode()
    path.write_bytes(re.sub(rf"(?m)^{re.escape(name)},.*\r\n", f"{row}\r\n", text).encode())


def test_files_that_were_cut_each_on_its_own_end_with_the_same_bytes(
    tmp_path: Path, cluster_address: str, finished: tuple[Path, RunFiles]
) -> None:
    dump, files = finished
    undisturbed = both_files(files)
    os.truncate(files.details, len(undisturbed[1]) // 2)  # below committed rows
    os.truncate(files.result, len(undisturbed[0]) - 5)
    leftover = files.result.with_name(f".{files.result.name}.tmp")
    leftover.write_bytes(b"half of it")
    again = run(dump, tmp_path, cluster_address, resume_csv=files.result)
    assert again.completed
    assert both_files(again.files) == undisturbed
    assert not leftover.exists()


def test_a_completed_run_answers_without_ray(finished: tuple[Path, RunFiles]) -> None:
    dump, files = finished
    before = {path: path.read_bytes() for path in files.result.parent.iterdir()}
    code = (
        "import sys, ray_precheck as r;"
        f"report = r.precheck({str(dump)!r}, resume_csv=__import__('pathlib').Path("
        f"{str(files.result)!r}));"
        "print(report.completed, report.summary.total, 'ray' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.stdout == "True 31 False\n", done.stderr
    assert {path: path.read_bytes() for path in files.result.parent.iterdir()} == before


@pytest.mark.exhaustive  # Without Ray: tests/unit/store/test_store_resume_run.py.
def test_force_goes_on_with_another_dump_and_keeps_rows_that_it_has_not(
    tmp_path: Path, cluster_address: str, finished: tuple[Path, RunFiles]
) -> None:
    _, files = finished
    before = [f"Tensor.add.{number}" for number in range(28)]
    other = write_dump(tmp_path / "other.json", additions(3, first=28))
    csv = files.result
    with pytest.raises(ResumeError, match=r"another dump.* and was made with seed 0, not 1;.*forc"):
        run(other, tmp_path, cluster_address, resume_csv=csv, seed=1)
    forced = run(other, tmp_path, cluster_address, resume_csv=csv, seed=1, force=True)
    added = [f"Tensor.add.{number}" for number in (28, 29, 30)]
    assert list(rows(forced)) == [*added, *before, "Torch.dropout.0"]
    again = run(other, tmp_path, cluster_address, resume_csv=csv, seed=1)
    assert list(rows(again)) == list(rows(forced))


def test_retry_replaces_rows_of_its_kind_alone(
    tmp_path: Path, cluster_address: str, finished: tuple[Path, RunFiles]
) -> None:
    dump, files = finished
    undisturbed = both_files(files)
    # As a machine that was short of memory, and one that was slow, would have left them.
    edit_row(files.result, "Tensor.add.1", "Tensor.add.1,error,,ran out of memory: 1 GiB")
    edit_row(files.result, "Tensor.add.2", "Tensor.add.2,SKIP,,the device was away")
    edit_row(files.result, "Tensor.add.0", "Tensor.add.0,pass,,not to be done again")
    options = {"resume_csv": files.result}
    after = run(dump, tmp_path, cluster_address, **options, retry=("crash",))
    assert rows(after)["Tensor.add.1"] == ("pass", "")
    assert rows(after)["Tensor.add.2"] == ("SKIP", "the device was away")
    after = run(dump, tmp_path, cluster_address, **options, retry=("skip",))
    assert rows(after)["Tensor.add.2"] == ("pass", "")
    assert rows(after)["Tensor.add.0"] == ("pass", "not to be done again")
    edit_row(files.result, "Tensor.add.0", "Tensor.add.0,error,,forward.output.0: wrong")
    assert run(dump, tmp_path, cluster_address, **options, retry=("error",)).completed
    assert both_files(files) == undisturbed


@pytest.mark.exhaustive  # A row that a crash left is run again: test_retry_replaces_rows_of_its_kind_alone.
def test_a_call_that_crashed_is_run_again(tmp_path: Path, cluster_address: str) -> None:
    name = "Torch.special.modified_bessel_i0.0"
    dump = write_dump(tmp_path / "dump.json", additions(2), killer())
    report = run(dump, tmp_path, cluster_address)
    message = rows(report)[name][1]
    edit_row(report.files.result, name, f"{name},error,,killed its worker (another day)")
    csv = report.files.result
    again = run(dump, tmp_path, cluster_address, resume_csv=csv, retry=("crash",))
    assert message.startswith("killed its worker")
    assert rows(again)[name] == ("error", message)


def test_retry_without_a_result_csv_is_refused(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(1))
    with pytest.raises(UsageError, match="--retry needs -csv_path"):
        precheck(dump, out=tmp_path, retry=("error",))


@pytest.fixture
def immutable(tmp_path: Path) -> Iterator[list[Path]]:
    """Paths put into this list can be made immutable; they are freed in the end."""
    paths: list[Path] = []
    yield paths
    for path in paths:
        subprocess.run(["chattr", "-i", str(path)], check=True)


def test_a_read_only_result_csv_is_one_sentence_and_exit_code_2(
    finished: tuple[Path, RunFiles], immutable: list[Path]
) -> None:
    dump, files = finished
    result = files.result
    os.truncate(result, result.stat().st_size - 5)
    if subprocess.run(["chattr", "+i", str(result)], check=False).returncode:
        pytest.skip("chattr +i is not possible here")
    immutable.append(result)
    command = [sys.executable, "-m", "ray_precheck", "run_ut", "-api_info", str(dump)]
    done = subprocess.run(
        [*command, "-csv_path", str(result)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == f"ray-precheck: error: cannot go on in {result}: Operation not permitted\n"
    )
