"""The file of the sketches of a step: whole, cut, and after a kill."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.dump.tensors import (
    SKETCHES,
    SketchFile,
    read_sketches,
    sketch_of,
)
from ray_precheck.errors import DumpError


def rows_of(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 64))


def written(folder: Path, rows: np.ndarray, *, finish: bool = False) -> list[str]:
    file = SketchFile(folder)
    fields = [file.append(row) for row in rows]
    file.finish() if finish else file.close()
    assert file.size == (folder / SKETCHES).stat().st_size
    return fields


def test_a_finished_file_is_read_by_numpy(tmp_path: Path) -> None:
    rows = rows_of(5)
    fields = written(tmp_path, rows, finish=True)
    assert fields == [f'"sketch": {number}' for number in range(5)]
    loaded = np.load(tmp_path / SKETCHES, allow_pickle=False)
    assert loaded.dtype == np.float32
    assert loaded.tolist() == rows.astype(np.float32).tolist() == read_sketches(tmp_path).tolist()


def test_a_file_cut_at_any_byte_has_the_whole_rows_before(tmp_path: Path) -> None:
    rows = rows_of(3).astype(np.float32)
    for finish in (False, True):
        written(tmp_path, rows, finish=finish)
        raw = (tmp_path / SKETCHES).read_bytes()
        for length in [*range(140), *range(140, len(raw), 37), len(raw)]:
            (tmp_path / SKETCHES).write_bytes(raw[:length])
            whole = max(0, length - 128) // 256
            assert read_sketches(tmp_path).tolist() == rows[:whole].tolist(), length


WRITER = """
import sys
from pathlib import Path
import numpy as np
from ray_precheck.dump.tensors import SketchFile
file = SketchFile(Path(sys.argv[1]))
for number in range(10**9):
    file.append(np.full(64, float(number)))
    if number == 50:
        print("ready", flush=True)
"""


def test_a_killed_writer_leaves_every_row_that_it_had_written(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    rows = read_sketches(tmp_path)
    assert len(rows) > 50
    assert (rows == np.arange(len(rows), dtype=np.float32)[:, None]).all()


@pytest.mark.parametrize("scale", [1e300, 2.0**130, 2.0**-130, 1e-300])
def test_what_float32_cannot_hold_has_an_exponent(tmp_path: Path, scale: float) -> None:
    buckets = rows_of(1)[0] * scale
    (fields,) = written(tmp_path, [buckets])
    element = json.loads(f"{{{fields}}}")
    assert element["sketch"] == 0
    found = sketch_of(element, read_sketches(tmp_path))
    np.testing.assert_allclose(found, buckets, rtol=1e-7)


def test_sketches_of_usual_size_and_of_zeros_have_none(tmp_path: Path) -> None:
    fields = written(tmp_path, [np.zeros(64), np.full(64, 1e30), np.full(64, 1e-25)])
    assert not any("exponent" in each for each in fields)


@pytest.mark.parametrize(
    "element",
    [{}, {"sketch": 2}, {"sketch": -1}, {"sketch": "0"}, {"sketch": True},
     {"sketch": 0, "sketch_exponent": 1.5}],
)  # fmt: skip
def test_an_element_without_a_row_has_no_sketch(element: dict[str, object]) -> None:
    assert sketch_of(element, np.ones((2, 64), np.float32)) is None


def test_a_hostile_exponent_is_no_crash() -> None:
    found = sketch_of({"sketch": 0, "sketch_exponent": 10**30}, np.ones((1, 64), np.float32))
    assert found is not None
    assert np.isinf(found).all()


def test_no_file_is_no_rows_and_another_file_is_an_error(tmp_path: Path) -> None:
    assert read_sketches(tmp_path).shape == (0, 64)
    np.save(tmp_path / SKETCHES, np.zeros((3, 5), np.float32))
    with pytest.raises(DumpError, match=r"sketches\.npy holds no sketches.*64 columns of float32"):
        read_sketches(tmp_path)
    (tmp_path / SKETCHES).write_bytes(b"hello" * 100)
    with pytest.raises(DumpError, match="holds no sketches: it begins with b'hello"):
        read_sketches(tmp_path)


def test_a_full_disk_leaves_the_rows_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SketchFile(tmp_path)
    file.append(np.ones(64))
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda to, raw, place: write(to, raw[:100], place))
    with pytest.raises(OSError, match="No space left") as caught:
        file.append(np.ones(64))
    assert caught.value.filename == str(tmp_path / SKETCHES)
    monkeypatch.undo()
    file.finish()
    assert np.load(tmp_path / SKETCHES).tolist() == np.ones((1, 64)).tolist()
