"""The station that makes the row: the judgement of both directions becomes a `TaskResult`.

Comes in: `Judged`. Goes out: a `TaskResult`; of an error with its evidence, the tensors of the call, saved
for a closer look and for a rerun, or sent with the result where their folder is on another machine. Called
by the checker, last of all stations.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ray_precheck.check.judge import Judged
from ray_precheck.check.settings import CheckSettings
from ray_precheck.schema.result import Outcome, TaskResult, Verdict
from ray_precheck.store.error_data import Replay, save_error_data


def make_row(judged: Judged, settings: CheckSettings, device: str) -> TaskResult:
    """Return the result row of a call and its detail rows, and save the tensors of a call in error.

    `device` is the kind of the tested device."""
    result = _row(judged)
    if Verdict.ERROR not in (result.forward, result.backward) or settings.error_folder is None:
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


Files = tuple[tuple[str, bytes], ...]


def _with_evidence(
    result: TaskResult, judged: Judged, settings: CheckSettings, device: str, folder: Path
) -> TaskResult:
    inputs = judged.inputs
    replay = Replay(
        inputs.plan.differentiable if inputs.record.has_backward else (),
        inputs.plan.in_place,
        settings.standard.name,
        result.message,
        device,
        inputs.is_transposed,
        settings.float32,
    )
    try:
        with ExitStack() as stack:
            if settings.sends_evidence:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="ray-precheck-")))
            _save(folder, judged, settings, replay)
            files = _files_of(folder) if settings.sends_evidence else ()
    except OSError as error:
        note = f"its tensors could not be saved: {error.strerror or error}"
        return replace(result, message=f"{result.message}; {note}")
    return replace(result, evidence=files)


def _save(folder: Path, judged: Judged, settings: CheckSettings, replay: Replay) -> None:
    failing = (*judged.forward.failing, *judged.backward.failing)
    save_error_data(
        folder,
        judged.inputs.payload,
        settings.framework,
        judged.inputs.call,
        list(judged.backward.cotangents),
        {row.check.name: (row.tested, row.bench) for row in judged.rows},
        failing=[check.name for check in failing],
        tested="dump" if settings.tests_dump else "device",
        seed=settings.options.seed,
        replay=replay,
    )


def _files_of(folder: Path) -> Files:
    return tuple((file.name, file.read_bytes()) for file in sorted(folder.iterdir()))
