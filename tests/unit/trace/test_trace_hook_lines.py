"""Two files of hooks' lines are compared under the headings of the old tool, and no row is lost."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ray_precheck.errors import UsageError
from ray_precheck.hooks.tools import compare
from ray_precheck.trace.hook_lines import HEADINGS

pytestmark = pytest.mark.unit
LINEAR = [
    ("Functional_linear_forward_input.0", [1.0, 2.0], [1, 2]),
    ("Functional_linear_forward_output", [3.0, 4.0], [1, 2]),
]
RELU = [
    ("Functional_relu_forward_input.0", [3.0, 4.0], [1, 2]),
    ("Functional_relu_forward_output", [3.0, 4.0], [1, 2]),
]
Lines = Sequence[tuple[str, Sequence[float], Sequence[int]]]


def written(path: Path, lines: Lines, dtype: str = "torch.float32") -> Path:
    texts = [
        json.dumps([f"{number}_{name}", values, dtype, shape])
        for number, (name, values, shape) in enumerate(lines)
    ]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def compared(folder: Path, npu: Lines, bench: Lines, **more: bool) -> list[dict[str, str]]:
    one, two = written(folder / "npu.pkl", npu), written(folder / "gpu.pkl", bench)
    compare(one, str(two), folder / "out.csv", **more)
    with (folder / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == HEADINGS
    return rows


def test_numbers_are_those_of_the_guide(tmp_path: Path) -> None:
    changed = [LINEAR[0], ("Functional_linear_forward_output", [3.0, 5.0], [1, 2])]
    first, second = compared(tmp_path, changed, LINEAR)
    assert float(first["Cosine"]) == pytest.approx(1.0)
    assert (first["RMSE"], first["MAPE"]) == ("0.0", "0.0")
    assert second["Name"] == "1_Functional_linear_forward_output"
    assert float(second["Cosine"]) == pytest.approx(29 / (34**0.5 * 5))
    assert float(second["RMSE"]) == pytest.approx(0.5**0.5)
    assert float(second["MAPE"]) == pytest.approx(0.125)


def test_every_row_of_both_files_is_kept(tmp_path: Path) -> None:
    rows = compared(tmp_path, LINEAR, [*RELU, *LINEAR])
    names = [row["Name"] for row in rows]
    assert sorted(names) == sorted(
        [
            "0_Functional_relu_forward_input.0",
            "1_Functional_relu_forward_output",
            "0_Functional_linear_forward_input.0",
            "1_Functional_linear_forward_output",
        ]
    )
    lone = [row for row in rows if "relu" in row["Name"]]
    assert {row["Npu Tensor Dtype"] + row["Cosine"] for row in lone} == {""}
    assert {row["Bench Tensor Shape"] for row in lone} == {"[1, 2]"}


def test_a_zero_vector_has_no_cosine_and_infinities_of_one_side_no_number(tmp_path: Path) -> None:
    npu = [("Torch_x_forward_input.0", [0.0], [1]), ("Torch_x_forward_output", [float("inf")], [1])]
    bench = [("Torch_x_forward_input.0", [1.0], [1]), ("Torch_x_forward_output", [1.0], [1])]
    first, second = compared(tmp_path, npu, bench)
    assert (first["Cosine"], first["RMSE"], first["MAPE"]) == ("", "1.0", "1.0")
    assert (second["Cosine"], second["RMSE"], second["MAPE"]) == ("nan", "nan", "nan")


def test_other_shapes_are_compared_unless_the_flag_forbids_it(tmp_path: Path) -> None:
    turned = [LINEAR[0], ("Functional_linear_forward_output", [3.0, 4.0], [2, 1])]
    assert compared(tmp_path, turned, LINEAR)[1]["RMSE"] == "0.0"
    assert compared(tmp_path, turned, LINEAR, shape_flag=True)[1]["RMSE"] == ""


def test_a_line_that_was_cut_off_is_not_looked_at(tmp_path: Path) -> None:
    one = written(tmp_path / "one", LINEAR)
    two = tmp_path / "two"
    two.write_bytes(one.read_bytes() + b'["2_Functional')
    compare(one, two, tmp_path / "out.csv")
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "text", ["", "{}\n", '["x", [1], "d", [1]]\n', '["0_a_forward_input", 3, "d", [1]]\n', "\0\n"]
)
def test_what_is_no_dump_of_a_hook_is_one_sentence(tmp_path: Path, text: str) -> None:
    one = written(tmp_path / "one", LINEAR)
    (tmp_path / "two").write_text(text)
    with pytest.raises(UsageError, match="two"):
        compare(one, tmp_path / "two", tmp_path / "out.csv")
    with pytest.raises(UsageError, match="cannot read"):
        compare(one, tmp_path / "gone", tmp_path / "out.csv")
    with pytest.raises(UsageError, match="cannot write"):
        compare(one, one, tmp_path / "no" / "out.csv")
