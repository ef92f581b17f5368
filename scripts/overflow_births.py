"""Plant births of NaN and infinity in small models, capture a step of each, and look for them.

    python -m scripts.overflow_births            # 60 faults and the controls: what was found, as a table
    python -m scripts.overflow_births --all      # each in every model and dtype

Comes in: `scripts.overflow_faults`. Goes out: a table by family; exit code 1 where a birth was not found at
its operator, or a control or a birth that a mask takes away gave an alarm. Every capture is one that
`ray_precheck.capture.Capture` makes of a forward and a backward pass; a birth is found where the first
alarm is at the operator of the planted line.
"""

import argparse
import inspect
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ray_precheck.capture import Capture
from ray_precheck.trace.overflow.births import follow
from ray_precheck.trace.overflow.finding import Birth, OverflowFinding
from ray_precheck.trace.side import open_side
from ray_precheck.trace.sources import source_lines
from scripts.measuring import markdown_table
from scripts.overflow_faults import (
    CONTROLS,
    DTYPES,
    FAULTS,
    MARK,
    MODELS,
    TAKEN_AWAY,
    Planted,
    Step,
)


class Trial(NamedTuple):
    """What a capture of a planted model or of a control gave: `problem` is "" where it is right."""

    family: str
    name: str
    model: str
    dtype: str
    problem: str


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="each in every model and dtype")
    each_pair = parser.parse_args(argv).all
    trials = list(planted_trials(each_pair=each_pair)) + list(control_trials(each_pair=each_pair))
    trials += planted_trials(TAKEN_AWAY, each_pair=each_pair)
    for trial in trials:
        if trial.problem:
            print(f"{trial.name} in {trial.model}, {trial.dtype}: {trial.problem}")
    print(table(trials))
    return int(any(trial.problem for trial in trials))


def table(trials: Sequence[Trial]) -> str:
    """Return what was found of each family, as Markdown."""
    made = Counter(trial.family for trial in trials)
    right = Counter(trial.family for trial in trials if not trial.problem)
    rows = [[family, count, right[family]] for family, count in made.items()]
    return markdown_table(["planted", "captures", "right"], rows)


def planted_trials(
    faults: Sequence[Planted] = FAULTS, *, each_pair: bool = False
) -> Iterator[Trial]:
    """Yield a trial of each fault, in models and dtypes by turns, or in all of them."""
    for number, planted in enumerate(faults):
        for model, dtype in _pairs(number, each_pair):
            yield _trial(planted.family, planted.step, model, dtype, planted)


def control_trials(*, each_pair: bool = False) -> Iterator[Trial]:
    """Yield a trial of each control."""
    for number, step in enumerate(CONTROLS):
        for model, dtype in _pairs(number, each_pair):
            yield _trial("controls", step, model, dtype, None)


def _pairs(number: int, each_pair: bool) -> Iterator[tuple[type[nn.Module], torch.dtype]]:
    pairs = list(itertools.product(MODELS, DTYPES))
    yield from pairs if each_pair else [pairs[number % len(pairs)]]


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


if __name__ == "__main__":
    raise SystemExit(main())
