"""How far the outputs of a trial are from the golden ones, and whether that is wrong.

Comes in: the arrays of a trial by name. Goes out: an answer, the metric, and a row for each output. Called by
the runner of a model's trials.

The distance of an output is one of `METRICS`; without `--metric` it is

    max |t - g| / max |g|

over the elements that are finite on both sides, in units of its floor: the larger of what two honest runs
(all off, twice) differ by, and of a rounding that optimisations are free to choose, `FLOORS` of the coarser
dtype of both sides (README, "What is wrong", has what honest float32 models were measured to differ by). A
trial is FAIL above `--tolerance` floors, 1 by default. NaN and infinity must stand at the same places, whole
numbers and bool must be equal, shapes and dtypes too.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ray_precheck.commands.bisect.target import OutputRow, TrialResult
from ray_precheck.commands.bisect.trial_command import run_command
from ray_precheck.searching.bisection import TrialAnswer

Array = npt.NDArray[Any]

# By the dtype of an output, relative to its largest element.
FLOORS = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
METRICS = ("max", "mean", "rms", "cosine", "abs")
# As git bisect has it: 125 says that it cannot be told.
GIT_SKIP = 125


def distance_of(tested: Array, golden: Array, metric: str) -> tuple[float, tuple[int, ...]]:
    """Return the distance of two arrays of one shape, and the index where they differ most.

    `metric`: `max` and `mean` of |t - g| relative to the largest |g|; `rms`, that of t - g relative to that
    of g; `cosine`, 1 less the cosine; `abs`, the largest |t - g|. Elements that are not finite on both sides
    are left out. 0 where nothing is left; complex numbers are compared as such.
    """
    wide = np.complex128 if np.iscomplexobj(golden) else np.float64
    t, g = (np.asarray(each).astype(wide).ravel() for each in (tested, golden))
    finite = np.isfinite(t) & np.isfinite(g)
    if not finite.any():
        return 0.0, ()
    difference = np.where(finite, np.abs(np.where(finite, t, 0) - np.where(finite, g, 0)), 0.0)
    index = tuple(int(i) for i in np.unravel_index(int(difference.argmax()), golden.shape))
    t, g, left = t[finite], g[finite], difference[finite]
    largest = float(np.abs(g).max())
    if metric == "abs":
        return float(left.max()), index
    if metric == "cosine":
        norms = float(np.linalg.norm(t) * np.linalg.norm(g))
        if norms == 0.0:
            return float(bool(left.max())), index
        return max(0.0, 1.0 - float(np.abs(np.vdot(g, t))) / norms), index
    if metric == "rms":
        top, scale = float(np.sqrt(np.mean(left**2))), float(np.sqrt(np.mean(np.abs(g) ** 2)))
    else:
        top, scale = float(left.max() if metric == "max" else left.mean()), largest
    if scale == 0.0:
        return (np.inf if top else 0.0), index
    return top / scale, index


@dataclass(frozen=True, slots=True)
class OutputMeasure:
    """What the outputs of a trial are held against.

    `golden` is an .npz file, `floors` are what honest runs differ by, by output, in the unit of the metric.
    `tolerance` None: 1 floor, or for a named `metric` the number itself. `check` is a command that judges
    instead: it finds the outputs in $BISECT_OUTPUTS and the golden ones in $BISECT_GOLDEN.
    """

    golden: Path
    floors: Mapping[str, float] = field(default_factory=dict)
    metric: str = ""
    tolerance: float | None = None
    check: Sequence[str] = ()
    timeout_s: float = 300.0

    def judge(self, outputs: Path) -> TrialResult:
        """Return what a trial says whose outputs stand in an .npz file."""
        if self.check:
            return self._checked(outputs)
        with np.load(self.golden) as golden, np.load(outputs) as tested:
            return self.compare(dict(tested), dict(golden))

    def compare(self, tested: Mapping[str, Array], golden: Mapping[str, Array]) -> TrialResult:
        """Return what these outputs say. FAIL for one that is missing or has another shape or dtype."""
        rows = [self._row(name, tested.get(name), array) for name, array in golden.items()]
        judged = [(row.distance, row) for row in rows if row.distance is not None]
        if not judged:
            return TrialResult(TrialAnswer.UNRESOLVED, message="the golden run has no output")
        worst, row = max(judged, key=lambda each: each[0])
        answer = TrialAnswer.FAIL if worst > self._limit else TrialAnswer.PASS
        where = f"{row.name}{f' at {row.index}' if row.index else ''}"
        said = row.message or f"{where}: {worst:.3g} times what honest runs differ by"
        if self.metric and not row.message:
            said = f"{where}: {self.metric} {worst:.3g}, limit {self._limit:g}"
        return TrialResult(
            answer, "", worst, said if answer is TrialAnswer.FAIL else "", tuple(rows)
        )

    @property
    def _limit(self) -> float:
        return 1.0 if self.tolerance is None else self.tolerance

    def _row(self, name: str, tested: Array | None, golden: Array) -> OutputRow:
        dtype, shape = str(golden.dtype), str(list(golden.shape))
        if tested is None:
            return OutputRow(name, dtype, shape, np.inf, message=f"{name} is missing")
        problem = _unlike(name, tested, golden)
        if problem:
            return OutputRow(name, dtype, shape, np.inf, message=problem)
        if not np.issubdtype(golden.dtype, np.inexact):
            unequal = np.argwhere(tested != golden)
            if not len(unequal):
                return OutputRow(name, dtype, shape, 0.0)
            at = str([int(i) for i in unequal[0]])
            said = f"{name} at {at}: {len(unequal)} of {golden.size} whole numbers differ"
            return OutputRow(name, dtype, shape, np.inf, at, said)
        found, index = distance_of(tested, golden, self.metric or "max")
        at = str(list(index)) if found else ""
        if not self.metric:
            found /= max(self.floors.get(name, 0.0), dtype_floor(tested, golden))
        return OutputRow(name, dtype, shape, found, at)

    def _checked(self, outputs: Path) -> TrialResult:
        import os

        env = {**os.environ, "BISECT_OUTPUTS": str(outputs), "BISECT_GOLDEN": str(self.golden)}
        return judged_by(self.check, env, self.timeout_s)


def dtype_floor(tested: Array, golden: Array) -> float:
    """Return the floor of two arrays: that of their coarser dtype."""
    names = [str(each.dtype).replace("complex128", "float64") for each in (tested, golden)]
    return max(FLOORS.get(name.replace("complex64", "float32"), 1e-4) for name in names)


def honest_floors(runs: Sequence[Mapping[str, Array]], metric: str = "max") -> dict[str, float]:
    """Return by output what honest runs differ by, twice that of the first from the others."""
    first, *others = runs
    return {
        name: 2 * max((distance_of(run[name], array, metric)[0] for run in others), default=0.0)
        for name, array in first.items()
        if np.issubdtype(array.dtype, np.inexact) and all(name in run for run in others)
    }


def judged_by(
    command: Sequence[str], env: Mapping[str, str], timeout_s: float, folder: Path | None = None
) -> TrialResult:
    """Return what a command says by its exit code: 0 PASS, 125 UNRESOLVED, 1 to 127 FAIL, as git bisect has
    it; UNRESOLVED too where it cannot be started, hangs, or is ended by a signal. It runs in `folder`, by
    default the current one."""
    with tempfile.TemporaryDirectory(prefix="check_") as written:
        here = folder or Path.cwd()
        end = run_command(command, env, here, timeout_s, Path(written) / "output")
    if end.code == 0:
        return TrialResult(TrialAnswer.PASS, "0")
    silent = end.code is None or end.code < 0 or end.code in (GIT_SKIP, 126, 127)
    answer = TrialAnswer.UNRESOLVED if silent else TrialAnswer.FAIL
    return TrialResult(answer, end.exit, message=f"the check: {end.said}")


def _unlike(name: str, tested: Array, golden: Array) -> str:
    """Return in what two arrays differ that are not compared by numbers; "" where they may be."""
    if tested.shape != golden.shape:
        return f"{name} has the shape {list(tested.shape)} instead of {list(golden.shape)}"
    kinds = tested.dtype.kind, golden.dtype.kind
    if kinds[0] != kinds[1]:
        return f"{name} is {tested.dtype} instead of {golden.dtype}"
    if not np.issubdtype(golden.dtype, np.inexact):
        return ""
    for what, test in (("NaN", np.isnan), ("infinity", np.isinf)):
        unlike = np.argwhere(test(tested) != test(golden))
        if len(unlike):
            at = [int(i) for i in unlike[0]]
            return f"{name} at {at}: {what} on one side alone"
    signs = np.isinf(golden) & (tested != golden)
    if signs.any():
        return f"{name} at {[int(i) for i in np.argwhere(signs)[0]]}: infinity with another sign"
    return ""
