"""What is shown while a run goes on, with a clock that the test turns."""

import io
import re
from types import SimpleNamespace

import pytest

from ray_precheck.runtime import progress as progress_module
from ray_precheck.runtime.progress import Progress, StageProgress
from ray_precheck.schema.result import Verdict, call_verdict
from ray_precheck.schema.task import Done

pytestmark = pytest.mark.unit


class Clock:
    """A clock that stands still until it is turned."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def result(forward: Verdict, backward: Verdict = Verdict.NONE) -> Done:
    """A call with these verdicts that is finished."""
    return Done(0, "Mint.a.0", call_verdict(forward, backward), b"")


MIXED = [result(Verdict.PASS), result(Verdict.ERROR), result(Verdict.SKIP), result(Verdict.PASS)]


def lines(stream: io.StringIO) -> list[str]:
    """The lines that were printed."""
    return stream.getvalue().splitlines()


class TestPlainLines:
    def test_no_line_comes_before_ten_seconds(self, clock: Clock) -> None:
        stream = io.StringIO()
        shown = Progress(10, 0, stream=stream)
        clock.now_s += 9.9
        shown.add(MIXED)
        shown.tick()
        assert lines(stream) == []

    def test_a_line_tells_counts_rate_and_time_left(self, clock: Clock) -> None:
        stream = io.StringIO()
        shown = Progress(10, 0, stream=stream)
        clock.now_s += 10.0
        shown.add(MIXED)
        assert lines(stream) == ["4/10 done, 2 pass, 1 error, 1 skip, 0.4 api/s, 15 s left"]

    def test_the_unit_is_that_of_the_job(self, clock: Clock) -> None:
        stream = io.StringIO()
        shown = Progress(2, 0, stream=stream, unit="dumps")
        clock.now_s += 10.0
        shown.add([result(Verdict.PASS)])
        assert lines(stream) == ["1/2 done, 1 pass, 0 error, 0 skip, 0.1 dumps/s, 10 s left"]

    def test_there_is_one_line_every_ten_seconds_at_most(self, clock: Clock) -> None:
        stream = io.StringIO()
        shown = Progress(1000, 0, stream=stream)
        for _ in range(100):
            clock.now_s += 0.5
            shown.add([result(Verdict.PASS)])
            shown.tick()
        assert [line.split()[0] for line in lines(stream)] == [
            f"{count}/1000" for count in (20, 40, 60, 80, 100)
        ]

    def test_of_an_unknown_number_of_pieces_no_time_is_said_to_be_left(self, clock: Clock) -> None:
        stream = io.StringIO()
        shown = Progress(0, 0, stream=stream, unit="trial")
        clock.now_s += 10.0
        shown.add(MIXED)
        assert lines(stream) == ["4 done, 2 pass, 1 error, 1 skip, 0.4 trial/s"]

    def test_lines_come_also_while_nothing_is_done(self, clock: Clock) -> None:
        stream = io.StringIO()
        shown = Progress(3, 0, stream=stream)
        clock.now_s += 11.0
        shown.tick()
        assert lines(stream) == ["0/3 done, 0 pass, 0 error, 0 skip, 0.0 api/s, time left unknown"]

    def test_what_was_done_before_does_not_count_for_the_rate(self, clock: Clock) -> None:
        stream = io.StringIO()
        shown = Progress(100, 90, stream=stream)
        clock.now_s += 10.0
        shown.add([result(Verdict.PASS)] * 5)
        assert lines(stream) == ["95/100 done, 5 pass, 0 error, 0 skip, 0.5 api/s, 10 s left"]

    def test_messages_are_printed_at_once(self, clock: Clock) -> None:
        stream = io.StringIO()
        Progress(3, 0, stream=stream).say("device npu:0 is given up")
        assert lines(stream) == ["device npu:0 is given up"]

    def test_closing_prints_nothing(self, clock: Clock) -> None:
        stream = io.StringIO()
        Progress(3, 0, stream=stream).close()
        assert stream.getvalue() == ""

    def test_standard_error_is_where_lines_go(
        self, clock: Clock, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Progress(3, 0).say("here")
        assert capsys.readouterr() == ("", "here\n")

    def test_rows_of_an_earlier_run_are_counted_with_their_verdicts(self, clock: Clock) -> None:
        stream = io.StringIO()
        before = {Verdict.PASS: 5, Verdict.ERROR: 1}
        shown = Progress(10, 6, stream=stream, counts=before)
        clock.now_s += 10
        shown.add(MIXED)
        (line,) = lines(stream)
        assert line.startswith("10/10 done, 7 pass, 2 error, 1 skip, 0.4 api/s")

    def test_a_line_that_nobody_reads_ends_no_run(self, clock: Clock) -> None:
        tried: list[str] = []

        class Closed(io.StringIO):
            def write(self, text: str) -> int:
                tried.append(text)
                raise BrokenPipeError

        shown = Progress(10, 0, stream=Closed())
        clock.now_s += 10
        shown.add(MIXED)
        shown.say("a node has joined")
        assert tried


class TestTerminal:
    def test_a_bar_shows_what_is_done_of_how_much(self, clock: Clock) -> None:
        stream = Terminal()
        shown = Progress(10, 2, stream=stream)
        shown.add(MIXED)
        shown.close()
        last = re.split(r"[\r\n]+", stream.getvalue().strip())[-1]
        assert "6/10" in last
        assert "2 pass, 1 error, 1 skip" in last

    def test_no_plain_lines_come_between(self, clock: Clock) -> None:
        stream = Terminal()
        shown = Progress(10, 0, stream=stream)
        clock.now_s += 100.0
        shown.tick()
        shown.close()
        assert "done," not in stream.getvalue()

    def test_messages_stand_on_lines_of_their_own(self, clock: Clock) -> None:
        stream = Terminal()
        shown = Progress(10, 0, stream=stream)
        shown.say("device npu:0 is given up")
        shown.close()
        assert re.search(r"(^|[\r\n])device npu:0 is given up\n", stream.getvalue())


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_a_silent_progress_prints_nothing(clock: Clock, stream: io.StringIO) -> None:
    shown = Progress(10, 0, show=False, stream=stream)
    clock.now_s += 100.0
    shown.add(MIXED)
    shown.tick()
    shown.say("hello")
    shown.close()
    assert stream.getvalue() == ""


def test_a_forward_pass_whose_backward_could_not_be_checked_counts_as_a_skip(
    clock: Clock,
) -> None:
    stream = io.StringIO()
    shown = Progress(2, 0, stream=stream)
    clock.now_s += 100.0
    shown.add([result(Verdict.PASS, Verdict.SKIP)])
    assert "0 pass, 0 error, 1 skip" in stream.getvalue()


def test_a_step_before_the_run_shows_how_far_it_is_once_it_takes_long(clock: Clock) -> None:
    said: list[str] = []
    stage = StageProgress("opening dump.json", said.append)
    stage(10, 100)
    clock.now_s += 4.0
    stage(40, 100)
    stage(41, 100)
    clock.now_s += 4.0
    stage(0, 0)
    assert said == ["opening dump.json: 40%", "opening dump.json: 0%"]
