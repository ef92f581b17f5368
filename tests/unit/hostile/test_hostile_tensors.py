"""Files of captured tensors that are meant to lead elsewhere, to run, or to take all memory."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a dump's tensors, with a tensor beside it that must never be read."""
    np.save(tmp_path / "secret.npy", np.ones(2, np.float32))
    folder = tmp_path / "dump_tensor_data"
    folder.mkdir()
    np.save(folder / "ok.npy", np.zeros(2, np.float32))
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    return folder


def refused(folder: Path, name: str, shape: tuple[int, ...] = (2,)) -> str:
    with pytest.raises(NotCheckable) as reason:
        CapturedTensors(folder).tensor(TensorSpec("float32", shape, data_name=name), "input_args.0")
    text = str(reason.value)
    assert len(text) < 500 + len(str(folder))
    return text


@pytest.mark.parametrize(
    "name",
    [
        "../secret.npy",
        "up/secret.npy",
        "up/dump_tensor_data/../secret.npy",
        "./../dump_tensor_data/../secret.npy",
        "..//secret.npy",
    ],
)
def test_a_name_that_leads_out_is_refused(folder: Path, name: str) -> None:
    assert "leads out of the dump's folder" in refused(folder, name)


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "/dev/zero", "a" * 10**7, "a" * 10**7 + ".npy", "x\x00.npy", "\ud800.npy", "\n.npy",
     "../" * 10_000 + "etc/passwd.npy", ".npy", "..", "\x1b[31m.pt"],
    ids=lambda name: ascii(name[:12]),
)  # fmt: skip
def test_a_name_of_no_file_is_refused_and_shown_shortened(folder: Path, name: str) -> None:
    assert refused(folder, name).isprintable()


def test_a_named_pipe_is_no_file_and_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.npy")
    assert "no file 'pipe.npy'" in refused(folder, "pipe.npy")


def test_a_link_to_itself_and_a_folder_are_no_files(folder: Path) -> None:
    (folder / "loop.npy").symlink_to(folder / "loop.npy")
    (folder / "folder.npy").mkdir()
    assert "no file" in refused(folder, "loop.npy")
    assert "no file" in refused(folder, "folder.npy")


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.sampled_from(["..", ".", "up", "dump_tensor_data", "", "secret.npy", "ok.npy", "~"]),
        max_size=6,
    )
    .map("/".join)
    | st.text(max_size=8).map(lambda text: f"{text}.npy")
)  # fmt: skip
@example("dump_tensor_data/../../secret.npy")
def test_no_name_reads_the_tensor_beside_the_folder(folder: Path, name: str) -> None:
    source = CapturedTensors(folder)
    try:
        tensor = source.tensor(TensorSpec("float32", (2,), data_name=name), "x")
    except NotCheckable:
        return
    assert tensor.data.tolist() == [0.0, 0.0]


def test_a_gigabyte_is_not_read_where_the_dump_has_two_elements(folder: Path) -> None:
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': (268435456,)}\n"
    with (folder / "big.npy").open("wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
        file.truncate(1 << 30)
    tracemalloc.start()
    text = refused(folder, "big.npy")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "has 1073741824 bytes, more than a tensor of shape [2] takes" in text
    assert peak < 10 << 20


def test_a_reason_has_the_beginning_of_what_numpy_says(folder: Path) -> None:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (2,), '{'x' * 9000}': 1}}\n"
    raw = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()
    (folder / "long.npy").write_bytes(raw)
    assert "is not a readable .npy file" in refused(folder, "long.npy")
