"""Tensors that a process writes: the same files, whatever ends it or the training, or fills the disk."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ray_precheck.capture import Capture
from ray_precheck.capture.pytorch.tensors.files import CapturedFiles
from ray_precheck.capture.writing import shared_writer
from ray_precheck.capture.writing.finish import finish_folder
from ray_precheck.capture.writing.log import LineFile
from ray_precheck.capture.writing.shared_writer import SharedWriter, TensorNotWritten, start_writer
from ray_precheck.dump.parse import open_dump

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(sys.platform != "linux", reason="the memory is of Linux"),
]
DTYPES = "float32 float64 float16 bfloat16 int8 uint8 int64 bool complex64 float8_e5m2".split()
KILLED = """
import os, signal, sys, torch
from ray_precheck.capture import Capture
model = torch.nn.Linear(64, 64)
rows = torch.randn(64, 64)
with Capture(sys.argv[1], task="tensor", step_by="manual", model=model):
    for number in range(300):
        rows = torch.tanh(model(rows))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def writer() -> Iterator[SharedWriter]:
    """A process with a small ring, which entries wrap around."""
    made = SharedWriter(1 << 20)
    yield made
    made.close()


def tensors() -> list[torch.Tensor]:
    """Tensors of all kinds: dtypes, views, gaps, conjugates, empty, sparse and larger than the ring."""
    torch.manual_seed(0)
    found = [(torch.randn(shape) * 50).to(getattr(torch, name))
             for name in DTYPES for shape in ((), (3, 5), (200, 100))]  # fmt: skip
    whole = torch.randn(60, 40, dtype=torch.complex64)
    found += [whole[3:50], whole.t(), whole[::2, ::3], whole.conj(), whole.conj().imag]
    found += [whole.expand(2, 60, 40), torch.empty(0, 3), torch.eye(4).to_sparse()]
    return [*found, torch.nn.Parameter(torch.randn(7)), torch.randn(400_000), torch.zeros(9)]


def fill(folder: Path, writer: SharedWriter | None, *, as_safetensors: bool = False) -> None:
    """Write each tensor twice, and once more under another name, and a line behind each of them."""
    folder.mkdir()
    files = CapturedFiles(folder / "tensors", as_safetensors=as_safetensors, writer=writer)
    log = LineFile(folder / "log")
    if writer is not None:
        log.share(writer, folder / "tensors")
    for number, tensor in enumerate(tensors()):
        files.save(tensor.clone(), f"{number}.first")
        files.save(tensor, f"{number}.second")
        log.append(files.save(tensor, f"{number}.third") + "\n")
    log.settle()
    log.close()


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """The bytes of each file and how many names it has."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_nlink)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("as_safetensors", [False, True])
def test_the_files_are_those_that_the_training_writes(
    writer: SharedWriter, tmp_path: Path, as_safetensors: bool
) -> None:
    fill(tmp_path / "alone", None, as_safetensors=as_safetensors)
    for name in ("once", "again"):
        fill(tmp_path / name, writer, as_safetensors=as_safetensors)
        assert contents(tmp_path / name) == contents(tmp_path / "alone")
    # What was there before is replaced.
    (tmp_path / "again" / "log").unlink()
    os.rename(tmp_path / "again" / "tensors", tmp_path / "kept")
    (tmp_path / "again").rmdir()
    fill(tmp_path / "last", writer)


def test_a_step_is_that_of_one_process_and_the_process_ends_with_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SharedWriter | None] = []

    def start() -> SharedWriter | None:
        made.append(start_writer())
        return made[-1]

    monkeypatch.setattr("ray_precheck.capture.pytorch.probe.start_writer", start)
    for name, cores in (("two", {0, 1}), ("one", {0})):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        torch.manual_seed(0)
        model, rows = torch.nn.Linear(8, 8), torch.randn(3, 8)
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with Capture("out", task="tensor", steps="0-1", step_by="manual", model=model) as capture:
            for _ in range(2):
                model(rows).sum().backward()
                capture.step()
    both, alone = (contents(tmp_path / name / "out") for name in ("two", "one"))
    assert [each is None for each in made] == [False, True]
    tensors_of = [
        {name: value for name, value in found.items() if "tensor_data" in name}
        for found in (both, alone)
    ]
    assert tensors_of[0] == tensors_of[1] != {}
    assert both.keys() == alone.keys()
    assert made[0] is not None
    assert made[0].process_id == 0


@pytest.mark.parametrize("after", [0, 40, 300])
def test_a_killed_process_leaves_all_to_the_training(
    writer: SharedWriter,
    tmp_path: Path,
    after: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(tmp_path / "alone", None)
    put, count = writer.file, 0

    def file(*args: object) -> bool:
        nonlocal count
        count += 1
        if count == after + 1:
            os.kill(writer.process_id, signal.SIGKILL)
        return put(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(writer, "file", file)
    fill(tmp_path / "killed", writer)
    if count > after:
        assert "was ended; nothing is lost" in capsys.readouterr().err
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it is for two cores")
def test_a_killed_training_loses_nothing_that_was_copied(tmp_path: Path) -> None:
    out = tmp_path / "out"
    root = Path(shared_writer.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(out)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    (step,) = out.glob("step0/*")
    (finished,) = finish_folder(step)
    assert (finished.problem, finished.records) == ("", 600)
    dump = json.loads((step / "dump.json").read_text())
    names = set()
    for record in dump["data"].values():
        for tensor in [*record["input_args"], *record["output"]]:
            names.add(tensor["data_name"])
            found = torch.load(step / "dump_tensor_data" / tensor["data_name"])
            assert float(found.max()) == pytest.approx(tensor["Max"])
    assert len(names) > 1200
    with open_dump(step / "dump.json") as read:
        assert len(read.calls) == 600


@pytest.fixture
def limited() -> Iterator[Callable[[int, int], None]]:
    """Limits the size of the files of a process, and of this one until the test ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda process, size: resource.prlimit(process, resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_ends_the_capture_before_its_record(
    tmp_path: Path,
    limited: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = []

    def start() -> SharedWriter | None:
        started.append(SharedWriter(1 << 20))
        limited(started[-1].process_id, 50_000)
        return started[-1]

    monkeypatch.setattr("ray_precheck.capture.pytorch.probe.start_writer", start)
    small, large = torch.ones(10), torch.ones(20_000)
    with Capture(tmp_path / "out", task="tensor", step_by="manual", framework="pytorch") as capture:
        torch.neg(small)
        torch.abs(large)  # the first file of its kind is written by the training
        for _ in range(50):
            torch.abs(small)
        capture.step()
        torch.abs(small)
    said = capsys.readouterr().err
    (step,) = (tmp_path / "out").glob("step0/*")
    name = "Torch.abs.0.forward.output.0"
    assert f"the tensor {name} cannot be written to {step}: [Errno 27] File too large" in said
    assert "the capture ends here, and the script goes on" in said
    lines = (step / "dump.jsonl").read_text().splitlines()
    assert [next(iter(json.loads(line))) for line in lines[1:]] == [
        "Torch.neg.0.forward",
        "cut_short",
    ]
    (finished,) = finish_folder(step)
    assert (finished.records, finished.cut_short.partition(" cannot")[0]) == (
        1,
        f"the tensor {name}",
    )


def test_a_folder_that_is_gone_is_an_error_with_the_name_of_the_tensor(
    writer: SharedWriter, tmp_path: Path
) -> None:
    folder = tmp_path / "tensors"
    files = CapturedFiles(folder, writer=writer)
    log = LineFile(tmp_path / "log")
    first, second = torch.zeros(3), torch.ones(3)
    files.save(first, "a")
    log.share(writer, folder)
    (folder / "a.pt").unlink()
    folder.rmdir()
    files.save(second, "b")
    log.append("a line\n")
    with pytest.raises(TensorNotWritten, match=rf"No such file or directory: '{folder}/b.pt'"):
        log.settle()
    assert (log.size, (tmp_path / "log").read_text()) == (0, "")
    log.append("another\n")
    log.close()
    assert (tmp_path / "log").read_text() == "another\n"


def test_a_forked_child_leaves_the_process_to_its_parent(
    writer: SharedWriter, tmp_path: Path
) -> None:
    log = LineFile(tmp_path / "log")
    log.share(writer, tmp_path)
    log.append("a line\n")
    child = os.fork()
    if not child:
        log.close()
        writer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    log.append("another\n")
    log.close()
    assert (tmp_path / "log").read_text() == "a line\nanother\n"


def test_the_process_ends_though_a_child_of_the_training_lives_on(tmp_path: Path) -> None:
    code = """
import os, sys, time
from ray_precheck.capture.writing.shared_writer import SharedWriter
writer = SharedWriter(1 << 20)
try:
    os.wait()
    sys.exit("a child was found")
except ChildProcessError:
    pass
if not os.fork():
    os.close(1)
    time.sleep(60)
print(writer.process_id, flush=True)
os._exit(0)
"""
    root = Path(shared_writer.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        timeout=50,
        check=True,
    )
    until = time.monotonic() + 10
    while _is_running(int(done.stdout)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _is_running(int(done.stdout))


def _is_running(process: int) -> bool:
    """Whether a process runs; one that nobody waits for is a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class _Interrupted(Exception):
    pass


def test_what_the_handler_of_a_signal_raises_leaves_whole_lines_and_files(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise _Interrupted

    chance, before = random.Random(1), signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(12):
            writer = SharedWriter(1 << 20)
            _write_interrupted(tmp_path / str(turn), writer, chance.uniform(1e-4, 4e-3))
            writer.close()
    finally:
        signal.signal(signal.SIGALRM, before)


def _write_interrupted(folder: Path, writer: SharedWriter, after_s: float) -> None:
    """Write files and lines, go on after the interruption, and look at what is there."""
    files = CapturedFiles(folder, writer=writer)
    log = LineFile(folder / "log")
    files.save(torch.zeros(1000), "first")
    log.share(writer, folder)
    wanted, size = [], log.size

    def add(number: int) -> None:
        nonlocal size
        size = log.size
        files.save(torch.full((1000,), float(number)), f"{number}")
        log.append(f"{number}\n")
        wanted.append(number)

    number = 0
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        while True:
            number += 1
            add(number)
    except _Interrupted:
        if wanted[-1:] != [number]:  # as a log of records does
            log.cut_to(size)
    for later in range(number + 1, number + 9):
        add(later)
    log.settle()
    log.close()
    assert [int(line) for line in (folder / "log").read_text().split()] == wanted
    for each in wanted:
        assert torch.load(folder / f"{each}.pt")[7] == each
