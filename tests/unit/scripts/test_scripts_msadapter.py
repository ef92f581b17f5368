"""A release of MSAdapter is laid out as a package `torch`, whose modules are those of the release."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ray_precheck.frameworks.mindtorch.paths import TorchKind, find_torches
from scripts.msadapter import RELEASES, Release, lay_out, main

pytestmark = pytest.mark.unit
# A release of one's own: MindSpore has no part in it.
TOY = Release("toy==1", "toy.torch")
FUNCTIONAL = "def relu(input, inplace=False):\n    return max(input, 0.0)\n"


def library(folder: Path) -> Path:
    """Make a folder as pip leaves it, with a release whose torch has a functional, and lay it out."""
    inner = folder / "toy" / "torch" / "nn"
    inner.mkdir(parents=True)
    for package in (folder / "toy", folder / "toy" / "torch", inner):
        (package / "__init__.py").write_text("")
    (folder / "toy" / "torch" / "__init__.py").write_text("Tensor = float\nimport toy.torch.nn\n")
    (inner / "functional.py").write_text(FUNCTIONAL)
    lay_out(TOY, folder)
    return folder


def said(folder: Path, code: str) -> str:
    """Return what a Python says with a folder in PYTHONPATH."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(folder)}, cwd=folder,
    )  # fmt: skip
    return done.stdout.strip()


def test_modules_of_a_release_without_a_way_of_its_own_are_those_of_torch(tmp_path: Path) -> None:
    code = "import toy.torch.nn.functional as F; import torch.nn.functional as G; import torch"
    code += "; import importlib.util as u; print(F is G, torch.Tensor, torch.nn.functional is F"
    code += ", F.__spec__.name, u.find_spec('torch.none'))"
    right = "True <class 'float'> True toy.torch.nn.functional None"
    assert said(library(tmp_path), code) == right


@pytest.mark.parametrize("name", RELEASES)
def test_every_layout_is_known_as_msadapter_and_is_python(name: str, tmp_path: Path) -> None:
    release = RELEASES[name]
    lay_out(release, tmp_path)
    text = (tmp_path / "torch" / "__init__.py").read_text()
    compile(text, "torch", "exec")
    (found,) = find_torches([str(tmp_path)])
    assert found.kind is TorchKind.ADAPTER
    assert ("pow_.register" in text) == bool(release.lost)
    assert release.own_way in text


def test_only_powers_that_mindspore_lacks_are_registered(tmp_path: Path) -> None:
    library(tmp_path)
    lay_out(TOY._replace(lost=(("Tuple", "Tensor"), ("Tensor", "List"))), tmp_path / "lossy")
    shutil.copytree(tmp_path / "toy", tmp_path / "lossy" / "toy")
    modules = {
        "mindspore/__init__.py": "",
        "mindspore/dtype.py": "typing = type('T', (), {'str_to_type': str})\n_issubclass_ = str.__eq__\n",
        "mindspore/ops/__init__.py": "",
        "mindspore/ops/composite/__init__.py": "",
        "mindspore/ops/composite/multitype_ops/__init__.py": "",
        "mindspore/ops/composite/multitype_ops/pow_impl.py": (
            "class Powers:\n"
            "    entries = [(('Number',), None), (('Tuple', 'Tensor'), None)]\n"
            "    def register(self, *names):\n"
            "        return lambda function: self.entries.append((names, function))\n"
            "pow_ = Powers()\n"
        ),
    }
    for name, text in modules.items():
        (tmp_path / "lossy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lossy" / name).write_text(text)
    code = "import torch; from mindspore.ops.composite.multitype_ops.pow_impl import pow_"
    code += "; print([names for names, _ in pow_.entries])"
    right = "[('Number',), ('Tuple', 'Tensor'), ('Tensor', 'List')]"
    assert said(tmp_path / "lossy", code) == right


def test_what_cannot_be_got_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert main(["mindnlp-0.5.1", "--work", str(tmp_path), "--lay-out"]) == 1
    assert "mindnlp-0.5.1 cannot be laid out in" in capsys.readouterr().err
