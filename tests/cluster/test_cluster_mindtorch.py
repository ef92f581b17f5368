"""Dumps of MSAdapter as a user runs them: it lies in PYTHONPATH, native torch is installed."""

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import DATA
from dumps import forward, tensor
from mindtorch_dumps import as_mindtorch

pytestmark = pytest.mark.cluster
COMMAND = [sys.executable, "-m", "ray_precheck"]
STAND_IN = DATA / "mindtorch"
FLOATS = tensor("float32", [64], -1.0, 1.0)
# What is broken in the stand-in -> its row: the verdict and a part of the message.
PLANTED = {
    "Torch.sinc": ("error", "MaxAbsErr"),
    "Torch.hypot": ("error", "NotImplementedError: hypot is left out of this stand-in"),
    "Torch.special.erfcx": ("error", "killed its worker (SIGSEGV: the driver: no such stream)"),
    "Torch.floor": ("error", "killed its worker (exit code 7"),
    "Torch.ceil": ("error", "no answer in 3 s (--timeout)"),
    "Torch.trunc": ("SKIP", "the CPU has no kernel for it"),
}


@pytest.fixture(scope="module")
def temporary() -> Iterator[str]:
    """A folder for temporary files with a short name: Ray's sockets allow 107 characters."""
    with tempfile.TemporaryDirectory(prefix="rpt-", ignore_cleanup_errors=True) as folder:
        yield folder


def environment(temporary: str, *path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "TMPDIR": temporary}


def run(
    temporary: str, *arguments: object, path: tuple[Path, ...] = (STAND_IN,)
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True, text=True, timeout=400, check=False,
        env=environment(temporary, *path),
    )  # fmt: skip


def the_file(folder: Path, stem: str) -> Path:
    (path,) = folder.glob(f"accuracy_checking_{stem}_*.csv")
    return path


def both_files(folder: Path) -> tuple[bytes, bytes]:
    return the_file(folder, "result").read_bytes(), the_file(folder, "details").read_bytes()


def rows(folder: Path, stem: str = "result") -> dict[str, dict[str, str]]:
    with the_file(folder, stem).open(encoding="utf-8-sig", newline="") as file:
        return {row["API Name"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a capture, and in it one call of each broken operator."""
    one, two = forward(FLOATS), forward(FLOATS, FLOATS)
    faults = {f"{api}.0.forward": two if "hypot" in api else one for api in PLANTED}
    folder = tmp_path_factory.mktemp("mindtorch") / "dump"
    return as_mindtorch(DATA / "torch_llm" / "dump.json", folder, faults)


@pytest.fixture(scope="module")
def whole_dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same capture without the broken operators."""
    return as_mindtorch(
        DATA / "torch_llm" / "dump.json", tmp_path_factory.mktemp("mindtorch") / "whole"
    )


@pytest.fixture(scope="module")
def undisturbed(dump: Path, temporary: str) -> Path:
    """Return the folder of a run on one device, without a process for benches."""
    out = dump.parent / "undisturbed"
    done = run(
        temporary, "-f", "mindtorch", "run_ut", "-api_info", dump, "-o", out, "-d", 0,
        "--bench-workers", 0, "--timeout", 3,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    return out


def test_planted_faults_are_found_and_nothing_else(undisturbed: Path) -> None:
    found = rows(undisturbed)
    for api, (verdict, message) in PLANTED.items():
        row = found.pop(f"{api}.0")
        assert row["Forward Test Success"] == verdict, row
        assert message in row["Message"]
    assert len(found) == 265
    assert {row["Forward Test Success"] for row in found.values()} == {"pass"}
    assert {row["Backward Test Success"] for row in found.values()} == {"pass", ""}


def test_dtypes_are_spelled_as_in_mindspore(undisturbed: Path) -> None:
    row = rows(undisturbed, "details")["Functional.linear.0.forward.output.0"]
    assert (row["Bench Dtype"], row["Tested Dtype"]) == ("Float64", "Float32")


@pytest.mark.exhaustive
def test_on_two_devices_with_a_bench_worker_the_files_have_the_same_bytes(
    dump: Path, undisturbed: Path, temporary: str, tmp_path: Path
) -> None:
    done = run(
        temporary, "-f", "mindtorch", "multi_run_ut", "-api_info", dump, "-o", tmp_path,
        "-d", 0, 1, "--bench-workers", 1, "--timeout", 3,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert both_files(tmp_path) == both_files(undisturbed)


@pytest.mark.exhaustive  # Its process: tests/frameworks/test_mindtorch_process.py.
def test_a_run_that_was_killed_goes_on_and_leaves_no_process(
    whole_dump: Path, undisturbed: Path, temporary: str, tmp_path: Path
) -> None:
    arguments = ["run_ut", "-api_info", str(whole_dump), "-d", "0"]
    process = subprocess.Popen(
        [*COMMAND, *arguments, "-o", str(tmp_path)],
        env=environment(temporary, STAND_IN), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    family = _when_rows_are_there(process, tmp_path)
    assert any("ray_precheck.frameworks.mindtorch.device" in _command_line(one) for one in family)
    # The driver, in the middle of its work; what it has started must end by itself.
    (driver,) = psutil.Process(process.pid).children()
    driver.kill()
    assert process.wait(60) == 3
    _, left = psutil.wait_procs(family, 60)
    assert left == []
    assert 0 < len(rows(tmp_path)) < len(rows(undisturbed)) - len(PLANTED)
    resumed = run(temporary, *arguments, "-csv_path", the_file(tmp_path, "result"))
    assert resumed.returncode == 0, resumed.stderr
    assert both_files(tmp_path) == tuple(map(without_planted, both_files(undisturbed)))


def without_planted(data: bytes) -> bytes:
    """Return a file without the rows of broken operators: those of others do not depend on them."""
    planted = tuple(f"{api}.0".encode() for api in PLANTED)
    return b"".join(line for line in data.splitlines(keepends=True) if not line.startswith(planted))


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def _when_rows_are_there(process: "subprocess.Popen[bytes]", out: Path) -> list[psutil.Process]:
    """Wait for the first rows; return every process below the command."""
    while process.poll() is None:
        files = list(out.glob("accuracy_checking_result_*.csv"))
        if files and files[0].read_bytes().count(b"\n") > 5:
            return psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.02)
    raise AssertionError("it ended before it could be killed")


@pytest.mark.parametrize("tested", ["auto", "device"])
def test_captured_results_are_judged_by_the_native_torch(
    tested: str, temporary: str, tmp_path: Path
) -> None:
    capture = as_mindtorch(DATA / "torch_llm_tensor" / "dump.json", tmp_path / "dump")
    # Captured results need no MSAdapter; results of a device do.
    path = (STAND_IN,) if tested == "device" else ()
    out = tmp_path / "out"
    # msprobe takes these dumps with -f mindspore, and so does this.
    words = ("-f", "mindspore", "run_ut", "-api_info", capture, "-o", out, "--tested", tested)
    done = run(temporary, *words, path=path)
    assert done.returncode in (0, 1), done.stderr
    found = rows(out)
    assert len(found) == 22
    assert {row["Forward Test Success"] for row in found.values()} == {"pass"}


def test_without_msadapter_the_command_says_what_to_set(
    dump: Path, temporary: str, tmp_path: Path
) -> None:
    done = run(temporary, "run_ut", "-api_info", dump, "-o", tmp_path / "out", path=())
    assert done.returncode == 2
    assert "PYTHONPATH=<MSAdapter>/build/lib:$PYTHONPATH" in done.stderr
    assert "found: the native torch in" in done.stderr
    assert not (tmp_path / "out").exists()
