"""cluster/submit against a head of this machine: the package is shipped, exit codes come back."""

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from dumps import additions, broken, write_dump
from test_launch_nodes import DUMP, NODE, SCRIPTS, alone, files_of, plain_environment

__all__ = ["alone"]  # A fixture.
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        importlib.util.find_spec("aiohttp_cors") is None,
        reason="jobs need ray[default], and here is plain ray",
    ),
]
DASHBOARD = "http://127.0.0.1:27470"
PORTS = [
    "--port", "27479", "--base-port", "27480", "--worker-ports", "27500-27900",
    "--dashboard-port", DASHBOARD.rsplit(":", 1)[1],
]  # fmt: skip


class Head:
    """A head with a dashboard, and a checkout from which jobs are submitted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**plain_environment(), "HOME": str(folder)}
        self.checkout = folder / "checkout"
        shutil.copytree(SCRIPTS, self.checkout / "cluster")
        shutil.copytree(SCRIPTS.parent / "ray_precheck", self.checkout / "ray_precheck")

    def call(self, script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.checkout / "cluster" / script, *map(str, arguments)],
            capture_output=True, text=True, check=False, timeout=400, env=self.environment,
        )  # fmt: skip

    def submit(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        return self.call("submit", "--dashboard", DASHBOARD, "run_ut", "-api_info", *arguments)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    made = Head(Path(tempfile.mkdtemp(prefix="rpj-")))
    where = ["--host", "127.0.0.1", "--state", made.folder / "s"]
    started = made.call("start-head", *where, *PORTS, *NODE)
    try:
        assert started.returncode == 0, started.stderr
        yield made
    finally:
        made.call("stop", "--state", made.folder / "s")
        shutil.rmtree(made.folder, ignore_errors=True)


def test_a_submitted_run_writes_the_rows_of_a_run_without_a_cluster(
    head: Head, alone: tuple[bytes, bytes], tmp_path: Path
) -> None:
    done = head.submit(DUMP, "-o", tmp_path, "-d", 0, 1)
    assert done.returncode == 1, done.stdout + done.stderr  # torch_cnn has three errors
    assert "189 APIs:" in done.stdout
    assert files_of(tmp_path) == alone


def test_the_package_of_the_checkout_is_what_every_process_of_the_run_uses(
    head: Head, tmp_path: Path
) -> None:
    modules = [
        "cli.py",
        "runtime/workers/worker.py",
        "runtime/recorder.py",
        "runtime/workers/check_process.py",
    ]
    for number, module in enumerate(modules):
        path, note = head.checkout / "ray_precheck" / module, tmp_path / f"imported{number}"
        first = f"__import__('pathlib').Path({str(note)!r}).write_text(__file__)\n"
        path.write_text(first + path.read_text())
    dump = write_dump(tmp_path / "dump.json", additions(3))
    done = head.submit(dump, "-o", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for number, module in enumerate(modules):
        assert "py_modules_files" in (tmp_path / f"imported{number}").read_text(), module


def test_the_exit_code_is_ray_prechecks_and_not_the_one_of_ray_job(
    head: Head, tmp_path: Path
) -> None:
    assert head.submit(tmp_path / "none.json", "-o", tmp_path).returncode == 2
    dump = write_dump(tmp_path / "dump.json", broken("nonsense"))
    assert head.submit(dump, "-o", tmp_path, "--device-type", "npu").returncode == 2


def test_another_token_is_refused(head: Head, tmp_path: Path) -> None:
    other = tmp_path / "token"
    other.touch(mode=0o600)
    other.write_text("f" * 64)
    before = dict(head.environment)
    head.environment["RAY_AUTH_TOKEN_PATH"] = str(other)
    done = head.submit(DUMP, "-o", tmp_path)
    head.environment = before
    assert done.returncode == 2
    assert "did not take the job" in done.stderr
    assert not list(tmp_path.glob("accuracy*"))
