"""The pure parts of the trial of MSAdapter's releases: the layout, the planted fault, the table."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ray_precheck.frameworks.mindtorch.paths import TorchKind, find_torches
from scripts.matrix.trial import Verdict
from scripts.msadapter.adapters import ADAPTERS, Adapter
from scripts.msadapter.layout import lay_out, with_fault
from scripts.msadapter.main import main
from scripts.msadapter.rows import adapter_table, counted
from scripts.msadapter.trial import Captured, Trialled, right_blame

pytestmark = pytest.mark.unit
PASS: Verdict = ("pass", "pass", "")
# A release of one's own: MindSpore has no part in it.
TOY = Adapter("toy-1", "toy==1", "3.11", ("mindspore==2.7.0",), "toy.torch")
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


def test_the_fault_is_in_the_copy_alone(tmp_path: Path) -> None:
    right = library(tmp_path / "right")
    with_fault(TOY, right, tmp_path / "faulty")
    code = "import torch.nn.functional as F; print(F.relu(100.0), F.relu(-1.0))"
    assert said(right, code) == "100.0 0.0"
    assert said(tmp_path / "faulty", code) == "101.0 0.0"


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
def test_every_layout_is_known_as_msadapter_and_is_python(adapter: Adapter, tmp_path: Path) -> None:
    lay_out(adapter, tmp_path)
    text = (tmp_path / "torch" / "__init__.py").read_text()
    compile(text, "torch", "exec")
    (found,) = find_torches([str(tmp_path)])
    assert found.kind is TorchKind.ADAPTER
    assert ("pow_.register" in text) == bool(adapter.lost)
    assert adapter.own_way in text
    assert adapter.functional.endswith("/nn/functional.py")


def test_only_powers_that_mindspore_lacks_are_registered(tmp_path: Path) -> None:
    library(tmp_path)
    lay_out(replace(TOY, lost=(("Tuple", "Tensor"), ("Tensor", "List"))), tmp_path / "lossy")
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


def test_a_call_counts_once_by_its_worst_verdict() -> None:
    verdicts: dict[str, Verdict] = {
        "a": PASS,
        "b": ("pass", "error", "x"),
        "c": ("pass", "SKIP", ""),
    }
    assert counted(verdicts | {"d": ("pass", "", "")}) == "2, 1, 1"
    assert counted({}) == ""


@pytest.mark.parametrize(
    ("blamed", "right"),
    [
        (("Functional.relu.0",), True),
        (("Functional.relu.0", "Functional.relu.1"), True),
        (("Functional.relu.0", "Torch.mean.0"), False),
        ((), False),
    ],
)
def test_a_fault_is_found_where_it_alone_is_blamed(blamed: tuple[str, ...], right: bool) -> None:
    assert right_blame(blamed) is right


def test_the_table_has_a_row_for_each_release_and_the_reasons_below() -> None:
    captured = Captured(2, {}, {"Torch.cat.0": "ValueError: no"})
    checked = {"msprobe": {"A.0": PASS, "B.0": ("error", "", "wrong")}, "auto": {"A.0": PASS}}
    whole = Trialled(TOY, "", captured, checked, ("Functional.relu.0",))
    text = adapter_table([whole, Trialled(ADAPTERS[0], "import torch ended with 1: ImportError")])
    _, _, first, second, *rest = text.splitlines()
    assert first == (
        "| toy 1 | mindspore 2.7.0 | 3.11 | yes | the device | 2 | 1, 1, 0 | 1, 0, 0 "
        "| blamed: Functional.relu.0 |"
    )
    assert second == "| msadapter 0.1.0 | mindspore 2.0.0 | 3.9 | no |  |  |  |  |  |"
    assert rest == [
        "",
        "- toy-1: Torch.cat.0 raised while it was captured: ValueError: no",
        "- toy-1, msprobe: B.0: wrong",
        "- msadapter-0.1.0-ms20: import torch ended with 1: ImportError",
    ]


def test_a_name_that_is_unknown_and_a_missing_folder_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments, text in (
        (["torch-1"], "no release is called torch-1"),
        ([], "--work FOLDER is"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert text in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert "mindnlp-0.5.1: Python 3.11" in capsys.readouterr().out
