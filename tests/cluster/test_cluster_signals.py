"""Signals that all processes of a command get: from `timeout`, systemd, scancel, a terminal that closes."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import DATA, GO
from dumps import additions, write_dump
from test_cluster_command import long_dump

pytestmark = pytest.mark.cluster
LIMIT_S = 15.0
PAIR = ["-tp", DATA / "torch_llm_tensor", "-gp", DATA / "torch_llm_tensor"]


class Run:
    """A command in a session of its own, with its own folder for temporary files."""

    def __init__(self, folder: Path, temporary: Path, *words: object) -> None:
        self.out, self._temporary = folder / "out", temporary
        self._seen: dict[int, psutil.Process] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ray_precheck", *map(str, words), "-o", str(self.out)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            cwd=folder, env={**os.environ, "TMPDIR": str(temporary), "TQDM_DISABLE": "1"},
        )  # fmt: skip

    def family(self) -> list[psutil.Process]:
        """Return all its processes."""
        first = psutil.Process(self.process.pid)
        found = [first, *first.children(recursive=True)]
        self._seen |= {each.pid: each for each in found}
        return found

    def wait(self, reached: Callable[[], object]) -> None:
        """Wait until it has come so far."""
        until = time.monotonic() + 120
        while not reached():
            assert self.process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)

    def has_rows(self) -> bool:
        return any(path.read_bytes().count(b"\n") > 2 for path in self.out.glob("*_result_*.csv"))

    def has(self, name: str) -> bool:
        """Return whether one of its processes has this name."""
        names = []
        for each in self.family():
            with suppress(psutil.NoSuchProcess):
                names.append(each.name())
        return name in names

    def ends(self) -> tuple[int, str, list[str]]:
        """Return its exit code, what it printed, and what it said on stderr; nothing of it is left."""
        printed, errors = self.process.communicate(timeout=400)
        _, alive = psutil.wait_procs(list(self._seen.values()), timeout=10)
        assert alive == []
        assert list(self._temporary.iterdir()) == []
        assert not list(self.out.glob("*.lock"))
        # But for progress, and the names of the parts of a diagnosis.
        said = [
            each
            for each in errors.splitlines()
            if not re.match(r"\d+/\d+ done, |stopping: |\w*:?$", each)
        ]
        return self.process.returncode, printed, said


@pytest.fixture
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rpt-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def to_group(run: Run, number: signal.Signals) -> None:
    os.killpg(run.process.pid, number)


def to_everyone(run: Run, number: signal.Signals) -> None:
    for each in run.family():
        each.send_signal(number)


@pytest.mark.parametrize("where", [["--address", "local"], []], ids=["on Ray", "in this process"])
@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(to_everyone, signal.SIGTERM, id="SIGTERM to every process"),
        pytest.param(to_group, signal.SIGHUP, id="SIGHUP to the group"),
        pytest.param(
            to_group, signal.SIGTERM, id="SIGTERM to the group", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_a_signal_to_all_stops_a_run_in_good_order(
    tmp_path: Path,
    temporary: Path,
    send: Callable[..., None],
    number: signal.Signals,
    where: list[str],
) -> None:
    run = Run(tmp_path, temporary, "run_ut", "-api_info", long_dump(tmp_path), *where)
    run.wait(run.has_rows)
    run.family()
    begin = time.monotonic()
    send(run, number)
    code, printed, errors = run.ends()
    assert time.monotonic() - begin < LIMIT_S
    assert code == 3
    assert "\nStopped before the end. To go on:\n  ray-precheck run_ut " in printed
    assert errors == []


@pytest.mark.parametrize(
    "words",
    [
        ["run_ut", "-api_info", DATA / "torch_cnn" / "dump.json"],
        ["diagnose", *PAIR, "--devices", "all"],
        *(
            pytest.param(words, marks=pytest.mark.exhaustive)
            for words in (
                ["overflow_check", "TWO RANKS"],
                ["naive", DATA / "torch_cnn" / "dump.json"],
                ["compare", *PAIR, "--devices", "all"],
                ["locate", *PAIR, "--devices", "all"],
            )
        ),
    ],
    ids=lambda words: words[0],
)
def test_sigterm_while_ray_starts_ends_every_command_with_a_sentence(
    tmp_path: Path, temporary: Path, words: list[object]
) -> None:
    for rank in (0, 1):
        (tmp_path / "ranks" / f"rank{rank}").mkdir(parents=True)
        write_dump(tmp_path / "ranks" / f"rank{rank}" / "dump.json", additions(3))
    words = [tmp_path / "ranks" if word == "TWO RANKS" else word for word in words]
    run = Run(tmp_path, temporary, *words, "--address", "local")
    run.wait(lambda: run.has("gcs_server"))
    begin = time.monotonic()
    to_group(run, signal.SIGTERM)
    code, printed, errors = run.ends()
    assert time.monotonic() - begin < LIMIT_S
    assert code == 3
    if "\nStopped before the end. To go on:\n" not in printed:
        assert len(errors) == 1, errors
        assert errors[0].startswith("ray-precheck: ")


def test_sigterm_in_the_first_moment_ends_a_command_with_a_sentence(
    tmp_path: Path, temporary: Path
) -> None:
    run = Run(tmp_path, temporary, "run_ut", "-api_info", DATA / "torch_cnn" / "dump.json")
    run.wait(lambda: len(run.family()) > 1)  # Its guardian is there.
    to_group(run, signal.SIGTERM)
    code, _, errors = run.ends()
    assert (code, len(errors)) == (3, 1), errors


def test_under_nohup_a_run_outlives_its_terminal(tmp_path: Path, temporary: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Which the command inherits.
    try:
        run = Run(tmp_path, temporary, "run_ut", "-api_info", long_dump(tmp_path))
    finally:
        signal.signal(signal.SIGHUP, before)
    run.wait(run.has_rows)
    to_group(run, signal.SIGHUP)
    time.sleep(1)  # A request to stop is heard five times in this time.
    GO.touch()
    try:
        assert run.ends()[0] == 0
    finally:
        GO.unlink()
