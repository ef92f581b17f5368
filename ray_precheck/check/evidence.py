"""The evidence of an error: the tensors of a failing call, saved for a closer look and for a rerun.

Comes in: a result in error, with the call and both sides of its outputs. Goes out: the result, with
the files where their folder is on another machine. Called by the checker after the row is made.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ray_precheck.check.judged import Judged
from ray_precheck.check.settings import CheckSettings
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.store.error_data import Replay, save_error_data

Files = tuple[tuple[str, bytes], ...]


def with_evidence(
    result: TaskResult, judged: Judged, settings: CheckSettings, device: str
) -> TaskResult:
    """Save the tensors of a failing call, or add them to the result as files if their folder is on
    another machine; a result without an error stays as it is. `device` is the kind of the tested
    device."""
    if Verdict.ERROR not in (result.forward, result.backward) or settings.error_folder is None:
        return result
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
            folder = settings.error_folder
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
