"""A framework of which this package knows nothing: installed, then prechecked by the command."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA
from dumps import value
from test_cluster_command import precheck, rows, the_file

pytestmark = pytest.mark.cluster


def toy(dtype: str, low: float = -1.0, high: float = 1.0) -> dict[str, Any]:
    return {"type": "toyframe.Tensor", "dtype": dtype, "shape": [4, 8], "Max": high, "Min": low}


X = toy("f4")
DTYPE = {"type": "toyframe.dtype", "value": "f8"}


def record(*args: Any, out: Any = X) -> dict[str, Any]:
    return {"input_args": list(args), "input_kwargs": {}, "output": [out]}


RECORDS = {
    "Toy.add.0.forward": record(X, X),
    "Toy.subtract_from.0.forward": record(X, X),
    "Toy.mul.0.forward": record(X, X),
    "Toy.mul.0.backward": {"input": [X], "output": [X, X]},
    "Toy.exp.0.forward": record(X),
    "Toy.exp.1.forward": record(toy("f8"), out=toy("f8")),
    "Toy.cast.0.forward": record(X, DTYPE, out=toy("f8")),
    "Toy.softcap.0.forward": record(toy("f4", -90.0, 90.0), value(30.0)),
    "Toy.crash.0.forward": record(X),
    "Toy.save.0.forward": record(X, value("x.npy")),
    "Toy.unknown.0.forward": record(X),
    "Torch.exp.0.forward": record(X),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH on which toyframe is installed, and a package whose descriptor is broken."""
    folder = tmp_path_factory.mktemp("toyframe")
    source = shutil.copytree(DATA / "toyframe", folder / "source")
    target = folder / "site"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, target, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    info = target / "brokenframe-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brokenframe\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[ray_precheck.frameworks]\nbroken = nowhere:IT\n")
    return os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")])


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    header = {"task": "statistics", "level": "L1", "framework": "toyframe", "dump_data_dir": None}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({**header, "data": RECORDS}))
    return path


def test_an_installed_framework_is_prechecked_end_to_end(
    tmp_path: Path, dump: Path, site: str
) -> None:
    out = tmp_path / "out"
    done = precheck("run_ut", "-api_info", dump, "-save_error_data", "-o", out, PYTHONPATH=site)
    assert done.returncode == 1, done.stderr
    assert "Tested:   toyframe 1.0 on 1 cpu" in done.stdout
    found = rows(out)
    verdicts = {
        name: (row["Forward Test Success"], row["Backward Test Success"])
        for name, row in found.items()
    }
    assert verdicts == {
        "Toy.add.0": ("pass", ""),
        "Toy.subtract_from.0": ("pass", ""),
        "Toy.mul.0": ("pass", "pass"),
        "Toy.exp.0": ("error", ""),
        "Toy.exp.1": ("pass", ""),
        "Toy.cast.0": ("pass", ""),
        "Toy.softcap.0": ("pass", ""),
        "Toy.crash.0": ("error", ""),
        "Toy.save.0": ("SKIP", ""),
        "Toy.unknown.0": ("SKIP", ""),
        "Torch.exp.0": ("SKIP", ""),
    }
    messages = {name: row["Message"] for name, row in found.items()}
    assert messages["Toy.save.0"] == "it writes files"
    assert "toyframe maps it to nothing of torch's" in messages["Toy.unknown.0"]
    assert "prefix Torch is not supported for toyframe (supported: Toy)" in messages["Torch.exp.0"]
    assert "toyframe has no memory of this operator" in messages["Toy.crash.0"]
    with the_file(out, "details").open(encoding="utf-8-sig", newline="") as file:
        details = {
            row["API Name"]: (row["Bench Dtype"], row["Tested Dtype"], row["Shape"], row["Status"])
            for row in csv.DictReader(file)
        }
    assert details == {
        "Toy.add.0.forward.output.0": ("f8", "f4", "(4, 8)", "pass"),
        "Toy.subtract_from.0.forward.output.0": ("f8", "f4", "(4, 8)", "pass"),
        "Toy.mul.0.forward.output.0": ("f8", "f4", "(4, 8)", "pass"),
        "Toy.mul.0.backward.output.0": ("f8", "f4", "(4, 8)", "pass"),
        "Toy.mul.0.backward.output.1": ("f8", "f4", "(4, 8)", "pass"),
        "Toy.exp.0.forward.output.0": ("f8", "f4", "(4, 8)", "error"),
        "Toy.exp.1.forward.output.0": ("f8", "f8", "(4, 8)", "pass"),
        "Toy.cast.0.forward.output.0": ("f8", "f8", "(4, 8)", "pass"),
        "Toy.softcap.0.forward.output.0": ("f8", "f4", "(4, 8)", "pass"),
    }
    saved = next(out.glob("error_data/*/Toy.exp.0.json"))
    refused = precheck("repro", saved, PYTHONPATH=site)
    assert refused.returncode == 2
    assert (
        "no script can be written for a call of toyframe, because the descriptor" in refused.stderr
    )


def test_without_its_package_the_dump_of_a_framework_is_one_sentence(
    tmp_path: Path, dump: Path
) -> None:
    done = precheck("run_ut", "-api_info", dump, "-o", tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "expected one of: mindspore, pytorch, mindtorch" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_broken_descriptor_is_one_sentence_for_its_own_users(
    tmp_path: Path, dump: Path, site: str
) -> None:
    dump.write_text(dump.read_text().replace('"toyframe"', '"broken"', 1))
    done = precheck("run_ut", "-api_info", dump, "-o", tmp_path / "out", PYTHONPATH=site)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "of the package brokenframe 0.3 (nowhere:IT" in done.stderr
    assert "ModuleNotFoundError: No module named 'nowhere'" in done.stderr


def test_kinds_of_device_are_those_of_the_descriptor(tmp_path: Path, dump: Path, site: str) -> None:
    arguments = ("run_ut", "-f", "toyframe", "-api_info", dump, "-o", tmp_path / "out")
    done = precheck(*arguments, "--device-type", "gpu", PYTHONPATH=site)
    assert done.returncode == 2
    assert "Toyframe does not run on a GPU here; use --device-type cpu" in done.stderr


SCRIPT = """
import numpy as np
import toyframe

x = toyframe.Tensor(np.linspace(-1, 1, 32, dtype="f4").reshape(4, 8))
toyframe.exp(toyframe.add(x, x))
toyframe.softcap(x, 0.5)
"""


def test_an_installed_framework_is_captured_then_prechecked(tmp_path: Path, site: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("capture", "-o", tmp_path / "dump", "--", sys.executable, tmp_path / "train.py")
    captured = precheck(*words, PYTHONPATH=site)
    assert captured.returncode == 0, captured.stderr
    assert "3 records" in captured.stdout + captured.stderr
    done = precheck(
        "run_ut", "-api_info", tmp_path / "dump", "-o", tmp_path / "out", PYTHONPATH=site
    )
    assert done.returncode == 1, done.stderr
    (results,) = (tmp_path / "out").rglob("accuracy_checking_result_*.csv")
    verdicts = {name: row["Forward Test Success"] for name, row in rows(results.parent).items()}
    assert verdicts == {"Toy.add.0": "pass", "Toy.exp.0": "error", "Toy.softcap.0": "pass"}
