"""Each command that goes on in its tables refuses a dump whose files have changed, and names the file."""

import os
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.cli import main
from tests.unit.commands.small_captures import write_capture

pytestmark = pytest.mark.unit
X = np.arange(8, dtype=np.float32)
CALLS = [("Mint.exp.0.forward", [X], [np.exp(X)]), ("Mint.abs.0.forward", [-X], [X])]
TENSOR = "dump_tensor_data/Mint.exp.0.forward.output.0.npy"


@pytest.mark.parametrize(
    ("command", "with_files", "changed"),
    [
        ("compare -tp t -gp g", True, f"t/{TENSOR}"),
        ("compare -tp t -gp g", True, f"g/{TENSOR}"),
        ("compare -tp t -gp g", False, "t/construct.json"),
        ("locate -tp t -gp g", False, "g/construct.json"),
        ("overflow_check t", False, "t/dump.json"),
    ],
)
def test_a_changed_file_is_named_and_a_touched_one_is_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    with_files: bool,
    changed: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "tg":
        (
            write_capture(tmp_path / name, CALLS, files=with_files).parent / "construct.json"
        ).write_text("{}")
    first = main([*command.split(), "-o", "out"])
    assert first in (0, 4)
    again = [*command.split(), "-o", "out", "-csv_path", "out"]
    os.utime(changed, (2e9, 2e9))
    assert main(again) == first
    content = Path(changed).read_bytes()
    # Where the end of the file is its digest, as that of a dump in a search for births.
    Path(changed).write_bytes(
        content.replace(b"abs", b"cos") if b"abs" in content else b" " + content[1:]
    )
    os.utime(changed, (2.1e9, 2.1e9))
    capsys.readouterr()
    assert main(again) == 2
    said = capsys.readouterr().err
    assert f"{changed} has other content than it had" in said or "is of another dump" in said
    assert main([*again, "--retry", "all", "--force"]) in (0, 1, 4)
