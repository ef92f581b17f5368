"""What `fuzz.py` does with one dump, and the watch over it.

Comes in: the bytes of a dump.json. Goes out: an outcome, or `Finding`. The driver's part is what a
run does before and after Ray: open, plan, payloads, rows and the files they go to. The worker's
part is `Checker.check`, with both sides kept from running, or with torch running for real.
"""

import contextlib
import os
import pickle
import re
import resource
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.precheck.closing import format_summary
from ray_precheck.commands.precheck.summary import summarise
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.errors import NotCheckable, PrecheckError
from ray_precheck.frameworks.base import require_framework
from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.job import done_of
from ray_precheck.replay.planner import plan_tasks
from ray_precheck.schema.result import Outcome, TaskResult, failed
from ray_precheck.schema.task import Task, TaskPayload
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import resume_run, start_run
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import decode_name, decode_row, detail_rows, result_row
from scripts.measuring import ROOT

FRAMEWORKS = ("pytorch", "mindspore")
DRIVER, WORKER, API = 1, 2, 3
ALLOWANCE_BYTES = 1 << 30  # what the driver may take beyond the size of the file
API_BYTES = 6 << 30
RECORD_BYTES = 8 << 20
LONGEST_SENTENCE = 2_000
_FORMULA = re.compile(rb"[\"']?[=+\-@\t]")


class Finding(Exception):
    """What a dump must not be able to do."""


class Watch:
    """Reports, while it is armed, code that is run and files that are opened by a dump's doing.

    Code of this environment may be imported; files may be read there and in `folder`, and written
    in `out` only. Python's audit events are seen, so C code that opens files by itself is not.
    """

    _FORBIDDEN = ("subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn",
                  "socket.", "ctypes.dlopen", "pickle.find_class", "os.kill", "os.putenv",
                  "shutil.", "urllib.", "webbrowser.", "os.chmod", "os.chown")  # fmt: skip
    _WRITES = "os.remove os.rename os.mkdir os.rmdir os.truncate os.symlink os.link".split()

    def __init__(self, folder: Path, out: Path) -> None:
        self.armed = False
        self.seen: list[str] = []
        code = [sys.prefix, sys.base_prefix, str(ROOT), *sysconfig.get_paths().values()]
        self._trusted = tuple({os.path.realpath(path) for path in code} | set(code))
        system = ("/proc/", "/sys/", "/usr/", "/dev/", "/etc/ld", "/lib")
        self._readable = (*self._trusted, *system, str(folder))
        self._writable = (str(out), "/dev/null")
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: Sequence[Any]) -> None:
        if not self.armed:
            return
        if event == "open":
            self._opened(*arguments)
        elif event == "exec":
            self._executed(getattr(arguments[0], "co_filename", "?"))
        elif event in self._WRITES:
            self._changed(event, arguments)
        elif event.startswith(self._FORBIDDEN):
            self.seen.append(f"{event} {_shortly(arguments)}")

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int):
            return
        where = os.path.abspath(os.fsdecode(path))
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and not where.startswith(self._writable):
            self.seen.append(f"opened {_shortly(where)} to write")
        elif not writes and not where.startswith((*self._readable, *self._writable)):
            self.seen.append(f"opened {_shortly(where)} to read")

    def _executed(self, file: str) -> None:
        if not file.startswith((*self._trusted, "<frozen")):
            self.seen.append(f"ran code of {_shortly(file)}")

    def _changed(self, event: str, arguments: Sequence[Any]) -> None:
        paths = [os.path.abspath(os.fsdecode(p)) for p in arguments if isinstance(p, str | bytes)]
        if not all(path.startswith(self._writable) for path in paths):
            self.seen.append(f"{event} {_shortly(paths)}")

    @contextlib.contextmanager
    def over(self) -> Iterator[None]:
        """Watch a block.

        Raises:
            Finding: something was seen.
        """
        self.seen.clear()
        self.armed = True
        try:
            yield
        finally:
            self.armed = False
        if self.seen:
            raise Finding(f"watch: {self.seen[0]}")


class Target:
    """Everything that examining dumps needs, made once for a process. `mark` is told each stage."""

    def __init__(self, folder: Path, mark: Callable[[int], None]) -> None:
        self.mark = mark
        self._dump = folder / "in" / "dump.json"
        self._out = folder / "out"
        self._out.mkdir(exist_ok=True)
        self._still = {
            (framework, task): _still_checker(framework, task, self._dump.parent)
            for framework in FRAMEWORKS
            for task in ("statistics", "tensor")
        }
        self._running = {
            task: Checker(_settings("pytorch", task, self._dump.parent, self._out), "cpu")
            for task in ("statistics", "tensor")
        }
        # What descriptors name is loaded on demand, which no dump's doing may do while it is watched.
        import_module("ray_precheck.frameworks.mindtorch.paths")
        self._watch = Watch(self._dump.parent, self._out)

    def examine(self, raw: bytes, runs_apis: bool) -> str:
        """Return what became of a dump: "refused", or "rows" (and what became of them).

        Raises:
            Finding: a traceback, a foreign file or code, a name that does not come back, ...
        """
        self._dump.write_bytes(raw)
        try:
            with self._watch.over():
                return self._examine(len(raw), runs_apis)
        except (Finding, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise Finding(where(error)) from error
        finally:
            limit_memory(None)
            empty(self._out)

    def _examine(self, size: int, runs_apis: bool) -> str:
        self.mark(DRIVER)
        limit_memory(ALLOWANCE_BYTES + size)
        try:
            with open_dump(self._dump) as dump:
                payloads = self._drive(dump)
        except PrecheckError as error:
            require_sentence(str(error), LONGEST_SENTENCE + len(str(self._dump)))
            return "refused"
        limit_memory(API_BYTES)
        self.mark(WORKER)
        task = "tensor" if dump.task == "tensor" else "statistics"
        outcomes = set()
        for payload in payloads:
            for framework in FRAMEWORKS:
                _check(self._still[framework, task], payload)
            if runs_apis:
                self.mark(API)
                outcomes.add(_check(self._running[task], payload).forward.name)
                self.mark(WORKER)
        return f"rows ({', '.join(sorted(outcomes))})" if outcomes else "rows"

    def _drive(self, dump: Dump) -> list[TaskPayload]:
        """Do what the driver does with a dump that can be opened; return what workers get."""
        config = RunConfig(self._dump)
        config.validate()
        fingerprint = config.fingerprint(dump.digest(), dump.framework, "cpu")
        if dump.framework:
            with contextlib.suppress(PrecheckError):
                require_framework(dump.framework)
        results: dict[str, TaskResult] = {}
        for framework in FRAMEWORKS:
            plan = plan_tasks(dump, framework, set())
            planned = sorted([*(t.index for t in plan.tasks), *(s.index for s in plan.skipped)])
            if planned != list(range(len(dump.calls))):
                raise Finding("a call of the dump is neither planned nor skipped")
            results.update((skip.name, skip) for skip in plan.skipped)
            results.update((task.name, _lost(task)) for task in plan.tasks)
        payloads = [dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)]
        pickle.dumps(payloads)
        names = [call.name for call in dump.calls]
        self._write_rows(list(results.values()), names, fingerprint)
        return payloads

    def _write_rows(
        self, results: list[TaskResult], names: list[str], fingerprint: dict[str, str]
    ) -> None:
        for result in results:
            _require_row(result)
        files = start_run(self._out, "20260101000000", RunSettings(fingerprint))
        journal = Journal.open(files.result, files.details)
        journal.append([done_of(result) for result in results])
        journal.complete(names)
        if resume_run(files, set(names), fingerprint) != set(names):
            raise Finding("the names of the result CSV are not those of the dump")
        format_summary(summarise(files)).encode("utf-8", errors="surrogatepass")


def make_folder(folder: Path, tensors: Sequence[Path]) -> None:
    """Make the folder of a process: captured tensors of captures, and files that lead elsewhere."""
    data = folder / "in" / "dump_tensor_data"
    data.mkdir(parents=True)
    for source in tensors:
        for file in source.iterdir():
            (data / file.name).write_bytes(file.read_bytes())
    np.save(folder / "secret.npy", np.ones(2, np.float32))
    np.save(data / "ok.npy", np.ones(2, np.float32))
    (data / "out.npy").symlink_to(folder / "secret.npy")
    (data / "loop.npy").symlink_to(data / "loop.npy")
    (data / "up").symlink_to(folder, target_is_directory=True)
    (data / "folder.npy").mkdir()
    os.mkfifo(data / "pipe.npy")
    for name in ("pickle.npy", "pickle.pt"):
        (data / name).write_bytes(pickle.dumps(_Opens(folder / "ran"), protocol=2))
    np.save(
        data / "object.npy", np.array([_Opens(folder / "ran")], dtype=object), allow_pickle=True
    )
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000,)}\n"
    (data / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)


class _Opens:
    """An object whose unpickling opens a file to write: the watch hears it."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (open, (self.marker, "w"))


def _settings(framework: str, task: str, folder: Path, errors: Path | None = None) -> CheckSettings:
    return CheckSettings(
        framework,
        task,
        folder / "dump_tensor_data",
        tests_dump=task == "tensor",
        error_folder=None if errors is None else errors / "error_data",
        memory_limit_bytes=RECORD_BYTES,
    )


def _still_checker(framework: str, task: str, folder: Path) -> Checker:
    """Return a checker that goes as far as the lookup of the API and the making of its inputs."""

    def refuse(*_: Any) -> None:
        raise NotCheckable("not run here")

    checker = Checker(_settings(framework, task, folder), "cpu")
    checker.device().forward = refuse  # type: ignore[method-assign]
    checker.bench.forward = refuse  # type: ignore[method-assign, assignment]
    return checker


def _check(checker: Checker, payload: TaskPayload) -> TaskResult:
    result = checker.check(payload)
    if "ray_precheck failed" in result.message:
        raise Finding(f"fault: {result.message}")
    _require_row(result)
    if len(result.message) > 100 * LONGEST_SENTENCE:
        raise Finding(f"a message of {len(result.message)} characters: {result.message[:80]}")
    return result


def _lost(task: Task) -> TaskResult:
    return failed(task.index, task.name, Outcome.CRASHED, f"{task.name} killed its worker", True)


def _require_row(result: TaskResult) -> None:
    """See that a result's rows are one line each, run nothing, and give its name back."""
    rows = [result_row(result), *detail_rows(result).splitlines(keepends=True)]
    for row in rows:
        if row.count(b"\n") != 1 or not row.endswith(b"\r\n"):
            raise Finding(f"a row of several lines for {_shortly(result.name)}")
        if _FORMULA.match(row) and not row.startswith((b"'", b"\"'")):
            raise Finding(f"a cell that a spreadsheet runs: {row[:40]!r}")
    if decode_name(decode_row(rows[0])[0]) != result.name:
        raise Finding(f"the name {_shortly(result.name)} does not come back from its cell")


def require_sentence(text: str, limit: int) -> None:
    """Raise `Finding` where a message is no printable sentence of at most so many characters."""
    line = " ".join(text.split())
    if not line or len(line) > limit or not line.isprintable():
        raise Finding(f"an error that is no sentence ({len(line)} characters): {line[:80]!r}")


def where(error: BaseException) -> str:
    """Return an exception with the last place in the package that it went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "ray_precheck/" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "?"
    return f"{type(error).__name__} in {place}: {_shortly(error)}"


def _shortly(value: object) -> str:
    with contextlib.suppress(Exception):
        text = str(value)
        return ascii(text if len(text) <= 100 else f"{text[:97]}...")
    return type(value).__name__


def limit_memory(extra_bytes: int | None) -> None:
    """Let this process take so many bytes more than it has; None for no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if extra_bytes is None:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        return
    now = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (now + extra_bytes, hard))


def empty(folder: Path) -> None:
    """Remove everything in a folder."""
    for file in folder.iterdir():
        # What a link leads to is not in the folder, and stays.
        if file.is_dir() and not file.is_symlink():
            empty(file)
            file.rmdir()
        else:
            file.unlink()
