"""What the driver keeps of finished pieces until the writer has them on the disk."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.runtime import recorder as recorder_module
from ray_precheck.runtime.actors import ActorLost
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.recorder import Recorder
from ray_precheck.runtime.workers.process import SILENT_S
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.resume import start_run
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import API_TABLES
from ray_precheck.store.timeline import Track

pytestmark = pytest.mark.unit

MOST = 4


class Answer:
    """An answer of the writer: how many pieces, or its end."""

    def __init__(self, finished: Sequence[Done], lost: bool = False) -> None:
        self.finished = list(finished)
        self.lost = lost


class SlowWriter:
    """Actors of which the only one is a writer; it answers when it is waited for, never before."""

    def __init__(self) -> None:
        self.appends: list[list[int]] = []
        self.answered: list[int] = []
        self.tracks: list[Track] = []
        self.starts = 0
        self.dies_next = False
        self.files: Any = None
        self.now_s = 0.0
        self.stopped = 0  # the number of the writer that neither answers nor dies

    def clock(self) -> float:
        return self.now_s

    def start(self, actor: Any, node_id: str, *args: Any, **options: Any) -> int:
        self.files = args[0]
        self.starts += 1
        return self.starts

    def call(self, handle: int, method: str, *args: Any) -> Answer:
        assert handle == self.starts, "a writer is called that was replaced"
        if method != "append":
            return Answer(())
        self.appends.append([done.index for done in args[0]])
        self.tracks += args[1]
        dies, self.dies_next = self.dies_next, False
        return Answer(args[0], dies)

    def wait(self, answers: Sequence[Answer], timeout_s: float) -> list[Answer]:
        self.now_s += timeout_s
        return [] if self.stopped == self.starts else list(answers[:1])

    def result(self, answer: Answer) -> int:
        if answer.lost:
            raise ActorLost("killed")
        self.answered += [done.index for done in answer.finished]
        return len(answer.finished)

    def kill(self, handle: int) -> None:
        pass

    def nodes(self) -> list[Any]:
        return []


@pytest.fixture
def writer() -> SlowWriter:
    return SlowWriter()


@pytest.fixture
def recorder(writer: SlowWriter, tmp_path: Path) -> Recorder:
    files = start_run(tmp_path, "20260101000000", RunSettings({}))
    progress = Progress(100_000, 0, show=False)
    return Recorder(writer, files, API_TABLES, progress)  # type: ignore[arg-type]


def test_the_writer_gets_absolute_paths_because_it_may_run_in_another_folder(
    writer: SlowWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = start_run(Path("out"), "20260101000000", RunSettings({}))
    Recorder(writer, files, API_TABLES, Progress(1, 0, show=False))  # type: ignore[arg-type]
    assert writer.files == files.absolute()
    assert writer.files.result == tmp_path / files.result


def pieces(*indices: int) -> list[Done]:
    return [Done(index, f"Mint.a.{index}", Verdict.PASS, b"row") for index in indices]


def test_what_finishes_while_the_writer_is_busy_is_one_append(
    recorder: Recorder, writer: SlowWriter
) -> None:
    for index in range(10):
        recorder.record(pieces(index), [Track("", "npu:0", "check", pieces(index))])
    assert writer.appends == [[0], [1], [2], [3]]
    assert len(recorder.pending) == MOST
    assert recorder.has_gathered
    recorder.acknowledge(recorder.pending[0])
    recorder.record([])
    assert writer.appends[MOST:] == [[4, 5, 6, 7, 8, 9]]
    assert not recorder.has_gathered
    assert len(writer.tracks) == 10


def test_a_flush_waits_also_for_what_was_gathered(recorder: Recorder, writer: SlowWriter) -> None:
    for index in range(10):
        recorder.record(pieces(index))
    recorder.flush()
    assert sorted(writer.answered) == list(range(10))
    assert recorder.pending == []
    assert not recorder.has_gathered


def test_the_driver_waits_for_a_writer_that_is_far_behind(
    recorder: Recorder, writer: SlowWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_MOST_WAITING", 100)
    waiting: deque[int] = deque(range(1000))
    for _ in range(20):
        recorder.record(pieces(*(waiting.popleft() for _ in range(50))))
        # Those of this step, and not more than 100 beside them.
        assert 1000 - len(waiting) - len(writer.answered) <= 150
    assert 850 <= len(writer.answered) < 1000


def test_a_step_of_any_size_is_handed_over_before_anybody_waits(
    recorder: Recorder, writer: SlowWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_MOST_WAITING", 100)
    recorder.record(pieces(*range(500)))
    assert writer.appends == [list(range(500))]
    assert writer.answered == []


def test_an_heir_gets_what_the_dead_writer_did_not_acknowledge_and_what_was_gathered(
    recorder: Recorder, writer: SlowWriter
) -> None:
    recorder.record(pieces(0))
    writer.dies_next = True
    for index in range(1, 7):
        recorder.record(pieces(index))
    recorder.flush()
    assert writer.starts == 2
    assert set(writer.answered) == set(range(7))
    assert len(writer.answered) == 7


def test_a_writer_that_is_stopped_is_given_up_after_a_minute(
    recorder: Recorder, writer: SlowWriter
) -> None:
    recorder.record(pieces(0))
    recorder.flush()
    writer.stopped, begin_s = writer.starts, writer.now_s
    recorder.record(pieces(1, 2))
    recorder.flush()
    assert SILENT_S <= writer.now_s - begin_s < SILENT_S + 5
    assert (writer.starts, writer.answered) == (2, [0, 1, 2])
