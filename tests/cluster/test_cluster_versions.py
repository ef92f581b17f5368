"""Clusters whose node says that it runs another Python than the driver, on real Ray."""

import inspect
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from conftest import started_head
from dumps import additions, write_dump

import ray_precheck
from ray_precheck.errors import UsageError
from ray_precheck.private_parts import MATCH_LEVEL
from ray_precheck.replay.config import RunConfig

pytestmark = pytest.mark.cluster
# The first three numbers are what Ray tells of itself; all else is decided by the two before.
_PRETENDS = """
import platform, sys

class Pretended(tuple):
    def __getitem__(self, place, numbers=sys.version_info):
        return PRETENDED if place == slice(None, 3) else numbers[place]
    def __getattr__(self, name, numbers=sys.version_info):
        return getattr(numbers, name)

sys.version_info = Pretended(sys.version_info)
platform.python_version = lambda: ".".join(map(str, PRETENDED))
"""


@contextmanager
def head_with_python(
    version: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Start a Ray whose processes say that they run this version of Python; yields its address."""
    with tempfile.TemporaryDirectory(prefix="rpv-", ignore_cleanup_errors=True) as folder:
        pretends = Path(folder) / "site"
        pretends.mkdir()
        (pretends / "sitecustomize.py").write_text(_PRETENDS.replace("PRETENDED", repr(version)))
        path = os.pathsep.join(filter(None, [str(pretends), os.environ.get("PYTHONPATH")]))
        with monkeypatch.context() as patched:
            patched.setenv("PYTHONPATH", path)
            starting = started_head(Path(folder), "--num-cpus=1", "--object-store-memory=100000000")
            address = starting.__enter__()
        try:
            yield address
        finally:
            starting.__exit__(None, None, None)


def test_another_minor_version_of_python_is_refused_and_this_process_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(1))
    with head_with_python((3, 7, 16), monkeypatch) as address:
        config = RunConfig(dump, out=tmp_path / "out", address=address, device_type="cpu")
        with pytest.raises(UsageError) as refused:
            ray_precheck.run(config, show_progress=False)
        here = f"this node ({socket.gethostname()})"
        assert f"at --address {address} has Ray " in str(refused.value)
        assert f"and Python 3.7.16, but {here}" in str(refused.value)
        assert not (tmp_path / "out").exists()
        # Ray was half joined: without an end of that the next one aborted the process.
        report = ray_precheck.run(replace(config, address=""), show_progress=False)
        assert report.summary.passes == 1


@pytest.mark.exhaustive  # What is told: tests/unit/runtime/test_runtime_other_ray.py.
def test_another_patch_release_of_python_is_told_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if MATCH_LEVEL not in inspect.getsource(ray._private.utils):
        pytest.skip(f"ray {ray.__version__} takes no other patch release")
    dump = write_dump(tmp_path / "dump.json", additions(1))
    other = (*sys.version_info[:2], 99)
    with head_with_python(other, monkeypatch) as address:
        run = subprocess.run(
            [
                sys.executable, "-m", "ray_precheck", "run_ut", "-api_info", str(dump),
                "-o", str(tmp_path), "--address", address, "--device-type", "cpu",
            ],
            capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    table = run.stderr[run.stderr.index("warning: versions differ") :].splitlines()
    assert table[1].endswith("this command")
    versions = [".".join(map(str, numbers)) for numbers in (other, sys.version_info[:3])]
    assert table[2].split() == ["python", *versions]
    assert "Traceback" not in run.stderr
