"""Faults of Paddle Inference, natural ones and planted ones, are found, in Paddle's own environment."""

import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.commands.bisect.closing import BisectReport
from ray_precheck.commands.bisect.run import bisect
from ray_precheck.commands.bisect.targets.paddle.options import PaddleConfig
from ray_precheck.commands.bisect.targets.paddle.target import TARGET
from ray_precheck.searching.bisection import RungFinding, SearchEnd

ROOT = Path(__file__).parents[3]
PADDLE = Path(os.environ.get("RAY_PRECHECK_PADDLE", ROOT / ".venv-paddle" / "bin" / "python"))
DATA = ROOT / "tests" / "data" / "paddle"
NEW, OLD = "new", "old"
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PADDLE.exists(), reason="scripts/test makes .venv-paddle"),
]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of the models by their format."""
    folder = tmp_path_factory.mktemp("paddle_models")
    for form in (NEW, OLD):
        command = [PADDLE, DATA / "models.py", form, folder / form]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    return {form: folder / form for form in (NEW, OLD)}


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function that compiles a plugin once and returns its path."""
    folder = tmp_path_factory.mktemp("paddle_plugins")
    said = "import os, importlib.util as u; print(os.path.dirname(u.find_spec('paddle').origin))"
    found = subprocess.run([PADDLE, "-c", said], check=True, capture_output=True, text=True)
    paddle = Path(found.stdout.strip())
    parts = [paddle / "libs", paddle / "base"]
    linked = [f"-L{each}" for each in parts] + [f"-Wl,-rpath,{each}" for each in parts]
    libraries = ["-l:libpaddle.so", "-lphi_core", "-lphi", "-lcommon"]

    def plugin(name: str) -> str:
        path = folder / f"{name}.so"
        if not path.exists():
            flags = ["-std=c++17", "-O0", "-w", "-shared", "-fPIC", f"-I{paddle / 'include'}"]
            flags.append(f"-I{paddle / 'include' / 'third_party'}")
            words = ["g++", *flags, *linked, DATA / f"{name}.cc", "-o", path, *libraries]
            subprocess.run(words, check=True, capture_output=True, timeout=120)
        return str(path)

    return plugin


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WRONG_PASS", "MARKED_PASS", "WRONG_KERNEL", "WRONG_ONEDNN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@dataclass(frozen=True)
class Ended:
    """What a bisect found: its report, what it said at the end, and what it said of each rung."""

    report: BisectReport
    closing: tuple[str, ...]
    said: dict[str, tuple[str, ...]]
    code: dict[str, tuple[tuple[str, str], ...]]

    def of(self, rung: str) -> RungFinding:
        return next(each for each in self.report.findings if each.rung.name == rung)

    @property
    def kinds(self) -> dict[str, SearchEnd]:
        return {each.rung.name: each.kind for each in self.report.findings}

    def trials(self, rung: str) -> int:
        """Return how many trials the search of a rung took beside those of its ends."""
        return sum(
            each.rung == rung and each.enabled not in ("all", "none") for each in self.report.trials
        )

    def allowed(self, rung: str) -> int:
        return ceil(log2(len(self.of(rung).rung.members))) + 4


def model_in(models: dict[str, Path], form: str, name: str) -> Path:
    return models[form] / f"{name}.{'json' if form == NEW else 'pdmodel'}"


def bisected(model: Path, out: Path, **options: Any) -> Ended:
    """Bisect a model in one slot, so that no trial is begun that is not needed."""
    if "golden" not in options:
        options.setdefault("input", model.with_name("inputs.npz"))
    config = PaddleConfig(model=model, python=str(PADDLE), out=out, devices=(0,), **options)
    report = bisect(TARGET, config, show_progress=False)
    lines = {each.rung.name: TARGET.lines(config, report.survey, each) for each in report.findings}
    said = {name: each.said for name, each in lines.items()}
    return Ended(report, report.said, said, {name: each.code for name, each in lines.items()})


FUSION = {NEW: "conv2d_bias_bn_onednn_fuse_pass", OLD: "conv_eltwiseadd_bn_fuse_pass"}
BIAS_FUSION = {NEW: "conv2d_bias_fuse_pass", OLD: "conv_bias_onednn_fuse_pass"}
NORM = {NEW: "5 batch_norm_ (batch_norm2d_0.w_1)", OLD: "3 batch_norm (batch_norm_0.tmp_2)"}
RELU = {NEW: "6 relu", OLD: "4 relu (batch_norm_0.tmp_3)"}
DELETED = {NEW: 'config.DeletePass("{}");', OLD: 'config.pass_builder()->DeletePass("{}");'}


@pytest.mark.parametrize("form", [NEW, OLD])
def test_a_bias_that_batch_norm_takes_away_is_the_fault_of_the_pass_that_folds_it(
    models: dict[str, Path], tmp_path: Path, form: str
) -> None:
    ended = bisected(model_in(models, form, "biased"), tmp_path)
    found = ended.of("passes")
    assert found.sets == ({FUSION[form]},)
    assert found.sufficient
    assert found.necessary
    assert ended.trials("passes") <= ended.allowed("passes")
    # Its name in the log is another one, which deletes nothing.
    assert "conv_activation_onednn_fuse_pass" in found.rung.members
    assert not any("mkldnn" in each.name for each in found.rung.switches)
    assert ("C++", DELETED[form].format(FUSION[form])) in ended.code["passes"]
    assert ("Python", f'config.delete_pass("{FUSION[form]}")') in ended.code["passes"]
    # The model that is cut behind each operator is wrong once it holds the batch norm.
    assert ended.of("operators with passes").sets == ({NORM[form]},)
    assert ended.trials("operators with passes") <= ended.allowed("operators with passes")
    # The fault needs the convolution whose bias it is.
    (first,) = next(each for each in ended.report.findings if "before" in each.rung.name).sets
    assert next(iter(first)).startswith("1 conv2d")
    assert (
        tmp_path / "bisect_paddle_part" / f"part.{'json' if form == NEW else 'pdmodel'}"
    ).exists()


@pytest.mark.parametrize("form", [NEW, OLD])
def test_passes_that_are_wrong_each_alone_are_alternatives(
    models: dict[str, Path], tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Kernels for SSE4.1 begin their sums with the bias: what only moves it into the convolution is wrong too.
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    ended = bisected(model_in(models, form, "biased"), tmp_path)
    found = ended.of("passes")
    assert set(found.sets) == {frozenset({FUSION[form]}), frozenset({BIAS_FUSION[form]})}
    assert found.cure == {FUSION[form], BIAS_FUSION[form]}
    assert len(ended.code["passes"]) == 4


@pytest.mark.parametrize(
    "name", ["depthwise_conv_onednn_pass", "operator_reshape_onednn_fuse_pass"]
)
def test_a_pass_that_was_replaced_under_its_own_name_is_found_with_its_operator(
    models: dict[str, Path],
    tmp_path: Path,
    plugins: Callable[[str], str],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WRONG_PASS", name)
    model = model_in(models, NEW, "honest")
    ended = bisected(model, tmp_path, library=(plugins("wrong_pass"),))
    assert ended.of("passes").sets == ({name},)
    assert ended.trials("passes") <= ended.allowed("passes")
    assert ended.of("operators with passes").sets == ({NORM[NEW]},)


def test_two_passes_that_are_wrong_together_are_one_set(
    models: dict[str, Path],
    tmp_path: Path,
    plugins: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = {"squeeze_transpose_onednn_fuse_pass", "conv3d_bias_fuse_pass"}
    monkeypatch.setenv("MARKED_PASS", "squeeze_transpose_onednn_fuse_pass")
    monkeypatch.setenv("WRONG_PASS", "conv3d_bias_fuse_pass")
    model = model_in(models, NEW, "honest")
    ended = bisected(model, tmp_path, library=(plugins("wrong_pass"),))
    assert ended.of("passes").sets == (pair,)


@pytest.mark.parametrize("form", [NEW, OLD])
def test_a_wrong_kernel_of_the_cpu_is_a_native_operator_named_by_hooks(
    models: dict[str, Path],
    tmp_path: Path,
    plugins: Callable[[str], str],
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, run = model_in(models, form, "honest"), tmp_path / "run"
    honest = bisected(model, tmp_path, save_run=run)
    assert set(honest.kinds.values()) == {SearchEnd.CLEAN}
    kernels = (plugins("wrong_kernel"),)
    # The cosine has no other kernel; that of relu is hidden by oneDNN's, which is right.
    for kernel, is_hidden in (("cos", False), ("relu", True)):
        monkeypatch.setenv("WRONG_KERNEL", kernel)
        ended = bisected(model, tmp_path, golden=run, library=kernels)
        assert ended.kinds == {"all off": SearchEnd.WRONG_AT_FOOT}
        said = " ".join(ended.said["all off"])
        assert "a native operator" in said
        assert ("hides it" in said) == is_hidden
        named = said.partition("differs by hooks: ")[2].partition(" ")[0]
        assert named.replace("pd_op.", "").split("_")[0].split(":")[0] == kernel


@pytest.mark.parametrize("form", [NEW, OLD])
def test_a_wrong_kernel_of_onednn_is_named_by_hooks_and_by_cutting(
    models: dict[str, Path],
    tmp_path: Path,
    plugins: Callable[[str], str],
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WRONG_KERNEL", "relu")
    monkeypatch.setenv("WRONG_ONEDNN", "1")
    model = model_in(models, form, "honest")
    bundle = tmp_path / "report.zip"
    # What an earlier run has left is not taken for parameters of this one, which has none.
    (tmp_path / "bisect_paddle_part").mkdir()
    (tmp_path / "bisect_paddle_part" / "part.pdiparams").touch()
    ended = bisected(model, tmp_path, library=(plugins("wrong_kernel"),), bundle=bundle)
    assert ended.kinds["oneDNN"] is SearchEnd.FOUND
    assert ("Python", "config.disable_onednn()") in ended.code["oneDNN"]
    assert "relu" in ended.said["oneDNN"][0]
    cut = ended.of("operators with oneDNN")
    assert cut.sets == ({RELU[form]},)
    assert ended.trials(cut.rung.name) <= ended.allowed(cut.rung.name)
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
    assert {"inputs.npz", "outputs.npz", "run.json", "test_part.py"} < names


def test_the_test_of_a_bundle_shows_the_fault(models: dict[str, Path], tmp_path: Path) -> None:
    bundle = tmp_path / "report.zip"
    bisected(model_in(models, NEW, "biased"), tmp_path, bundle=bundle)
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path / "report")
    said = "import test_part; test_part.test_outputs_agree()"
    command = [PADDLE, "-c", said]
    ended = subprocess.run(
        command, cwd=tmp_path / "report", capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    assert "AssertionError: fetch_name_" in ended.stderr


def test_what_differs_from_the_golden_run_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    model, run = model_in(models, NEW, "honest"), tmp_path / "run"
    bisected(model, tmp_path, save_run=run)
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"Paddle": "3', '"Paddle": "2'))
    ended = bisected(model, tmp_path, golden=run)
    note = next(each for each in ended.report.survey.notes if "differs" in each)
    assert note.startswith("the first thing that differs from the golden run: Paddle, 2")
    said = refusal(model_in(models, NEW, "biased"), tmp_path, "--golden", run)
    assert "model is not the same there" in said


@pytest.mark.parametrize("form", [NEW, OLD])
def test_bf16_is_a_rung_where_the_processor_has_it(
    models: dict[str, Path], tmp_path: Path, form: str
) -> None:
    ended = bisected(model_in(models, form, "honest"), tmp_path, bf16=True)
    is_said = any(each.startswith("--bf16 is not tried") for each in ended.report.survey.notes)
    assert is_said == ("bf16" not in ended.kinds)
    assert set(ended.kinds.values()) == {SearchEnd.CLEAN}


def refusal(model: Path, out: Path, *words: str | Path) -> str:
    """Return the sentence with which the command refuses something; its exit code is 2."""
    command = [sys.executable, "-m", "ray_precheck", "bisect", "paddle", model, *words]
    command += ["--python", PADDLE, "-o", out]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [str(each) for each in command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    return ended.stderr.strip()


def tensor_of_four() -> bytes:
    """Return a whole file of parameters with one float32 tensor of four elements."""
    described = b"\x08\x05\x10\x04"
    return struct.pack("<IQIi", 0, 0, 0, len(described)) + described + bytes(16)


@pytest.mark.parametrize("form", [NEW, OLD])
def test_files_that_are_missing_cut_or_of_another_model_are_refused(
    models: dict[str, Path], tmp_path: Path, form: str
) -> None:
    model = model_in(models, form, "honest")
    copy = tmp_path / model.name
    copy.write_bytes(model.read_bytes())
    assert "there is no such file; give the parameters by --params" in refusal(copy, tmp_path)
    elsewhere = bisected(
        copy, tmp_path, params=model.with_suffix(".pdiparams"), input=model.with_name("inputs.npz")
    )
    assert set(elsewhere.kinds.values()) == {SearchEnd.CLEAN}
    other = tmp_path / "other.pdiparams"
    other.write_bytes(tensor_of_four())
    said = refusal(copy, tmp_path, "--params", other)
    assert "holds 1 tensors that are not those of" in said or "cannot load" in said
    params = model.with_suffix(".pdiparams").read_bytes()
    copy.with_suffix(".pdiparams").write_bytes(params[:-100])
    assert "the parameters are cut: 100 bytes are missing" in refusal(copy, tmp_path)
    copy.with_suffix(".pdiparams").write_bytes(b"no parameters at all, but some text of a user")
    assert "it is no file of parameters" in refusal(copy, tmp_path)
    copy.with_suffix(".pdiparams").write_bytes(params)
    copy.write_bytes(model.read_bytes()[:2000])
    assert str(copy) in refusal(copy, tmp_path)


def test_inputs_of_another_name_shape_or_dtype_are_refused(
    models: dict[str, Path], tmp_path: Path
) -> None:
    model, path = model_in(models, NEW, "honest"), tmp_path / "x.npz"
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("has the arrays y; the model has x", {"y": np.zeros((1, 3, 8, 8), "float32")}),
        ("x has the shape [1, 3, 9, 8]", {"x": np.zeros((1, 3, 9, 8), "float32")}),
        ("x is float64; the model has float32", {"x": np.zeros((1, 3, 8, 8), "float64")}),
    ]
    for said, arrays in wrong:
        np.savez(path, **arrays)
        assert said in refusal(model, tmp_path, "--input", path)
    path.write_text("nothing")
    assert "cannot read it as .npz" in refusal(model, tmp_path, "--input", path)
    assert "there is no such file" in refusal(model, tmp_path, "--library", tmp_path / "a.so")
    assert "is no model" in refusal(tmp_path / "model.onnx", tmp_path)
