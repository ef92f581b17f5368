"""When a kill is due, and whom it hits.

Comes in: a seed, and what an undisturbed run takes. Goes out: plans, and moments that have come.
Called by `chaos_kills`. Moments are spread over the whole life of a command: its start-up, its first
batch, the middle, the files being put in order, and the shutdown.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from scripts.chaos.command import (
    EVERYONE,
    GROUP,
    RAYLET,
    STAGES,
    STOP,
    TREE,
    WORKER,
    WRITER,
    Command,
    OutFolder,
)

KINDS = (TREE, WORKER, WRITER, RAYLET, GROUP, EVERYONE, STOP)
PHASES = ("start-up", "first batch", "middle", "completing", "shutdown")
START, FIRST, MIDDLE, COMPLETING, SHUTDOWN = PHASES
_LONG_PHASES = PHASES[:3]
_ATTEMPTS_ANYWHERE = 3
_FIRST_BATCH_S = 0.3
_FIND_EVERY_S = 0.3


@dataclass(frozen=True)
class Kill:
    """A kill to come: whom, in which phase of the command's life, and where in it, from 0 to 1."""

    kind: str
    phase: str
    where: float


@dataclass(frozen=True)
class Plan:
    """A run to come."""

    number: int
    dump: Path
    kills: tuple[Kill, ...]
    on_ray: bool


@dataclass(frozen=True)
class Clock:
    """How long an undisturbed run takes to its first row, to end once complete, and as a whole."""

    start_s: float
    shutdown_s: float
    whole_s: float


@dataclass(frozen=True)
class Undisturbed:
    """What a run is compared with: both files, the exit code, and how long each phase takes."""

    files: dict[str, bytes]
    code: int
    calls: int
    alone: Clock
    on_ray: Clock


def plan_run(seed: int, number: int, attempt: int, dump: Path, kinds: Sequence[str]) -> Plan:
    """Return the plan of a run: kinds of kills in turn, everything else by chance.

    Every second run starts Ray, and those do that kill a process of Ray's.
    """
    chance = random.Random(f"{seed}/{number}/{attempt}")
    # Where a run was over before it could be killed, at moments that last longer.
    phases = PHASES if attempt < _ATTEMPTS_ANYWHERE else _LONG_PHASES
    kills = tuple(
        Kill(kinds[(number + turn) % len(kinds)], chance.choice(phases), chance.random())
        for turn in range(chance.randint(1, 3))
    )
    on_ray = number % 2 == 1 or any(kill.kind in (WRITER, RAYLET) for kill in kills)
    return Plan(number, dump, kills, on_ray)


class Moment:
    """When a kill is due, and whom it hits."""

    def __init__(
        self,
        kill: Kill,
        command: Command,
        out: OutFolder,
        calls: int,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._kill = kill
        self._command = command
        self._out = out
        self._calls = calls
        self._clock = clock
        self._chance = chance
        self._since: float | None = None
        self._first_rows = -1
        self._found_at = 0.0
        self.victims: list[psutil.Process] = []
        self.rows = self.stage = 0
        self.poll_s = 0.001 if kill.phase in (COMPLETING, SHUTDOWN) else 0.005

    def has_come(self) -> bool:
        """Look where the command is; True when it is due and there is someone to kill."""
        self.rows, self.stage = self._out.look()
        if self._first_rows < 0:
            self._first_rows = self.rows
        due = self._is_due()
        # To find them takes longer than the files take to be put in order: be ready before.
        if self._kill.phase == COMPLETING and (due or self.stage):
            return due and (bool(self.victims) or self._find(0.0))
        if due and self._kill.phase != COMPLETING:
            return self._find(_FIND_EVERY_S / 10)
        if self._kill.phase == COMPLETING:
            self._find(_FIND_EVERY_S)
        return False

    def _find(self, every_s: float) -> bool:
        """Look for the victims, unless that was done just now."""
        if time.monotonic() - self._found_at < every_s:
            return False
        self.victims = self._command.victims(self._kill.kind, self._chance)
        self._found_at = time.monotonic()
        return bool(self.victims)

    def _is_due(self) -> bool:
        where, clock = self._kill.where, self._clock
        match self._kill.phase:
            case "start-up":
                return self._command.elapsed_s >= where * clock.start_s
            case "first batch":
                return self._after(self.rows > self._first_rows, where * _FIRST_BATCH_S)
            case "middle":
                return self.rows >= self._first_rows + max(
                    1.0, where * (self._calls - self._first_rows)
                )
            case "completing":
                return self.stage >= 1 + int(where * STAGES)
            case _:
                return self._after(self.stage >= STAGES, where * clock.shutdown_s)

    def _after(self, reached: bool, delay_s: float) -> bool:
        if reached and self._since is None:
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since >= delay_s
