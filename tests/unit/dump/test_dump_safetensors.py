"""Files of safetensors: what is written is read, and what does not fit says why."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.dump.safetensors import (
    NAMES,
    element_of,
    save_values,
    stored_tensors,
    widening,
    written,
)
from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import open_file
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.unit
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def tensors(draw: Any) -> tuple[str, Array]:
    """A canonical dtype and a carrier of any bits, NaN and infinities too."""
    dtype = draw(st.sampled_from(list(NAMES)))
    bits = draw(arrays.arrays(np.uint8, (*draw(SHAPES), DTYPES[dtype].bits // 8)))
    if dtype == "bool":
        bits &= 1
    raw = np.ascontiguousarray(bits).view(element_of(dtype)).reshape(bits.shape[:-1])
    widen = widening(dtype)
    return dtype, raw if widen is None else widen(raw)


@given(tensors())
def test_both_readers_read_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, tensor: tuple[str, Array]
) -> None:
    dtype, values = tensor
    folder = tmp_path_factory.mktemp("written")
    save_values(folder / "x.safetensors", dtype, values)
    spec = TensorSpec(dtype, values.shape, data_name="x.safetensors")
    whole = CapturedTensors(folder).tensor(spec, "x")
    assert (whole.dtype, whole.data.dtype) == (dtype, values.dtype)
    np.testing.assert_array_equal(whole.data, values)
    for opener in (MappedTensors(folder), MappedTensors(folder).read_whole()):
        found = opener.open(spec)
        np.testing.assert_array_equal(found.carrier(found.raw).reshape(values.shape), values)


@given(
    st.dictionaries(
        st.text(max_size=5).filter(lambda n: n != "__metadata__"), tensors(), max_size=4
    )
)
def test_a_file_of_many_tensors_has_them_in_order(
    tmp_path_factory: pytest.TempPathFactory, many: dict[str, tuple[str, Array]]
) -> None:
    plain = {name: each for name, each in many.items() if DTYPES[each[0]].carrier == each[0]}
    path = tmp_path_factory.mktemp("many") / "x.safetensors"
    path.write_bytes(written(plain))
    with open_file(path) as opened:
        found = stored_tensors(opened)
        assert list(found) == list(plain)
        for name, (dtype, values) in plain.items():
            opened.seek(found[name].begin)
            raw = opened.read(values.nbytes)
            assert (found[name].dtype, found[name].shape) == (dtype, values.shape)
            assert raw == values.tobytes()


def test_the_package_reads_ours_and_ours_reads_the_packages(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    values = np.arange(6, dtype=np.float32).reshape(2, 3) / 3
    save_values(tmp_path / "ours.safetensors", "float32", values)
    np.testing.assert_array_equal(
        package.load_file(tmp_path / "ours.safetensors")["tensor"], values
    )
    package.save_file({"w": values}, tmp_path / "theirs.safetensors", metadata={"format": "np"})
    spec = TensorSpec("float32", (2, 3), data_name="theirs.safetensors")
    np.testing.assert_array_equal(CapturedTensors(tmp_path).tensor(spec, "x").data, values)


def test_bfloat16_stays_as_large_as_it_is(tmp_path: Path) -> None:
    values = np.array([1.0, 1.0 + 2.0**-7, -3e38], ml_dtypes.bfloat16).astype(np.float32)
    save_values(tmp_path / "x.safetensors", "bfloat16", values)
    content = (tmp_path / "x.safetensors").read_bytes()
    assert len(content) == 8 + int.from_bytes(content[:8], "little") + 6


def header(**entry: Any) -> bytes:
    whole = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12], **entry}
    text = json.dumps({"x": whole}).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "a header of 0 bytes does not fit into its 0 bytes"),
        (b"\xff" * 8 + b"{}", "does not fit into its 10 bytes"),
        ((4).to_bytes(8, "little") + b"{{{{", "is not a readable .safetensors file"),
        ((2).to_bytes(8, "little") + b"[]", "its header is no JSON object"),
        ((2).to_bytes(8, "little") + b"{}", "it holds 0 tensors, a single one is expected"),
        (header()[:-1], "does not fit"),
        (header() + bytes(11), "takes 12 bytes, and has those from 0 to 12 of 11"),
        (header(shape=[-3]) + bytes(12), "has no shape and offsets"),
        (header(shape=[2**40, 2**40]) + bytes(12), "and has those from 0 to 12 of 12"),
        (header(data_offsets=[12, 0]) + bytes(12), "and has those from 12 to 0 of 12"),
        (header(dtype="F4") + bytes(12), "has the dtype 'F4'; read are F64"),
        (header(dtype="I32") + bytes(12), "holds int32, the dump says float32"),
        (header(shape=[1, 3]) + bytes(12), "has shape [1, 3], the dump says [3]"),
        (header() + bytes(1 << 17), "more than a tensor of shape [3] takes"),
    ],
)
def test_what_does_not_fit_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    spec = TensorSpec("float32", (3,), data_name="x.safetensors")
    with pytest.raises(NotCheckable) as whole:
        CapturedTensors(tmp_path).tensor(spec, "x")
    assert reason in str(whole.value)
    with pytest.raises(NotCheckable) as mapped:
        MappedTensors(tmp_path).open(spec)
    assert reason in str(mapped.value)
