"""Files of torch.save that are read without torch; what is no plain tensor is left to it."""

import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.dump.mapped import MappedTensors, PlainTensor, read_plain_tensor
from ray_precheck.schema.values import TensorSpec

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.unit

PLAIN = [
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128",
]  # fmt: skip


def plain(path: Path, *, is_mapped: bool = True) -> PlainTensor | None:
    with path.open("rb") as opened:
        return read_plain_tensor(opened, is_mapped=is_mapped)


def saved(path: Path, value: Any) -> Path:
    torch.save(value, path)
    return path


@pytest.mark.parametrize("is_mapped", [True, False])
@pytest.mark.parametrize("dtype", PLAIN)
def test_plain_tensors_have_the_elements_that_torch_reads(
    tmp_path: Path, dtype: str, is_mapped: bool
) -> None:
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    value = (torch.randn(2, 3, 5) * 9).to(kind)
    found = plain(saved(tmp_path / "a.pt", value), is_mapped=is_mapped)
    assert found is not None
    assert (found.dtype, found.shape) == (dtype, (2, 3, 5))
    bits = value.view(torch.int16) if dtype == "bfloat16" else value
    assert found.raw.tobytes() == bits.reshape(-1).numpy().tobytes()


def test_parts_of_a_storage_parameters_scalars_and_nothing_are_plain(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    for value in (whole[4:8], torch.nn.Parameter(whole), torch.tensor(2.5), torch.zeros(0, 3)):
        found = plain(saved(tmp_path / "a.pt", value))
        assert found is not None
        assert found.shape == tuple(value.shape)
        assert found.raw.tolist() == value.detach().reshape(-1).tolist()


def _fp8() -> Any:
    return torch.ones(4).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6.0).view(2, 3).t(),
        lambda: torch.ones(1).expand(1000),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: [torch.ones(2)],
        lambda: {"a": torch.ones(2)},
        lambda: torch.ones(2).to_sparse(),
        lambda: "text",
        _fp8,
    ],
)
def test_what_is_no_plain_tensor_is_left_to_torch(tmp_path: Path, make: Any) -> None:
    assert plain(saved(tmp_path / "a.pt", make())) is None


def test_older_files_and_cut_ones_are_left_to_torch(tmp_path: Path) -> None:
    old = tmp_path / "old.pt"
    torch.save(torch.ones(3), old, _use_new_zipfile_serialization=False)
    assert plain(old) is None
    path = saved(tmp_path / "a.pt", torch.ones(3000))
    path.write_bytes(path.read_bytes()[:4000])
    assert plain(path) is None


def _with_pickle(path: Path, content: bytes) -> Path:
    """Put another pickle into the archive of a tensor."""
    source = saved(path.with_suffix(".source"), torch.ones(3))
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, content if name.endswith("data.pkl") else old.read(name))
    return path


def test_bytes_in_the_order_of_another_machine_are_left_to_torch(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.pt", torch.ones(3))
    swapped = tmp_path / "b.pt"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(swapped, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"big" if name.endswith("/byteorder") else old.read(name))
    assert plain(source) is not None
    assert plain(swapped) is None


class _Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(Path(os.environ["RAN"])),)


def test_a_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    assert plain(_with_pickle(tmp_path / "a.pt", pickle.dumps(_Runs()))) is None
    assert not (tmp_path / "ran").exists()


def _tensor_pickle(key: str, offset: int, shape: str) -> bytes:
    """Return the pickle of a float32 tensor, in the words of protocol 0."""
    storage = f"(S'storage'\nctorch\nFloatStorage\nS'{key}'\nS'cpu'\nI3\ntQ"
    return (
        f"ctorch._utils\n_rebuild_tensor_v2\n({storage}I{offset}\n{shape}(I1\ntI00\nNtR.".encode()
    )


@pytest.mark.parametrize(
    ("key", "offset", "shape", "is_plain"),
    [
        ("0", 0, "(I3\nt", True),
        ("0", 1, "(I3\nt", False),
        ("0", -1, "(I3\nt", False),
        ("0", 0, "(I300000\nt", False),
        ("0", 0, "(F3.0\nt", False),
        ("1", 0, "(I3\nt", False),
        ("../../data.pkl", 0, "(I3\nt", False),
    ],
)
def test_no_bytes_beyond_the_storage_are_read(
    tmp_path: Path, key: str, offset: int, shape: str, is_plain: bool
) -> None:
    path = _with_pickle(tmp_path / "a.pt", _tensor_pickle(key, offset, shape))
    found = plain(path)
    assert (found is not None) == is_plain
    if found is not None:
        assert found.raw.tolist() == [1.0, 1.0, 1.0]


def test_a_plain_tensor_is_read_without_torch(tmp_path: Path) -> None:
    saved(tmp_path / "a.pt", torch.arange(4, dtype=torch.bfloat16))
    script = f"""
import sys
from pathlib import Path
from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.schema.values import TensorSpec
found = MappedTensors(Path({str(tmp_path)!r})).open(TensorSpec("bfloat16", (4,), data_name="a.pt"))
print(found.carrier(found.raw).tolist(), "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("] ") == ["[0.0, 1.0, 2.0, 3.0", "False\n"]


def test_bfloat16_that_the_dump_calls_float32_is_widened_by_torch(tmp_path: Path) -> None:
    saved(tmp_path / "a.pt", torch.arange(4, dtype=torch.bfloat16))
    spec = TensorSpec("float32", (4,), data_name="a.pt")
    found = MappedTensors(tmp_path).open(spec)
    assert found.raw.dtype == np.float32
    assert found.raw.tolist() == [0.0, 1.0, 2.0, 3.0]
