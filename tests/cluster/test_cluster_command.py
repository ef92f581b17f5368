"""The command as a user runs it: screen, signals, kill -9, bad input, what is left behind."""

import contextlib
import csv
import json
import os
import pty
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from conftest import DATA, released
from dumps import additions, broken, killer, write_dump

import ray_precheck

pytestmark = pytest.mark.cluster
COMMAND = [sys.executable, "-m", "ray_precheck"]
ROOT = DATA.parents[1]
TORCH_DUMP = DATA / "torch_cnn" / "dump.json"


def precheck(
    *arguments: object, timeout_s: float = 400, cwd: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **environment},
    )


def the_file(folder: Path, stem: str) -> Path:
    (path,) = folder.glob(f"accuracy_checking_{stem}_*.csv")
    return path


def both_files(folder: Path) -> tuple[bytes, bytes]:
    return the_file(folder, "result").read_bytes(), the_file(folder, "details").read_bytes()


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with the_file(folder, "result").open(encoding="utf-8-sig", newline="") as file:
        return {row["API Name"]: row for row in csv.DictReader(file)}


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files with a short name: Ray's sockets allow 107 characters."""
    with tempfile.TemporaryDirectory(prefix="rpt-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_the_readme_command_checks_a_mindspore_capture_and_exits_with_0(
    tmp_path: Path, temporary: Path
) -> None:
    dump = DATA / "mindspore_llm" / "dump.json"
    done = precheck(
        "-f", "mindspore", "multi_run_ut", "-api_info", dump, "-d", 0, 1, "-o", tmp_path,
        TMPDIR=str(temporary),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("125 APIs: 125 pass, 0 error, 0 SKIP\n")
    assert "Tested:   mindspore 2" in done.stdout
    assert "Nearest to their limits" in done.stdout
    assert f"Results: {the_file(tmp_path, 'result')}" in done.stdout
    # Nothing of Ray's or MindSpore's start-up; a slow machine may show our own line every 10 s.
    assert all(re.match(r"\d+/125 done, ", line) for line in done.stderr.splitlines()), done.stderr
    assert list(rows(tmp_path)) == list(dict.fromkeys(_call_names(dump)))
    assert list(temporary.iterdir()) == []


def _call_names(dump: Path) -> list[str]:
    return [key.rsplit(".", 1)[0] for key in json.loads(dump.read_text())["data"]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of `TORCH_DUMP` that nobody disturbs, and what its driver has printed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code = (
        "import sys, ray_precheck as r;"
        f"report = r.precheck({str(TORCH_DUMP)!r}, out={str(folder)!r});"
        "print(report.summary.total, {'torch', 'mindspore', 'pandas', 'ray'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    (folder / "stdout").write_text(done.stdout + done.stderr)
    return folder


def test_the_driver_imports_no_framework_no_pandas_and_for_a_short_run_no_ray(
    undisturbed: Path,
) -> None:
    assert (undisturbed / "stdout").read_text() == "189 set()\n"


def test_no_process_of_a_run_imports_what_lies_in_the_working_directory(tmp_path: Path) -> None:
    """Another checkout there would judge by its own code, and a file may have the name of any module."""
    work, started = tmp_path / "work", tmp_path / "imported"
    work.mkdir()
    note = f"open({str(started)!r}, 'a').write(__name__ + chr(10)); raise SystemExit(__name__)"
    for name in ("numpy", "torch", "json", "orjson", "psutil", "ray"):
        (work / f"{name}.py").write_text(note)
    home = Path(ray_precheck.__file__).parents[1]
    done = precheck(
        "run_ut", "-api_info", TORCH_DUMP, "-o", tmp_path / "out", "-k", "Functional.relu",
        cwd=work, PYTHONPATH=f":{home}:{os.environ.get('PYTHONPATH', '')}",
    )  # fmt: skip
    assert not started.exists(), started.read_text()
    assert done.returncode == 0, done.stderr


def test_a_worker_that_cannot_start_says_its_last_words(tmp_path: Path) -> None:
    """PYTHONPATH is the user's, so that a module there is taken."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('default_worker' in word for word in sys.orig_argv):\n"
        "    sys.modules['orjson'] = None\n"
    )
    done = precheck(
        "run_ut", "-api_info", TORCH_DUMP, "-o", tmp_path / "out", "-k", "Functional.relu",
        "--address", "local",
        PYTHONPATH=f"{Path(ray_precheck.__file__).parents[1]}:{tmp_path}",
    )  # fmt: skip
    assert done.returncode == 3
    assert "orjson" in done.stderr


def test_a_crash_leaves_nothing_of_ray_on_the_screen(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(3), killer())
    done = precheck("run_ut", "-api_info", dump, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "raylet" not in done.stdout + done.stderr
    assert (
        rows(tmp_path / "out")["Torch.special.modified_bessel_i0.0"]["Message"]
        == "killed its worker (SIGSEGV)"
    )


@dataclass(frozen=True)
class Stopped:
    """A run that SIGTERM has ended after its first rows, and what was seen of it meanwhile."""

    returncode: int
    printed: str
    # The addresses on which one of its processes has listened.
    heard: set[str]
    # Its processes at the first rows, and the names of the programs that they run.
    processes: list[psutil.Process]
    programs: set[str]
    raylet_environment: dict[str, str]
    token_mode: int
    token_folder_mode: int


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    folder = tmp_path_factory.mktemp("stopped")
    heard: set[str] = set()
    process = subprocess.Popen(
        [
            *COMMAND, "run_ut", "-api_info", str(long_dump(folder)), "-o", str(folder),
            "--address", "local",
        ],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={name: v for name, v in os.environ.items() if not name.startswith("RAY_")},
    )  # fmt: skip

    def listen(until: Callable[[], bool]) -> None:
        while not until():
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in [
                    psutil.Process(process.pid),
                    *psutil.Process(process.pid).children(True),
                ]:
                    heard.update(_listening(one))
            time.sleep(0.1)

    listen(lambda: process.poll() is not None or _has_rows(folder, 2))
    children = _when_rows_are_there(process, folder)
    programs = _programs(children)
    (raylet,) = [child for child in children if child.name() == "raylet"]
    environment = raylet.environ()
    token = Path(environment["RAY_AUTH_TOKEN_PATH"])
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (token, token.parent)]
    process.terminate()
    listen(lambda: process.poll() is not None)
    printed, _ = process.communicate(timeout=400)
    return Stopped(process.returncode, printed, heard, children, programs, environment, *modes)


def test_sigterm_stops_in_good_order(stopped: Stopped) -> None:
    assert stopped.returncode == 3
    assert "To go on:" in stopped.printed
    _, alive = psutil.wait_procs(stopped.processes, timeout=60)
    assert alive == []


def test_nothing_listens_beyond_loopback(stopped: Stopped) -> None:
    assert stopped.heard
    assert stopped.heard <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_token_and_temporary_files_are_the_owners_alone_and_gone_afterwards(
    stopped: Stopped,
) -> None:
    token = Path(stopped.raylet_environment["RAY_AUTH_TOKEN_PATH"])
    rays = Path(stopped.raylet_environment["RAY_TMPDIR"])
    assert stopped.raylet_environment["RAY_AUTH_MODE"] == "token"
    assert stopped.token_mode == 0o600
    # Ray opens its own folder to everyone; the private one above it keeps everyone out.
    assert stopped.token_folder_mode == 0o700
    assert rays.parent == token.parent
    assert not token.parent.exists()


# Ray's autoscaler, dashboard, and what passes on the output of its workers.
NOT_NEEDED = {"monitor.py", "dashboard.py", "log_monitor.py"}


def test_of_rays_own_processes_only_those_run_that_a_run_needs(stopped: Stopped) -> None:
    assert {"gcs_server", "raylet"} <= stopped.programs
    assert not stopped.programs & NOT_NEEDED


@pytest.mark.exhaustive
def test_for_debugging_what_passes_on_the_output_of_workers_runs_too(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            *COMMAND, "run_ut", "-api_info", str(long_dump(tmp_path)), "-o", str(tmp_path),
            "--address", "local", "--debug",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    programs = _programs(_when_rows_are_there(process, tmp_path))
    process.terminate()
    process.wait()
    assert programs & NOT_NEEDED == {"log_monitor.py"}


def _programs(processes: list[psutil.Process]) -> set[str]:
    programs = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            programs |= {Path(part).name for part in process.cmdline()[:4]}
    return programs


def _listening(process: psutil.Process) -> set[str]:
    try:
        connections = process.net_connections("inet")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return set()
    return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}


def long_dump(folder: Path) -> Path:
    """Write a dump whose later calls take long until `GO` is there."""
    parts = [broken("modified_bessel_i1", number) for number in range(60)]
    return write_dump(folder / "long.json", additions(20), *parts)


def test_on_a_terminal_ctrl_c_shows_the_summary_and_the_command_that_goes_on(
    tmp_path: Path,
) -> None:
    undisturbed = tmp_path / "undisturbed"
    dump = long_dump(tmp_path)
    with released():
        whole = precheck("run_ut", "-api_info", dump, "-o", undisturbed)
    out = tmp_path / "with a space"
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "run_ut", "-api_info", str(dump), "-o", str(out)],
        stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
    )  # fmt: skip
    os.close(follower)
    screen = ""
    interrupted = False
    while True:
        try:
            screen += os.read(leader, 4096).decode(errors="replace")
        except OSError:
            break
        if not interrupted and re.search(r" [1-9]\d*/80 \[.*pass", screen):
            os.killpg(process.pid, signal.SIGINT)
            interrupted = True
    assert interrupted, screen
    assert process.wait() == 3, screen
    assert "Stopped before the end. To go on:" in screen
    has_error = any(row["Forward Test Success"] == "error" for row in rows(out).values())
    assert ("Worst output of each API" if has_error else "Nearest to their limits") in screen
    go_on = re.search(r"ray-precheck (run_ut .* -csv_path .*?)\r", screen)
    assert go_on is not None
    with released():
        resumed = precheck(*shlex.split(go_on.group(1)))
    assert resumed.returncode == whole.returncode, resumed.stderr
    assert both_files(out) == both_files(undisturbed)


def _when_rows_are_there(
    process: "subprocess.Popen[str]", out: Path, count: int = 2
) -> list[psutil.Process]:
    """Wait for the first result rows; returns the processes of the run."""
    while not _has_rows(out, count):
        assert process.poll() is None
        time.sleep(0.01)
    return psutil.Process(process.pid).children(recursive=True)


def _has_rows(out: Path, count: int) -> bool:
    return any(p.read_bytes().count(b"\n") >= count for p in out.glob("*result*.csv"))


def test_kill_9_of_the_whole_tree_twice_and_a_resume_give_the_same_bytes(
    tmp_path: Path, temporary: Path, undisturbed: Path
) -> None:
    command = ["run_ut", "-api_info", str(TORCH_DUMP), "-o", str(tmp_path)]
    done, trees = 0, []
    for least in (2, 90):  # The second one is a resume itself.
        process = subprocess.Popen(
            [*COMMAND, *command],
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        tree = _when_rows_are_there(process, tmp_path, count=max(least, done + 2))
        for one in [psutil.Process(process.pid), *tree]:
            _kill(one)
        process.wait()
        trees += tree
        assert done < len(rows(tmp_path)) < 189
        done = len(rows(tmp_path))
        command = [*command[:5], "-csv_path", str(the_file(tmp_path, "result"))]
    resumed = precheck(*command)
    assert resumed.returncode == 1, resumed.stderr
    assert both_files(tmp_path) == both_files(undisturbed)
    _, alive = psutil.wait_procs(trees, timeout=60)
    assert alive == []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


@pytest.mark.exhaustive  # What the writer does: tests/unit/store/test_store_disk.py.
def test_a_full_disk_stops_the_run_resumable_and_nothing_is_torn(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(disk)], check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        done = precheck("run_ut", "-api_info", TORCH_DUMP, "-o", disk)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "cannot write the " in done.stdout  # results or timeline, whichever comes first
        assert "No space left on device" in done.stdout
        assert "-csv_path" in done.stdout
        for path in (the_file(disk, "result"), the_file(disk, "details")):
            assert path.read_bytes().endswith(b"\n")
        room = subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=False)
        assert room.returncode == 0
        result = the_file(disk, "result")
        again = precheck("run_ut", "-api_info", TORCH_DUMP, "-o", disk, "-csv_path", result)
        assert again.returncode == 1, again.stderr
        assert len(rows(disk)) == 189
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_tensors_of_failing_outputs_are_saved_and_run_again(tmp_path: Path) -> None:
    dump = DATA / "torch_llm_bf16" / "dump.json"
    out = tmp_path / "checker_result"
    done = precheck("run_ut", "-api_info", dump, "-o", out, "-save_error_data")
    assert done.returncode == 1
    failing = [name for name, row in rows(out).items() if "error" in row.values()]
    (folder,) = (out / "error_data").iterdir()  # the run's own
    saved = {path.name.removesuffix(".json") for path in folder.glob("*.json")}
    assert saved == set(failing)
    name = next(n for n in failing if rows(out)[n]["Backward Test Success"] == "error")
    again = ray_precheck.rerun(folder / f"{name}.json")
    assert again.message == rows(out)[name]["Message"]

    # The snippet of the command line's README; those without a cluster: tests/frameworks/test_snippets.py.
    text = (ROOT / "ray_precheck" / "cli" / "README.md").read_text(encoding="utf-8")
    snippet = text.partition("```python\n")[2].partition("```")[0]
    assert "precheck(" in snippet
    shutil.copy(dump, tmp_path / "dump.json")
    snippet = snippet.replace("20260101120000/Mint.sum.0", f"{folder.name}/{name}")
    done = subprocess.run(
        [sys.executable, "-c", f"{snippet}\nprint(report.summary.errors)"],
        cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(len(failing))
