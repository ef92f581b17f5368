"""Pipes, devices and folders in the place of files, archives that unpack to gigabytes, deep JSON."""

import ast
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from special_files import examine_special, special_files

from ray_precheck.cli import main
from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import open_file
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.unit

PACKAGE = Path(__file__).resolve().parents[3] / "ray_precheck"
# They read what the kernel tells, or what this package has written where no user names it.
OWN_FILES = (
    "runtime/", "capture/verifying/", "capture/account.py", "capture/process.py",
    "capture/pytorch/tensors/files.py", "capture/writing/log.py",
    "check/row.py", "commands/bisect/inside/", "commands/bisect/trial_command.py",
    "commands/bisect/trial_process.py", "commands/bisect/targets/torch_compile/native.py",
    "frameworks/mindtorch/paths.py", "processes.py", "store/claim.py",
)  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["named pipe", "/dev/zero", "socket", "folder", "/dev/stdin"])
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "/dev/stdin":
        path = Path(kind)
    else:
        special_files(tmp_path)[kind](path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"regular file|Is a directory|on a disk"):
        open_file(path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.timeout(300)
def test_a_pipe_is_refused_at_every_place_that_is_opened_early() -> None:
    places = (
        "a dump to compare", "stack.json", "a tensor", "-config", "its details", "a saved call",
        "the log of a capture",
    )  # fmt: skip
    assert examine_special("named pipe", places) == []


def test_files_of_users_are_opened_in_one_place() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name.startswith(OWN_FILES) or name == "foreign.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            mode = (
                node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            )
            reads = node.func.attr in ("read_bytes", "read_text")
            if reads or (node.func.attr == "open" and mode in ("r", "rb")):
                found.append(f"{name}:{node.lineno}")
    assert found == [], "foreign.open_file opens these"


def packed(path: Path, large: str) -> None:
    """Write the file of a tensor whose member `large` is 64 MiB of zeros, packed."""
    torch = pytest.importorskip("torch")
    plain = path.with_name("plain.pt")
    torch.save(torch.zeros(4), plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for member in source.infolist():
            content = bytes(64 << 20) if member.filename.endswith(large) else source.read(member)
            made.writestr(member.filename, content)


@pytest.mark.parametrize("large", ["data/0", "data.pkl", "byteorder"])
@pytest.mark.parametrize(
    "read",
    [
        lambda folder, spec: CapturedTensors(folder).tensor(spec, "input_args.0"),
        lambda folder, spec: MappedTensors(folder).open(spec),
    ],
)
def test_an_archive_that_unpacks_to_more_than_its_tensor_is_refused(
    tmp_path: Path, large: str, read: Any
) -> None:
    packed(tmp_path / "x.pt", large)
    spec = TensorSpec("float32", (4,), data_name="x.pt")
    with pytest.raises(NotCheckable, match=r"x.pt unpacks to 67\d+ bytes, more than a tensor"):
        read(tmp_path, spec)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"forward": ' * 100_000])
def test_repro_says_in_a_sentence_that_a_json_is_nested_too_deeply(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert main(["repro", str(tmp_path / "x.json")]) == 2
    assert "is not the JSON of a saved API" in capsys.readouterr().err


def test_saved_inputs_that_are_an_archive_are_no_traceback(tmp_path: Path) -> None:
    from ray_precheck.store.error_data import SavedTensors

    with (tmp_path / "x.npy").open("wb") as file:
        np.savez(file, a=np.zeros(2))
    saved = SavedTensors(tmp_path, {"input_args.0": "x.npy"}, "x", {"x.npy": "float32"})
    with pytest.raises(NotCheckable, match=r"x\.npy is an archive"):
        saved.tensor(TensorSpec("float32", (2,)), "input_args.0")
