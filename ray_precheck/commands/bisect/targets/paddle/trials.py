"""The trials of a Paddle model, and the operator behind what was found.

Comes in: rungs of `settings`, and a process that answers `inside.py`'s requests. Goes out: the results of
trials; the rung of a model that is cut behind each of its operators; and which operator's values, as hooks
see them, are the first that differ from the golden ones. Called by the target, the runner in a check process.
"""

import difflib
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ray_precheck.commands.bisect.measure import FLOORS, OutputMeasure, distance_of, dtype_floor
from ray_precheck.commands.bisect.model_target import ModelOpener, ModelRunner, asked_of
from ray_precheck.commands.bisect.target import TrialResult
from ray_precheck.commands.bisect.targets.paddle.settings import ALL_OFF, BF16, PASSES
from ray_precheck.commands.bisect.trial_process import TrialProcess
from ray_precheck.searching.bisection import Rung, RungFinding, RungSwitch, Trial, TrialAnswer

_RUNGS = re.compile(r"operators(?: before (\d+))? with (.+)")
# Values of a fused operator that nothing in the golden run is near to have no counterpart there.
_NEAR = 0.5
Array = npt.NDArray[Any]


def operators_rung(over: Rung, culprits: Sequence[str], operators: Sequence[str]) -> Rung:
    """Return the rung of a model that is cut behind each of its operators, run with the settings that were
    found: the rung they are of, and its switches that are on."""
    fixed = tuple(RungSwitch(name, stays=True) for name in culprits)
    cuts = tuple(RungSwitch(name) for name in operators)
    title = "the model cut behind an operator"
    return Rung(f"operators with {over.name}", (*fixed, *cuts), is_ordered=True, title=title)


def front_rung(cut: RungFinding) -> Rung | None:
    """Return the rung of the operators in front of one that a rung of operators has found: those that it
    needs to be wrong, the nearest first; None where there is none in front of it."""
    last = last_operator(cut)
    fixed = tuple(each for each in cut.rung.switches if each.stays)
    front = tuple(RungSwitch(name) for name in reversed(cut.rung.members[: last - 1]))
    if not front:
        return None
    name = cut.rung.name.replace("operators", f"operators before {last}", 1)
    return Rung(name, (*fixed, *front), is_ordered=True, title="those that it needs to be wrong")


def last_operator(cut: RungFinding) -> int:
    """Return the number of the operator that a rung of operators has found, counted from 1."""
    return max(_number_of(name) for name in cut.sets[0])


def _number_of(operator: str) -> int:
    return int(operator.split()[0])


def is_of_operators(rung: Rung) -> bool:
    """Whether a rung is of operators, those of the whole model or those in front of one."""
    return _RUNGS.fullmatch(rung.name) is not None


def is_of_front(rung: Rung) -> bool:
    """Whether a rung is one of `front_rung`."""
    found = _RUNGS.fullmatch(rung.name)
    return found is not None and found[1] is not None


def part_of(rung: Rung, enabled: Collection[str]) -> tuple[int, int]:
    """Return which operators are run where these are on: the first, counted from 0, and the one behind the
    last."""
    found = _RUNGS.fullmatch(rung.name)
    assert found is not None
    if found[1] is None:
        return 0, len(enabled)
    last = int(found[1])
    return min((_number_of(name) for name in enabled), default=last) - 1, last


def settings_on(rung: Rung, passes: Sequence[str]) -> dict[str, Any]:
    """Return the part of a request that says with which settings a rung of operators is run."""
    on = {each.name for each in rung.switches if each.stays}
    found = _RUNGS.fullmatch(rung.name)
    assert found is not None
    name = found[2]
    off = [each for each in passes if each not in on] if name == PASSES else []
    return {"rung": name, "on": sorted(on), "off": off}


@dataclass(frozen=True, slots=True)
class PaddleOpener:
    """Opens a runner; `passes` are those that can be off."""

    model: ModelOpener
    passes: tuple[str, ...]

    def open(self, scratch: Path) -> "PaddleRunner":
        """Return a runner; its process is started with the first trial."""
        return PaddleRunner(self, self.model.open(scratch), scratch)


@dataclass(frozen=True, slots=True)
class PaddleRunner:
    """Runs trials of a whole model, or of its first operators."""

    opener: PaddleOpener
    runner: ModelRunner
    scratch: Path

    def run(self, trial: Trial, rung: Rung) -> TrialResult:
        """Run a trial and judge its outputs."""
        if is_of_operators(rung):
            return self._run_part(trial, rung)
        if rung.name == BF16:
            opener = self.opener.model
            runner = replace(self.runner, opener=replace(opener, measure=_coarse(opener.measure)))
            return runner.run(trial, rung)
        return self.runner.run(trial, rung)

    def close(self) -> None:
        """End the process."""
        self.runner.close()

    def _run_part(self, trial: Trial, rung: Rung) -> TrialResult:
        """Run some operators with everything off, and with the settings that were found."""
        first, last = part_of(rung, trial.enabled)
        if first == last:
            return TrialResult(TrialAnswer.PASS, message="no operator, no difference")
        folder = self.scratch / "part"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        timeout_s = self.opener.model.timeout_s / 4
        process = self.runner.process
        wanted = {"kind": "crop", "first": first, "last": last, "folder": str(folder)}
        cut = process.ask(wanted, timeout_s)
        outputs = [folder / "golden.npz", folder / "tested.npz"]
        settings = {"rung": ALL_OFF, "on": [], "off": []}, settings_on(rung, self.opener.passes)
        for out, chosen in zip(outputs, settings, strict=True):
            if cut.answer is None:
                return TrialResult(TrialAnswer.UNRESOLVED, cut.end, message=cut.reason)
            request = {"kind": "run", "out": str(out), **chosen, **cut.answer}
            reply = process.ask(request, timeout_s)
            if reply.answer is None:
                return TrialResult(TrialAnswer.UNRESOLVED, reply.end, message=reply.reason)
        measure = replace(self.opener.model.measure, floors={}, check=())
        if BF16 in rung.name:
            measure = _coarse(measure, outputs[0])
        with np.load(outputs[0]) as golden, np.load(outputs[1]) as tested:
            return measure.compare(dict(tested), dict(golden))


def _coarse(measure: OutputMeasure, golden: Path | None = None) -> OutputMeasure:
    """Return a measure whose floors are those of bfloat16: outputs say float32 after a run in bfloat16."""
    with np.load(golden or measure.golden) as arrays:
        floors = {name: max(measure.floors.get(name, 0.0), FLOORS["bfloat16"]) for name in arrays}
    return replace(measure, floors=floors)


# What hooks see.


@dataclass(frozen=True, slots=True)
class SeenValue:
    """A value that an operator made: the operator as Paddle names it, the value's name, and its numbers;
    `other_order` are the same where their order is not known."""

    operator: str
    name: str
    array: Array
    other_order: Array | None = None

    @property
    def kind(self) -> tuple[str, tuple[int, ...]]:
        """The operator's type without its number and its mark of working in place, and the shape."""
        word = self.operator.split(":")[0].rsplit(".", 1)[-1].rstrip("_")
        return word, self.array.shape

    @property
    def said(self) -> str:
        """The operator with the value's name, where that is more than an address."""
        return self.operator if self.name.startswith("0x") else f"{self.operator} ({self.name})"


@dataclass(frozen=True, slots=True)
class HookedValues:
    """All values of a run in their order, and its outputs; `problems`: what hooks could not read."""

    values: tuple[SeenValue, ...]
    outputs: Path
    rows: tuple[Mapping[str, str], ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HookedRun:
    """Captures runs with Paddle's output hooks; the files stand in `folder`."""

    process: TrialProcess
    folder: Path
    timeout_s: float
    names: list[str] = field(default_factory=list)

    def of(self, settings: Mapping[str, Any], name: str, **more: str) -> HookedValues:
        """Return what hooks see of a run with these settings.

        Raises:
            UsageError: it cannot be run so.
        """
        values, out = self.folder / f"{name}.values.npz", self.folder / f"{name}.npz"
        request = {"kind": "capture", "out": str(out), "values": str(values), **settings, **more}
        reply = asked_of(self.process, request, self.timeout_s, "the model with hooks")
        assert reply.answer is not None
        rows = reply.answer["rows"]
        problems = tuple(reply.answer["problems"])
        return HookedValues(seen_values(values, rows), out, tuple(rows), problems)


def seen_values(values: Path, rows: Sequence[Mapping[str, str]]) -> tuple[SeenValue, ...]:
    """Return the values of a file by what is said of each."""
    with np.load(values) as arrays:
        return tuple(_seen(row, arrays[str(number)]) for number, row in enumerate(rows))


def _seen(row: Mapping[str, str], array: Array) -> SeenValue:
    """Return a value. Of oneDNN's layout it says the shape N, C, H, W, and its numbers stand in that order
    behind a reshape, and as N, H, W, C behind a convolution."""
    other = None
    if row["layout"] == "ONEDNN" and array.ndim in (4, 5):
        count, channels, *space = array.shape
        other = np.moveaxis(array.reshape(count, *space, channels), array.ndim - 1, 1)
    return SeenValue(row["operator"], row["name"], array, other)


def first_differing(
    tested: Sequence[SeenValue], golden: Sequence[SeenValue], floor: float = 0.0
) -> str:
    """Return which operator is the first whose values differ from the golden run's, as a sentence; "" where
    none does.

    Both runs have the same operators, or those of the tested one are fused. Equal operators are aligned in
    their order; the values of others are held against all golden values of their shape, since a fused
    operator makes the value of the last one that it stands for. What is within the floor of its dtype, or
    within `floor`, is the same.
    """
    kinds = [each.kind for each in golden], [each.kind for each in tested]
    matcher = difflib.SequenceMatcher(None, *kinds, autojunk=False)
    partners = {
        block.b + step: golden[block.a + step]
        for block in matcher.get_matching_blocks()
        for step in range(block.size)
    }
    far = ""
    for number, value in enumerate(tested):
        partner = partners.get(number)
        # Whole numbers of other operators are shapes that a pass has made up.
        is_measured = np.issubdtype(value.array.dtype, np.inexact)
        alike = [each for each in golden if each.array.shape == value.array.shape]
        near = alike if is_measured else [partner] if partner else []
        near = [each for each in near if each is not None]
        if not near or any(_is_same(value, each, floor) for each in near):
            continue
        best = partner or min(near, key=lambda each: _distance(value, each))
        if _distance(value, best) < _NEAR or partner is not None:
            return _said(value, best)
        far = far or _said(value, best)
    return far


def _is_same(value: SeenValue, other: SeenValue, floor: float) -> bool:
    return _distance(value, other) <= max(floor, dtype_floor(value.array, other.array))


def _said(value: SeenValue, counterpart: SeenValue) -> str:
    than = "" if value.kind[0] == counterpart.kind[0] else f", in the golden run {counterpart.said}"
    distances = [(_apart(each, counterpart.array), each) for each in _orders(value)]
    distance, array = min(distances, key=lambda each: each[0])
    if distance == float("inf"):
        return f"{value.said}: other whole numbers, NaN or infinity{than}"
    _, index = distance_of(array, counterpart.array, "max")
    at = f" at {list(index)}" if index else ""
    return f"{value.said}{at}: {distance:.3g} of its largest value{than}"


def _orders(value: SeenValue) -> list[Array]:
    return [value.array] if value.other_order is None else [value.array, value.other_order]


def _distance(value: SeenValue, other: SeenValue) -> float:
    """Return how far a value is from a golden one, in the order in which it is nearest to it."""
    return min(_apart(each, other.array) for each in _orders(value))


def _apart(tested: Array, golden: Array) -> float:
    """Return how far two arrays are from each other, relative to the largest element; infinity where they
    cannot be compared."""
    if tested.shape != golden.shape or tested.dtype.kind != golden.dtype.kind:
        return float("inf")
    if not np.issubdtype(tested.dtype, np.inexact):
        return 0.0 if np.array_equal(tested, golden) else float("inf")
    if not np.array_equal(np.isfinite(tested), np.isfinite(golden)):
        return float("inf")
    return distance_of(tested, golden, "max")[0]
