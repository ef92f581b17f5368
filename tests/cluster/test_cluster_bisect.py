"""Bisects that are killed go on to the same answer, without Ray and on it, and leave no process."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from scripts import bisect_kills

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("place", "kills", "number"),
    [
        pytest.param([], 7, 0, id="in this process"),
        pytest.param(["--address", "local"], 3, 3, id="on Ray"),
    ],
)
def test_killed_bisects_come_to_the_same_answer(
    tmp_path: Path, place: Sequence[str], kills: int, number: int
) -> None:
    choose, done = random.Random(number), 0
    while done < kills:
        story = bisect_kills.tell_story(tmp_path / str(done), number + done, kills, choose, place)
        assert story.problems == []
        assert story.trials >= 10
        done += story.kills.total() or 1


def test_another_answer_and_a_process_that_stays_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["one", "other"])
    monkeypatch.setattr(bisect_kills, "answer_of", lambda printed: next(answers, "other"))
    monkeypatch.setattr(
        bisect_kills, "remaining", lambda scene: [psutil.Process(os.getppid())][: scene.rows > 0]
    )
    monkeypatch.setattr(bisect_kills, "_END_S", 0.1)
    monkeypatch.setattr(psutil.Process, "kill", lambda process: None)
    story = bisect_kills.tell_story(tmp_path, 0, 0, random.Random(0))
    assert any("stays" in each for each in story.problems)
    assert any("another answer" in each for each in story.problems)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_nothing_of_a_hanging_trial_outlives_the_command(tmp_path: Path, number: int) -> None:
    scene = bisect_kills.make_scene(tmp_path / "scene", 0, ())
    hang = f"setsid sh -c 'setsid sleep 600 & sleep 600' & echo x >> {scene.folder}/runs; sleep 600"
    words = ["--switch", "env:A=1|0", "-o", str(scene.out), "-d", "0", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ray_precheck", "bisect", "run", *words, "--", "sh", "-c", hang],
        env={**os.environ, bisect_kills._MARK: str(scene.folder)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 60
    while scene.runs < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert scene.runs == 2
    # Twice, since the first Ctrl-C lets running trials end.
    for _ in range(2 if number == signal.SIGINT else 1):
        os.killpg(process.pid, number)
        time.sleep(0.5)
    process.wait(30)
    assert bisect_kills._gone(scene) == []
