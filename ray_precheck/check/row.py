"""The station that makes the row: errors are explained, and the judgement becomes a `TaskResult`.

Comes in: `Judged`. Goes out: a `TaskResult`; of an error with where in its outputs it is (`accuracy.heat`),
and with its evidence, the tensors of the call, saved for a closer look and for a rerun, or sent with the
result where their folder is on another machine. Called by the checker, last of all stations.

Before, after each direction, errors by msprobe's rule are explained: by rounding that no kernel can avoid, or
else by the likely cause that the numbers show. Verdicts do not change here. The other standards measure
rounding and name causes themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ray_precheck.accuracy.cause import likely_cause
from ray_precheck.accuracy.heat import element_limit, heat_of
from ray_precheck.accuracy.standards.base import ROUNDING, STANDARD_HEADING, Standard, ulp
from ray_precheck.accuracy.standards.msprobe import MSPROBE
from ray_precheck.accuracy.thresholds import ROUNDING_NOISE_ULP
from ray_precheck.check.attempt import OutOfMemory, attempt
from ray_precheck.check.inputs import Inputs
from ray_precheck.check.judge import Compared, DirectionCheck, Judged
from ray_precheck.check.settings import CheckSettings
from ray_precheck.frameworks.base import mapped_call
from ray_precheck.numerics.arrays import spacing
from ray_precheck.operators.effects import MULTILINEAR
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.result import Metrics, Outcome, TaskResult, Verdict
from ray_precheck.schema.values import HostTensor
from ray_precheck.store.error_data import Replay, save_error_data
from ray_precheck.store.heat import heat_line


def make_row(judged: Judged, settings: CheckSettings, device: str) -> TaskResult:
    """Return the result row of a call and its detail rows, and save the tensors of a call in error.

    `device` is the kind of the tested device."""
    result = _row(judged)
    if Verdict.ERROR not in (result.forward, result.backward):
        return result
    result = replace(result, heats=tuple(_heats(judged)))
    if settings.error_folder is None:
        return result
    return _with_evidence(result, judged, settings, device, settings.error_folder)


def _row(judged: Judged) -> TaskResult:
    inputs, forward, backward = judged.inputs, judged.forward, judged.backward
    # Cotangents may be drawn for the device and for the bench, each with its notes.
    drawn = dict.fromkeys(getattr(inputs.source, "notes", []))
    notes = [*forward.messages, *backward.messages, *drawn]
    verdicts = forward.verdict, backward.verdict
    caveat = forward.caveat or backward.caveat
    if caveat and Verdict.ERROR in verdicts:
        notes.append(caveat)
    raised = Outcome.RAISED in (forward.outcome, backward.outcome)
    return TaskResult(
        index=inputs.payload.index,
        name=inputs.payload.name,
        outcome=Outcome.RAISED if raised else Outcome.COMPLETED,
        forward=verdicts[0],
        backward=verdicts[1],
        message="; ".join(notes),
        checks=tuple(row.check for row in judged.rows),
    )


def _heats(judged: Judged) -> Iterator[bytes]:
    """Yield a line for each output in error that has a bench of its shape."""
    for row in judged.rows:
        tested, bench = row.tested, row.bench
        if row.check.verdict is not Verdict.ERROR or row.check.metrics is None:
            continue
        tensors = isinstance(tested, HostTensor) and isinstance(bench, HostTensor)
        if tensors and tested.shape == bench.shape and tested.data.size:
            standard = str(dict(row.check.columns).get(STANDARD_HEADING, MSPROBE.name))
            limit = element_limit(row.check.message, standard.split(" ")[0])
            line = heat_line(heat_of(row.check.name, tested.data, bench.data, tested.dtype, limit))
            if line:
                yield line


def _with_evidence(
    result: TaskResult, judged: Judged, settings: CheckSettings, device: str, folder: Path
) -> TaskResult:
    replay = _replay(judged, settings, result.message, device)
    failing = [check.name for check in (*judged.forward.failing, *judged.backward.failing)]
    tested = "dump" if settings.tests_dump else "device"
    try:
        with ExitStack() as stack:
            if settings.sends_evidence:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="ray-precheck-")))
            _save(folder, judged, settings, replay, failing, tested)
            sent = sorted(folder.iterdir()) if settings.sends_evidence else ()
            files = tuple((file.name, file.read_bytes()) for file in sent)
    except OSError as error:
        note = f"its tensors could not be saved: {error.strerror or error}"
        return replace(result, message=f"{result.message}; {note}")
    return replace(result, evidence=files)


def _replay(judged: Judged, settings: CheckSettings, message: str, device: str) -> Replay:
    inputs = judged.inputs
    return Replay(
        inputs.plan.differentiable if inputs.record.has_backward else (),
        inputs.plan.in_place,
        settings.standard.name,
        message,
        device,
        inputs.is_transposed,
        settings.float32,
    )


def save_call(folder: Path, judged: Judged, settings: CheckSettings, message: str) -> Path:
    """Save the tensors of a call with all its results, also those that are right, and return the JSON that
    describes them, for a script that runs the call on any device.

    Raises:
        OSError: the folder cannot be written.
    """
    replay = _replay(judged, settings, message or "nothing is in error.", device="")
    every = [row.check.name for row in judged.rows]
    return _save(folder, judged, settings, replay, every, "device")


def _save(
    folder: Path,
    judged: Judged,
    settings: CheckSettings,
    replay: Replay,
    names: list[str],
    tested: str,
) -> Path:
    return save_error_data(
        folder,
        judged.inputs.payload,
        settings.framework,
        judged.inputs.call,
        list(judged.backward.cotangents),
        {row.check.name: (row.tested, row.bench) for row in judged.rows},
        failing=names,
        tested=tested,
        seed=settings.options.seed,
        replay=replay,
    )


def with_explanations(inputs: Inputs, result: DirectionCheck, standard: Standard) -> DirectionCheck:
    """Add a sentence to each error: how rounding explains it, or else its likely cause, if one is found.

    Raises:
        NotCheckable: the bench refused the changed inputs.
    """
    if standard.name != MSPROBE.name or result.recompute is None or not result.failing:
        return result
    rows = tuple(
        _explained(inputs, result, position, row) for position, row in enumerate(result.rows)
    )
    return replace(result, rows=rows)


def _explained(inputs: Inputs, result: DirectionCheck, position: int, row: Compared) -> Compared:
    """Return a row with an explanation, if it is an error by its numbers that has none yet."""
    check = row.check
    is_open = check.verdict is Verdict.ERROR and ROUNDING not in check.message
    if not is_open or check.metrics is None or not isinstance(row.tested, HostTensor):
        return row
    error = _Error(inputs, result, position, row.tested, check.metrics)
    note = _rounding(error) or _cause(row)
    return replace(row, check=replace(check, message=f"{check.message}; {note}")) if note else row


@dataclass(frozen=True, slots=True)
class _Error:
    """An output in error, at `position` among the rows of `result`."""

    inputs: Inputs
    result: DirectionCheck
    position: int
    tested: HostTensor
    metrics: Metrics

    @property
    def is_float(self) -> bool:
        return DTYPES[self.tested.dtype].kind == "float"

    def bench_with(self, change: Callable[[HostTensor], HostTensor]) -> Array | None:
        """Return this output as the bench computes it from changed inputs; None if it cannot, or if the
        shape differs."""

        def changed(value: Any) -> Any:
            if isinstance(value, HostTensor) and DTYPES[value.dtype].kind == "float":
                return change(value)
            return value

        call, recompute = self.inputs.bench_call, self.result.recompute
        assert recompute is not None
        again = mapped_call(call, changed)
        cotangents = [changed(cotangent) for cotangent in self.result.cotangents]
        try:
            leaves, _ = attempt(lambda: recompute(again, cotangents))
        except OutOfMemory:  # The verdict stands without an explanation.
            return None
        if leaves is None or len(leaves) <= self.position:
            return None
        leaf, bench = leaves[self.position], self.result.rows[self.position].bench
        both = isinstance(leaf, HostTensor) and isinstance(bench, HostTensor)
        return leaf.data if both and leaf.shape == bench.shape else None


def _rounding(error: _Error) -> str:
    if error.metrics.mismatch or not error.is_float:
        return ""
    note = _summed_terms(error) or _conditioning(error)
    return f"{ROUNDING} {note}" if note else ""


def _cause(row: Compared) -> str:
    if not isinstance(row.bench, HostTensor) or row.tested.shape != row.bench.shape:
        return ""
    cause = likely_cause(row.tested.data, row.bench.data, row.tested.dtype)
    return f"likely cause: {cause}" if cause else ""


def _summed_terms(error: _Error) -> str:
    """Explain the error of a sum by the magnitudes of its terms.

    |fl(sum) - sum| <= gamma_n * sum |terms| for any order of summation (Higham, Accuracy and
    Stability of Numerical Algorithms, 2nd ed., eq. 4.4); a few units of the right side are noise.
    """
    record = error.inputs.record
    if not MULTILINEAR.of(record.name.type_name, record.framework):
        return ""
    magnitudes = error.bench_with(_absolute)
    if magnitudes is None:
        return ""
    dtype = error.tested.dtype
    total = float(magnitudes[error.metrics.worst_index])
    units = error.metrics.max_abs_err / ulp(total, dtype)
    if not units <= ROUNDING_NOISE_ULP:
        return ""
    return (
        f"the magnitudes of the summed terms add up to {total:.6g}, and the error is {units:.3g}"
        f" units in the last place of {dtype} at that size"
    )


def _conditioning(error: _Error) -> str:
    """Explain the error by the change of the bench when its inputs move by half a unit in the last
    place (ulp)."""
    generator = np.random.Generator(np.random.Philox(key=error.position))
    moved = error.bench_with(lambda tensor: _nudged(tensor, generator))
    if moved is None:
        return ""
    with np.errstate(invalid="ignore"):
        bench = error.result.rows[error.position].bench
        change = float(np.nanmax(np.abs(moved - bench.data), initial=0.0))
    if not _explains(change, error.metrics):
        return ""
    return (
        "ill-conditioned: moving the inputs by half a unit in the last place moves the bench by"
        f" {change:.3g}"
    )


def _explains(change: float, metrics: Metrics) -> bool:
    return 0 < change < np.inf and metrics.max_abs_err <= ROUNDING_NOISE_ULP * change


def _absolute(tensor: HostTensor) -> HostTensor:
    return replace(tensor, data=np.abs(tensor.data), layout=None)


def _nudged(tensor: HostTensor, generator: np.random.Generator) -> HostTensor:
    """Return a float64 tensor whose elements moved by half an ulp, up or down at random."""
    wide = tensor.data.astype(np.float64)
    signs = generator.choice([-0.5, 0.5], size=wide.shape)
    moved = np.asarray(wide + signs * spacing(wide, tensor.dtype))
    return replace(tensor, dtype="float64", data=moved, layout=None)
