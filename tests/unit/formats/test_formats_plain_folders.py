"""Folders of arrays are captures: a record for each name, and its tensors where the names say so."""

import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.dump.safetensors import save_values, written
from ray_precheck.errors import DumpError
from ray_precheck.formats.conversion import as_our_dump, format_of
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.unit
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def read(path: Path) -> dict[str, dict[str, Array]]:
    """The values of each record by their names."""
    with open_side(as_our_dump(path) / "dump.json") as side:
        tensors = MappedTensors(side.data_folder)
        found: dict[str, dict[str, Array]] = {}
        for entry in side.entries:
            values = found[entry.key] = {}
            for item in side.items(entry):
                if item.is_tensor:
                    opened = tensors.open(item.spec(item.dtype))
                    values[item.path] = opened.carrier(opened.raw).reshape(opened.shape)
        return found


def folder_of(tmp_path: Path, **files: Array) -> Path:
    folder = tmp_path / "arrays"
    for name, values in files.items():
        file = folder / f"{name}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, values)
    return folder


def test_names_are_records_in_their_natural_order(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **{"layers.10.out": X, "layers.2.out": X, "sub/x": X})
    save_values(folder / "y.safetensors", "float32", X)
    found = read(folder)
    assert list(found) == [
        "Tensor.layers.2.out.0.forward",
        "Tensor.layers.10.out.0.forward",
        "Tensor.sub.x.0.forward",
        "Tensor.y.0.forward",
    ]
    assert all((values["output.0"] == X).all() for values in found.values())


def test_files_of_one_call_are_one_record(tmp_path: Path) -> None:
    files = {"Torch.add.3.forward.input.0": X, "Torch.add.3.forward.input.1": 2 * X,
             "Torch.add.3.forward.output.0": 3 * X, "Torch.add.3.backward.input.0": X,
             "conv_input0": X, "conv_output": 4 * X}  # fmt: skip
    found = read(folder_of(tmp_path, **files))
    assert {key: sorted(values) for key, values in found.items()} == {
        "Torch.add.3.forward": ["input.0", "input.1", "output.0"],
        "Torch.add.3.backward": ["input.0"],
        "Tensor.conv.0.forward": ["input.0", "output.0"],
    }
    assert (found["Tensor.conv.0.forward"]["output.0"] == 4 * X).all()


def test_a_file_of_many_tensors_has_a_record_for_each(tmp_path: Path) -> None:
    bits = X.astype(ml_dtypes.bfloat16).view(np.uint16)
    content = written({"w.1": ("float32", X), "w.0": ("bfloat16", bits)})
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    found = read(tmp_path / "a.safetensors")
    # What the file is called says nothing: two checkpoints are compared.
    assert list(found) == list(read(tmp_path / "b.safetensors"))
    assert list(found) == ["Tensor.w.1.0.forward", "Tensor.w.0.0.forward"]
    assert (found["Tensor.w.0.0.forward"]["output.0"] == X).all()


def test_two_files_of_one_name_are_two_records(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, x=X)
    save_values(folder / "x.safetensors", "float32", 2 * X)
    assert list(read(folder)) == ["Tensor.x.0.forward", "Tensor.x.1.forward"]


def test_what_cannot_be_read_is_a_gap_and_nothing_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Touch:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    folder = folder_of(tmp_path, x=X, words=np.array(["a"]))
    np.save(folder / "objects.npy", np.array([Touch()]), allow_pickle=True)
    (folder / "cut.npy").write_bytes((folder / "x.npy").read_bytes()[:-1])
    (folder / "run.npy").write_bytes(pickle.dumps(Touch()))
    (folder / "out.npy").symlink_to("/dev/zero")
    assert list(read(folder)) == ["Tensor.x.0.forward"]
    said = capsys.readouterr().err
    assert "5 files could not be read: cut.npy is not a readable .npy file: the file is cut" in said
    assert "and 2 more" in said
    (folder / "x.npy").unlink()
    with pytest.raises(DumpError, match="as a folder of arrays: 5 files could not be read"):
        as_our_dump(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "ours", ["dump.json", "dump.jsonl", "step0/x.npy", "rank1/x.npy", "proc7/x.npy"]
)
def test_folders_of_captures_are_none(tmp_path: Path, ours: str) -> None:
    folder = folder_of(tmp_path, x=X)
    (folder / ours).parent.mkdir(exist_ok=True)
    (folder / ours).write_bytes((folder / "x.npy").read_bytes())
    assert format_of(folder) is None


@pytest.mark.parametrize("name", ["a.txt", "x.npy.gz", "sub/x.json"])
def test_folders_without_arrays_are_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "f" / name).parent.mkdir(parents=True)
    (tmp_path / "f" / name).touch()
    assert format_of(tmp_path / "f") is None


PLAIN = ["float16", "float32", "float64", "int8", "int64", "uint16", "bool", "complex64", ">f4"]


@given(
    st.dictionaries(
        st.text("ab1._- é", min_size=1, max_size=6),
        st.sampled_from(PLAIN).flatmap(
            lambda dtype: arrays.arrays(
                dtype, arrays.array_shapes(min_dims=0, max_dims=3, max_side=4)
            )
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=50)
def test_every_array_comes_back(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, Array]
) -> None:
    folder = tmp_path_factory.mktemp("plain")
    for name, values in files.items():
        np.save(folder / f"{name}.npy", values)
    found = [values for record in read(folder).values() for values in record.values()]
    assert len(found) == len(files)
    left = list(files.values())
    for values in found:
        at = next(
            n for n, e in enumerate(left)
            if e.shape == values.shape and np.array_equal(e, values, equal_nan=e.dtype.kind in "fc")
        )  # fmt: skip
        del left[at]
