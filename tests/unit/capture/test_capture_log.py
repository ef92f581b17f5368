"""The log of a step: whole lines whatever happens, and the dump that it becomes."""

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from capture_logs import (
    FILES,
    RECORDS,
    Record,
    begun,
    contents,
    header,
    keys_in_log,
    keys_read,
    killed,
    lines_of,
    undisturbed,
)

from ray_precheck.capture.writing import log as lines_module
from ray_precheck.capture.writing.log import StepLog
from ray_precheck.dump.parse import open_dump

pytestmark = pytest.mark.unit

MANY = tuple(Record(f"Torch.add.{i}.forward", stack=i % 5) for i in range(400))


@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    """Sets the size that files of this process may have, in bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is not possible here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_the_files_of_a_step_are_those_of_msprobe(tmp_path: Path) -> None:
    folder = undisturbed(tmp_path, level="mix")
    assert sorted(contents(folder)) == list(FILES)
    dump = json.loads((folder / "dump.json").read_text())
    assert {key: value for key, value in dump.items() if key != "data"} == header("mix")
    assert list(dump["data"]) == [record.key for record in RECORDS]
    assert dump["data"]["Torch.add.0.forward"] == {
        "text": '}}\n{"stack": 5',
        "stack": "3",
        "parent": "Module.é.forward.0",
    }
    assert dump["data"]["Torch.none.0.forward"] == {}
    assert json.loads((folder / "stack.json").read_text()) == {
        "0": [["Torch.add.0.forward", "Torch.add.0.backward"], lines_of(3)],
        "1": [["Torch.mul.0.forward", "Module.é.forward.0"], lines_of(7)],
        "2": [["Torch.none.0.backward"], lines_of(12)],
    }
    assert json.loads((folder / "construct.json").read_text()) == {
        record.key: record.parent for record in RECORDS
    }


def test_only_modules_make_a_construct(tmp_path: Path) -> None:
    assert json.loads((undisturbed(tmp_path) / "construct.json").read_text()) == {}


def test_a_step_without_a_call_has_files_too(tmp_path: Path) -> None:
    folder = undisturbed(tmp_path, records=())
    assert json.loads((folder / "dump.json").read_text())["data"] == {}
    assert json.loads((folder / "stack.json").read_text()) == {}


def test_each_record_is_in_the_log_at_once(tmp_path: Path) -> None:
    log = StepLog(tmp_path, header(), lines_of)
    for count, record in enumerate(MANY[:10], 1):
        log.record(*record)
        assert keys_in_log(tmp_path) == [record.key for record in MANY[:count]]
    stacks = (tmp_path / "stack.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in stacks] == [{str(i): lines_of(i)} for i in range(5)]
    assert log.size == sum((tmp_path / name).stat().st_size for name in os.listdir(tmp_path))
    log.close()


def test_of_records_with_one_key_the_first_counts(tmp_path: Path) -> None:
    again = (*RECORDS, Record("Torch.mul.0.forward", '"n": 2', 99, "x"), *RECORDS)
    (tmp_path / "again").mkdir()
    undisturbed(tmp_path / "once", level="mix")
    undisturbed(tmp_path / "again", again, level="mix")
    assert contents(tmp_path / "again") == contents(tmp_path / "once")


def test_what_comes_after_the_end_is_not_written(tmp_path: Path) -> None:
    log = begun(tmp_path)
    log.finish(False)
    before = contents(tmp_path)
    log.record(*MANY[0])
    log.finish(False)
    log.close()
    assert contents(tmp_path) == before


def test_line_breaks_and_surrogates_stay_inside_of_a_line(tmp_path: Path) -> None:
    fields = '"a":\n {"b": "\udc80é"}'
    log = begun(tmp_path, (Record("Torch.a\nb.0.forward", fields), *RECORDS))
    assert keys_in_log(tmp_path)[0] == "Torch.a\nb.0.forward"
    log.finish(False)
    data = json.loads((tmp_path / "dump.json").read_text("utf-8"))["data"]
    assert data["Torch.a\nb.0.forward"] == {"a": {"b": "\udc80é"}}


def test_a_record_of_many_megabytes_is_one_line(tmp_path: Path) -> None:
    long = Record("Torch.cat.0.forward", f'"text": "{"x" * (9 << 20)}"')
    begun(tmp_path, (RECORDS[0], long, RECORDS[1])).close()
    assert keys_in_log(tmp_path)[1] == long.key
    with open_dump(tmp_path / "dump.jsonl") as dump:
        assert len(dump.raw(dump.calls[1].forward) or b"") == (9 << 20) + len('{"text": ""}')


def test_threads_do_not_interleave_lines(tmp_path: Path) -> None:
    log = StepLog(tmp_path, header(), lines_of)

    def work(number: int) -> None:
        for i in range(300):
            log.record(f"Torch.t{number}.{i}.forward", f'"x": "{"y" * i}"', i % 7, None)
            log.record(f"Torch.all.{i}.forward", "", None, None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = keys_in_log(tmp_path)
    assert len(keys) == len(set(keys)) == 8 * 300 + 300
    log.finish(False)
    assert len(json.loads((tmp_path / "dump.json").read_text())["data"]) == len(keys)
    stacks = json.loads((tmp_path / "stack.json").read_text())
    assert sum(len(entry[0]) for entry in stacks.values()) == 8 * 300


class TestRefusedWrites:
    def test_a_file_that_may_not_grow_ends_with_a_whole_line(
        self, tmp_path: Path, limited: Callable[[int], None]
    ) -> None:
        log = begun(tmp_path, MANY[:20])
        limited((tmp_path / "dump.jsonl").stat().st_size + 30)
        size = log.size
        for _ in range(2):
            with pytest.raises(OSError) as error:
                log.record(*MANY[20])
            assert error.value.errno == errno.EFBIG
            assert (keys_in_log(tmp_path), log.size) == ([r.key for r in MANY[:20]], size)
        limited(resource.RLIM_INFINITY)
        log.record(*MANY[20])
        log.finish(False)
        assert contents(tmp_path) == contents(undisturbed(tmp_path / "whole", MANY[:21]))

    @pytest.mark.parametrize("room", [10, 300])
    def test_a_record_with_a_new_stack_leaves_no_trace(
        self, tmp_path: Path, limited: Callable[[int], None], room: int
    ) -> None:
        log = begun(tmp_path, MANY[:1])
        # 10 bytes are too few for the lines of the stack, 300 for the record behind them.
        limited((tmp_path / "stack.jsonl").stat().st_size + room)
        with pytest.raises(OSError):
            log.record("Torch.b.0.forward", f'"x": "{"y" * 1000}"', 9, None)
        limited(resource.RLIM_INFINITY)
        assert (tmp_path / "stack.jsonl").read_text().count("\n") == 1
        log.finish(False)
        assert contents(tmp_path) == contents(undisturbed(tmp_path / "whole", MANY[:1]))

    def test_a_full_disk_ends_the_log_with_a_whole_line(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", "64k") as disk:
            log = StepLog(disk / "rank0", header(), lines_of)
            written = []

            def fill() -> None:
                for record in MANY:
                    log.record(record.key, f'"x": "{"y" * 500}"', record.stack, None)
                    written.append(record.key)

            with pytest.raises(OSError) as error:
                fill()
            assert error.value.errno == errno.ENOSPC
            assert keys_in_log(disk / "rank0") == written
            assert keys_read(disk / "rank0/dump.jsonl") == set(written)
            log.close()

    def test_a_disk_that_is_too_small_for_the_dump_keeps_the_log(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", "64k") as disk:
            log = begun(disk / "rank0", MANY)
            before = contents(disk / "rank0")
            with pytest.raises(OSError) as error:
                log.finish(False)
            assert error.value.errno == errno.ENOSPC
            after = contents(disk / "rank0")
            assert after.pop("dump.jsonl").startswith(before.pop("dump.jsonl"))
            assert after == before
            assert keys_read(disk / "rank0/dump.json") == {record.key for record in MANY}

    def test_a_write_that_takes_a_part_is_gone_on_with(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = os.write
        monkeypatch.setattr(lines_module.os, "write", lambda file, raw: write(file, raw[:7]))
        log = begun(tmp_path)
        monkeypatch.undo()
        log.finish(False)
        assert contents(tmp_path) == contents(undisturbed(tmp_path / "whole"))

    def test_a_line_that_cannot_be_removed_ends_the_log(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: Callable[[int], None]
    ) -> None:
        def refuse(file: int, size: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        log = begun(tmp_path, MANY[:3])
        limited((tmp_path / "dump.jsonl").stat().st_size + 30)
        monkeypatch.setattr(lines_module.os, "ftruncate", refuse)
        with pytest.raises(OSError):
            log.record(*MANY[3])
        limited(resource.RLIM_INFINITY)
        log.record(*MANY[4])
        log.close()
        assert keys_read(tmp_path / "dump.jsonl") == {record.key for record in MANY[:3]}

    def test_a_folder_that_vanishes_is_an_error_of_the_end(self, tmp_path: Path) -> None:
        folder = tmp_path / "rank0"
        log = begun(folder)
        shutil.rmtree(folder)
        log.record(*MANY[0])
        with pytest.raises(FileNotFoundError):
            log.finish(False)
        log.record(*MANY[1])  # nothing is open any more

    def test_a_folder_that_is_a_file_is_an_error_of_the_beginning(self, tmp_path: Path) -> None:
        (tmp_path / "rank0").touch()
        with pytest.raises(OSError):
            StepLog(tmp_path / "rank0", header(), lines_of)


class TestSignals:
    def test_interrupted_writes_are_whole(self, tmp_path: Path) -> None:
        fired = []
        before = signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            log = begun(tmp_path, MANY)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert fired
        log.finish(False)
        assert contents(tmp_path) == contents(undisturbed(tmp_path / "whole", MANY))

    # Where it comes out of a callback of a weak reference, Python prints it and goes on.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_an_exception_out_of_a_handler_leaves_a_record_or_none(self, tmp_path: Path) -> None:
        armed = False

        # Once a record: on a busy machine an alarm may come as late as during the next record.
        def interrupt(*_: object) -> None:
            nonlocal armed
            if armed:
                armed = False
                raise KeyboardInterrupt

        log = StepLog(tmp_path / "log", header(), lines_of)
        before = signal.signal(signal.SIGALRM, interrupt)
        interrupted = 0
        records = [Record(f"Torch.a.{i}.forward", '"x": 1', i) for i in range(3000)]
        try:
            for record in records:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, 2e-5)
                    log.record(*record)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert interrupted
        there = set(keys_in_log(tmp_path / "log"))
        log.finish(False)
        whole = undisturbed(tmp_path / "whole", [r for r in records if r.key in there])
        assert contents(tmp_path / "log") == contents(whole)

    def test_a_handler_may_record(self, tmp_path: Path) -> None:
        log = StepLog(tmp_path, header(), lines_of)
        nested = iter(range(10**6))
        before = signal.signal(
            signal.SIGALRM, lambda *_: log.record(f"Torch.n.{next(nested)}.forward", "", 1, None)
        )
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            for record in MANY:
                log.record(*record)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert len(keys_in_log(tmp_path)) == len(MANY) + next(nested)
        log.finish(False)


class TestOthers:
    def test_a_forked_child_writes_nothing_and_holds_no_lock(self, tmp_path: Path) -> None:
        log = begun(tmp_path, MANY[:3])
        context = multiprocessing.get_context("fork")
        done, go = context.Event(), context.Event()

        def child() -> None:
            log.record(*MANY[3])
            log.finish(False)
            done.set()
            go.wait(30)

        process = context.Process(target=child)
        process.start()
        assert done.wait(30)
        assert keys_in_log(tmp_path) == [record.key for record in MANY[:3]]
        log.close()
        begun(tmp_path, MANY[:1]).close()  # the lock went with the parent's file
        go.set()
        process.join()
        assert process.exitcode == 0

    def test_two_processes_do_not_capture_into_one_folder(self, tmp_path: Path) -> None:
        log = begun(tmp_path, MANY[:3])
        with pytest.raises(BlockingIOError, match="another process is writing"):
            begun(tmp_path)
        log.record(*MANY[3])
        log.close()
        assert keys_in_log(tmp_path) == [record.key for record in MANY[:4]]

    def test_an_earlier_capture_in_the_folder_gives_way(self, tmp_path: Path) -> None:
        undisturbed(tmp_path, MANY)
        log = begun(tmp_path)
        assert sorted(contents(tmp_path)) == ["dump.jsonl", "stack.jsonl"]
        log.close()
        killed(tmp_path, MANY)
        undisturbed(tmp_path)
        assert contents(tmp_path) == contents(undisturbed(tmp_path / "whole"))
