"""Runs that are killed at random moments and go on, until they are complete.

Comes in: a seed, dumps and how often. Goes out: a `KilledRun` for each, with everything that was not
as it must be. Called by `chaos`, every run in a process that has no other children.
"""

import contextlib
import json
import random
import re
import shlex
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

import psutil

from scripts.chaos.command import (
    COMMAND_LIMIT_S,
    DRIVER,
    EVERYONE,
    GROUP,
    RAYLET,
    STAGES,
    STOP,
    TREE,
    Command,
    OutFolder,
    Place,
    end_all,
    make_place,
    settle,
    title,
)
from scripts.chaos.moments import Clock, Kill, Moment, Plan, Undisturbed, plan_run

STOPPED = 3
# How long a command may take to end once the raylet below it is dead.
RAYLET_LIMIT_S = 60.0
# How long it may take to end after a signal that asks for it.
SIGNAL_LIMIT_S = 15.0
_SIGNALS = {GROUP: signal.SIGTERM, EVERYONE: signal.SIGHUP, STOP: signal.SIGSTOP}
_STOPPING = (TREE, DRIVER, RAYLET, GROUP, EVERYONE)
ATTEMPTS = 8
_MOST_COMMANDS = 8


@dataclass(frozen=True)
class KillSetup:
    """What is the same for all runs."""

    package: Path
    folder: Path
    devices: tuple[int, ...]
    seed: int
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Landed:
    """A kill that was done: of what, when, with how many rows on the disk, and what came of it.

    `stage` is how far the files were (`OutFolder.look`); `end_s` the seconds from the kill to the
    end of its command, `code` the exit code.
    """

    kind: str
    phase: str
    victim: str
    at_s: float
    rows: int
    stage: int
    command: int
    end_s: float = 0.0
    code: int = 0


@dataclass
class KilledRun:
    """A run that is over. `problems` is empty where all is as it must be.

    `stops` are the sentences of commands that stopped by themselves.
    """

    number: int
    dump: str
    attempt: int
    kills: list[Landed] = field(default_factory=list)
    commands: int = 0
    seconds: float = 0.0
    stops: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    folder: str = ""


def run_undisturbed(setup: KillSetup, dump: Path, folder: Path) -> Undisturbed:
    """Run a dump without and with Ray and leave it alone, or take what an earlier call has left in `folder`.

    Raises:
        SystemExit: a run fails, or the two do not write the same bytes.
    """
    saved = folder / "undisturbed.json"
    if not saved.exists():
        code, alone = _timed_run(setup, dump, folder, on_ray=False)
        other = _timed_run(setup, dump, folder / "ray", on_ray=True)
        if other[0] != code or final_files(folder / "ray" / "out") != final_files(folder / "out"):
            raise SystemExit(f"{dump}: with Ray {folder}/ray/out has other bytes than {folder}/out")
        saved.write_text(json.dumps([code, count_calls(dump), asdict(alone), asdict(other[1])]))
    code, calls, alone, on_ray = json.loads(saved.read_text())
    return Undisturbed(final_files(folder / "out"), code, calls, Clock(**alone), Clock(**on_ray))


def _timed_run(setup: KillSetup, dump: Path, folder: Path, *, on_ray: bool) -> tuple[int, Clock]:
    place = make_place(setup.package, folder)
    out = OutFolder(place.out, count_calls(dump))
    command = Command(place, 0, arguments(dump, place, setup.devices, on_ray=on_ray))
    command.wait(COMMAND_LIMIT_S, lambda: out.look()[0] > 0)
    start_s = command.elapsed_s
    command.wait(COMMAND_LIMIT_S, lambda: out.look()[1] >= STAGES)
    complete_s = command.elapsed_s
    command.wait(COMMAND_LIMIT_S)
    whole_s = command.elapsed_s
    problems = problems_of_end(command, command.code or 0) + left_behind(place)
    if problems or command.code not in (0, 1):
        raise SystemExit(f"the undisturbed run of {dump} failed: {problems} {command.errors()}")
    return command.code, Clock(start_s, whole_s - complete_s, whole_s)


def arguments(
    dump: Path, place: Place, devices: Sequence[int], *, on_ray: bool = False
) -> list[str]:
    """Return the arguments of a command that starts a run, small as it may be, on Ray if so told."""
    ids = [str(device) for device in devices]
    address = ["--address", "local"] if on_ray else []
    return ["run_ut", "-api_info", str(dump), "-o", str(place.out), "-d", *ids, *address]


def count_calls(dump: Path) -> int:
    """Return the number of API calls of a dump."""
    return sum(key.endswith(".forward") for key in json.loads(dump.read_text())["data"])


def final_files(out: Path) -> dict[str, bytes]:
    """Return the bytes of both CSV files, and of the arrays of outputs in error."""
    patterns = {kind: f"accuracy_checking_{kind}_*.csv" for kind in ("result", "details")}
    patterns["heat"] = "heat_*.npz"
    return {
        kind: b"".join(path.read_bytes() for path in sorted(out.glob(pattern)))
        for kind, pattern in patterns.items()
    }


def differences(out: Path, wanted: dict[str, bytes]) -> list[str]:
    """Return in which lines the final files differ from those of the undisturbed run."""
    found = []
    for kind, mine in final_files(out).items():
        if mine != wanted[kind]:
            ours, theirs = mine.splitlines(), wanted[kind].splitlines()
            pairs = enumerate(zip_longest(ours, theirs), 1)
            line, (one, other) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
            found.append(
                f"{kind}: {len(ours)} lines, {len(theirs)} undisturbed; line {line} is {one!r}"
                f" and should be {other!r}"
            )
    names = sorted(path.name for path in out.iterdir())
    others = [name for name in names if not name.startswith(("accuracy_checking_", "heat_"))]
    if others or len(names) != 4 + bool(wanted["heat"]):
        found.append(f"the out folder holds {names}")
    for timeline in out.glob("*.timeline.json"):
        try:
            json.loads(timeline.read_text())
        except ValueError as error:
            found.append(f"{timeline.name} of a finished run is no JSON: {error}")
    return found


def left_behind(place: Place) -> list[str]:
    """Wait for the end of all processes and look for temporary files; returns what stays behind."""
    problems = [f"still alive after 10 s: {name}" for name in settle()]
    until = time.monotonic() + 5.0
    while (files := sorted(place.temporary.iterdir())) and time.monotonic() < until:
        time.sleep(0.05)
    problems += [f"left behind: {path}" for path in files]
    if not problems:
        shutil.rmtree(place.temporary, ignore_errors=True)
    return problems


def run_killed(setup: KillSetup, number: int, dump: Path, undisturbed: Undisturbed) -> KilledRun:
    """Do one run; where it was over before the first kill, do it again with other moments."""
    folder = setup.folder / f"run_{number}"
    for attempt in range(ATTEMPTS):
        plan = plan_run(setup.seed, number, attempt, dump, setup.kinds)
        place = make_place(setup.package, folder)
        run = _Run(plan, attempt, setup, undisturbed, place)
        try:
            over = run.go()
        finally:
            end_all()
        if over.kills or over.problems:
            break
        shutil.rmtree(place.temporary, ignore_errors=True)
    else:
        over.problems.append(f"was over before it could be killed, {ATTEMPTS} times")
    if over.problems:
        (folder / "run.json").write_text(json.dumps(asdict(over), indent=1))
    else:
        shutil.rmtree(folder)
    return over


class _Run:
    """One run: commands, one after the other, until one of them comes to the end."""

    def __init__(
        self, plan: Plan, attempt: int, setup: KillSetup, undisturbed: Undisturbed, place: Place
    ) -> None:
        self._plan = plan
        self._undisturbed = undisturbed
        self._place = place
        self._chance = random.Random(f"{setup.seed}/{plan.number}")
        self._arguments = arguments(plan.dump, place, setup.devices, on_ray=plan.on_ray)
        self._out = OutFolder(place.out, undisturbed.calls)
        self._command: Command | None = None
        self._last: Command | None = None
        self._complete = False
        self._over = KilledRun(plan.number, str(plan.dump), attempt, folder=str(place.out.parent))

    def go(self) -> KilledRun:
        """Kill and go on, as planned, then go on to the end, and compare."""
        begin = time.monotonic()
        for kill in self._plan.kills:
            if not self._complete:
                self._attack(kill)
        while not self._complete and self._over.commands < _MOST_COMMANDS:
            self._finish(self._running())
        if not self._complete:
            self._over.problems.append(f"not complete after {_MOST_COMMANDS} commands")
        self._over.problems += left_behind(self._place)
        self._over.problems += differences(self._place.out, self._undisturbed.files)
        self._over.seconds = time.monotonic() - begin
        return self._over

    def _running(self) -> Command:
        """Return the command that runs; start one where none does."""
        if self._command is None:
            self._command = Command(self._place, self._over.commands, self._next_arguments())
            self._over.commands += 1
        return self._command

    def _next_arguments(self) -> list[str]:
        """Return how to go on: as the last command says, else with the CSV that is there."""
        if self._last is not None and self._last.code == STOPPED:
            text = self._last.output() + self._last.errors()
            printed = re.search(r"^ +ray-precheck (run_ut .*)$", text, re.MULTILINE)
            if printed is not None:
                return shlex.split(printed.group(1))
        result = self._out.result()
        return self._arguments if result is None else [*self._arguments, "-csv_path", str(result)]

    def _attack(self, kill: Kill) -> None:
        """Kill at the moment that is planned; a worker's or writer's command goes on then."""
        command = self._running()
        clock = self._undisturbed.on_ray if self._plan.on_ray else self._undisturbed.alone
        moment = Moment(kill, command, self._out, self._undisturbed.calls, clock, self._chance)
        command.wait(COMMAND_LIMIT_S, moment.has_come, moment.poll_s)
        victims = moment.victims
        if command.code is not None or not victims:
            self._finish(command)
            return
        names = "; ".join(title(one)[:60] for one in victims) if len(victims) < 3 else ""
        at_s = command.elapsed_s
        if kill.kind == TREE:
            end_all(victims)
        else:
            for one in victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(_SIGNALS.get(kill.kind, signal.SIGKILL))
        landed = Landed(
            kill.kind, kill.phase, names, at_s, moment.rows, moment.stage, self._over.commands - 1
        )
        self._over.kills.append(landed)
        if kill.kind in _STOPPING:
            self._finish(command)

    def _finish(self, command: Command) -> None:
        """Wait for the end of a command and judge it."""
        mine = [kill for kill in self._over.kills if kill.command == self._over.commands - 1]
        stopping = next((kill.kind for kill in mine if kill.kind in _STOPPING), "")
        limit_s = RAYLET_LIMIT_S if stopping else COMMAND_LIMIT_S
        limit_s = SIGNAL_LIMIT_S if stopping in (GROUP, EVERYONE) else limit_s
        if not command.wait(limit_s):
            self._over.problems.append(f"hangs: no end in {limit_s:g} s ({stopping or 'no stop'})")
            end_all()
        code = command.code if command.code is not None else -9
        ended_s = command.elapsed_s
        self._over.kills = [
            replace(kill, end_s=ended_s - kill.at_s, code=code) if kill in mine else kill
            for kill in self._over.kills
        ]
        # A driver that is killed says nothing, or the process above it says how to go on.
        if stopping != TREE and not (stopping == DRIVER and code == -9):
            self._judge(command, code, stopping)
        if stopping != DRIVER:  # That one is gone on with at once, whatever still runs.
            self._over.problems += [f"still alive after 10 s: {name}" for name in settle()]
        self._command, self._last = None, command

    def _judge(self, command: Command, code: int, stopping: str) -> None:
        raylet_died = stopping == RAYLET
        self._over.problems += problems_of_end(command, code, raylet_died=raylet_died)
        if code == self._undisturbed.code and " APIs: " in command.output():
            self._complete = True
        elif stopping and code == STOPPED:
            self._over.stops.append(_sentence(command))
        else:
            self._over.problems.append(f"exit code {code}: {_tail(command)}")


def problems_of_end(command: Command, code: int, *, raylet_died: bool = False) -> list[str]:
    """Return what a command that ended by itself has printed and must not."""
    text = command.output() + command.errors()
    if "Traceback" in text or "internal error" in text:
        return [f"exit code {code} with a traceback: {_tail(command)}"]
    if noise := command.noise(raylet_died=raylet_died):
        return [f"{len(noise)} strange lines on stderr, the first: {noise[0][:300]}"]
    if code == STOPPED and not _sentence(command):
        return [f"stopped without one sentence that says why: {_tail(command)}"]
    return []


def _sentence(command: Command) -> str:
    """Return why a command stopped, in its own words; "" where it does not say so, or twice."""
    text = command.output() + command.errors()
    found = re.findall(r"^(?:Stopped before|ray-precheck: (?!device)).*$", text, re.MULTILINE)
    return found[0] if len(found) == 1 else ""


def _tail(command: Command) -> str:
    lines = (command.output() + command.errors()).splitlines()
    return " / ".join(line.strip() for line in lines[-6:])[-600:]
