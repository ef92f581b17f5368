"""Benches of users' own, through the command and workers on Ray."""

import json
import os
from pathlib import Path

import pytest
from dumps import additions, forward, tensor, value, write_dump
from test_cluster_command import precheck, rows, the_file

pytestmark = pytest.mark.cluster

BENCH = """
import ray_precheck
import torch

def kernel(x, scale):
    return torch.exp(x) * scale

@ray_precheck.reference("MyOps.scaled_exp", tested=kernel)
def scaled_exp(x, scale):
    return x.exp() * scale

@ray_precheck.reference("MyOps.wrong", tested="torch.expm1")
def wrong(x):
    return x.exp()
"""
OF_A_PACKAGE = """
import ray_precheck

@ray_precheck.reference("MyOps.cube", tested="my_benches.cube")
def cube(x):
    return x**3
"""
X = tensor("float32", [4, 8], -1.0, 1.0)


def record(*args: object, **kwargs: object) -> dict[str, object]:
    return {**forward(X, *args, **kwargs), "output": [X]}


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    calls = {
        "MyOps.scaled_exp.0.forward": record(scale=value(0.5)),
        "MyOps.wrong.0.forward": record(),
        "MyOps.cube.0.forward": record(),
        "MyOps.unknown.0.forward": record(),
        "NPU.npu_mish.0.forward": record(),
    }
    return write_dump(tmp_path / "dump.json", additions(2), calls)


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    path = tmp_path / "bench.py"
    path.write_text(BENCH)
    return path


@pytest.fixture
def packages(tmp_path: Path) -> str:
    """A PYTHONPATH on which a package is installed that has benches."""
    site = tmp_path / "site"
    info = site / "my_benches-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "my_benches.py").write_text(OF_A_PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-benches\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ray_precheck.benches]\nmine = my_benches\n")
    return os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])


def test_own_operators_are_checked_by_the_command_and_go_on_only_with_the_same_benches(
    tmp_path: Path, dump: Path, bench: Path, packages: str
) -> None:
    out = tmp_path / "out"
    arguments = ("run_ut", "-api_info", dump, "--bench-module", bench, "-d", 0, 1)
    done = precheck(*arguments, "-o", out, PYTHONPATH=packages)
    assert done.returncode == 1, done.stderr
    found = rows(out)
    cells = {name: row["Forward Test Success"] for name, row in found.items()}
    assert cells == {
        "Tensor.add.0": "pass",
        "Tensor.add.1": "pass",
        "MyOps.scaled_exp.0": "pass",
        "MyOps.wrong.0": "error",
        "MyOps.cube.0": "pass",
        "MyOps.unknown.0": "SKIP",
        "NPU.npu_mish.0": "SKIP",
    }
    assert "--bench-module FILE can add one" in found["MyOps.unknown.0"]["Message"]
    assert "torch_npu, which cannot be imported here" in found["NPU.npu_mish.0"]["Message"]
    result = the_file(out, "result")
    settings = json.loads(next(out.glob("*.run.json")).read_text())
    assert len(settings["benches"]) == 16

    elsewhere = tmp_path / "moved.py"
    elsewhere.write_text(BENCH)
    resumed = ("run_ut", "-api_info", dump, "-d", 0, "-csv_path", result, "--bench-module")
    again = precheck(*resumed, elsewhere, PYTHONPATH=packages)
    assert again.returncode == 1, again.stderr
    assert rows(out) == found
    elsewhere.write_text(f"{BENCH}\n# changed\n")
    refused = precheck(*resumed, elsewhere, PYTHONPATH=packages)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "was made with benches" in refused.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("def f(:\n", "line 1 is no Python"),
        ("x = 1\n", "declares no bench"),
        (BENCH.replace("MyOps.wrong", "wrong"), "bench.py: wrong: 'wrong' is no name of an API"),
    ],
)
def test_a_wrong_bench_module_is_one_sentence_and_writes_nothing(
    tmp_path: Path, dump: Path, bench: Path, text: str | None, says: str
) -> None:
    bench.unlink() if text is None else bench.write_text(text)
    out = tmp_path / "out"
    done = precheck("run_ut", "-api_info", dump, "--bench-module", bench, "-o", out)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert str(bench) in done.stderr
    assert done.stderr.count("\n") == 1
    assert not out.exists()
