"""Dumps of MSAdapter (MindTorch): torch's names, MindSpore's tensors."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.descriptors.descriptor import framework_dtype
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.parse import open_dump
from ray_precheck.schema.values import Symbol, TensorSpec

pytestmark = pytest.mark.unit
TENSOR = {
    "type": "mindspore.Tensor", "dtype": "BFloat16", "shape": [2, 3],
    "Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": 2.0,
}  # fmt: skip
DTYPE = {"type": "mindspore.dtype", "value": "Float16"}
FORWARD = {"input_args": [TENSOR], "input_kwargs": {"dtype": DTYPE}, "output": [TENSOR]}


def written(folder: Path, names: list[str], **header: Any) -> Path:
    path = folder / "dump.json"
    fields = {"task": "statistics", "level": "L1", "dump_data_dir": None, **header}
    data = {f"{name}.forward": FORWARD for name in names}
    path.write_text(json.dumps({**fields, "data": data}))
    return path


def test_the_header_names_it(tmp_path: Path) -> None:
    with open_dump(written(tmp_path, ["Tensor.add.0"], framework="mindtorch")) as dump:
        assert dump.framework == "mindtorch"


@pytest.mark.parametrize(
    ("names", "framework"),
    [
        (["Tensor.add.0", "Functional.relu.0", "Torch.softmax.0"], "mindtorch"),
        (["Tensor.add.0", "Functional.relu.0", "Mint.softmax.0"], "mindspore"),
    ],
)
def test_without_a_header_the_prefix_torch_tells_it_from_mindspore(
    tmp_path: Path, names: list[str], framework: str
) -> None:
    with open_dump(written(tmp_path, names)) as dump:
        assert dump.framework == framework


def test_its_records_have_the_types_of_mindspore() -> None:
    record = decode_record("Torch.softmax.0", json.dumps(FORWARD).encode(), None)
    assert record.args == (TensorSpec("bfloat16", (2, 3), -1.0, 1.0, mean=0.0, norm=2.0),)
    assert dict(record.kwargs) == {"dtype": Symbol("dtype", "float16")}


@pytest.mark.parametrize(
    ("name", "spelled"), [("float32", "Float32"), ("bfloat16", "BFloat16"), ("uint8", "UInt8")]
)
def test_its_dtypes_are_spelled_as_in_mindspore(name: str, spelled: str) -> None:
    assert framework_dtype(name, "mindtorch") == spelled
