"""Optimizers of ONNX Runtime that change a result are found, with the nodes; honest models are not accused.

No optimizer is patched: in these models ONNX Runtime's own rounds otherwise, overflows, or breaks the graph.
"""

import json
import math
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.commands.bisect.closing import BisectReport, bisect_lines
from ray_precheck.commands.bisect.report import view
from ray_precheck.commands.bisect.run import bisect, survey_target
from ray_precheck.commands.bisect.targets.onnx import target as onnx_target
from ray_precheck.commands.bisect.targets.onnx.options import OnnxConfig
from ray_precheck.errors import UsageError
from ray_precheck.running.views import found_run
from ray_precheck.searching.bisection import RungFinding, SearchEnd

# The interpreter that has onnxruntime and onnx, where it is not this one.
PYTHON = os.environ.get("RAY_PRECHECK_ONNX", sys.executable)
MODELS = Path(__file__).with_name("onnx_models.py")
INSIDE = Path(onnx_target.__file__).with_name("inside.py")
TARGET = onnx_target.TARGET
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        sys.executable == PYTHON and find_spec("onnxruntime") is None,
        reason="this interpreter has no onnxruntime, and RAY_PRECHECK_ONNX names none",
    ),
]

# By model: the level, the culprit, and the nodes that it replaced.
FAULTS = {
    "conv_bn": ("basic", "ConvBNFusion", "/conv_1 (Conv), /batchnormalization_1 (BatchNormalization)"),
    "conv_mul": ("basic", "ConvMulFusion", "/conv_1 (Conv), /mul_1 (Mul)"),
    "conv_add": ("basic", "ConvAddFusion", "/conv_1 (Conv), /add_0 (Add)"),
    "div_mul": ("basic", "DivMulFusion", "/div_0 (Div), /mul_2 (Mul)"),
    "in_branch": ("basic", "DivMulFusion", "/if_0 (If)"),
    "gemm_bias": ("basic", "MatMulAddFusion", "/matmul_1 (MatMul), /add_1 (Add)"),
    "quantized": ("basic", "WeightBiasQuantization", "/conv_0 (Conv)"),
    "layer_norm": ("extended", "LayerNormFusionL2", "/reducemean_0 (ReduceMean), /sub_0 (Sub)"),
    "matmul_scale": ("extended", "MatMulScaleFusion", "/mul_0 (Mul), /mul_1 (Mul), /matmul_3 (MatMul)"),
    "nchwc": ("layout", "NchwcTransformer", "/conv_1 (Conv)"),
}  # fmt: skip


def run_python(*words: object) -> str:
    done = subprocess.run(
        [PYTHON, *map(str, words)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    run_python(MODELS, folder, 0)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def config_of(model: Path, out: Path, **options: Any) -> OnnxConfig:
    return OnnxConfig(**{"model": model, "python": PYTHON, "out": out, "devices": (0,), **options})


def searched(model: Path, out: Path, **options: Any) -> tuple[BisectReport, str]:
    config = config_of(model, out, **options)
    report = bisect(TARGET, config, show_progress=False)
    return report, "\n".join([*bisect_lines(TARGET, config, report), *report.said])


def found_in(report: BisectReport) -> list[RungFinding]:
    return [each for each in report.findings if each.kind is SearchEnd.FOUND]


@pytest.mark.parametrize("name", FAULTS)
def test_a_culprit_and_its_nodes_are_found(models: Path, out: Path, name: str) -> None:
    level, culprit, nodes = FAULTS[name]
    report, said = searched(models / f"{name}.onnx", out)
    (found,) = found_in(report)
    assert (found.rung.name, found.sets) == (level, (frozenset([culprit]),))
    assert found.sufficient
    assert found.necessary
    trials = [each for each in report.trials if each.rung == level and each.enabled != "all"]
    assert len(trials) <= math.ceil(math.log2(len(found.rung.members))) + 4
    (place,) = [line for line in said.splitlines() if " became " in line]
    assert nodes in place
    assert place.endswith("alone they show it")
    assert f'disabled_optimizers=["{culprit}"]' in said
    # The levels above are right without it: the deployed session is mended.
    above = report.findings[report.findings.index(found) + 1 :]
    assert [each.kind for each in above] == [SearchEnd.CLEAN] * len(above)
    assert above[-1].rung.name == f"all without {culprit}"
    # The files alone tell the same, without the target.
    found_again = view([found_run(report.files.result)])
    card = next(each for each in found_again.cards if each.name == culprit)
    facts = {fact.name: fact.value for fact in card.facts}
    assert f'disabled_optimizers=["{culprit}"]' in facts["Off in Python"]
    assert (found_again.exit_code, card.times > 1, card.row) == (1, True, card.why.split()[5][:-1])
    assert any(str(out) in note for note in found_again.notes)


def test_the_printed_lines_mend_the_cropped_model(models: Path, out: Path) -> None:
    _, said = searched(models / "conv_bn.onnx", out)
    python = re.search(r"Python: (.*)", said)
    entry = re.search(r"C\+\+: session_options\.AddConfigEntry\((.*)\);", said)
    assert python is not None
    assert entry is not None
    script = f"""
import json, numpy, onnx, onnxruntime
path = {str(out / "conv_bn.part1.onnx")!r}
assert [node.op_type for node in onnx.load(path).graph.node] == ["Conv", "BatchNormalization"]
with numpy.load({str(out / "conv_bn.part1.npz")!r}) as stored:
    inputs = {{name: stored[name] for name in stored.files}}
options = onnxruntime.SessionOptions()
fast = onnxruntime.InferenceSession(path, options).run(None, inputs)[0]
mended = {python[1]}.run(None, inputs)[0]
options.add_session_config_entry({entry[1]})
entry = onnxruntime.InferenceSession(path, options).run(None, inputs)[0]
print(json.dumps([float(abs(fast - mended).max()), float(abs(entry - mended).max())]))
"""
    differs, same = json.loads(run_python("-c", script))
    assert differs > 0.05
    assert same == 0


def test_a_second_culprit_of_a_higher_level_is_found_behind_the_first(
    models: Path, out: Path
) -> None:
    report, said = searched(models / "conv_bn_bare.onnx", out)
    assert [(each.rung.name, each.sets) for each in found_in(report)] == [
        ("basic", (frozenset(["ConvBNFusion"]),)),
        ("layout without ConvBNFusion", (frozenset(["NchwcTransformer"]),)),
    ]
    assert 'disabled_optimizers=["ConvBNFusion", "NchwcTransformer"]' in said
    assert report.findings[-1].kind is SearchEnd.CLEAN


def test_two_rules_that_only_together_make_an_invalid_graph_are_found(
    models: Path, out: Path
) -> None:
    report, _ = searched(models / "invalid_pair.onnx", out, fail_on="raise")
    (found,) = found_in(report)
    assert found.sets == (frozenset(["CastElimination", "DivMulFusion"]),)
    assert len(found.cure) == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["honest_cnn", "honest_transformer"])
def test_honest_models_are_accused_of_nothing(tmp_path: Path, seed: int, name: str) -> None:
    run_python(MODELS, tmp_path, seed)
    report, _ = searched(tmp_path / f"{name}.onnx", tmp_path, shape=("batch=2",))
    assert {each.kind for each in report.findings} == {SearchEnd.CLEAN}
    assert report.findings[-1].rung.name == "all"


def test_optimizers_that_the_deployed_session_disables_are_off(models: Path, out: Path) -> None:
    report, _ = searched(models / "conv_bn.onnx", out, disabled=("ConvBNFusion",))
    assert {each.kind for each in report.findings} == {SearchEnd.CLEAN}
    assert all("ConvBNFusion" not in each.rung.members for each in report.findings)


def test_a_native_operator_is_held_against_the_reference(models: Path, out: Path) -> None:
    """The golden outputs are those of the fused model, which is the more exact one."""
    golden, inputs = out.with_name("golden.npz"), out.with_name("inputs.npz")
    np.savez(inputs, image=np.random.default_rng(1).standard_normal((1, 3, 16, 16), "float32"))
    run_python(
        "-c",
        "import numpy, onnxruntime, sys\n"
        "inputs = dict(numpy.load(sys.argv[2]))\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "names = [each.name for each in session.get_outputs()]\n"
        "numpy.savez(sys.argv[3], **dict(zip(names, session.run(None, inputs))))\n",
        models / "conv_bn.onnx",
        inputs,
        golden,
    )
    report, said = searched(models / "conv_bn.onnx", out, input=inputs, golden=golden)
    assert [each.kind for each in report.findings] == [SearchEnd.WRONG_AT_FOOT]
    assert "a native operator: /batchnormalization_1 (BatchNormalization)" in said
    np.savez(golden, **{"/gemm_0/out": np.zeros((1, 10), "float32")})
    report, said = searched(models / "honest_cnn.onnx", out, golden=golden)
    assert [each.kind for each in report.findings] == [SearchEnd.WRONG_AT_FOOT]
    assert "nodes gives what onnx's reference gives" in said


def test_every_switch_is_a_name_that_disabled_optimizers_takes(models: Path) -> None:
    """ONNX Runtime ignores other names. Without its last rule, what holds a rule is not there."""
    script = f"""
import importlib.util, json
spec = importlib.util.spec_from_file_location("inside", {str(INSIDE)!r})
inside = importlib.util.module_from_spec(spec)
spec.loader.exec_module(inside)
opened = inside.open_target({{"model": {str(models / "conv_bn.onnx")!r}}})
levels = opened.answer({{"kind": "optimizers"}})["levels"]
rows = [row for level in levels.values() for row in level]
def names(off):
    log = inside.logged(lambda: opened._session(opened._path, "all", (), off, severity=0))
    return [name for name, _ in log]
all_of_them = [row["name"] for row in rows]
print(json.dumps([
    all_of_them,
    sorted(set(names(all_of_them))),
    [row["name"] for row in rows if "holder" not in row and row["name"] in names([row["name"]])],
    [row["name"] for row in rows if "holder" in row
     and row["holder"] not in names([name for name in all_of_them if name != row["name"]])],
]))
"""
    listed, left, kept, unknown = json.loads(run_python("-c", script))
    assert len(listed) > 50
    assert not [name for name in [*listed, *left] if name.endswith("_RuleBasedTransformer")]
    assert (kept, unknown) == ([], [])


def test_models_inputs_and_options_that_are_wrong_are_one_sentence(
    models: Path, tmp_path: Path
) -> None:
    good = models / "conv_bn.onnx"
    text, cut = tmp_path / "text.onnx", tmp_path / "cut.onnx"
    text.write_text("no model")
    cut.write_bytes(good.read_bytes()[:500])
    save = (
        "import onnx, os, sys\n"
        "for name in ('missing', 'short'):\n"
        "    onnx.save(onnx.load(sys.argv[1]), f'{sys.argv[2]}/{name}.onnx', save_as_external_data=True,"
        " location=f'{name}.data', size_threshold=0)\n"
    )
    run_python("-c", save, good, tmp_path)
    (tmp_path / "missing.data").unlink()
    os.truncate(tmp_path / "short.data", 1000)
    arrays = {
        "shape": {"image": np.ones((1, 3, 16, 17), "float32")},
        "dtype": {"image": np.ones((1, 3, 16, 16))},
        "name": {"picture": np.ones((1, 3, 16, 16), "float32")},
        "more": {"image": np.ones((1, 3, 16, 16), "float32"), "x": np.ones(1)},
    }
    for name, stored in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **stored)
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    wrong: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path / "none.onnx", {}, "cannot read it: No such file"),
        (text, {}, "cannot load it: Load model from .* failed"),
        (cut, {}, "cannot load it: Load model from .* failed"),
        (tmp_path / "missing.onnx", {}, "External data path does not exist"),
        (tmp_path / "short.onnx", {}, "out of bounds or can not be read in full"),
        (good, {"input": tmp_path / "shape.npz"}, r"shape \[1, 3, 16, 17\]; the model takes"),
        (good, {"input": tmp_path / "dtype.npz"}, "image is float64; the model takes float32"),
        (good, {"input": tmp_path / "name.npz"}, "lacks the input image; it has picture"),
        (good, {"input": tmp_path / "more.npz"}, "has no input x; it has image"),
        (good, {"input": good}, "cannot read it as .npz"),
        (good, {"disabled": ("ConvBnFusion",)}, "no such optimizer; the nearest are ConvBNFusion"),
        (good, {"disabled": ("MemcpyTransformer",)}, "runs it always"),
        (good, {"provider": ("NoSuchProvider",)}, "has .*CPUExecutionProvider"),
        (good, {"shape": ("batch=2",)}, "no input has a dimension of that name"),
        (good, {"shape": ("batch",)}, "write the dimension's name and its size"),
        (good, {"python": str(bare)}, "lacks onnxruntime or onnx"),
    ]
    for model, options, sentence in wrong:
        config = config_of(model, tmp_path, **options)
        with pytest.raises(UsageError, match=sentence) as raised:
            survey_target(TARGET, config, tmp_path / "scratch", print)
        assert "\n" not in str(raised.value)
