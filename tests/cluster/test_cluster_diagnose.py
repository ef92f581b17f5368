"""A diagnosis is killed in each of its parts and goes on: the bytes are those of an undisturbed one."""

import contextlib
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from dumps import saved

pytestmark = pytest.mark.cluster
COMMAND = [sys.executable, "-m", "ray_precheck", "diagnose"]
CALLS, WRONG = 30, 11


def write_capture(folder: Path, factor: float) -> Path:
    """Write a chain of sums; one of them gives `factor` times what is right."""
    (folder / "dump_tensor_data").mkdir(parents=True)
    random = np.random.default_rng(5)
    value = random.standard_normal((16, 33)).astype(np.float32)
    data: dict[str, Any] = {}
    element = partial(saved, folder, requires_grad=False)
    for number in range(CALLS):
        key = f"Torch.add.{number}.forward"
        other = random.standard_normal((16, 33)).astype(np.float32)
        total = value + other
        if number == WRONG:
            total = total * np.float32(factor)
        inputs = [element(key, "input.0", value), element(key, "input.1", other)]
        output = [element(key, "output.0", total)]
        data[key] = {"input_args": inputs, "input_kwargs": {}, "output": output}
        value = total
    header = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, cluster_address: str) -> list[str]:
    folder = tmp_path_factory.mktemp("captures")
    target, golden = write_capture(folder / "t", 1.01), write_capture(folder / "g", 1.0)
    return ["-tp", str(target), "-gp", str(golden), "--address", cluster_address]


def started(*words: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def files_of(out: Path) -> dict[str, bytes]:
    """Return all tables, saved tensors and the page, without the stamp and the name of the folder."""
    (page,) = out.glob("diagnose_*.txt")
    stamp = page.stem.removeprefix("diagnose_")
    return {
        str(path.relative_to(out)).replace(stamp, ""): path.read_bytes()
        .replace(stamp.encode(), b"")
        .replace(str(out).encode(), b"")
        for path in out.rglob("*")
        if path.suffix in (".csv", ".txt", ".npy")
    }


@pytest.fixture(scope="module")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole")
    process = started(*words, "-o", out)
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 1, errors
    assert f"Torch.add.{WRONG}.forward (own error)" in said
    assert f"- Torch.add.{WRONG} passes." in said
    return files_of(out)


def kill_when(process: "subprocess.Popen[str]", out: Path, pattern: str) -> None:
    """Kill the process of the command as soon as a file is there; its guardian tells how to go on."""
    end = time.monotonic() + 300
    while not list(out.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children():
            child.kill()


@pytest.mark.parametrize(
    "pattern",
    [
        "accuracy_checking_*.run.json",
        pytest.param("locate_calls_*.csv", marks=pytest.mark.exhaustive),
        pytest.param("compare_calls_*.csv", marks=pytest.mark.exhaustive),
        pytest.param("overflow_dumps_*.csv", marks=pytest.mark.exhaustive),
    ],
)
def test_a_diagnosis_that_was_killed_goes_on_and_gives_the_same_bytes(
    words: list[str], whole: dict[str, bytes], tmp_path: Path, pattern: str
) -> None:
    process = started(*words, "-o", tmp_path)
    kill_when(process, tmp_path, pattern)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 3, errors
    assert f"-csv_path {tmp_path}" in errors
    again = started(*words, "-csv_path", tmp_path)
    said, errors = again.communicate(timeout=300)
    assert again.returncode == 1, errors
    assert "Which operator is to blame?" in said
    assert files_of(tmp_path) == whole
