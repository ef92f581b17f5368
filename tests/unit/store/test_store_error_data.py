"""The tensors of failing outputs: saved, named and loaded again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.errors import NotCheckable, UsageError
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import HostCall, HostTensor, TensorSpec
from ray_precheck.store.error_data import (
    Replay,
    input_tensors,
    load_error_data,
    save_error_data,
    save_files,
)

pytestmark = pytest.mark.unit

NAME = "Mint.add.0"


def tensor(
    dtype: str = "float32", shape: tuple[int, ...] = (2, 3), scale: float = 0.3
) -> HostTensor:
    """A tensor whose values need rounding."""
    values = np.arange(1, 1 + np.prod(shape), dtype=np.float64).reshape(shape) * scale
    return HostTensor(dtype, round_to_dtype(values, dtype))


def save(
    folder: Path,
    *,
    name: str = NAME,
    call: HostCall | None = None,
    cotangents: tuple[HostTensor | None, ...] = (),
    pairs: dict[str, tuple[Any, Any]] | None = None,
    backward: bytes | None = None,
) -> None:
    """Save an API as the checker does; every pair is failing."""
    pairs = pairs or {}
    save_error_data(
        folder,
        TaskPayload(7, name, b'{"input_args": []}', backward),
        "mindspore",
        call or HostCall((tensor(),), {}),
        list(cotangents),
        pairs,
        failing=list(pairs),
    )


def loaded(folder: Path, dtype: str, path: str = "input_args.0", name: str = NAME) -> HostTensor:
    """A saved input, as a rerun asks for it."""
    source = load_error_data(folder / f"{name}.json").source
    return source.tensor(TensorSpec(dtype, ()), path)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_tensor_of_any_dtype_survives_the_files(tmp_path: Path, dtype: str) -> None:
    saved = tensor(dtype, scale=1.0 if DTYPES[dtype].kind in ("int", "uint") else 0.3)
    save(tmp_path, call=HostCall((saved,), {}))
    found = loaded(tmp_path, dtype)
    assert found.dtype == dtype
    assert found.data.dtype == saved.data.dtype
    np.testing.assert_array_equal(found.data, saved.data)


@pytest.mark.parametrize("shape", [(), (0, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scalars_and_empty_tensors_survive(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    saved = tensor(dtype, shape)
    save(tmp_path, call=HostCall((saved,), {}))
    found = loaded(tmp_path, dtype)
    assert found.shape == shape
    np.testing.assert_array_equal(found.data, saved.data)


def test_nan_and_infinity_survive_in_bfloat16(tmp_path: Path) -> None:
    data = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    save(tmp_path, call=HostCall((HostTensor("bfloat16", data),), {}))
    found = loaded(tmp_path, "bfloat16").data
    np.testing.assert_array_equal(found, data)
    assert np.signbit(found[3])


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("bfloat16", "uint16"), ("float8_e5m2", "uint8"), ("float16", "float16"), ("bool", "bool")],
)
def test_formats_that_numpy_lacks_are_stored_as_bits_with_a_tag(
    tmp_path: Path, dtype: str, stored: str
) -> None:
    save(tmp_path, call=HostCall((tensor(dtype),), {}))
    file = f"{NAME}.forward.input.0.npy"
    assert np.load(tmp_path / file, allow_pickle=False).dtype == stored
    assert json.loads((tmp_path / f"{NAME}.json").read_text())["dtypes"][file] == dtype


def test_the_bits_of_bfloat16_are_the_upper_half_of_a_float32(tmp_path: Path) -> None:
    save(tmp_path, call=HostCall((HostTensor("bfloat16", np.array([1.5], np.float32)),), {}))
    assert np.load(tmp_path / f"{NAME}.forward.input.0.npy").tolist() == [0x3FC0]


def test_files_are_named_for_direction_side_and_position(tmp_path: Path) -> None:
    outs = (tensor(), tensor("float64"))
    save(
        tmp_path / "error_data",
        call=HostCall((tensor(), 3, [tensor()]), {"bias": tensor()}),
        cotangents=(None, tensor()),
        pairs={f"{NAME}.forward.output.1": outs, f"{NAME}.backward.output.0": outs},
        backward=b"{}",
    )
    assert sorted(path.name for path in (tmp_path / "error_data").iterdir()) == [
        "Mint.add.0.backward.input.1.npy",
        "Mint.add.0.backward.output.bench.0.npy",
        "Mint.add.0.backward.output.device.0.npy",
        "Mint.add.0.forward.input.0.npy",
        "Mint.add.0.forward.input.1.npy",
        "Mint.add.0.forward.input.2.npy",
        "Mint.add.0.forward.output.bench.1.npy",
        "Mint.add.0.forward.output.device.1.npy",
        "Mint.add.0.json",
    ]


def test_device_and_bench_are_not_swapped(tmp_path: Path) -> None:
    device_out, bench_out = tensor(scale=1.0), tensor("float64", scale=2.0)
    save(tmp_path, pairs={f"{NAME}.forward.output.0": (device_out, bench_out)})
    for side, out in (("device", device_out), ("bench", bench_out)):
        found = np.load(tmp_path / f"{NAME}.forward.output.{side}.0.npy")
        np.testing.assert_array_equal(found, out.data)


def test_outputs_that_are_no_tensors_leave_no_file(tmp_path: Path) -> None:
    save(tmp_path, call=HostCall((), {}), pairs={f"{NAME}.forward.output.0": (3, 4)})
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.json"]


def test_only_failing_outputs_are_saved(tmp_path: Path) -> None:
    pairs = {f"{NAME}.forward.output.{i}": (tensor(), tensor()) for i in range(2)}
    payload = TaskPayload(0, NAME, b"{}", None)
    save_error_data(
        tmp_path,
        payload,
        "pytorch",
        HostCall((), {}),
        [],
        pairs,
        failing=[f"{NAME}.forward.output.1"],
    )
    assert not list(tmp_path.glob("*.0.npy"))
    assert len(list(tmp_path.glob("*.output.*.1.npy"))) == 2


@pytest.mark.parametrize(
    "name", ["Mint.../../../up.0", "/etc/passwd.0", "..", "Mint.a\\..\\b.0", "Mint.a\x00\n.0"]
)
def test_no_name_leaves_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "out" / "error_data"
    save(folder, name=name, pairs={f"{name}.forward.output.0": (tensor(), tensor())})
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != folder]
    assert outside == []
    assert len(list(folder.iterdir())) == 4


def test_the_name_and_the_records_come_back(tmp_path: Path) -> None:
    name = "Mint.a/b é.0"
    save(tmp_path, name=name, backward=b'{"input": []}')
    (description,) = tmp_path.glob("*.json")
    found = load_error_data(description)
    assert found.payload == TaskPayload(0, name, b'{"input_args": []}', b'{"input": []}')
    assert found.framework == "mindspore"


def test_a_call_without_backward_stays_without(tmp_path: Path) -> None:
    save(tmp_path)
    assert load_error_data(tmp_path / f"{NAME}.json").payload.backward is None


def test_inputs_are_found_by_argument_path_and_gradients_by_position(tmp_path: Path) -> None:
    call = HostCall((tensor(scale=1), [tensor(scale=2)]), {"bias": tensor(scale=3)})
    save(tmp_path, call=call, cotangents=(None, tensor("float16", scale=4)), backward=b"{}")
    for path, scale in (("input_args.0", 1), ("input_args.1.0", 2), ("input_kwargs.bias", 3)):
        np.testing.assert_array_equal(
            loaded(tmp_path, "float32", path).data, tensor(scale=scale).data
        )
    gradient = loaded(tmp_path, "float32", "input.1")
    assert gradient.dtype == "float16"
    np.testing.assert_array_equal(gradient.data, tensor("float16", scale=4).data)


def test_tensors_of_a_call_are_listed_in_the_order_of_the_arguments() -> None:
    call = HostCall((1, (tensor(), {"k": tensor()})), {"w": tensor()})
    assert list(input_tensors(call)) == [
        "input_args.1.0",
        "input_args.1.1.k",
        "input_kwargs.w",
    ]


@pytest.mark.parametrize("damage", ["missing", "object", "text"])
def test_a_tensor_that_cannot_be_read_names_its_file(tmp_path: Path, damage: str) -> None:
    save(tmp_path)
    file = tmp_path / f"{NAME}.forward.input.0.npy"
    file.unlink()
    if damage == "object":
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    elif damage == "text":
        file.write_text("no array")
    with pytest.raises(NotCheckable, match=rf"input_args\.0: cannot read {file.name}"):
        loaded(tmp_path, "float32")


def test_a_dtype_tag_that_is_unknown_is_named(tmp_path: Path) -> None:
    save(tmp_path)
    path = tmp_path / f"{NAME}.json"
    path.write_text(path.read_text().replace('"float32"', '"float3"'))
    with pytest.raises(NotCheckable, match="float3"):
        loaded(tmp_path, "float32")


def test_a_json_cannot_name_a_tensor_outside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "error_data"
    save(folder)
    np.save(tmp_path / "other.npy", np.zeros(3, np.float32))
    path = folder / f"{NAME}.json"
    path.write_text(path.read_text().replace(f'"{NAME}.forward.input.0.npy"', '"../other.npy"'))
    with pytest.raises(NotCheckable):
        loaded(folder, "float32")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "{}", '{"backward": null, "api": "a", "forward": null}', "\xff"],
)
def test_a_broken_json_is_a_usage_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match="is not the JSON of a saved API"):
        load_error_data(path)


def test_a_missing_json_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*a\.json: No such file"):
        load_error_data(tmp_path / "a.json")


@pytest.mark.parametrize("in_place", [True, False])
def test_the_facts_for_a_script_come_back(tmp_path: Path, in_place: bool) -> None:
    name = "Torch.linalg.inv.0"
    failing = [f"{name}.forward.output.0", f"{name}.backward.output.1"]
    replay = Replay((0, 2), in_place, "ulp", "it is off", "Ascend")
    save_error_data(
        tmp_path,
        TaskPayload(7, name, b"{}", None),
        "pytorch",
        HostCall((), {}),
        [],
        dict.fromkeys(failing, (tensor(), tensor())),
        failing=failing,
        tested="dump",
        seed=5,
        replay=replay,
    )
    found = load_error_data(tmp_path / f"{name}.json")
    assert found.replay == replay
    assert found.failing == ("forward.output.0", "backward.output.1")
    assert (found.tested, found.seed, found.stem) == ("dump", 5, name)


def test_a_file_of_an_older_version_has_the_facts_of_most_calls(tmp_path: Path) -> None:
    save(tmp_path)
    path = tmp_path / f"{NAME}.json"
    saved = json.loads(path.read_text())
    wanted = ("api", "forward", "backward", "framework", "inputs", "dtypes")
    path.write_text(json.dumps({key: saved[key] for key in wanted}))
    found = load_error_data(path)
    assert (found.replay, found.failing, found.tested, found.seed) == (Replay(), (), "device", 0)


def test_gradients_come_back_with_none_where_there_was_none(tmp_path: Path) -> None:
    save(tmp_path, cotangents=(None, tensor("float16", scale=4)), backward=b"{}")
    first, second, third = load_error_data(tmp_path / f"{NAME}.json").source.cotangents(3)
    assert (first, third) == (None, None)
    assert second is not None
    assert second.dtype == "float16"
    np.testing.assert_array_equal(second.data, tensor("float16", scale=4).data)


def test_files_of_another_machine_come_into_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "error_data"
    save_files(folder, [("a.json", b"{}"), ("up/../b.npy", b"1")])
    save_files(folder, [("c.npy", b"2"), ("/a.json", b"[]")])
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert found == {"a.json": b"[]", "b.npy": b"1", "c.npy": b"2"}
