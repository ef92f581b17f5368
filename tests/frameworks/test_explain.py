"""`ray-precheck explain`: what is known of one operator, from the tables and the installed frameworks."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from records import NEEDS_MINDSPORE

from ray_precheck.cli import main
from ray_precheck.commands.explain.explanation import Explanation, explain
from ray_precheck.errors import UsageError

pytestmark = pytest.mark.frameworks


def told(found: Explanation, heading: str) -> str:
    return "\n".join(dict(found.sections)[heading])


@pytest.mark.parametrize(
    "given",
    [
        "torch.nn.functional.softmax",
        "Functional.softmax",
        "Functional.softmax.0",
        "Functional.softmax.12.forward",
        "Functional.softmax.0.backward.input.0",
        "Torch.nn.functional.softmax",
    ],
)
def test_every_spelling_of_an_operator_means_the_same(given: str) -> None:
    (found,) = explain(given, "pytorch")
    assert found.operator.name == "torch.nn.functional.softmax"
    assert found.operator.type_names == ("Functional.softmax",)
    assert told(found, "bench") == (
        f"torch {torch.__version__} in float64 on the CPU: torch.nn.functional.softmax itself"
    )


def test_a_prefix_of_two_frameworks_means_an_operator_of_each() -> None:
    torchs, mindspores = explain("Functional.gelu.0.forward")
    assert torchs.operator.name == "torch.nn.functional.gelu"
    assert mindspores.operator.name == "mindspore.ops.gelu"
    assert told(mindspores, "bench").endswith("(input, approximate): torch.nn.functional.gelu")
    (alone,) = explain("Functional.gelu.0.forward", "mindspore")
    assert alone == mindspores


@pytest.mark.parametrize(
    ("given", "framework", "heading", "expected"),
    [
        ("torch.Tensor.storage", "", "checked", "no, it is refused: it touches more than its"),
        ("torch.lobpcg", "", "checked", "no: it is a randomised algorithm"),
        pytest.param(
            "mindspore.ops.iou",
            "",
            "checked",
            "no: Functional.iou has no bench",
            marks=NEEDS_MINDSPORE,  # Without a bench only MindSpore knows that there is one.
        ),
        ("torch.bernoulli", "", "checked", "yes, by statistics"),
        ("torch.bernoulli", "", "inputs", "input: numbers from 0 to 1"),
        ("Mint.nn.functional.dropout2d", "", "checked", "its draws do not follow the seed"),
        (
            "torch.nn.functional.dropout",
            "",
            "checked",
            "where p is not 0 and training is not False",
        ),
        ("torch.lstm", "", "checked", "then it is not checked"),
        ("torch.sort", "", "outputs", "of equal values any index counts"),
        ("torch.linalg.svd", "", "outputs", "vectors up to a factor of modulus 1"),
        ("torch.nonzero", "", "outputs", "shapes depend on the values"),
        ("torch.gather", "", "inputs", "index: an index into the dimension `dim` of a tensor"),
        ("torch.Tensor.add_", "", "in place", "yes"),
        ("torch.Tensor.__iadd__", "", "in place", "yes"),
        ("torch.Tensor.view", "", "checked", "not where it reads the bits"),
        ("Tensor.__add__", "mindspore", "bench", "torch.Tensor.__add__, a namesake"),
        ("Mint.sin", "", "bench", "torch.sin, a namesake"),
        ("NPU.npu_swiglu", "", "bench", "(self, dim): ray_precheck.bench.fused.formulas.swiglu"),
        ("mindspore.ops.rms_norm", "", "bench", "ray_precheck.bench.fused.formulas.rms_norm"),
        ("torch.addmm", "", "--standard published", "forward and backward: ulp"),
        ("torch.gather", "", "--standard published", "backward: benchmark L0"),
        ("torch.layer_norm", "", "--standard published", "benchmark L2"),
        ("torch.nn.functional.conv2d", "", "--standard published", "thousandth"),
        ("torch.tanh", "", "--standard auto", "so is 6.1e-05 of the output's largest magnitude"),
        ("torch.linalg.inv", "", "--standard auto", "inputs may be off by 4 units"),
        (
            "torch.add",
            "",
            "--standard msprobe",
            "above 0.99 and largest absolute error below 0.0001",
        ),
    ],
)
def test_what_is_known_is_said(given: str, framework: str, heading: str, expected: str) -> None:
    (found,) = explain(given, framework)
    assert expected in told(found, heading)


def test_an_operator_of_msadapter_is_asked_for_by_its_framework() -> None:
    (found,) = explain("torch.add", "mindtorch")
    assert told(found, "in a dump") == "Torch.add, framework mindtorch"


def test_an_unknown_name_is_an_error_that_names_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "torch.nn.functional.sotfmax"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "ray-precheck: error: 'torch.nn.functional.sotfmax': nothing is known of"
    )
    assert "torch.nn.functional.softmax" in said
    assert main(["explain", "torch.nn.functional"]) == 2
    assert "nothing is known of torch.nn.functional" in capsys.readouterr().err
    assert main(["explain", "softmax"]) == 2
    assert "expected a full name, such as" in capsys.readouterr().err


def test_an_unknown_framework_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-f", "caffe", "explain", "torch.add"]) == 2
    assert "caffe" in capsys.readouterr().err


def test_a_name_of_another_framework_is_unknown_in_this_one() -> None:
    with pytest.raises(UsageError, match=r"'Mint\.sin' is no name of an operator of pytorch"):
        explain("Mint.sin", "pytorch")


BENCH = """
import ray_precheck

@ray_precheck.reference("Functional.softmax")
@ray_precheck.reference("MyOps.twice")
def twice(x):
    return 2 * x
"""


@pytest.mark.parametrize("given", ["Functional.softmax", "MyOps.twice.0.forward"])
def test_a_bench_of_a_users_own_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    file = tmp_path / "benches.py"
    file.write_text(BENCH)
    assert main(["-f", "pytorch", "explain", given, "--bench-module", str(file)]) == 0
    assert f"a user's own: {file}: twice" in capsys.readouterr().out


WITHOUT = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name.split(".")[0] in {hidden} else real(name, *a)
for name in {hidden}:
    sys.modules[name] = None
from ray_precheck.cli import main
code = main(["explain", "{given}"])
assert "ray" not in sys.modules, "ray was loaded"
sys.exit(code)
"""


def test_without_a_framework_the_tables_still_tell() -> None:
    script = WITHOUT.format(hidden=("torch", "mindspore"), given="torch.sort")
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "torch is not installed here, so it is unknown whether it has the operator" in ran.stdout
    assert "torch, which computes the bench, is not installed here" in ran.stdout
    assert "of equal values any index counts" in ran.stdout
    assert "--standard published" in ran.stdout
