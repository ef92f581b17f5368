"""Tensors in torch's files, read in pieces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.values import TensorSpec

torch = pytest.importorskip("torch")
VALUES = torch.linspace(-2, 2, 15).reshape(3, 5)


def opened(folder: Path, value: Any, dtype: str, **options: Any) -> Any:
    torch.save(value, folder / "x.pt", **options)
    spec = TensorSpec(dtype, tuple(value.shape), data_name="x.pt")
    return MappedTensors(folder).open(spec)


@pytest.mark.parametrize(
    "dtype",
    "float32 float64 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 bool complex64".split(),
)
def test_each_dtype_is_read_as_it_was_saved(tmp_path: Path, dtype: str) -> None:
    value = VALUES.to(getattr(torch, dtype))
    found = opened(tmp_path, value, dtype)
    narrow = dtype.startswith(("bfloat16", "float8"))
    expected = value.to(torch.float32) if narrow else value
    np.testing.assert_array_equal(found.carrier(found.raw), expected.numpy().reshape(-1))
    assert found.raw.itemsize == value.element_size()


@pytest.mark.parametrize("zipped", [True, False])
def test_both_formats_of_files_are_read(tmp_path: Path, zipped: bool) -> None:
    found = opened(tmp_path, VALUES, "float32", _use_new_zipfile_serialization=zipped)
    np.testing.assert_array_equal(found.raw, VALUES.numpy().reshape(-1))


@pytest.mark.parametrize(
    "value",
    [VALUES.t(), VALUES[:, 1:3], torch.nn.Parameter(VALUES), torch.tensor(2.0), torch.zeros(0, 3)],
)
def test_views_parameters_and_scalars_are_read(tmp_path: Path, value: Any) -> None:
    found = opened(tmp_path, value, "float32")
    np.testing.assert_array_equal(found.raw, value.detach().contiguous().numpy().reshape(-1))


def test_conjugated_and_negated_views_are_resolved(tmp_path: Path) -> None:
    value = torch.complex(VALUES, VALUES).conj()
    found = opened(tmp_path, value, "complex64")
    np.testing.assert_array_equal(found.raw, value.resolve_conj().numpy().reshape(-1))


# torch 2.15 says that it looks at each index of the sparse tensor.
@pytest.mark.filterwarnings("ignore:Validating sparse tensor:UserWarning")
def test_a_sparse_tensor_has_all_its_elements_unless_they_are_too_many(tmp_path: Path) -> None:
    value = torch.tensor([[0.0, 3.0, 0.0], [2.0, 0.0, 0.0]])
    found = opened(tmp_path, value.to_sparse(), "float32")
    np.testing.assert_array_equal(found.raw, value.numpy().reshape(-1))
    huge = torch.sparse_coo_tensor([[5], [7]], [1.0], (1 << 20, 1 << 20), check_invariants=True)
    with pytest.raises(NotCheckable, match="it is sparse, and has more than 268435456 elements"):
        opened(tmp_path, huge, "float32")


def test_a_few_numbers_expanded_to_a_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotCheckable, match="fewer numbers than its shape"):
        opened(tmp_path, torch.ones(1).expand(1000, 1000), "float32")


def test_what_is_no_tensor_and_what_is_torn_is_refused(tmp_path: Path) -> None:
    spec = TensorSpec("float32", (3, 5), data_name="x.pt")
    torch.save([1, 2], tmp_path / "x.pt")
    with pytest.raises(NotCheckable, match="holds a list, not a tensor"):
        MappedTensors(tmp_path).open(spec)
    torch.save(VALUES, tmp_path / "x.pt")
    (tmp_path / "x.pt").write_bytes((tmp_path / "x.pt").read_bytes()[:300])
    with pytest.raises(NotCheckable, match=r"not a readable \.pt file"):
        MappedTensors(tmp_path).open(spec)
