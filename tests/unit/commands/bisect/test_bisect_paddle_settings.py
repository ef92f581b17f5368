"""Paddle's logs, its files of parameters, and the settings of a rung, without Paddle."""

import importlib.util
import struct
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ray_precheck.commands.bisect.targets.paddle import settings
from ray_precheck.commands.bisect.targets.paddle.model_files import param_shapes
from ray_precheck.commands.bisect.targets.paddle.trials import (
    SeenValue,
    first_differing,
    seen_values,
)

pytestmark = pytest.mark.unit
NEW_LOG = """\x1b[1m\x1b[35m--- Running PIR pass [conv2d_bias_bn_onednn_fuse_pass]\x1b[0m
I1128 13:57:20.872962  5959 print_statistics.cc:50] --- detected [2] subgraphs!
\x1b[1m\x1b[35m--- Running PIR pass [conv_activation_mkldnn_fuse_pass]\x1b[0m
\x1b[1m\x1b[35m--- Running PIR pass [constant_folding_pass]\x1b[0m
I1128 13:57:20.892005  5959 print_statistics.cc:44] --- detected [22, 47] subgraphs!
\x1b[1m\x1b[35m--- Running PIR pass [conv2d_bias_bn_onednn_fuse_pass]\x1b[0m
I1128 13:57:20.872962  5959 print_statistics.cc:50] --- detected [1] subgraphs!
I1128 13:57:20.892488  5959 analysis_predictor.cc:1217] ======= pir optimization completed =======
I1128 13:57:20.872962  5959 print_statistics.cc:50] --- detected [9] subgraphs!
"""
OLD_LOG = """\x1b[1m\x1b[35m--- Running analysis [ir_analysis_pass]\x1b[0m
\x1b[32m--- Running IR pass [fc_fuse_pass]\x1b[0m
I1128 13:58:46.964913  6337 fuse_pass_base.cc:55] ---  detected 2 subgraphs
\x1b[32m--- Running IR pass [squeeze2_transpose2_onednn_fuse_pass]\x1b[0m
\x1b[37m--- fused 0 squeeze2 with transpose2\x1b[0m
\x1b[32m--- Running IR pass [batch_norm_act_fuse_pass]\x1b[0m
\x1b[37m---    fused 1 batch norm with relu activation\x1b[0m
\x1b[1m\x1b[35m--- Running analysis [ir_graph_to_program_pass]\x1b[0m
"""


def test_both_logs_name_passes_and_what_they_found() -> None:
    assert settings.passes_in(NEW_LOG) == {
        "conv2d_bias_bn_onednn_fuse_pass": 3,
        "conv_activation_mkldnn_fuse_pass": None,
        "constant_folding_pass": 22,
    }
    assert settings.passes_in(OLD_LOG) == {
        "fc_fuse_pass": 2,
        "squeeze2_transpose2_onednn_fuse_pass": None,
        "batch_norm_act_fuse_pass": 1,
    }


def test_the_rungs_stand_in_the_order_of_the_guide() -> None:
    passes = {settings.PLACEMENT: 1, "inplace_pass": 2, "fuse_pass": None}
    options = {"with_bf16": True, "in_tensorrt": ("conv2d", "softmax")}
    for is_new, memory in ((True, []), (False, ["memory"])):
        rungs = settings.ladder_of(passes, ["inplace_pass"], {}, is_new=is_new, **options)
        names = ["all off", "oneDNN", *memory, "passes", "bf16", "TensorRT"]
        assert [each.name for each in rungs] == names
        found = {each.name: each for each in rungs}
        assert found["passes"].members == ("fuse_pass",)
        assert found["passes"].over == (memory[0] if memory else "oneDNN")
        assert ("C++", 'config.Exp_DisableTensorRtOPs({"softmax"});') in found["TensorRT"].switches[
            1
        ].lines


def record(shape: list[int], values: bytes) -> bytes:
    """Return a float32 tensor as Paddle writes it."""
    sizes = b"".join(b"\x10" + bytes([size]) for size in shape)
    described = b"\x08\x05" + sizes
    return struct.pack("<IQIi", 0, 0, 0, len(described)) + described + values


def test_parameters_are_read_record_by_record(tmp_path: Path) -> None:
    path = tmp_path / "x.pdiparams"
    path.write_bytes(record([2, 3], bytes(24)) + record([4], bytes(16)))
    assert param_shapes(path) == [(2, 3), (4,)]
    path.write_bytes(record([2, 3], bytes(24)) + record([4], bytes(9)))
    with pytest.raises(ValueError, match="7 bytes are missing"):
        param_shapes(path)
    path.write_bytes(record([2, 3], bytes(24)) + b"\0\0\0")
    with pytest.raises(ValueError, match="the last tensor is not whole"):
        param_shapes(path)


def test_a_fused_value_is_held_against_the_value_that_it_stands_for() -> None:
    random = np.random.default_rng(0)
    one, two, three = random.standard_normal((3, 4, 4))
    golden = [
        SeenValue("conv", "a", one),
        SeenValue("norm", "b", two),
        SeenValue("relu", "c", three),
    ]
    right = [SeenValue("fused", "b", two), SeenValue("relu", "c", three)]
    assert first_differing(right, golden) == ""
    wrong = [SeenValue("fused", "b", two * 1.01), SeenValue("relu", "c", three * 1.01)]
    said = first_differing(wrong, golden)
    assert said.startswith("fused (b) at [")
    assert said.endswith("in the golden run norm (b)")


def test_values_of_onednn_are_read_in_either_order(tmp_path: Path) -> None:
    one = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype("float32")
    golden = [SeenValue("conv", "a", one), SeenValue("reshape", "b", one)]
    # Behind a convolution the numbers stand as N, H, W, C under a shape N, C, H, W.
    turned = np.moveaxis(one, 1, -1).reshape(one.shape)
    path = tmp_path / "values.npz"
    for factor, said in ((1.0, ""), (1.01, "reshape (b) at [")):
        np.savez(path, **{"0": turned, "1": one * np.float32(factor)})
        kinds = (("conv", "a"), ("reshape", "b"))
        rows = [{"operator": kind, "name": name, "layout": "ONEDNN"} for kind, name in kinds]
        found = first_differing(seen_values(path, rows), golden)
        assert found.startswith(said)
        assert bool(found) == bool(said)


@pytest.fixture
def inside() -> Any:
    """Return `inside.py` as it is loaded beside Paddle."""
    path = Path(settings.__file__).with_name("inside.py")
    spec = importlib.util.spec_from_file_location("paddle_inside", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tensorrt_is_given_the_shapes_of_a_run_before(
    inside: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    class Config:
        def __init__(self, *files: str) -> None:
            calls.append(("Config",))

        def __getattr__(self, name: str) -> Any:
            return lambda *words, **named: calls.append((name, *words))

    predictor = SimpleNamespace(
        run=lambda: calls.append(("run",)), get_input_names=list, get_output_names=list
    )
    inference = SimpleNamespace(
        Config=Config,
        PrecisionType=SimpleNamespace(Float32=0),
        create_predictor=lambda config: predictor,
    )
    paddle = ModuleType("paddle")
    paddle.inference = inference
    monkeypatch.setitem(sys.modules, "paddle", paddle)
    monkeypatch.setitem(sys.modules, "paddle.inference", inference)
    inputs = str(tmp_path / "inputs.npz")
    np.savez(inputs, x=np.zeros(1))
    given = {"model": "m.json", "params": "m.pdiparams", "input": inputs, "gpu": True}
    trial = {"rung": "TensorRT", "on": ["conv2d"], "off": ["softmax"]}
    inside.Opened(given).answer({"kind": "run", **trial, "out": str(tmp_path / "out.npz")})
    named = [name for name, *_ in calls]
    assert named.index("collect_shape_range_info") < named.index("run")
    assert named.index("run") < named.index("enable_tensorrt_engine")
    assert ("enable_tuned_tensorrt_dynamic_shape", f"{inputs}.shapes", True) in calls
    assert ("exp_disable_tensorrt_ops", ["softmax"]) in calls
    assert named.count("enable_use_gpu") == 2
