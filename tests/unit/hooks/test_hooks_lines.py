"""The file of JSON lines: what it holds, and what is left of it when the disk is full."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_precheck.capture.pytorch.classic import lines
from ray_precheck.capture.pytorch.classic.lines import DumpFile, Line
from ray_precheck.hooks import HookUsageError, set_dump_path

pytestmark = pytest.mark.unit
LINE = Line("_input.0", [0.5, float("nan"), float("inf")], "torch.float32", (1, 3))


@pytest.fixture(autouse=True)
def _file_closed() -> Iterator[None]:
    yield
    lines.DUMP_FILE.close()


def test_a_line_is_name_values_dtype_and_shape(tmp_path: Path) -> None:
    file = DumpFile()
    file.set_path(tmp_path / "a.pkl")
    file.write("Torch_abs_forward", LINE)
    (text,) = (tmp_path / "a.pkl").read_text().splitlines()
    assert text == (
        '["0_Torch_abs_forward_input.0", [0.5, NaN, Infinity], "torch.float32", [1, 3]]'
    )
    name, values, dtype, shape = json.loads(text)
    assert (name, values[0], dtype, shape) == (
        "0_Torch_abs_forward_input.0",
        0.5,
        "torch.float32",
        [1, 3],
    )


def test_tensors_are_numbered_from_zero_in_each_file(tmp_path: Path) -> None:
    file = DumpFile()
    for name in ("a.pkl", "b.pkl"):
        file.set_path(tmp_path / name)
        for _ in range(3):
            file.write("Torch_abs_forward", LINE)
    for name in ("a.pkl", "b.pkl"):
        texts = (tmp_path / name).read_text().splitlines()
        assert [json.loads(text)[0].split("_")[0] for text in texts] == ["0", "1", "2"]


def test_a_file_of_that_name_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_text("old\n")
    set_dump_path(str(tmp_path / "a.pkl"))
    assert (tmp_path / "a.pkl").read_text() == ""


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DumpFile()
    file.set_path(tmp_path / "a.pkl")
    file.write("Torch_abs_forward", LINE)
    whole = (tmp_path / "a.pkl").read_bytes()
    write, calls = os.write, []

    def full(descriptor: int, raw: bytes) -> int:
        calls.append(len(raw))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, raw[:7])

    monkeypatch.setattr(lines.os, "write", full)
    file.write("Torch_abs_forward", LINE)
    assert (tmp_path / "a.pkl").read_bytes() == whole
    assert file.failure == f"{tmp_path / 'a.pkl'} cannot be written: No space left on device"
    file.write("Torch_abs_forward", LINE)
    assert len(calls) == 2, "nothing is written after a failure"


def test_a_new_path_ends_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DumpFile()
    file.set_path(tmp_path / "a.pkl")
    with monkeypatch.context() as patched:
        patched.setattr(lines.os, "write", lambda *_: (_ for _ in ()).throw(OSError(5, "broken")))
        file.write("Torch_abs_forward", LINE)
    assert file.failure
    file.set_path(tmp_path / "b.pkl")
    file.write("Torch_abs_forward", LINE)
    assert json.loads((tmp_path / "b.pkl").read_text())[0] == "0_Torch_abs_forward_input.0"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "it is a folder"),
        ("no_such_folder/a.pkl", "its folder does not exist"),
        ("file/a.pkl", "a part of its path is a file"),
    ],
)
def test_a_path_that_cannot_be_a_file_is_one_sentence(
    tmp_path: Path, path: str, expected: str
) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / path
    with pytest.raises(HookUsageError) as caught:
        set_dump_path(str(target))
    assert str(caught.value) == (
        f"the dump cannot be written to {target}: {expected}; give set_dump_path the name of a file in a"
        " folder that exists and can be written"
    )


@pytest.mark.parametrize("path", [None, ""])
def test_a_path_must_be_given(path: str | None) -> None:
    with pytest.raises(
        HookUsageError, match=f"^the path of the dump is {path!r}; expected the name"
    ):
        set_dump_path(path)
