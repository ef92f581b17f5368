"""Options that say which tensors are saved, what is said of them, and when a capture is full."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

from ray_precheck.capture import Capture
from ray_precheck.capture.settings import TensorSlice

Captured = Callable[..., dict[str, Any]]
A = np.array([[1.5, -2.0, 0.0], [4.0, 0.25, -1.0]], np.float32)


def files_in(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("dump/step0/*/dump_tensor_data/*"))


def test_tensors_of_listed_calls_alone_are_saved(captured: Captured, tmp_path: Path) -> None:
    x = Tensor(A)
    records = captured(lambda: [mint.exp(x), mint.abs(x)], tensor_list=["Mint.exp"])
    assert files_in(tmp_path) == [
        "Mint.exp.0.forward.input.0.npy",
        "Mint.exp.0.forward.output.0.npy",
    ]
    (output,) = records["Mint.exp.0.forward"]["output"]
    assert output["data_name"] == "Mint.exp.0.forward.output.0.npy"
    assert "data_name" not in records["Mint.abs.0.forward"]["output"][0]
    (dump,) = tmp_path.glob("dump/step0/*/dump.json")
    header = json.loads(dump.read_text())
    assert (header["task"], Path(header["dump_data_dir"]).name) == (
        "statistics",
        "dump_tensor_data",
    )


def test_gradients_and_cells_of_the_list_are_saved(captured: Captured, tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 2))
    grad = ms.grad(lambda x: mint.sum(net(x)), None, net.trainable_params())
    options = {"level": "mix", "model": net, "tensor_list": ["Cell.0", "Mint.sum.0.backward"]}
    captured(lambda: grad(Tensor(A)), **options)
    names = files_in(tmp_path)
    assert "Mint.sum.0.backward.output.0.npy" in names
    assert "Cell.0.Dense.forward.0.parameters.weight.npy" in names
    assert "Cell.0.Dense.parameters_grad.0.weight.npy" in names
    assert not [name for name in names if name.startswith("Mint.sum.0.forward")]


def test_a_slice_is_what_is_looked_at_and_saved(captured: Captured, tmp_path: Path) -> None:
    slices = [TensorSlice(dim=0, begin=1, end=2), TensorSlice(dim=1, begin=0, end=1, size=9)]
    record = captured(
        lambda: mint.add(Tensor(A), Tensor(np.float32(2))), task="tensor", slices=slices
    )["Mint.add.0.forward"]
    given, single = record["input_args"]
    assert (given["shape"], given["Max"], given["Min"]) == ([1, 3], 4.0, -1.0)
    assert single["shape"] == []
    (file,) = tmp_path.glob(f"dump/step0/*/dump_tensor_data/{given['data_name']}")
    assert np.array_equal(np.load(file), A[1:2])


def test_md5_adds_the_checksum_of_the_bytes(captured: Captured) -> None:
    x = Tensor(A, ms.bfloat16)
    record = captured(lambda: mint.add(x, x), summary_mode="md5")["Mint.add.0.forward"]
    (output,) = record["output"]
    # msprobe has the bytes of the float32 values that numpy has for bfloat16.
    assert output["md5"] == f"{zlib.crc32((2 * A).tobytes()):08x}"
    assert output["Max"] == 8.0


def test_xor_has_the_words_of_the_bytes_alone(captured: Captured) -> None:
    action = captured(
        lambda: [mint.add(Tensor(A.T), 0), mint.add(Tensor(np.float32(1.5)), 0)],
        summary_mode="xor",
    )
    (output,) = action["Mint.add.0.forward"]["output"]
    expected = np.bitwise_xor.reduce(np.ascontiguousarray(A.T).reshape(-1).view(np.uint64))
    assert output["md5"] == f"0x{int(expected):016x}"
    assert not output.keys() & {"Max", "Min", "Mean", "Norm"}
    assert action["Mint.add.1.forward"]["output"][0]["md5"] == 1.5


@pytest.mark.parametrize("options", [{}, {"task": "tensor"}, {"sketch": True}], ids=str)
def test_a_capture_ends_when_it_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    exp, x = mint.exp, Tensor(np.ones(1000, np.float32))
    with Capture(
        tmp_path, framework="mindspore", step_by="manual", max_bytes=9000, **options
    ) as capture:
        for _ in range(60):
            mint.exp(x)
        assert mint.exp is exp
        capture.step()
    assert "have reached 9e-06 GB (--max-gb)" in capsys.readouterr().err
    (log,) = tmp_path.glob("step0/*/dump.jsonl")
    assert 1 < len(log.read_text().splitlines()) < (4 if "task" in options else 40)


def test_gradients_of_nodes_are_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Capture(tmp_path, framework="mindspore", step_by="manual", gradients="node"):
        mint.exp(Tensor(A))
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "gradients is node, and those of MindSpore's calls are at the operator's border" in said
    assert not list(tmp_path.glob("step*/*/dump.json"))


def test_a_structure_has_records_and_no_values(captured: Captured) -> None:
    net = nn.SequentialCell(nn.Dense(3, 2))
    grad = ms.grad(lambda x: mint.sum(net(x)), None, net.trainable_params())
    records = captured(lambda: grad(Tensor(A)), task="structure", level="mix", model=net)
    assert {"Mint.sum.0.forward", "Cell.0.Dense.parameters_grad.0"} <= set(records)
    assert {name for record in records.values() for name in record} <= {"stack", "parent"}
