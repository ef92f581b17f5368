"""Logs that killed processes left become the dumps that an undisturbed end would have written."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capture_logs import FILES, RECORDS, begun, contents, header, keys_read, killed, undisturbed

from ray_precheck.capture.writing import finish as finish_module
from ray_precheck.capture.writing.finish import finish_folder
from ray_precheck.dump.folders import KILLED
from ray_precheck.dump.parse import open_dump
from ray_precheck.errors import DumpError

pytestmark = pytest.mark.unit


def end_at(act: int, finish: Callable[[Any], Any], prepare: Callable[[], Any] = bool) -> bool:
    """Finish in a child that dies before or after its nth change of a file; whether it came to its end.

    Such a change is what makes a file appear or grow, renames or removes it.
    """
    child = os.fork()
    if child == 0:
        left = iter(range(act))
        prepared = prepare()

        def dying(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = function(*args, **kwargs)
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return call

        os.replace, os.fsync = dying(os.replace), dying(os.fsync)
        Path.unlink = dying(Path.unlink)  # type: ignore[method-assign]
        Path.open = dying(Path.open)  # type: ignore[method-assign]
        finish(prepared)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code == 0


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("count", [0, 1, 4, len(RECORDS)])
def test_a_finished_log_has_the_bytes_of_an_undisturbed_end(
    tmp_path: Path, level: str, count: int
) -> None:
    folder = killed(tmp_path / "killed", RECORDS[:count], level)
    (done,) = finish_folder(folder)
    assert (done.folder, done.records, done.problem) == (folder, count, "")
    assert contents(folder) == contents(
        undisturbed(tmp_path / "whole", RECORDS[:count], level, KILLED)
    )


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    expected = contents(undisturbed(tmp_path / "whole", RECORDS[:3], cut_short=KILLED))
    killed(tmp_path / "killed", RECORDS[:4])
    logs = {name: tmp_path / "killed" / name for name in ("dump.jsonl", "stack.jsonl")}
    whole = {name: path.read_bytes() for name, path in logs.items()}
    last = len(whole["dump.jsonl"].splitlines()[-1])
    for cut in range(1, last + 1):
        logs["dump.jsonl"].write_bytes(whole["dump.jsonl"][: -cut - 1])
        logs["stack.jsonl"].write_bytes(whole["stack.jsonl"] + b'{"99": ["Fi')
        finish_folder(tmp_path / "killed")
        assert contents(tmp_path / "killed") == expected
        (tmp_path / "killed/dump.json").unlink()


def test_a_record_that_stands_twice_is_written_once(tmp_path: Path) -> None:
    folder = killed(tmp_path / "killed")
    lines = (folder / "dump.jsonl").read_bytes().splitlines(keepends=True)
    again = b'{"Torch.mul.0.forward": {"n": 2}}\n'
    (folder / "dump.jsonl").write_bytes(b"".join([*lines[:3], again, *lines[3:], again]))
    assert finish_folder(folder)[0].records == len(RECORDS)
    assert contents(folder) == contents(undisturbed(tmp_path / "whole", cut_short=KILLED))


def test_a_finished_folder_is_left_alone(tmp_path: Path) -> None:
    folder = undisturbed(tmp_path / "step0/rank0")
    before = {path: path.stat() for path in folder.iterdir()}
    assert finish_folder(tmp_path) == []
    assert {path: path.stat() for path in folder.iterdir()} == before


def test_all_steps_and_ranks_are_finished(tmp_path: Path) -> None:
    undisturbed(tmp_path / "step0/rank0")
    for place in ("step0/rank1", "step1/rank0", "step1/proc77", "step10"):
        killed(tmp_path / place)
    (tmp_path / "step2/rank0").mkdir(parents=True)
    done = finish_folder(tmp_path)
    assert [each.folder.relative_to(tmp_path).as_posix() for each in done] == [
        "step0/rank1",
        "step1/rank0",
        "step1/proc77",
        "step10",
    ]
    assert all(sorted(contents(each.folder)) == list(FILES) for each in done)
    assert finish_folder(tmp_path) == []


@pytest.mark.parametrize("name", ["", "dump.jsonl", "dump.json"])
def test_a_rank_or_its_log_may_be_named(tmp_path: Path, name: str) -> None:
    folder = killed(tmp_path / "step0/rank0")
    assert [each.folder for each in finish_folder(folder / name)] == [folder]
    assert sorted(contents(folder)) == list(FILES)


def test_a_path_without_a_capture_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="holds no dump; looked for"):
        finish_folder(tmp_path)
    with pytest.raises(DumpError, match="does not exist; name the folder of a capture"):
        finish_folder(tmp_path / "none")
    (tmp_path / "train.py").touch()
    with pytest.raises(DumpError, match="is no folder; name the folder of a capture"):
        finish_folder(tmp_path / "train.py")


def test_a_log_of_a_living_process_is_refused(tmp_path: Path) -> None:
    log = begun(tmp_path / "rank0")
    killed(tmp_path / "rank1")
    before = contents(tmp_path / "rank0")
    first, second = finish_folder(tmp_path)
    path = tmp_path / "rank0/dump.jsonl"
    assert first.problem == f"{path} is still being written by another process; end that first"
    assert contents(tmp_path / "rank0") == before
    assert (second.folder, second.problem) == (tmp_path / "rank1", "")
    log.close()
    assert finish_folder(tmp_path)[0].problem == ""


def test_the_lock_ends_with_a_killed_process(tmp_path: Path) -> None:
    script = (
        "import sys, time; sys.path[:0] = sys.argv[1:]; from capture_logs import begun;"
        "from pathlib import Path; log = begun(Path(sys.argv[1])); print(1, flush=True); time.sleep(99)"
    )
    arguments = [str(tmp_path / "rank0"), str(Path(__file__).parent)]
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert "still being written" in finish_folder(tmp_path)[0].problem
        child.kill()
    assert finish_folder(tmp_path)[0].records == len(RECORDS)
    whole = undisturbed(tmp_path / "whole", cut_short=KILLED)
    assert contents(tmp_path / "rank0") == contents(whole)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_kill_at_any_point_of_finishing_loses_nothing(tmp_path: Path, level: str) -> None:
    expected = contents(undisturbed(tmp_path / "whole", level=level, cut_short=KILLED))
    calls = {record.key for record in RECORDS if not record.key.startswith("Module")}
    for act in range(200):
        folder = killed(tmp_path / str(act), level=level)
        is_done = end_at(act, lambda _, folder=folder: finish_folder(folder))
        assert keys_read(folder / "dump.json") == calls
        again = end_at(act // 2, lambda _, folder=folder: finish_folder(folder))
        assert keys_read(folder / "dump.json") == calls
        finish_folder(folder)
        assert contents(folder) == expected
        if is_done and again:
            break
    assert 10 < act < 199


def test_a_kill_at_any_point_of_the_steps_own_end_loses_nothing(tmp_path: Path) -> None:
    ends = [contents(undisturbed(tmp_path / f"_{end}", cut_short=end)) for end in (KILLED, "")]
    seen = []
    for act in range(200):
        folder = tmp_path / str(act)
        is_done = end_at(
            act, lambda log: log.finish(False), prepare=lambda folder=folder: begun(folder)
        )
        finish_folder(folder)
        # Before the end of the step stands in the log, nobody knows that it was the end.
        seen.append(ends.index(contents(folder)))
        if is_done:
            break
    assert 10 < act < 199
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_a_dump_beside_the_log_of_another_capture_stays_and_so_does_the_log(tmp_path: Path) -> None:
    folder = killed(tmp_path / "rank0")
    whole = undisturbed(tmp_path / "whole", RECORDS[:2])
    os.replace(whole / "dump.json", folder / "dump.json")
    before = contents(folder)
    (done,) = finish_folder(folder)
    assert "has a dump.json of another capture than its dump.jsonl; move one" in done.problem
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("line", "shown"),
    [(b"\n", r"b'\n'"), (b'{"a": {}, "b": {}}\n', 'b\'{"a": {}'), (b'{"a": {x}}\n', "{x}")],
)
def test_a_broken_line_is_named_and_the_log_stays(tmp_path: Path, line: bytes, shown: str) -> None:
    folder = killed(tmp_path)
    lines = (folder / "dump.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "dump.jsonl").write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
    before = contents(folder)
    (done,) = finish_folder(folder)
    assert done.problem.startswith(f"line 3 of {folder / 'dump.jsonl'} is ")
    assert shown in done.problem
    assert contents(folder) == before


@pytest.mark.parametrize("begin", [b"", b'{"task": "st'])
def test_a_log_without_a_header_has_nothing_to_finish(tmp_path: Path, begin: bytes) -> None:
    (tmp_path / "dump.jsonl").write_bytes(begin)
    (done,) = finish_folder(tmp_path)
    assert "holds no call: the capture was cut off at its beginning" in done.problem


def test_a_folder_that_cannot_be_written_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    folder = killed(tmp_path)
    before = contents(folder)
    monkeypatch.setattr(finish_module, "write_dump", refuse)
    (done,) = finish_folder(folder)
    assert done.problem == (f"{folder} cannot be finished: No space left on device; its log stays")
    assert contents(folder) == before


def test_stacks_that_the_log_lacks_have_no_lines(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    (folder / "stack.jsonl").unlink()
    finish_folder(folder)
    stacks = json.loads((folder / "stack.json").read_text())
    assert [lines for _, lines in stacks.values()] == [[], [], []]


def test_a_run_over_a_log_goes_on_when_it_is_finished(tmp_path: Path) -> None:
    """A resumed run knows its dump by the digest."""
    folder = killed(tmp_path)
    with open_dump(folder / "dump.jsonl") as dump:
        digest, names = dump.digest(), [call.name for call in dump.calls]
    finish_folder(folder)
    with open_dump(folder / "dump.jsonl") as dump:
        assert (dump.digest(), [call.name for call in dump.calls]) == (digest, names)
        assert dump.path.name == "dump.json"
        assert KILLED in dump.note


def test_the_header_may_have_more_than_a_capture_writes(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    lines = (folder / "dump.jsonl").read_bytes().splitlines(keepends=True)
    more = json.dumps({"scale": float("nan"), **header()}).encode() + b"\n"
    (folder / "dump.jsonl").write_bytes(b"".join([more, *lines[1:]]))
    finish_folder(folder)
    assert next(iter(json.loads((folder / "dump.json").read_text()))) == "scale"
