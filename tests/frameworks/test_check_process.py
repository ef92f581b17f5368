"""The process that runs APIs, watched without Ray: how it breaks, and how soon another takes over."""

import contextlib
import importlib
import os
import platform
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from records import row_of

from ray_precheck.check.settings import CheckSettings
from ray_precheck.errors import DeviceError
from ray_precheck.replay.job import PrecheckOpener
from ray_precheck.replay.loading import load_checker
from ray_precheck.runtime.job import Tell
from ray_precheck.runtime.places.devices import slot_variables
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers import fork_server
from ray_precheck.runtime.workers import process as process_module
from ray_precheck.runtime.workers.fork_server import (
    ForkServer,
    ServerAddress,
    process_environment,
)
from ray_precheck.runtime.workers.messages import Work
from ray_precheck.runtime.workers.process import CheckProcess
from ray_precheck.runtime.workers.worker import Order, Turns, Worker
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import BatchReport, Cause, DeviceSlot, TaskPayload

pytestmark = pytest.mark.frameworks
FAULTY = Path(__file__).resolve().parent.parent.parent / "scripts" / "faulty"
SLOT = DeviceSlot("cpu", 0, "", "", "")
TENSOR = b'{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Max": 1.0, "Min": 0.5}'


@pytest.fixture(autouse=True, scope="module")
def _faulty() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # The second is where a check process finds this module.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(FAULTY), str(Path(__file__).parent)]))
        # Set by the worker for its processes; put back after the tests.
        for name in ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            patch.setenv(name, "")
        yield


def opener(limit_bytes: int = 0) -> PrecheckOpener:
    return PrecheckOpener(
        CheckSettings("pytorch", "statistics", Path(), memory_limit_bytes=limit_bytes)
    )


def payload(index: int, name: str) -> TaskPayload:
    forward = b'{"input_args": [%s], "input_kwargs": {}, "output": [%s]}' % (TENSOR, TENSOR)
    return TaskPayload(index, name, forward, None)


def run(worker: Worker, each: TaskPayload, turn: int = 1) -> BatchReport:
    return worker.run(Order((each,), (60.0,), (1,), turn))


GOOD = payload(0, "Torch.abs.0")
# A second or more of one core: much longer than the parent waits before it looks for the first time.
WORK = TaskPayload(
    0,
    "Torch.linalg.qr.0",
    b'{"input_args": [%s], "input_kwargs": {}, "output": []}'
    % TENSOR.replace(b"[4]", b"[2400, 2400]"),
    None,
)


def check(
    process: CheckProcess, batch: list[TaskPayload], limits_s: list[float], **options: Any
) -> BatchReport:
    work = [Work(each.index, each) for each in batch]
    process.submit(work)
    return process.collect(work, limits_s, **options)[0]


def first_check(process: CheckProcess, limit_s: float) -> tuple[BatchReport, float]:
    """Return the report of the first check of a process, which ends there, and how long it took."""
    begin = time.monotonic()
    report = check(process, [WORK], [limit_s])
    elapsed_s = time.monotonic() - begin
    process.close()
    return report, elapsed_s


def assert_is_checked(report: BatchReport) -> None:
    assert report.failure is None
    assert row_of(report.results[0]).forward is not Verdict.SKIP


@pytest.fixture(scope="module")
def server() -> Iterator[ServerAddress]:
    made = ForkServer(partial(load_checker, "pytorch"), process_environment(False))
    yield made.address
    made.close()


@pytest.fixture(params=[False, True], ids=["own", "fork"])
def process(request: pytest.FixtureRequest, server: ServerAddress) -> Iterator[CheckProcess]:
    made = CheckProcess(SLOT, opener(), server if request.param else None)
    made.wait_ready()
    assert made.is_forked is request.param
    yield made
    made.close()


class TestBatches:
    def test_what_is_finished_before_a_crash_is_kept_and_the_record_is_named(
        self, process: CheckProcess
    ) -> None:
        batch = [GOOD, payload(1, "Torch.special.erfcx.0"), payload(2, "Torch.neg.0")]
        report = check(process, batch, [60.0] * 3)
        assert [result.index for result in report.results] == [0]
        assert report.failure is not None
        assert (report.failure.index, report.failure.cause) == (1, Cause.CRASHED)
        assert report.failure.reason == (
            "killed its worker (SIGABRT: what():  vector::_M_default_append)"
        )

    def test_each_record_has_its_own_time(self, process: CheckProcess) -> None:
        batch = [GOOD, payload(1, "Torch.special.i1e.0"), payload(2, "Torch.neg.0")]
        begin = time.monotonic()
        report = check(process, batch, [600.0, 0.5, 600.0])
        assert time.monotonic() - begin < 600.0  # that of the others
        assert report.failure is not None
        assert (report.failure.index, report.failure.cause) == (1, Cause.TIMED_OUT)
        assert report.failure.reason == "no answer in 0.5 s (--timeout)"

    def test_a_busy_machine_is_no_hang(self) -> None:
        first, second = (CheckProcess(SLOT, opener()) for _ in range(2))
        second.wait_ready()
        first.wait_ready()
        report, alone_s = first_check(first, 3600.0)
        assert_is_checked(report)
        core = min(os.sched_getaffinity(0))
        hog = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
        hogs = [subprocess.Popen([sys.executable, "-c", hog]) for _ in range(6)]
        limit_s = 3 * alone_s  # Twice would do, but cores that are shared are slow as well.
        try:
            report, took_s = first_check(second, limit_s)
        finally:
            for process in hogs:
                process.kill()
                process.wait()
        assert_is_checked(report)
        if took_s <= limit_s:
            pytest.skip("the machine was so busy before that the hogs made it no slower")

    def test_a_batch_that_is_halted_gives_what_is_finished(self, process: CheckProcess) -> None:
        begin = time.monotonic()
        batch = [GOOD, payload(1, "Torch.special.ndtri.0")]
        report = check(process, batch, [600.0] * 2, halted=lambda: time.monotonic() > begin + 1)
        assert [result.index for result in report.results] == [0]
        assert report.failure is None
        assert not psutil.pid_exists(process.pid)

    def test_sigkill_is_told_apart(self, process: CheckProcess) -> None:
        report = check(process, [payload(1, "Torch.special.bessel_y0.0")], [60.0])
        assert report.failure is not None
        assert report.failure.cause is Cause.KILLED

    def test_a_stopped_process_is_given_up_as_one_that_was_killed(
        self, process: CheckProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process_module, "SILENT_S", 2.0)
        os.kill(process.pid, signal.SIGSTOP)
        report = check(process, [GOOD], [600.0])
        assert report.failure is not None
        assert report.failure.cause is Cause.KILLED
        assert report.failure.reason.startswith("its process was stopped for ")
        assert not psutil.pid_exists(process.pid)

    def test_the_time_of_a_stop_does_not_count(self, process: CheckProcess) -> None:
        os.kill(process.pid, signal.SIGSTOP)
        goes_on = threading.Timer(6.0, os.kill, (process.pid, signal.SIGCONT))
        goes_on.start()
        report = check(process, [GOOD], [4.0])
        goes_on.join()
        assert_is_checked(report)

    def test_an_error_that_leaves_the_device_unusable_is_a_provisional_result(
        self, process: CheckProcess
    ) -> None:
        batch = [payload(1, "Torch.special.spherical_bessel_j0.0"), payload(2, "Tensor.add.0")]
        report = check(process, batch, [60.0] * 2)
        assert report.results == ()
        assert report.failure is not None
        assert report.failure.cause is Cause.POISONED
        assert report.failure.done is not None
        assert row_of(report.failure.done).forward is Verdict.ERROR
        assert report.failure.reason == row_of(report.failure.done).message

    def test_an_error_that_leaves_the_device_usable_is_a_result(
        self, process: CheckProcess
    ) -> None:
        report = check(process, [payload(1, "Torch.special.bessel_j0.0"), GOOD], [60.0] * 2)
        assert report.failure is None
        assert [row_of(done).forward for done in report.results] == [Verdict.ERROR, Verdict.PASS]

    def test_output_is_forgotten_so_that_no_warning_fills_the_disk(
        self, process: CheckProcess
    ) -> None:
        os.write(process._stderr.fileno(), b"a warning of an earlier record\n")
        check(process, [GOOD], [60.0])
        report = check(process, [payload(1, "Torch.special.entr.0")], [60.0])
        assert report.failure is not None
        assert report.failure.reason == "killed its worker (SIGSEGV)"


def test_the_garbage_collector_leaves_out_what_was_loaded_before() -> None:
    # In a process of its own, as it is for the life of a process.
    code = """
import gc
from ray_precheck.runtime.workers.check_process import _all_kept
before = gc.get_freeze_count()
try:
    with _all_kept():
        assert not gc.isenabled()
        loaded = [[] for _ in range(1000)]
        raise ImportError
except ImportError:
    pass
assert gc.isenabled()
assert gc.get_freeze_count() >= before + 1000
"""
    subprocess.run([sys.executable, "-c", code], check=True)


class TestMemory:
    def test_an_allocation_beyond_the_limit_fails_in_its_record_alone(self) -> None:
        process = CheckProcess(SLOT, opener(limit_bytes=256 << 20))
        process.wait_ready()
        report = check(process, [payload(1, "Torch.special.bessel_y1.0")], [60.0])
        process.close()
        assert report.failure is not None
        assert report.failure.cause is Cause.OUT_OF_MEMORY
        assert report.failure.done is not None
        assert (
            report.failure.reason
            == row_of(report.failure.done).message
            == ("ran out of memory: MemoryError (a worker may take 0.25 GiB, --max-memory)")
        )

    @pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other heaps have other settings")
    def test_the_heap_of_a_record_is_kept_for_the_next_unless_the_user_has_set_another(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tensors = TENSOR.replace(b"[4]", b"[600, 600]")
        arguments = b'{"input_args": [%s, %s], "input_kwargs": {}, "output": []}'
        add = TaskPayload(0, "Torch.add.0", arguments % (tensors, tensors), None)
        kept = self.faults(add)
        for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
            monkeypatch.setenv(name, str(128 << 10))
        fresh = self.faults(add)
        assert (kept < 1000, fresh > 5000) == (True, True), (kept, fresh)

    def faults(self, record: TaskPayload) -> int:
        """Return how many pages a process had to be given for four records like those before."""
        process = CheckProcess(SLOT, opener())
        process.wait_ready()
        counts = []
        for _ in range(10):
            stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]
            counts.append(int(stat.split()[7]))  # minflt, proc(5)
            check(process, [record], [60.0])
        process.close()
        return counts[-1] - counts[-5]


class TestEnds:
    def test_it_ends_with_its_parent_also_where_it_hangs_in_c(self) -> None:
        source = (
            "import sys; sys.path.insert(0, sys.argv[1]); import test_check_process as t\n"
            "p = t.CheckProcess(t.SLOT, t.opener()); p.wait_ready(); print(p.pid, flush=True)\n"
            "t.check(p, [t.payload(1, 'Torch.special.ndtri.0')], [600.0])"
        )
        command = [sys.executable, "-c", source, str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            child = psutil.Process(int(parent.stdout.readline()))
            time.sleep(1)
            parent.kill()
        assert psutil.wait_procs([child], timeout=60)[1] == []

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            ("segfault", "its process died while it started (SIGSEGV)"),
            ("import", "its process died while it started (exit code 1: SystemExit: libascend_hal"),
        ],
    )
    def test_one_that_cannot_start_says_why(
        self, fault: str, reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAULTY_START", fault)
        process = CheckProcess(SLOT, opener())
        with pytest.raises(DeviceError) as raised:
            process.wait_ready()
        process.close()
        assert str(raised.value).startswith(reason)


class TestBatchesInTurn:
    @pytest.fixture(scope="class")
    def opened(self) -> Iterator[Worker]:
        made = Worker(SLOT, opener())
        made.open(0)
        yield made
        made.close()

    @pytest.fixture
    def made(self, opened: Worker) -> Worker:
        """The worker before its first turn: other tests may run in another process, or not at all."""
        opened._turns = Turns()
        if opened._process is None or opened._process.is_closed:
            opened.open(0)
        return opened

    def test_the_next_one_may_come_first_and_waits_for_its_turn(self, made: Worker) -> None:
        with ThreadPoolExecutor(2) as threads:
            second = threads.submit(run, made, payload(1, "Torch.abs.1"), turn=2)
            time.sleep(0.2)
            assert not second.done()
            first = threads.submit(run, made, GOOD, turn=1)
            began_s = [each.result(60).results[0].began_s for each in (first, second)]
        assert began_s == sorted(began_s)

    def test_the_process_has_it_before_the_one_in_work_is_done(self, made: Worker) -> None:
        process = made._process
        assert process is not None
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(run, made, WORK, turn=1)
            second = threads.submit(run, made, payload(1, "Torch.abs.1"), turn=2)
            while not process._handovers_s and not first.done():
                time.sleep(0.001)
            time.sleep(0.1)
            handed_in, first_is_done = len(process._handovers_s), first.done()
            assert [each.result(60).results[0].index for each in (first, second)] == [0, 1]
        assert not first_is_done
        assert handed_in == 1

    def test_behind_one_that_breaks_the_process_it_is_not_run(self, made: Worker) -> None:
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(run, made, payload(1, "Torch.special.entr.0"), turn=1)
            second = threads.submit(run, made, GOOD, turn=2)
            assert first.result(60).failure is not None
            assert second.result(60) == BatchReport(())
        made.open(2)
        assert row_of(run(made, GOOD, turn=3).results[0]).forward is Verdict.PASS

    def test_one_that_comes_when_a_new_process_is_there_is_not_run_either(
        self, made: Worker
    ) -> None:
        made.open(9)
        assert run(made, GOOD, turn=9) == BatchReport(())
        assert row_of(run(made, GOOD, turn=10).results[0]).forward is Verdict.PASS

    def test_a_long_one_that_waits_in_the_pipe_holds_up_no_end(self, made: Worker) -> None:
        long = replace(GOOD, forward=(GOOD.forward or b"") + b" " * (1 << 22))
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(run, made, WORK, turn=1)
            second = threads.submit(run, made, long, turn=2)
            time.sleep(0.5)
            assert not first.done()
            os.kill(made._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
            assert first.result(60).failure is not None
            assert second.result(60) == BatchReport(())

    def test_a_bench_whose_transfer_is_gone_holds_up_nobody(self, made: Worker) -> None:
        made.open(12)
        report = made.run(Order((GOOD,), (60.0,), (1,), 13, stage=Stage.BENCH), {})
        assert report == BatchReport((), needs_device=(GOOD.index,))
        assert row_of(run(made, GOOD, turn=14).results[0]).forward is Verdict.PASS

    def test_a_worker_that_was_told_to_end_begins_no_other(self) -> None:
        made = Worker(SLOT, opener())
        made.open(0)
        made.halt()
        assert run(made, GOOD) == BatchReport(())
        made.close()


def own_server(tmp_path: Path, code: str = "") -> ForkServer:
    """Return a server that imports nothing but a module with this code."""
    (tmp_path / "loaded.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    return ForkServer(
        partial(importlib.import_module, "loaded"),
        {**process_environment(False), "PYTHONPATH": path},
    )


class TestForks:
    def test_one_is_ready_long_before_one_that_imports(self, server: ServerAddress) -> None:
        started_s = {}
        for name, address in (("fork", server), ("own", None), ("fork", server)):
            begin = time.monotonic()
            with contextlib.closing(CheckProcess(SLOT, opener(), address)) as made:
                made.wait_ready()
            started_s[name] = time.monotonic() - begin
        assert started_s["fork"] < started_s["own"] / 2

    def test_it_has_all_cores_and_sees_the_device_of_its_slot_alone(
        self, server: ServerAddress
    ) -> None:
        slot = DeviceSlot("gpu", 0, "", "", "3")
        with contextlib.closing(CheckProcess(slot, opener(), server)) as made:
            with pytest.raises(DeviceError):  # this machine has no GPU
                made.wait_ready()
            variables = slot_variables(slot)
            assert variables["CUDA_VISIBLE_DEVICES"] == "3"
        with contextlib.closing(
            CheckProcess(SLOT, _Telling(("CUDA_VISIBLE_DEVICES",)), server)
        ) as made:
            caveat = made.wait_ready()
        assert caveat == repr(([""], 1))  # on the CPU it sees no GPU, and has its slot's core

    def test_a_fault_of_the_server_costs_its_processes_and_nothing_else(
        self, tmp_path: Path
    ) -> None:
        server = own_server(tmp_path)
        made = Worker(SLOT, opener(), server.address)
        made.open(0)
        assert is_fork(made)
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(run, made, payload(1, "Torch.special.ndtri.0"))
            time.sleep(1)
            os.kill(server.address.pid, signal.SIGKILL)
            report = running.result(60)
        assert report.failure is not None
        assert report.failure.cause is Cause.KILLED  # which the record is not blamed for at once
        made.open(1)
        assert not is_fork(made)
        assert_is_checked(run(made, GOOD, turn=2))
        made.close()
        server.close()

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            (
                "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
                "the import has started 1 threads",
            ),
            ("opened = open('/dev/kmsg')", "the import has opened the device kmsg"),
            ("raise ImportError('no such driver\\nmore')", "the import failed: no such driver"),
            ("import os; os._exit(3)", "its fork server died"),
        ],
    )
    def test_where_forking_is_not_safe_a_process_starts_on_its_own(
        self, code: str, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        server = own_server(tmp_path, code)
        made = Worker(SLOT, opener(), server.address, debug=True)
        made.open(0)
        assert not is_fork(made)
        assert_is_checked(run(made, GOOD))
        made.close()
        server.close()
        assert f"cpu:0: no fork of a process that has imported: {reason}" in capfd.readouterr().err

    def test_a_fork_that_cannot_open_its_device_is_followed_by_a_process_that_can(
        self, server: ServerAddress
    ) -> None:
        made = Worker(SLOT, _RefusingForks(), server)
        assert made.open(0) == "on its own"
        made.close()

    def test_a_stopped_server_is_not_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process_module, "SILENT_S", 1.0)
        server = own_server(tmp_path)
        os.kill(server.address.pid, signal.SIGSTOP)
        made = Worker(SLOT, opener(), server.address)
        made.open(0)
        assert not is_fork(made)
        made.close()
        server.close()

    def test_no_other_user_gets_a_fork(self, tmp_path: Path) -> None:
        if os.getuid():
            pytest.skip("only root can become somebody else")
        server = own_server(tmp_path)
        code = (
            "import os, socket, sys; os.setuid(65534)\n"
            "line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "line.connect(chr(0) + sys.argv[1]); print(line.recv(100))"
        )
        command = [sys.executable, "-c", code, server.address.name]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"b''\n"
        server.close()

    def test_the_workers_of_a_node_share_one_which_ends_when_nobody_needs_it(self) -> None:
        source = (
            "import sys; sys.path.insert(0, sys.argv[1]); import test_check_process as t\n"
            "from functools import partial\n"
            "from ray_precheck.runtime.workers.fork_server import NodeServer\n"
            "node = NodeServer(sys.argv[2], partial(t.load_checker, 'pytorch'))\n"
            "made = t.Worker(t.SLOT, t.opener(), node); made.open(0)\n"
            "print(made._process.pid, flush=True); sys.stdin.readline()\n"
            "t.assert_is_checked(t.run(made, t.GOOD)); print('checked')"
        )
        command = [sys.executable, "-c", source, str(Path(__file__).parent), secrets.token_hex(8)]
        with contextlib.ExitStack() as stack:
            workers = [
                stack.enter_context(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                    )
                )
                for _ in range(2)
            ]
            first, second = [
                psutil.Process(int(each.stdout.readline()))  # type: ignore[union-attr]
                for each in workers
            ]
            server = second.parent()
            assert server is not None
            assert server == first.parent()
            workers[0].kill()
            assert psutil.wait_procs([first], timeout=60)[1] == []
            # The other's process goes on.
            assert workers[1].communicate("\n", timeout=60)[0] == "checked\n"
        assert psutil.wait_procs([second, server], timeout=60)[1] == []

    def test_nothing_is_asked_of_another_user_who_has_taken_the_name(self) -> None:
        if os.getuid():
            pytest.skip("only root can become somebody else")
        name = f"test-{secrets.token_hex(8)}"
        code = (
            "import os, socket, sys; os.setuid(65534)\n"
            "taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "taken.bind(chr(0) + sys.argv[1]); taken.listen(); print('taken', flush=True)\n"
            "line, _ = taken.accept(); print(line.recv(100), flush=True)"
        )
        command = [sys.executable, "-c", code, name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "taken\n"
            made = Worker(SLOT, opener(), ServerAddress(name, 0))
            made.open(0)
            assert other.stdout.readline() == "b''\n"
        assert not is_fork(made)
        made.close()

    def test_two_runs_of_one_process_share_servers_until_both_have_ended(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fork_server, "_KEPT", [])
        first, second = fork_server.kept_servers(), fork_server.kept_servers()
        with contextlib.ExitStack() as last:
            with first as servers:
                assert last.enter_context(second) is servers
                address = servers.open(partial(len, ()), debug=False)
                assert address is not None
            assert psutil.pid_exists(address.pid)
        assert not psutil.pid_exists(address.pid)

    def test_they_end_with_the_server(self, tmp_path: Path) -> None:
        server = own_server(tmp_path)
        made = CheckProcess(SLOT, opener(), server.address)
        made.wait_ready()
        child = psutil.Process(made.pid)
        server.close()
        assert psutil.wait_procs([child], timeout=60)[1] == []
        made.close()


def is_fork(made: Worker) -> bool:
    process = made._process
    assert process is not None
    return process.is_forked


@dataclass(frozen=True)
class _Telling:
    """Opens a runner whose caveat tells variables of the process, and how many cores it has."""

    names: tuple[str, ...]
    memory_limit_bytes: int = 0

    def open(self, slot: DeviceSlot, tell: Tell) -> Any:
        found = [os.environ.get(name) for name in self.names]
        return SimpleNamespace(caveat=repr((found, len(os.sched_getaffinity(0)))))


@dataclass(frozen=True)
class _RefusingForks:
    """Opens a runner in a process that its worker has started, and raises in a fork of a server."""

    parent: int = field(default_factory=os.getpid)
    memory_limit_bytes: int = 0

    def open(self, slot: DeviceSlot, tell: Tell) -> Any:
        if os.getppid() != self.parent:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return SimpleNamespace(caveat="on its own")
