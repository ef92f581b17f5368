"""Lines and arrays of torch_npu.hooks are captures: their calls, their values, the backward pass of each."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ray_precheck.capture.pytorch.classic.lines import Line
from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.errors import DumpError
from ray_precheck.formats.conversion import as_our_dump, format_of
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide, open_side

pytestmark = pytest.mark.unit
X = np.array([[0.5, -1.25], [3.0, np.inf]], np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def line(
    number: int, name: str, values: Array, *, shape: Any = None, dtype: str = "float32"
) -> str:
    made = Line("", values.reshape(-1).tolist(), f"torch.{dtype}", shape or values.shape)
    return made.text(f"{number}_{name}")


def side_of(path: Path) -> CaptureSide:
    return open_side(as_our_dump(path) / "dump.json")


def values_of(side: CaptureSide, item: Item) -> Array:
    found = MappedTensors(side.data_folder).open(item.spec(item.dtype.rpartition(".")[2]))
    return found.carrier(found.raw).reshape(found.shape)


def records_of(side: CaptureSide) -> dict[str, dict[str, tuple[int, ...] | None]]:
    return {
        entry.key: {item.path: item.shape for item in side.items(entry) if item.is_tensor}
        for entry in side.entries
    }


def test_calls_are_numbered_and_a_backward_pass_is_of_the_last_call_of_its_shapes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "npu.pkl"
    small, large = np.ones((2, 1), np.float32), np.ones((3, 1), np.float32)
    lines = [
        ("Functional_relu_forward_input.0", small), ("Functional_relu_forward_output", small),
        ("Functional_relu_forward_input.0", large), ("Functional_relu_forward_output", large),
        ("Tensor___add___forward_input.0", large), ("Tensor___add___forward_input.1.2", small),
        ("Tensor___add___forward_output", large),
        ("Functional_relu_backward_input.0", small), ("Functional_relu_backward_output.0", small),
        ("Functional_relu_backward_input.0", large), ("Functional_relu_backward_output.0", large),
    ]  # fmt: skip
    path.write_text("".join(line(n, name, values) for n, (name, values) in enumerate(lines)))
    with side_of(path) as side:
        assert records_of(side) == {
            "Functional.relu.0.forward": {"input.0": (2, 1), "output.0": (2, 1)},
            "Functional.relu.1.forward": {"input.0": (3, 1), "output.0": (3, 1)},
            "Tensor.__add__.0.forward": {
                "input.0": (3, 1),
                "input.1.2": (2, 1),
                "output.0": (3, 1),
            },
            "Functional.relu.0.backward": {"input.0": (2, 1), "output.0": (2, 1)},
            "Functional.relu.1.backward": {"input.0": (3, 1), "output.0": (3, 1)},
        }


def test_what_arrived_is_the_input_of_a_backward_pass(tmp_path: Path) -> None:
    path = tmp_path / "npu.pkl"
    name = "Functional_sum_backward"
    path.write_text(line(0, f"{name}_input.0", X) + line(1, f"{name}_output.0", X[0, :1]))
    with side_of(path) as side:
        (entry,) = side.entries
        assert [(i.path, i.shape) for i in side.items(entry)] == [
            ("input.0", (1,)),
            ("output.0", (2, 2)),
        ]


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float64]),
        arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    )
)
@settings(max_examples=50)
def test_a_line_of_all_values_has_them(
    tmp_path_factory: pytest.TempPathFactory, values: Array
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.pkl"
    path.write_text(line(0, "Functional_exp_forward_output", values, dtype=str(values.dtype)))
    with side_of(path) as side:
        (item,) = side.items(side.entries[0])
        np.testing.assert_array_equal(values_of(side, item), values)


def test_samples_are_statistics_whatever_their_number(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    many = np.arange(40, dtype=np.float32)
    # Of 13 elements a sample has as many values as the tensor.
    odd = np.arange(13, dtype=np.float32)
    content = ""
    for number, values in enumerate((odd, many, X[0])):
        sampled = np.array([*values[:10], values.max(), values.min(), values.mean()])
        content += line(number, "Functional_exp_forward_output", sampled, shape=list(values.shape))
    path.write_text(content)
    with side_of(path) as side:
        items = [side.items(entry)[0] for entry in side.entries]
    assert [item.ends for item in items] == [(12.0, 0.0), (39.0, 0.0), (0.5, -1.25)]
    assert [item.mean for item in items] == [6.0, 19.5, -0.375]
    assert [item.file for item in items] == ["", "", ""]


def test_a_line_that_was_cut_off_is_left_out_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    whole = line(0, "Functional_exp_forward_output", X)
    path.write_text(whole + whole[:20])
    with side_of(path) as side:
        assert len(side.entries) == 1
    path.write_text(whole + "[1, 2]\n")
    with pytest.raises(
        DumpError, match=r"line 2 of .*a\.pkl is b'\[1, 2\]\\n'; expected is a line"
    ):
        as_our_dump(path)


def test_a_place_far_away_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_text(line(0, "Functional_exp_forward_output.9999.9999.9999", X))
    dump = as_our_dump(path) / "dump.json"
    assert dump.stat().st_size < 1000
    with open_side(dump) as side:
        assert [item.path for item in side.items(side.entries[0])] == ["output.9999.9999.9999"]


def array(folder: Path, group: int, call: str, part: str, values: Array, layout: str = "") -> None:
    shape = ",".join(map(str, values.shape))
    strides = ",".join(str(each // values.itemsize) for each in values.strides)
    layout = layout or f"_shape[{shape}]_stride[{strides}]_offset[0]"
    np.save(folder / f"{group}_{call}_{part}{layout}_format[2].npy", np.ascontiguousarray(values))


def test_arrays_are_read_where_they_lie_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "arrays"
    folder.mkdir()
    array(folder, 10, "Functional_exp_forward", "input0", X)
    array(folder, 11, "Functional_exp_forward", "output0", 2 * X)
    array(folder, 2, "Functional_exp_forward", "input0", X.T)
    array(
        folder, 3, "Functional_exp_forward", "output0", X[:1], "_shape[1,2]_stride[2,1]_offset[7]"
    )
    # The same operator again, which gave a tensor and got none.
    array(folder, 12, "Functional_exp_forward", "input0", X[0])
    before = sorted(each.name for each in folder.iterdir())
    with side_of(folder) as side:
        assert list(records_of(side).values()) == [
            {"input.0": (2, 2), "output.0": (1, 2)},
            {"input.0": (2, 2), "output.0": (2, 2)},
            {"input.0": (2,)},
        ]
        given, made = side.items(side.entries[0])
        assert (given.statistic("stride"), given.statistic("offset")) == ([1, 2], None)
        assert (made.statistic("stride"), made.statistic("offset")) == (None, 7)
        np.testing.assert_array_equal(values_of(side, given), X.T)
    assert sorted(each.name for each in folder.iterdir()) == before


def test_an_array_that_cannot_be_read_is_a_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "arrays"
    folder.mkdir()
    array(folder, 0, "Functional_exp_forward", "input0", X)
    array(folder, 1, "Functional_exp_forward", "output0", X)
    (cut,) = folder.glob("1_*")
    cut.write_bytes(cut.read_bytes()[:-1])
    with side_of(folder) as side:
        assert list(records_of(side).values()) == [{"input.0": (2, 2)}]
    assert "left out: 1_Functional_exp" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", ["", "{}", '["0_x", 1]\n', json.dumps(["x_input", [1], "f", [1]])]
)
def test_other_files_are_none_of_hooks(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.pkl").write_text(content)
    assert format_of(tmp_path / "a.pkl") is None
