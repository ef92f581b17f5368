"""An NPU's run against TensorFlow's: operators are paired by what they stand for, and judged as there."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from precision_data import GUIDE, V0_1_11, Capture, NpuOperator, in_files

from ray_precheck.cli.command_line import main
from ray_precheck.commands.compare.run import compare_captures
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.alignment.align import How, align
from ray_precheck.trace.alignment.calls import Call

pytestmark = pytest.mark.unit
BOTH = pytest.mark.parametrize(("layout", "cpu"), [(GUIDE, "dump/cpu"), (V0_1_11, "tf/dump")])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CMD_ROOT_PATH", str(tmp_path / "no_ascend"))


def lenet(layout: str, fault: float = 0.0, **changes: object) -> Capture:
    """Two layers and a batch norm. The NPU fuses product, bias and ReLU, splits the norm, and changes a
    layout; `fault` is added to its first ReLU as noise."""
    rng = np.random.default_rng(5)

    def drawn(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    x, w, b, v = drawn(16, 8), drawn(8, 8), drawn(8), drawn(8, 4)
    product = x @ w
    summed = product + b
    relu = np.maximum(summed, 0)
    wrong = relu + np.float32(fault) * drawn(16, 8)
    mean, spread = wrong.mean(0), wrong.std(0)
    normed, wanted = (wrong - mean) / spread, (relu - relu.mean(0)) / relu.std(0)
    operators = [
        NpuOperator(
            "MatMulV2", "net/fc/MatMulfused", [x, w, b], [wrong], ["x:0", "w:0", "b:0"],
            ["net/fc/Relu:0"], ["net/fc/MatMul", "net/fc/BiasAdd", "net/fc/Relu"], task=3,
        ),
        NpuOperator("TransData", "trans_TransData_5", [wrong], [wrong], ["net/fc/MatMulfused:0"], task=4),
        NpuOperator(
            "BNTrainingReduce", "net/bn/FusedBatchNormReduce", [wrong], [mean], ["trans_TransData_5:0"],
            ["net/bn/FusedBatchNorm:1"], task=5,
        ),
        NpuOperator(
            "BNTrainingUpdate", "net/bn/FusedBatchNormUpdate", [wrong, mean], [normed],
            ["trans_TransData_5:0", "net/bn/FusedBatchNormReduce:0"], ["net/bn/FusedBatchNorm:0"], task=6,
        ),
        NpuOperator(
            "MatMulV2", "net.out/MatMul", [normed, v], [normed @ v],
            ["net/bn/FusedBatchNormUpdate:0", "v:0"], task=7,
        ),
    ]  # fmt: skip
    tensors = {
        "x:0": x, "w:0": w, "b:0": b, "net/fc/MatMul:0": product, "net/fc/BiasAdd:0": summed,
        "net/fc/Relu:0": relu, "net/bn/FusedBatchNorm:0": wanted, "net/bn/FusedBatchNorm:1": relu.mean(0),
        "v:0": v, "net.out/MatMul:0": wanted @ v,
    }  # fmt: skip
    nodes = [
        ("x", "Placeholder", []),
        ("w", "VariableV2", []),
        ("b", "VariableV2", []),
        ("net/fc/MatMul", "MatMul", ["x", "w"]),
        ("net/fc/BiasAdd", "BiasAdd", ["net/fc/MatMul", "b"]),
        ("net/fc/Relu", "Relu", ["net/fc/BiasAdd"]),
        ("net/bn/FusedBatchNorm", "FusedBatchNorm", ["net/fc/Relu"]),
        ("v", "VariableV2", []),
        ("net.out/MatMul", "MatMul", ["net/bn/FusedBatchNorm", "v"]),
    ]
    told: dict[str, object] = {"operators": operators, "tensors": tensors, "nodes": nodes}
    return Capture(layout, **(told | changes))  # type: ignore[arg-type]


def rows_of(root: Path, cpu: str, out: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    (report,) = compare_captures(root, root / cpu, out=out, standard="precision_tool").reports
    return report.calls, report.results


@BOTH
@pytest.mark.parametrize("is_json", [False, True])
def test_operators_are_paired_by_what_they_stand_for(
    tmp_path: Path, layout: str, cpu: str, is_json: bool
) -> None:
    root = lenet(layout, is_json=is_json).write(tmp_path / "precision_data")
    calls, results = rows_of(root, cpu, tmp_path)
    calls = calls.set_index("Call")
    fused = calls.loc["Tensorflow.net_fc_MatMulfused.0.forward"]
    assert fused["Match"] == "fused"
    assert fused["Golden Call"].split(", ") == [
        f"Tensorflow.net_fc_{name}.0.forward" for name in ("MatMul", "BiasAdd", "Relu")
    ]
    split = calls.loc["Tensorflow.net_bn_FusedBatchNormReduce.0.forward"]
    assert (split["Match"], split["Golden Call"]) == (
        "split",
        "Tensorflow.net_bn_FusedBatchNorm.0.forward",
    )
    assert calls.loc["Tensorflow.net_out_MatMul.0.forward"]["Match"] == "exact"
    alone = calls[calls["Match"] == "unmatched"]
    assert "Tensorflow.trans_TransData_5.0.forward" in alone.index
    assert "no operator that stands for the same one" in alone["Message"].iloc[0]
    pairs = results[results["Result"] == "pass"][["NPU Name", "Bench Name"]].itertuples(index=False)
    outputs = {tuple(pair) for pair in pairs if ".output." in pair[0]}
    assert {tuple(each.removeprefix("Tensorflow.") for each in pair) for pair in outputs} == {
        ("net_fc_MatMulfused.0.forward.output.0", "net_fc_Relu.0.forward.output.0"),
        (
            "net_bn_FusedBatchNormReduce.0.forward.output.0",
            "net_bn_FusedBatchNorm.0.forward.output.1",
        ),
        (
            "net_bn_FusedBatchNormUpdate.0.forward.output.0",
            "net_bn_FusedBatchNorm.0.forward.output.0",
        ),
        ("net_out_MatMul.0.forward.output.0", "net_out_MatMul.0.forward.output.0"),
    }
    assert not (calls["Result"] == "error").any()


@BOTH
def test_a_planted_fault_is_the_first_error(
    tmp_path: Path, layout: str, cpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = lenet(layout, fault=0.8).write(tmp_path / "precision_data")
    words = ["-tp", str(root), "-gp", str(root / cpu), "-o", str(tmp_path)]
    assert main(["compare", *words, "--standard", "precision_tool"]) == 1
    said = capsys.readouterr().out
    first = said[said.index("first errors") :].splitlines()[1]
    assert "Tensorflow.net_fc_MatMulfused.0.forward" in first
    assert "not above 0.98" in said
    assert main(["locate", *words]) == 1
    said = capsys.readouterr().out
    assert "1. Tensorflow.net_fc_MatMulfused.0.forward" in said
    assert main(["locate", *words, "--replay"]) == 2


def chain(faulty: int) -> Capture:
    """Three layers that the NPU has fused, one behind the other, and a product; one of them is wrong."""
    rng = np.random.default_rng(1)

    def drawn(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    x = ours = drawn(16, 8)
    operators: list[NpuOperator] = []
    tensors, source, given = {"x:0": x}, "x:0", "x"
    nodes: list[tuple[str, str, list[str]]] = [("x", "Placeholder", [])]
    for layer in range(4):
        w, name = drawn(8, 8), f"l{layer}"
        is_last = layer == 3
        product, made = x @ w, ours @ w
        summed, result = product, product
        if not is_last:
            b = drawn(8)
            summed, result, made = product + b, np.maximum(product + b, 0), np.maximum(made + b, 0)
        if layer == faulty:
            made = made + np.float32(0.5) * drawn(16, 8)
        tensors |= {f"{name}/w:0": w, f"{name}/MatMul:0": product}
        nodes += [(f"{name}/w", "Const", []), (f"{name}/MatMul", "MatMul", [given, f"{name}/w"])]
        if is_last:
            operators.append(
                NpuOperator(
                    "MatMulV2", f"{name}/MatMul", [ours, w], [made], [source, "w:0"], task=layer
                )
            )
            break
        tensors |= {f"{name}/b:0": b, f"{name}/Add:0": summed, f"{name}/Relu:0": result}
        nodes += [
            (f"{name}/b", "Const", []),
            (f"{name}/Add", "BiasAdd", [f"{name}/MatMul", f"{name}/b"]),
        ]
        nodes.append((f"{name}/Relu", "Relu", [f"{name}/Add"]))
        parts = [f"{name}/{each}" for each in ("MatMul", "Add", "Relu")]
        values = [ours, w, b]
        fused = f"{name}/MatMulAddRelu"
        operators.append(
            NpuOperator(
                "MatMulV2",
                fused,
                values,
                [made],
                [source, "w:0", "b:0"],
                [f"{name}/Relu:0"],
                parts,
                task=layer,
            )
        )
        x, ours, source, given = result, made, f"{fused}:0", f"{name}/Relu"
    return Capture(GUIDE, operators, tensors, nodes)


@pytest.mark.parametrize("faulty", [0, 1, 2, 3, None])
def test_locate_looks_at_a_fusion_as_one_operator(
    tmp_path: Path, faulty: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    root = chain(-1 if faulty is None else faulty).write(tmp_path / "precision_data")
    words = ["-tp", str(root), "-gp", str(root / "dump/cpu"), "-o", str(tmp_path)]
    assert main(["locate", *words]) == (faulty is not None)
    said = capsys.readouterr().out
    if faulty is None:
        assert "no operator is to blame" in said
    else:
        name = f"l{faulty}_MatMul" if faulty == 3 else f"l{faulty}_MatMulAddRelu"
        assert f"one operator is to blame:\n1. Tensorflow.{name}.0.forward: own error" in said
    assert "4 of 4 records were judged" in said


@BOTH
def test_a_run_of_the_npu_against_itself_passes(tmp_path: Path, layout: str, cpu: str) -> None:
    one = lenet(layout).write(tmp_path / "one")
    two = lenet(layout).write(tmp_path / "two")
    (report,) = compare_captures(one, two, out=tmp_path, standard="precision_tool").reports
    assert set(report.calls["Match"]) == {"exact"}
    assert set(report.calls["Result"]) == {"pass"}


@BOTH
@pytest.mark.parametrize("status", [0x20, 0x108])
def test_overflow_check_names_the_operator_with_its_bits(
    tmp_path: Path, layout: str, cpu: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = lenet(layout)
    operator = capture.operators[4]
    first = {"AI Core": {"task_id": 7, "stream_id": 0, "status": status}}
    second = {"magic": "0x5a5a5a5a", "acc_list": {"acc_type": "AIC", "data": first["AI Core"]}}
    capture.flags = [
        (first, operator),
        (second, operator),
        ({"AI Core": {"task_id": 1, "status": 0}}, operator),
    ]
    root = capture.write(tmp_path / "precision_data")
    assert main(["overflow_check", str(root), "-o", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "The device has seen 2 overflows" in said
    assert f"[MatMulV2] net.out/MatMul: AI Core, status {status:#x}: " in said
    assert ("0x20 float computation overflows" in said) == (status == 0x20)
    assert ("0x8 sign change of the smallest integer, 0x100" in said) == (status == 0x108)
    (table,) = tmp_path.glob("overflow_check_*.csv")
    rows = pd.read_csv(table)
    assert set(rows["API Name"]) == {"Tensorflow.net_out_MatMul.0.forward"}
    assert set(rows["Birth"]) == {"flagged"}
    # The folder of the search alone has no values: its operators are named all the same.
    path = next(each for each in (root / "overflow", root / "dump/overflow") if each.is_dir())
    assert main(["overflow_check", str(path), "-o", str(tmp_path)]) == 1
    assert "[MatMulV2] net.out/MatMul: AI Core" in capsys.readouterr().out


@BOTH
def test_a_run_without_overflow_is_clean(
    tmp_path: Path, layout: str, cpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = lenet(layout).write(tmp_path / "precision_data")
    assert main(["overflow_check", str(root), "-o", str(tmp_path)]) == 0
    assert "The device" not in capsys.readouterr().out


def call(name: str, *origins: str, number: int = 0) -> Call:
    return Call(
        f"Tensorflow.{in_files(name)}.{number}", "api", f"Tensorflow.{name}", name, origins=origins
    )


def matches(
    target: Sequence[Call], golden: Sequence[Call]
) -> list[tuple[tuple[int, ...], tuple[int, ...], How]]:
    return [(each.target, each.golden, each.how) for each in align(target, golden)]


def test_groups_of_many_and_many_are_those_that_share_origins() -> None:
    target = [call("ab", "a", "b"), call("bc", "b", "c"), call("cast"), call("e", "d")]
    golden = [call(each, each) for each in "abcdef"]
    assert matches(target, golden) == [
        ((0, 1), (0, 1, 2), How.FUSED),
        ((2,), (), How.UNMATCHED),
        ((3,), (3,), How.MAPPED),
        ((), (4,), How.UNMATCHED),
        ((), (5,), How.UNMATCHED),
    ]


def test_names_count_where_no_origin_is_shared_and_runs_are_apart() -> None:
    target = [call("a", "lost"), call("net/b", "net/b", number=1), call("net/b", "net/b")]
    golden = [call("a", "other"), call("net_b", "net_b"), call("net_b", "net_b", number=1)]
    assert matches(target, golden) == [
        ((0,), (0,), How.EXACT),
        ((1,), (2,), How.EXACT),
        ((2,), (1,), How.EXACT),
    ]


def test_a_capture_without_origins_is_aligned_as_others() -> None:
    target = [call("a", "x"), call("b", "y")]
    golden = [call("a"), call("b"), call("c")]
    assert [how for *_, how in matches(target, golden)] == [How.EXACT, How.EXACT, How.UNMATCHED]
