"""One command line of ray_precheck under attack: its processes, its files, its end.

Comes in: arguments and a `Place`. Goes out: who lives, how far the files are, what was printed.
Called by `chaos_kills` and `chaos_faults`, in a process that has called `adopt_orphans`: there every
process of a run stays a descendant, whoever started it and whoever of its parents is dead, so that
none is missed and no process id is taken for another's.
"""

import contextlib
import ctypes
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ray_precheck.processes import adopt_orphans, module_command

TREE, WORKER, WRITER, RAYLET, DRIVER = "tree", "worker", "writer", "raylet", "driver"
# SIGTERM to the process group, SIGHUP to every process; a worker or the writer that is stopped.
GROUP, EVERYONE, STOP = "group", "everyone", "stop"
SETTLE_S = 10.0
COMMAND_LIMIT_S = 240.0
STAGES = 6
# What a command may print to standard error besides one sentence of its own.
_KNOWN = re.compile(
    r"\d+/\d+ done, |device \S+ is given up: |\S+ moves to node |ray-precheck[: ]"
    r"|All acknowledged rows are on disk|stopping: calls that run have "
)
# What Ray's library prints itself before it ends a process whose raylet is dead.
_RAYS_LAST_WORD = re.compile(r"\[[-\d]+ [:,\d]+ E \d+ \d+\] core_worker")


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent dies."""
    if not adopt_orphans():
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) was refused")


@dataclass(frozen=True)
class Place:
    """Where commands run: the package that is tried, their results, their temporary files."""

    package: Path
    out: Path
    temporary: Path
    faulty: Path | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment of the command."""
        paths = [str(path) for path in (self.faulty, self.package) if path is not None]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TMPDIR": str(self.temporary),
            "TQDM_DISABLE": "1",
        }


def make_place(package: Path, folder: Path, faulty: Path | None = None) -> Place:
    """Return a place with an empty folder for results, `folder/out`.

    Its folder for temporary files has a short name: Ray's sockets allow 107 characters.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "out").mkdir(parents=True)
    return Place(package, folder / "out", Path(tempfile.mkdtemp(prefix="rpt-")), faulty)


def living() -> list[psutil.Process]:
    """Return the processes of the run, the eldest first."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [one for one in psutil.Process().children(recursive=True) if is_alive(one)]
    return []


def is_alive(process: psutil.Process) -> bool:
    """Tell whether a process runs; a zombie, or another one with its number, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def title(process: psutil.Process) -> str:
    """Return the command line of a process; Ray's actors write their name there."""
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return ""


def settle() -> list[str]:
    """Wait until no process of the run is left; returns those that are after `SETTLE_S`, and ends them."""
    until = time.monotonic() + SETTLE_S
    while (left := living()) and time.monotonic() < until:
        reap()
        time.sleep(0.05)
    names = [f"{one.pid} {title(one)[:100]}" for one in left]
    end_all()
    return names


def end_all(first: Sequence[psutil.Process] = ()) -> None:
    """Kill every process of the run with SIGKILL, `first` before the others are looked for."""
    victims = list(first)
    while True:
        for one in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        reap()
        victims = living()
        if not victims:
            return
        time.sleep(0.002)


def reap() -> None:
    """Take note of dead orphans, as init does; the command itself is left to its `Command`."""
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if dead.si_pid == Command.running_pid:
                return
            os.waitpid(dead.si_pid, 0)


class Command:
    """A command that runs, with its output in files beside the folder of its results."""

    running_pid = 0

    def __init__(self, place: Place, number: int, arguments: Sequence[str]) -> None:
        self.arguments = list(arguments)
        self._place = place
        self._output = place.out.parent / f"{number}.stdout"
        self._errors = place.out.parent / f"{number}.stderr"
        self.begin = time.monotonic()
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(
                [*module_command("ray_precheck"), *self.arguments],
                # Ray's workers look for modules in the folder that the driver was started in.
                cwd=place.out.parent,
                env=place.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        Command.running_pid = self._popen.pid

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        code = self._popen.poll()
        if code is not None and Command.running_pid == self._popen.pid:
            Command.running_pid = 0
        return code

    @property
    def elapsed_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.begin

    def wait(
        self, limit_s: float, done: Callable[[], bool] = lambda: False, poll_s: float = 0.02
    ) -> bool:
        """Wait until it ends or `done` says so; returns False where neither came in time."""
        until = time.monotonic() + limit_s
        while self.code is None and not done():
            if time.monotonic() > until:
                return False
            reap()
            time.sleep(poll_s)
        return True

    def output(self) -> str:
        """Return what it has printed to standard output."""
        return self._output.read_text(errors="replace")

    def errors(self) -> str:
        """Return what it has printed to standard error."""
        return self._errors.read_text(errors="replace")

    def noise(self, *, raylet_died: bool) -> list[str]:
        """Return the lines on standard error that are neither progress nor its own sentence."""
        lines = [line.strip() for line in self.errors().splitlines()]
        strange = [line for line in lines if line and not _KNOWN.match(line)]
        if raylet_died:
            return [line for line in strange if not _RAYS_LAST_WORD.match(line)]
        return strange

    def victims(self, kind: str, chance: random.Random) -> list[psutil.Process]:
        """Return the processes to kill for a kind of kill; none where it is not there (yet)."""
        everyone = living()
        if kind == TREE:
            return everyone
        if kind in (GROUP, EVERYONE):
            # Python itself needs a moment before the command can hear anything: then a child is there.
            mine = [one for one in everyone if kind == EVERYONE or _group(one) == self._popen.pid]
            return mine if len(mine) > 1 else []
        if kind == STOP:
            kind = chance.choice((WORKER, WRITER))
        if kind == DRIVER:
            # The process that was started, or the one below it that runs the command.
            drivers = [one for one in everyone if self._is_driver(one)]
            return [chance.choice(drivers)] if drivers else []
        if kind == RAYLET:
            return [one for one in everyone if _is_raylet(one)]
        if kind == WRITER:
            return [one for one in everyone if title(one).startswith("ray::Writer")][:1]
        actors = [one for one in everyone if title(one).startswith("ray::Worker")]
        checks = [one for one in everyone if "ray_precheck.runtime.workers." in title(one)]
        group = chance.choice([each for each in (actors, checks) if each] or [[]])
        return [chance.choice(group)] if group else []

    def _is_driver(self, process: psutil.Process) -> bool:
        mine = " -m ray_precheck " in title(process)
        return mine and self._popen.pid in (process.pid, _parent(process).pid)


def _group(process: psutil.Process) -> int:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return -1


def _is_raylet(process: psutil.Process) -> bool:
    """Tell the raylet from its children, which are copies of it until they become workers."""
    return _has_raylet_title(process) and not _has_raylet_title(_parent(process))


def _has_raylet_title(process: psutil.Process) -> bool:
    return title(process).split(" ", maxsplit=1)[0].endswith("/raylet")


def _parent(process: psutil.Process) -> psutil.Process:
    """Return the parent, or the process itself where it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.parent() or process
    return process


class OutFolder:
    """How far the files of a run are: rows that are written, and how far they are put in order."""

    def __init__(self, folder: Path, total: int) -> None:
        self._folder = folder
        self._total = total
        self._inodes: dict[str, int] = {}

    def result(self) -> Path | None:
        """Return the result CSV, None where there is none yet."""
        return next(iter(sorted(self._folder.glob("accuracy_checking_result_*.csv"))), None)

    def names(self) -> set[str]:
        """Return the names of all files but the three that belong there."""
        return {path.name for path in self._folder.iterdir()}

    def look(self) -> tuple[int, int]:
        """Return the number of result rows, and the stage.

        0: rows are missing. 1: all are there. 2: the details are written anew, 3: they are in order.
        4, 5: the same of the results. 6: the settings say that the run is complete.
        """
        found = {entry.name: _inode(entry) for entry in os.scandir(self._folder)}
        rows = self._rows(found)
        if rows < self._total:
            self._inodes = found
            return rows, 0
        stages = [1]
        for name, inode in found.items():
            step = _step(name)
            if name.startswith("."):
                stages.append(step - 1)
            elif self._inodes.get(name, inode) != inode:
                stages.append(step)
        return rows, max(stages)

    def _rows(self, found: dict[str, int]) -> int:
        for name in found:
            if name.startswith("accuracy_checking_result_"):
                with contextlib.suppress(OSError):
                    return max(0, (self._folder / name).read_bytes().count(b"\n") - 1)
        return 0


def _inode(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.inode()
    except OSError:
        return 0


def _step(name: str) -> int:
    if "details" in name:
        return 3
    return 5 if "result" in name else STAGES
