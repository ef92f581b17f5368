"""Captures of the programs, and what the precheck says of their calls.

Comes in: a program, a dtype, a task. Goes out: a `Dump` of it, kept for the next kind, and results of its
calls with a wrong kernel planted or without one. The checker is the one that runs use.
"""

import atexit
import contextlib
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from ray_precheck.accuracy.random.pooled import Drawn, judge_pooled, read_drawn
from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.capture import Capture
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import open_dump
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import Task, TaskPayload
from scripts.attack.kinds import WrongKind
from scripts.attack.programs import make_step
from scripts.attack.wrong import WrongKernel, with_wrong_kernel

TASKS = ("statistics", "tensor")


@dataclass(frozen=True)
class Dump:
    """A captured program."""

    settings: Mapping[str, Any]
    payloads: tuple[TaskPayload, ...]

    def checker(self, standard: str) -> Checker:
        """Return a checker that runs the calls on the CPU, with captured inputs or generated ones."""
        chosen = STANDARDS[standard]()
        return Checker(CheckSettings(**self.settings, standard=chosen), "cpu")

    def of(self, api: str) -> list[TaskPayload]:
        """Return the calls of an API."""
        return [each for each in self.payloads if each.name.rpartition(".")[0] == api]


@lru_cache
def _captures() -> Path:
    """Return the folder of all captures, which is removed when the process ends."""
    folder = Path(mkdtemp(prefix="attack_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@lru_cache
def dump_of_program(program: str, dtype: str, task: str) -> Dump:
    """Capture a program."""
    step = make_step(program, getattr(torch, dtype))
    folder = _captures() / f"{program}_{dtype}_{task}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Capture(folder, task=task, stacks=False, step_by="manual", framework="pytorch"):
            step()
    (path,) = folder.glob("step0/*/dump.json")
    with open_dump(path) as dump:
        settings = {"framework": dump.framework, "task": dump.task, "data_folder": dump.data_folder}
        payloads = [dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)]
    return Dump(settings, tuple(payloads))


@dataclass(frozen=True)
class Tried:
    """One kind in one dtype and task: `calls` that count, hits of the fault, whether a call that was hit is
    an error, and the messages of calls that are an error and were not hit."""

    kind: WrongKind
    dtype: str
    task: str
    standard: str
    calls: int
    hits: int
    found: bool
    accused: tuple[str, ...]
    said: str = ""

    @property
    def title(self) -> str:
        """The case in words."""
        return f"{self.kind.group}: {self.kind.name}, {self.dtype}, {self.task}"


def attack(kind: WrongKind, dtype: str, task: str, standard: str, *, is_on: bool = True) -> Tried:
    """Check the calls of a kind with its kernel planted on the tested side."""
    dump = dump_of_program(kind.program, dtype, task)
    checker = dump.checker(standard)
    hits, found, accused, said = 0, False, [], ""
    drawn: list[tuple[str, TaskResult]] = []
    payloads = dump.of(kind.api)
    for payload in payloads:
        mode = WrongKernel(kind, is_on=is_on)
        with _quiet(), with_wrong_kernel(mode):
            result = checker.check(payload)
        hits += mode.hits.total()
        said = said or result.message
        wrong = _in_error(result)
        # What a wrong forward kernel has saved can be seen in the gradients alone.
        met = set(mode.hits) | ({"backward"} if mode.hits["forward"] else set())
        if is_on and wrong & met:
            found = True
        elif wrong:
            accused.append(f"{payload.name}: {result.message}")
        drawn.append((payload.name, result))
    together = _in_error_together(drawn)
    found |= is_on and hits > 0 and bool(together)
    accused += () if is_on and hits else together
    return Tried(kind, dtype, task, standard, len(payloads), hits, found, tuple(accused), said)


def is_met(kind: WrongKind, dtype: str) -> bool:
    """Return whether the program itself meets the condition of a kind, visibly."""
    step = make_step(kind.program, getattr(torch, dtype))
    mode = WrongKernel(kind)
    with _quiet(), mode:
        step()
    return mode.hits.total() > 0


def honest(program: str, dtype: str, task: str, standard: str) -> tuple[int, list[str]]:
    """Check all calls of a program without a fault; return their number, and what is in error."""
    dump = dump_of_program(program, dtype, task)
    checker = dump.checker(standard)
    accused = []
    drawn: list[tuple[str, TaskResult]] = []
    for payload in dump.payloads:
        with _quiet():
            result = checker.check(payload)
        drawn.append((payload.name, result))
        if _in_error(result):
            accused.append(f"{program}, {dtype}, {task}: {payload.name}: {result.message}")
    accused += [f"{program}, {dtype}, {task}: {line}" for line in _in_error_together(drawn)]
    return len(dump.payloads), accused


def _in_error_together(results: Iterable[tuple[str, TaskResult]]) -> list[str]:
    """Return what is said of each random operator that all its calls together show to be wrong."""
    operators: dict[str, list[tuple[str, Drawn]]] = {}
    for name, result in results:
        found = map(read_drawn, (check.drawn for check in result.checks))
        operators.setdefault(name.rpartition(".")[0], []).extend(
            (name, drawn) for drawn in found if drawn
        )
    judged = ((name, judge_pooled(calls)) for name, calls in operators.items() if calls)
    return [f"{name}: {said}" for name, (verdict, said) in judged if verdict is Verdict.ERROR]


def _in_error(result: TaskResult) -> set[str]:
    verdicts = {"forward": result.forward, "backward": result.backward}
    return {name for name, verdict in verdicts.items() if verdict is Verdict.ERROR}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
