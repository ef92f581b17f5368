"""The replay of a call of both runs: what it errs by itself, and what its inputs bring with them.

Comes in: a payload, and the checkers of both runs. Goes out: an `OwnError` for each record.
Called by the runner of `locate`. The units are those of `auto`: the error of the worst honest implementation
of the call for these inputs.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ray_precheck.accuracy.standards.base import EXACT, ulp
from ray_precheck.check.checker import Checker
from ray_precheck.check.device import DeviceNeeded
from ray_precheck.check.judge import Compared, Judged
from ray_precheck.commands.locate.plan import LocationPayload
from ray_precheck.commands.locate.walk.nouns import INFINITE, OwnError
from ray_precheck.inputs.generate import TensorSource
from ray_precheck.numerics.arrays import root_mean_square
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.result import OutputCheck, TaskResult, Verdict, skipped
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import HostTensor
from ray_precheck.trace.side import BACKWARD, FORWARD

NOT_CAPTURED = "its results were not captured"
# A call of distributed tensors gets the sizes of whole ones (`x.reshape(*x.shape, 2)`), and its record
# has the tensors of one rank.
SIZES_OF_WHOLES = (
    "its sizes may be those of the whole distributed tensors, of which this rank has a part"
)
_DISTRIBUTED, _OTHER_SHAPE = b'"global_shape"', "shape ["
_CAUSE = "likely cause: "
# Of complex numbers the parts are rounded.
_PARTS = {"complex64": "float32", "complex128": "float64"}


class Replayed(NamedTuple):
    """The own error of each record of a call by direction, and the saved tensors of one in error, where their
    folder is on another machine."""

    errors: dict[str, OwnError]
    evidence: tuple[tuple[str, bytes], ...] = ()


class CallReplay:
    """Replays calls; `golden` is None without a golden run of the same framework."""

    def __init__(self, target: Checker, golden: Checker | None) -> None:
        self._target, self._golden = target, golden

    def errors(
        self,
        payload: LocationPayload,
        tensors: TensorSource,
        golden_tensors: TensorSource,
    ) -> "Replayed":
        """Return the own error of each record of a call."""
        result, judged = _examined(self._target, payload.target, tensors)
        theirs: tuple[TaskResult, Judged | None] | None = None
        if judged is not None and self._golden is not None and payload.golden is not None:
            theirs = _examined(self._golden, payload.golden, golden_tensors)
        found = {}
        for direction, raw in (
            (FORWARD, payload.target.forward),
            (BACKWARD, payload.target.backward),
        ):
            if raw is not None:
                own = _error(direction, result, judged, theirs)
                is_apart = own.verdict == Verdict.ERROR.value and own.message.startswith(
                    _OTHER_SHAPE
                )
                if is_apart and _DISTRIBUTED in raw:
                    own = OwnError(Verdict.SKIP.value, message=SIZES_OF_WHOLES)
                found[direction] = own
        return Replayed(found, result.evidence)


def _examined(
    checker: Checker, payload: TaskPayload, tensors: TensorSource
) -> tuple[TaskResult, Judged | None]:
    """Check a call by its captured results; one whose gradients were not captured forward alone."""
    for asked in (payload, replace(payload, backward=None)):
        try:
            return checker.examine(asked, tensors)
        except DeviceNeeded:
            continue
    return skipped(payload.index, payload.name, NOT_CAPTURED, payload.backward is not None), None


def _error(
    direction: str,
    result: TaskResult,
    judged: Judged | None,
    theirs: tuple[TaskResult, Judged | None] | None,
) -> OwnError:
    verdict = _verdict(result, direction)
    if verdict is Verdict.NONE:
        return OwnError(Verdict.SKIP.value, message=NOT_CAPTURED)
    rows = _rows_of(judged, direction)
    if not rows:
        message = result.message
        return OwnError(
            verdict.value, INFINITE if verdict is Verdict.ERROR else math.nan, message=message
        )
    worst = max(rows, key=_rank)
    check = worst.check
    cause = check.message.partition(_CAUSE)[2].partition("; ")[0]
    index = ", ".join(map(str, check.metrics.worst_index)) if check.metrics else ""
    shown = check.message if verdict is Verdict.ERROR or not check.metrics else ""
    found = OwnError(
        verdict.value,
        own_error(check),
        output=".".join(check.name.split(".")[-2:]),
        index=f"[{index}]" if index else "",
        cause=cause,
        message=shown or ("" if verdict is Verdict.PASS else result.message),
    )
    if theirs is None:
        return found
    others = {_suffix(row.check): row for row in _rows_of(theirs[1], direction)}
    partner = others.get(_suffix(check))
    golden_verdict = _verdict(theirs[0], direction).value
    if partner is None:
        return replace(found, golden_verdict=golden_verdict)
    return replace(
        found,
        inherited=_inherited(worst, partner),
        golden=own_error(partner.check),
        golden_verdict=golden_verdict,
    )


def _verdict(result: TaskResult, direction: str) -> Verdict:
    return result.forward if direction == FORWARD else result.backward


def _rows_of(judged: Judged | None, direction: str) -> Sequence[Compared]:
    if judged is None:
        return ()
    return (judged.forward if direction == FORWARD else judged.backward).rows


def _suffix(check: OutputCheck) -> str:
    return ".".join(check.name.split(".")[-3:])


def _rank(row: Compared) -> tuple[bool, float]:
    own = own_error(row.check)
    return (row.check.verdict is Verdict.ERROR, -1.0 if math.isnan(own) else own)


def own_error(check: OutputCheck) -> float:
    """Return an output's error in units of what rounding explains; NaN where nothing was compared.

    It is the larger of both: the RMSE and the largest error, each over that of the worst honest
    implementation. Where honest ones are exact nothing explains an error, which is then infinite, as that of
    integers and of other NaN and infinities is. Where no honest error is known, it is counted in units in the
    last place of the largest element.
    """
    metrics = check.metrics
    if metrics is None:
        return INFINITE if check.verdict is Verdict.ERROR else math.nan
    if metrics.mismatch:
        return INFINITE
    if check.verdict is Verdict.ERROR and EXACT in check.message:
        return INFINITE
    cells = dict(check.columns)
    shares = [
        share
        for error, honest in (
            (cells.get("RMSE"), cells.get("HonestRMSE")),
            (metrics.max_abs_err, cells.get("HonestMaxAbsErr")),
        )
        if (share := _share(error, honest)) is not None
    ]
    if shares:
        return max(shares)
    return _in_units(metrics.max_abs_err, metrics.bench_largest, check.tested_dtype)


def _share(error: object, honest: object) -> float | None:
    if not isinstance(error, float | int) or not isinstance(honest, float | int) or not honest > 0:
        return None
    return float(error) / float(honest)


def _in_units(error: float, largest: float, spelled: str) -> float:
    if not error:
        return 0.0
    name = spelled.rpartition(".")[2].lower()
    dtype = _PARTS.get(name, name)
    if dtype not in DTYPES or DTYPES[dtype].kind != "float":
        return INFINITE
    unit = ulp(largest, dtype)
    return error / unit if unit else INFINITE


def _inherited(row: Compared, golden: Compared) -> float | None:
    """Return |f64(x) - f64(x_golden)| as a root mean square, in units of what rounding explains of x."""
    ours, theirs = row.bench, golden.bench
    if not isinstance(ours, HostTensor) or not isinstance(theirs, HostTensor):
        return None
    if ours.shape != theirs.shape or ours.data.dtype.kind not in "fc":
        return INFINITE if ours.shape != theirs.shape else None
    rms = root_mean_square(_finite(ours.data, theirs.data))
    honest = dict(row.check.columns).get("HonestRMSE")
    share = _share(rms, honest)
    if share is not None:
        return share
    largest = float(np.max(np.abs(ours.data), initial=0.0))
    return _in_units(rms, largest if math.isfinite(largest) else 1.0, row.check.tested_dtype)


def _finite(ours: Array, theirs: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(ours - theirs)
    return np.asarray(difference[np.isfinite(difference)])
