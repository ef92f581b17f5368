"""The timeline: Chrome's trace format, whenever the run that writes it ends."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ray_precheck.errors import PrecheckError, ResumeError, StoppedError
from ray_precheck.store.tables import run_files
from ray_precheck.store.timeline import Span, Timeline, _line, _text

pytestmark = pytest.mark.unit

BEGAN_S = 1_767_225_600.0
SPANS = [
    Span("node-a", "npu:0", "Mint.add.0", "device", BEGAN_S, 0.5),
    Span("node-a", "bench:0", "Mint.add.0", "bench", BEGAN_S + 0.5, 2.0),
    Span("node-b", "npu:0", "Mint.sub.0", "check", BEGAN_S + 0.25, 0.001),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "accuracy_checking_1.timeline.json"


def write(path: Path, *batches: list[Span], close: bool = True) -> None:
    timeline = Timeline.open(path)
    for batch in batches:
        timeline.add(batch)
    if close:
        timeline.close()
    else:
        os.close(timeline._fd)


def refuse_constant(word: str) -> None:
    raise AssertionError(f"{word} is no strict JSON")


def events_in(path: Path) -> list[dict[str, Any]]:
    events = json.loads(path.read_bytes(), parse_constant=refuse_constant)
    assert isinstance(events, list)
    return events


def as_a_viewer_reads(data: bytes) -> list[dict[str, Any]]:
    """Read a file that was not closed as Chrome does: a bracket is put behind it, no more."""
    text = data.decode().strip()
    events = json.loads(text if text.endswith("]") else f"{text}]")
    assert isinstance(events, list)
    return events


def drawn(events: list[dict[str, Any]]) -> list[tuple[str, str, str, str, int, int]]:
    """What a viewer draws: machine, row, name, category, begin and length in microseconds."""
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    machines = {pid: name for (kind, pid, _), name in names.items() if kind == "process_name"}
    rows = {(pid, tid): name for (kind, pid, tid), name in names.items() if kind == "thread_name"}
    return [
        (machines[e["pid"]], rows[e["pid"], e["tid"]], e["name"], e["cat"], e["ts"], e["dur"])
        for e in events
        if e["ph"] == "X"
    ]


def lines_of(spans: list[Span]) -> list[tuple[str, str, str, str, int, int]]:
    return [
        (s.machine, s.row, s.name, s.stage, round(s.began_s * 1e6), round(s.elapsed_s * 1e6))
        for s in spans
    ]


def require_format(events: list[dict[str, Any]]) -> None:
    """Hold the events to the Trace Event Format, as strictly as the strictest viewer."""
    numbers: dict[tuple[str, int], int] = {}
    last_end: dict[int, int] = {}
    for event in events:
        assert event["ph"] in ("X", "M")
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            number = event["pid"] if event["name"] == "process_name" else event["tid"]
            assert numbers.setdefault((event["name"], number), event["pid"]) == event["pid"]
            continue
        # Both are named before they are used, and no row is of two machines.
        assert ("process_name", event["pid"]) in numbers
        assert numbers["thread_name", event["tid"]] == event["pid"]
        assert type(event["ts"]) is int
        assert type(event["dur"]) is int
        assert event["dur"] >= 0
        assert event["ts"] >= last_end.get(event["tid"], 0)
        last_end[event["tid"]] = event["ts"] + event["dur"]
    processes = {number for kind, number in numbers if kind == "process_name"}
    threads = {number for kind, number in numbers if kind == "thread_name"}
    assert not processes & threads


def test_a_viewer_sees_a_process_for_each_machine_and_a_row_for_each_worker(path: Path) -> None:
    write(path, SPANS[:1], [], SPANS[1:])
    events = events_in(path)
    require_format(events)
    assert drawn(events) == lines_of(SPANS)
    assert len({e["pid"] for e in events}) == 2
    assert len({e["tid"] for e in events if e["ph"] == "X"}) == 3
    assert sum(e["ph"] == "M" for e in events) == 5


def test_a_timeline_without_spans_is_an_empty_array(path: Path) -> None:
    write(path)
    assert events_in(path) == []
    write(path, SPANS)
    assert drawn(events_in(path)) == lines_of(SPANS)


def test_what_was_added_is_in_the_file_at_once_and_lacks_a_bracket_only(path: Path) -> None:
    timeline = Timeline.open(path)
    assert as_a_viewer_reads(path.read_bytes()) == []
    for count, span in enumerate(SPANS, start=1):
        timeline.add([span])
        assert drawn(as_a_viewer_reads(path.read_bytes())) == lines_of(SPANS[:count])
    timeline.close()
    timeline.close()
    assert drawn(events_in(path)) == lines_of(SPANS)


def test_a_run_that_is_killed_leaves_what_it_added(path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path;"
        "from ray_precheck.store.timeline import Span, Timeline;"
        "timeline = Timeline.open(Path(sys.argv[1]));"
        f"timeline.add([Span('node-a', 'npu:0', 'Mint.add.0', 'device', {BEGAN_S}, 0.5)]);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == -9
    assert drawn(as_a_viewer_reads(path.read_bytes())) == lines_of(SPANS[:1])


@pytest.mark.parametrize("closed", [True, False])
def test_a_resume_goes_on_in_the_same_rows(path: Path, closed: bool) -> None:
    later = [
        Span("node-b", "npu:0", "Mint.mul.0", "check", BEGAN_S + 60, 1.0),
        Span("node-a", "npu:1", "Mint.div.0", "check", BEGAN_S + 60, 1.0),
        Span("node-c", "npu:0", "Mint.pow.0", "check", BEGAN_S + 60, 1.0),
    ]
    write(path, SPANS, close=closed)
    write(path, later)
    events = events_in(path)
    require_format(events)
    assert drawn(events) == lines_of([*SPANS, *later])
    assert len({e["pid"] for e in events}) == 3
    assert sum(e["ph"] == "M" for e in events) == 8


@pytest.mark.parametrize("closed", [True, False])
def test_a_file_torn_at_any_byte_keeps_its_whole_events_and_is_gone_on_with(
    path: Path, closed: bool
) -> None:
    hostile = Span("node-a", "npu:0", 'a "],\n[{}\\', "check", BEGAN_S + 5, 1.0)
    write(path, [*SPANS, hostile], close=closed)
    whole = path.read_bytes()
    ends = [i + 1 for i in range(len(whole)) if _is_whole_event(whole[: i + 1])]
    assert len(ends) == 5 + 4
    before = as_a_viewer_reads(whole)
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        write(path, SPANS[:1])
        events = events_in(path)
        kept = sum(end <= length for end in ends)
        assert events[:kept] == before[:kept], length
        assert drawn(events)[-1] == lines_of(SPANS)[0]
        fresh = [e for e in events[kept:] if e["ph"] == "X"]
        assert len(fresh) == 1, length


def _is_whole_event(data: bytes) -> bool:
    if not data.endswith(b"}"):
        return False
    try:
        json.loads(data + b"]")
    except ValueError:
        return False
    return True


def test_numbers_that_are_taken_are_not_given_twice_after_a_cut(path: Path) -> None:
    write(path, SPANS, close=False)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        write(path, [Span("node-z", "npu:0", "x", "check", BEGAN_S + 60, 1.0)], SPANS[2:])
        events = events_in(path)
        names = {(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M"}
        assert {("process_name", "node-z"), ("process_name", "node-b")} <= names
        last = [(e[0], e[1]) for e in drawn(events)[-2:]]
        assert last == [("node-z", "npu:0"), ("node-b", "npu:0")], length


@pytest.mark.parametrize(
    "broken",
    [
        b"\x00" * 40 + b",\n",
        b"3,\n",
        b'{"ph":"M","pid":1,"tid":2,"args":3},\n',
        b'{"ph":"M","args":{}},\n',
        b'{"ph":"X","pid":1,"tid":"2"},\n',
    ],
)
def test_what_follows_a_broken_event_is_cut(path: Path, broken: bytes) -> None:
    write(path, SPANS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], broken, *lines[4:]]))
    write(path, SPANS[:1])
    events = events_in(path)
    assert events[:3] == json.loads(b"[" + b"".join(lines[1:4]).rstrip(b",\n") + b"]")
    assert drawn(events)[-1] == lines_of(SPANS)[0]


def test_what_follows_an_event_without_a_comma_is_cut(path: Path) -> None:
    write(path, SPANS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3].replace(b",\n", b"\n"), *lines[4:]]))
    write(path, SPANS[:1])
    assert drawn(events_in(path)) == lines_of(SPANS[:1] * 2)


@pytest.mark.parametrize("content", [b"\n", b"{}", b"[{}]", b"API Name,Message\n", b"\x00" * 9])
def test_another_file_of_the_same_name_is_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ResumeError, match=r"is no timeline of ray_precheck: .* move it away"):
        Timeline.open(path)
    assert path.read_bytes() == content


SPAN = st.builds(
    Span,
    machine=st.sampled_from(["node-a", "node-b", "10.0.0.1"]),
    row=st.sampled_from(["npu:0", "npu:1", "bench:0"]),
    name=st.text(max_size=20),
    stage=st.sampled_from(["check", "device", "bench"]),
    began_s=st.floats(BEGAN_S, BEGAN_S + 10),
    elapsed_s=st.floats(0, 5),
)


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.lists(SPAN, max_size=8), max_size=4))
@example([[Span("node-a", "npu:0", "\ud800", "check", BEGAN_S, 1.0)] * 3])
def test_any_spans_over_any_number_of_runs_make_a_file_that_keeps_to_the_format(
    path: Path, runs: list[list[Span]]
) -> None:
    path.unlink(missing_ok=True)
    for spans in runs:
        write(path, spans)
    events = events_in(path) if runs else []
    if len(runs) <= 1:  # A later run begins later; these begin anywhere.
        require_format(events)
    seen = [line[:2] + line[3:4] for line in drawn(events)]
    wanted = [(s.machine, s.row, s.stage) for spans in runs for s in spans]
    assert [(machine, row.split(" (")[0], stage) for machine, row, stage in seen] == wanted


def test_spans_that_overlap_in_one_row_are_drawn_in_rows_of_their_own(path: Path) -> None:
    spans = [Span("node-a", "cpu:0", f"x.{i}", "check", BEGAN_S + i, 2.5) for i in range(4)]
    write(path, spans)
    events = events_in(path)
    require_format(events)
    assert [row for _, row, *_ in drawn(events)] == ["cpu:0", "cpu:0 (2)", "cpu:0 (3)", "cpu:0"]
    assert [line[4:] for line in drawn(events)] == [line[4:] for line in lines_of(spans)]


def test_rows_of_different_workers_may_overlap(path: Path) -> None:
    rows = [("node-a", "cpu:0"), ("node-a", "cpu:1"), ("node-b", "cpu:0")]
    write(path, [Span(machine, row, "x", "check", BEGAN_S, 1.0) for machine, row in rows])
    assert [line[:2] for line in drawn(events_in(path))] == rows


def test_two_clocks_that_differ_a_little_do_not_open_a_second_row(path: Path) -> None:
    first = Span("node-a", "cpu:0", "x", "check", BEGAN_S, 1.0)
    second = Span("node-a", "cpu:0", "y", "check", BEGAN_S + 1.0 - 20e-6, 1.0)
    write(path, [first, second])
    events = events_in(path)
    require_format(events)
    begin_us = round(BEGAN_S * 1e6)
    assert [line[1] for line in drawn(events)] == ["cpu:0", "cpu:0"]
    assert [line[4:] for line in drawn(events)] == [
        (begin_us, 1_000_000),
        (begin_us + 1_000_000, 1_000_000 - 20),
    ]


def test_a_short_span_within_the_last_one_keeps_its_length(path: Path) -> None:
    first = Span("node-a", "cpu:0", "x", "check", BEGAN_S, 1.0)
    within = Span("node-a", "cpu:0", "y", "check", BEGAN_S + 1.0 - 30e-6, 10e-6)
    write(path, [first, within])
    require_format(events_in(path))
    assert [(line[1], line[5]) for line in drawn(events_in(path))] == [
        ("cpu:0", 1_000_000),
        ("cpu:0 (2)", 10),
    ]


def test_a_clock_that_runs_backwards_makes_no_negative_length(path: Path) -> None:
    write(path, [Span("node-a", "cpu:0", "x", "check", BEGAN_S, -3.0)])
    assert [line[4:] for line in drawn(events_in(path))] == [(round(BEGAN_S * 1e6), 0)]


@pytest.mark.parametrize(
    "name",
    ['"', "\\", '"},{"ph":"M', "]", "\x00\x1b[31m\x7f", "\u2028", "\ufeff", "Ünï\U0001f600", "\r\n]\r\n[\n"],
    ids=ascii,
)  # fmt: skip
def test_a_hostile_name_is_a_name_and_nothing_else(path: Path, name: str) -> None:
    span = Span(name, name, name, "check", BEGAN_S, 1.0)
    write(path, [span], close=False)
    write(path, [Span(name, name, "later", "check", BEGAN_S + 2, 1.0)])
    events = events_in(path)
    assert [line[:3] for line in drawn(events)] == [(name, name, name), (name, name, "later")]
    assert len(events) == 4
    assert path.read_bytes().isascii()


def test_a_name_that_is_too_long_or_no_text_is_mended(path: Path) -> None:
    spans = [
        Span("node-a", "cpu:0", name, "check", BEGAN_S, 0.0) for name in ("x" * 10**6, "a\ud800b")
    ]
    write(path, spans)
    assert path.stat().st_size < 2000
    names = [line[2] for line in drawn(events_in(path))]
    assert names == ["x" * 297 + "...", "a\ufffdb"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is not possible here: {done.stderr.strip()}")
    yield disk
    # Lazily: a test that fails leaves its file open.
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_stops_the_run_and_leaves_whole_events(small_disk: Path) -> None:
    path = small_disk / "accuracy_checking_1.timeline.json"
    timeline = Timeline.open(path)
    timeline.add(SPANS)
    before = path.read_bytes()
    spans = [Span("node-a", "npu:0", f"x.{i}", "check", BEGAN_S + i, 1.0) for i in range(1000)]
    with pytest.raises(StoppedError, match="No space left on device; all acknowledged rows"):
        timeline.add(spans)
    assert path.read_bytes() == before
    timeline.close()
    assert drawn(events_in(path)) == lines_of(SPANS)


def test_a_timeline_that_cannot_be_opened_or_written_is_one_sentence(
    path: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError, match="No such file") as stopped:
        Timeline.open(tmp_path / "gone" / path.name)
    assert stopped.value.exit_code == 3
    timeline = Timeline.open(path)
    timeline.close()
    with pytest.raises(StoppedError, match="Bad file descriptor"):
        timeline.add(SPANS)
    assert events_in(path) == []


def test_a_timeline_is_named_like_the_settings_of_its_run(tmp_path: Path) -> None:
    for stamp in ("20260101120000", "20260101120000_1", "x.run.json"):
        result = tmp_path / f"accuracy_checking_result_{stamp}.csv"
        timeline = run_files(result).timeline
        assert timeline == tmp_path / f"accuracy_checking_{stamp}.timeline.json"
        prefix = timeline.name.removesuffix(".timeline.json")
        assert run_files(result).settings.name == f"{prefix}.run.json"
    for other in ("results.csv", "accuracy_checking_result_1.txt"):
        with pytest.raises(PrecheckError, match="is no result CSV"):
            run_files(tmp_path / other)


@given(
    st.text(max_size=20), st.integers(0, 1 << 60), st.sampled_from(["check", "\x7f", "é", "\x1f\n"])
)
def test_a_line_is_ascii_as_the_json_module_writes_it(name: str, begin: int, stage: str) -> None:
    event = {"name": _text(name), "cat": stage, "ts": begin, "args": {"name": _text(name)}}
    assert _line(event) == json.dumps(event, separators=(",", ":")).encode()
    assert _line(event).isascii()
