"""Plants births of NaN and infinity in small models, captures a step of each, and looks for them.

Comes in: `overflow_faults`. Goes out: trials, each with what is wrong with it. Every capture is one that
`ray_precheck.capture.Capture` makes of a forward and a backward pass; a birth is found where the first alarm
is at the operator of the planted line. Used by `test_overflow`.
"""

import inspect
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from overflow_faults import (
    CONTROLS,
    DTYPES,
    FAULTS,
    MARK,
    MODELS,
    TAKEN_AWAY,
    Planted,
    Step,
)
from torch import nn

from ray_precheck.capture import Capture
from ray_precheck.trace.overflow.births import follow
from ray_precheck.trace.overflow.rows import Birth, OverflowFinding
from ray_precheck.trace.side import open_side
from ray_precheck.trace.sources import source_lines

_PAIRS = list(itertools.product(MODELS, DTYPES))


class Trial(NamedTuple):
    """What a capture of a planted model or of a control gave: `problem` is "" where it is right."""

    family: str
    name: str
    model: str
    dtype: str
    problem: str


def planted_trials(faults: Sequence[Planted] = FAULTS) -> Iterator[Trial]:
    """Yield a trial of each fault, in models and dtypes by turns."""
    for planted, (model, dtype) in zip(faults, itertools.cycle(_PAIRS), strict=False):
        yield _trial(planted.family, planted.step, model, dtype, planted)


def control_trials() -> Iterator[Trial]:
    """Yield a trial of each control."""
    for step, (model, dtype) in zip(CONTROLS, itertools.cycle(_PAIRS), strict=False):
        yield _trial("controls", step, model, dtype, None)


def _trial(
    family: str, step: Step, model: type[nn.Module], dtype: torch.dtype, planted: Planted | None
) -> Trial:
    with tempfile.TemporaryDirectory() as folder:
        dump = capture_of(step, model, dtype, Path(folder))
        with open_side(dump) as side:
            followed = follow(side)
        alarms = followed.alarms
        if planted in TAKEN_AWAY and not alarms:
            # What a mask takes away is no alarm, and is found at its line.
            alarms = [each for each in followed.findings if each.birth is Birth.GONE]
        elif planted in TAKEN_AWAY:
            planted = None
        problem = _problem(planted, alarms, dump)
    return Trial(family, step.__name__, model.__name__, str(dtype)[6:], problem)


def capture_of(step: Step, model: type[nn.Module], dtype: torch.dtype, folder: Path) -> Path:
    """Capture a forward and a backward pass of a model with a step; return the path of the dump."""
    torch.manual_seed(0)
    made = model(step).to(dtype)
    with Capture(folder, level="mix", step_by="manual", framework="pytorch") as capture:
        made(torch.randn(8, 8, dtype=dtype)).float().mean().backward()
        capture.step()
    return next(folder.glob("step0/*/dump.json"))


def _problem(planted: Planted | None, alarms: Sequence[OverflowFinding], dump: Path) -> str:
    """Return what is wrong with the alarms of a capture, "" if nothing is."""
    if planted is None:
        return f"an alarm at {alarms[0].place}: {alarms[0].message}" if alarms else ""
    if not alarms:
        return "no alarm"
    first = alarms[0]
    operator, direction = first.key.split(".")[-3], first.key.rpartition(".")[2]
    if (operator, direction) != (planted.operator, planted.direction):
        return f"{first.birth.value} at {first.place}: {first.message}"
    source = source_lines(dump, [first.key]).get(first.key, "")
    expected = f"overflow_faults.py:{marked_line(planted.step)},"
    if expected not in source:
        return f"{first.place} is of another line: {source}, expected {expected}"
    is_cast = first.birth.value == "cast"
    if is_cast != (planted.family == "cast"):
        return f"{first.place} is called {first.birth.value}"
    return ""


def marked_line(step: Step) -> int:
    """Return the number of the line of a fault that bears it."""
    lines, first = inspect.getsourcelines(step)
    return first + next(number for number, line in enumerate(lines) if MARK in line)
