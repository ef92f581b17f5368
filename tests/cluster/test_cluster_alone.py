"""One run at a time has the files, and a Ray that is there already is used and left alone."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from conftest import DATA
from dumps import additions, write_dump
from test_cluster_command import COMMAND, both_files, rows, the_file

pytestmark = pytest.mark.cluster
TORCH_DUMP = DATA / "torch_cnn" / "dump.json"


def start(*arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dump, and the folder of a run of it that nobody has disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    dump = write_dump(folder / "dump.json", additions(400))
    done = start("run_ut", "-api_info", dump, "-o", folder / "out")
    done.communicate(timeout=400)
    assert done.returncode == 0
    return dump, folder / "out"


def names_below(pid: int) -> set[str]:
    """Return the names of the processes that a process has started."""
    names = set()
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            names.add(child.name())
    return names


def interrupted(undisturbed: tuple[Path, Path], folder: Path) -> Path:
    """Copy the files as a run leaves them that was killed after some rows; return the result CSV."""
    folder.mkdir()
    for path in undisturbed[1].iterdir():
        data = path.read_bytes()
        (folder / path.name).write_bytes(data if path.suffix == ".json" else data[: len(data) // 3])
    return the_file(folder, "result")


def test_of_resumes_that_are_started_together_one_runs_and_the_others_say_so(
    tmp_path: Path, undisturbed: tuple[Path, Path]
) -> None:
    result = interrupted(undisturbed, tmp_path / "out")
    begin, runs = time.monotonic(), []
    for after_s in (0, 0, 0.5, 1, 2):
        time.sleep(max(0.0, begin + after_s - time.monotonic()))
        runs.append(start("run_ut", "-api_info", undisturbed[0], "-csv_path", result))
    ended = [(run, *run.communicate(timeout=400)) for run in runs]
    codes = [run.returncode for run in runs]
    # One that starts when the first is through finds nothing to do.
    assert codes.count(0) >= 1
    assert set(codes) <= {0, 2}
    assert 2 in codes
    for run, _, errors in ended:
        if run.returncode == 2:
            said = errors.strip().splitlines()[-1]
            assert f"another run has {result}: process " in said
            assert f" on {socket.gethostname()} (since 2" in said
    assert both_files(result.parent) == both_files(undisturbed[1])
    assert len(rows(result.parent)) == 400
    assert not list(result.parent.glob("*.lock"))


@pytest.mark.exhaustive  # The claim of a dead run: tests/unit/store/test_store_claim.py.
def test_a_resume_right_after_the_death_of_everything_is_not_held_up(
    tmp_path: Path, undisturbed: tuple[Path, Path]
) -> None:
    result = interrupted(undisturbed, tmp_path / "out")
    first = start("run_ut", "-api_info", undisturbed[0], "-csv_path", result, "--address", "local")
    until = time.monotonic() + 300
    # It has the files, and its Ray runs.
    while not (list(result.parent.glob("*.lock")) and "raylet" in names_below(first.pid)):
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    again = start("run_ut", "-api_info", undisturbed[0], "-csv_path", result)
    first.communicate()
    _, errors = again.communicate(timeout=400)
    assert again.returncode == 0, errors
    assert both_files(result.parent) == both_files(undisturbed[1])


@pytest.mark.exhaustive  # Their names: tests/unit/store/test_store_stamps.py.
def test_runs_that_start_in_the_same_second_in_the_same_folder_keep_apart(
    tmp_path: Path, undisturbed: tuple[Path, Path]
) -> None:
    runs = [start("run_ut", "-api_info", undisturbed[0], "-o", tmp_path) for _ in range(2)]
    for run in runs:
        run.communicate(timeout=400)
    assert [run.returncode for run in runs] == [0, 0]
    found = sorted(tmp_path.glob("accuracy_checking_result_*.csv"))
    assert len(found) == 2
    expected = the_file(undisturbed[1], "result").read_bytes()
    assert [path.read_bytes() for path in found] == [expected, expected]


_IN_OWN_RAY = """
import json, sys
import ray, ray_precheck as r
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=0)
class Counter:
    count = 0
    def add(self):
        self.count += 1
        return self.count

theirs = Counter.remote()
ray.get(theirs.add.remote())
before = ray.get_runtime_context().gcs_address
found = []
for _ in range(2):
    report = r.precheck(sys.argv[1], out=sys.argv[2], devices=[0, 1])
    found.append([report.completed, report.summary.total, report.summary.passes])
    again = r.precheck(
        sys.argv[1], resume_csv=report.files.result, retry=("error",), devices=[0]
    )
try:
    r.precheck(sys.argv[1], out=sys.argv[2] + "/x", address="10.1.1.1:6379")
except r.UsageError as error:
    refused = str(error)
alive = ray.get(theirs.add.remote())
print(json.dumps([found, alive, ray.get_runtime_context().gcs_address == before, refused]))
"""


def test_a_ray_that_is_there_already_is_used_and_left_alone(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(40))
    environment = {name: v for name, v in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", _IN_OWN_RAY, str(dump), str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, alive, is_same, refused = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == [[True, 40, 40]] * 2
    assert alive == 2
    assert is_same
    assert "this process has a Ray already" in refused
    assert not (tmp_path / "out" / "x").exists()


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("TMPDIR", "set TMPDIR to a folder"),
        ("files", "of a file to 1048576 (ulimit)"),
        pytest.param(
            "processes",
            "and processes and threads to 100 (ulimit)",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="root alone can start any then"),
        ),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_no_file(
    tmp_path: Path, limit: str, said: str
) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(40))
    # Ray's sockets allow 107 characters, so it cannot start in this folder.
    long = tmp_path / ("x" * 100)
    long.mkdir()
    run = subprocess.run(
        [
            *COMMAND,
            "run_ut",
            "-api_info",
            str(dump),
            "-o",
            str(tmp_path / "out"),
            "--address",
            "local",
        ],
        env={**os.environ, **({"TMPDIR": str(long)} if limit == "TMPDIR" else {})},
        preexec_fn=None if limit == "TMPDIR" else partial(_limit, 1 << 20, limit),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert run.returncode == 3
    assert len(run.stderr.strip().splitlines()) == 1, run.stderr
    assert "Ray could not be started" in run.stderr
    assert said in run.stderr
    assert "-csv_path" not in run.stdout + run.stderr
    assert list((tmp_path / "out").iterdir()) == []


def _limit(nbytes: int, what: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    if what == "processes":
        resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
