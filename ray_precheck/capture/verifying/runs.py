"""The runs of a step that is verified: of a script, or of a function in this process.

Comes in: the words of a command, or a function with the model and the optimizer that it changes. Goes out: a
verdict. Called by `capture --verify`, and by users as `ray_precheck.capture.verify`.

Runs of a script go to the end of the first captured step. They begin in the same state if the script has
fixed its seeds; that two runs without capture come to the same is looked at first. Python's seed of hashes
is fixed here, because scripts cannot fix it themselves. A function runs each time from a state that is put
back.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_precheck.capture.account import read_accounts
from ray_precheck.capture.capturing import framework_behind
from ray_precheck.capture.launch import environment, program_of, run_program, sentence_of
from ray_precheck.capture.process import read_traces, tracing_probe
from ray_precheck.capture.recording.scope import Scope
from ray_precheck.capture.settings import CaptureSettings, capture_settings
from ray_precheck.capture.verifying.verdict import (
    LookingVerdict,
    StepTrace,
    TracedRun,
    Traces,
    verify_runs,
)
from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught

_HOW = {
    TracedRun.PLAIN: "without capture",
    TracedRun.CAPTURED: "with capture",
    TracedRun.WATCHED: "without capture, with digests at each operator",
    TracedRun.WATCHED_CAPTURE: "with capture, with digests at each operator",
}
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


def verify_script(
    words: Sequence[str], settings: CaptureSettings, tell: Callable[[str], None]
) -> LookingVerdict:
    """Verify the first step that is to be captured; its dump is left in the folder of the settings.

    Raises:
        UsageError: the script is not found, or did not come to the end of the step.
    """
    program = program_of(words)
    count = 0

    def run(how: TracedRun) -> Traces:
        nonlocal count
        count += 1
        tell(f"run {count}, {_HOW[how]}")
        with tempfile.TemporaryDirectory(prefix="ray_precheck_verify_") as folder:
            place = settings.path if how is TracedRun.CAPTURED else Path(folder) / "dump"
            notes = Path(folder) / "notes"
            notes.mkdir()
            return _run_script([program, *words[1:]], replace(settings, path=place), notes, how)

    return verify_runs(run)


def _run_script(
    words: Sequence[str], settings: CaptureSettings, notes: Path, how: TracedRun
) -> Traces:
    began = time.time()
    variables = environment(settings, notes, began, verify=how.value)
    status = run_program(words, {"PYTHONHASHSEED": "0", **variables})
    traces = read_traces(notes)
    if how is not TracedRun.PLAIN and _is_of_script(status, notes):
        # Without capture it came to the end of the step.
        told = _ended(status)
        return {name: replace(each, raised=told) for name, each in traces.items()} or {
            "": StepTrace(raised=told)
        }
    why = _why_not(status, settings, notes, began, words) if status or not traces else ""
    if why:
        raise UsageError(f"nothing can be said: in the run {_HOW[how]} {why}")
    return traces


def _is_of_script(status: int, notes: Path) -> bool:
    """Return whether the script ended badly by itself, not by the user or a fault of its capture."""
    failed = any(account.failure for account in read_accounts(notes))
    return not failed and (status > 0 or -status in _CRASHES)


def _ended(status: int) -> str:
    if status < 0:
        return f"the script was ended by {signal.Signals(-status).name}"
    return f"the script ended with exit code {status}"


def _why_not(
    status: int, settings: CaptureSettings, notes: Path, began: float, words: Sequence[str]
) -> str:
    """Return why a run has no traces of a whole step."""
    accounts = read_accounts(notes)
    for account in accounts:
        if account.failure:
            return f"the step could not be captured: {account.failure}"
    if status:
        return f"{_ended(status)} before the step's end"
    if any(account.is_open for account in accounts):
        return "the script ended before the step did"
    told = sentence_of(settings, notes, began, words)
    return f"no step came: {told.removeprefix('nothing was captured: ')}"


def verify(
    step: Callable[[], Any],
    model: Any,
    optimizer: Any = None,
    **settings: Any,
) -> LookingVerdict:
    """Run a step with and without capture from the same state, and compare both bit by bit.

        verdict = verify(lambda: train(batch), model, optimizer, level="mix")
        assert verdict.changed_nothing, verdict

    `step` makes one step on the same data each time; what it returns is compared too. `model` and
    `optimizer` are what it changes (a list where there are several); they and the random states are
    put back after each run, so that the training goes on as if nothing had run. The other arguments are
    those of `Capture`, without a path: no dump is left.

    Raises:
        UsageError: an argument is wrong, or the capture of the step failed.
    """
    if not callable(step):
        raise UsageError(
            f"step is of type {type(step).__name__}; expected a function that makes one step"
        )
    if "path" in settings:
        raise UsageError("verify leaves no dump; leave path out, or use Capture")
    models, optimizers = _listed(model), _listed(optimizer)
    if not models:
        raise UsageError("the model is missing, whose parameters the step begins with each time")
    kind = tracing_probe(framework_behind(models))
    with tempfile.TemporaryDirectory(prefix="ray_precheck_verify_") as folder:
        chosen = capture_settings(path=folder, **settings)
        Scope(chosen.scope, chosen.chosen)
        _require_kind("model", models, *kind.models)
        _require_kind("optimizer", optimizers, *kind.optimizers)
        state = kind.saved_state(models, optimizers)

        def restore() -> None:
            for put_back in state:
                put_back()

        def run(how: TracedRun) -> Traces:
            restore()
            return _run(step, models, chosen, kind(how))

        try:
            return verify_runs(run)
        finally:
            restore()


def _run(
    step: Callable[[], Any], models: Sequence[Any], settings: CaptureSettings, probe: Any
) -> Traces:
    """Run the step; what it raises is a part of its trace, but in a plain run.

    Raises:
        UsageError: the capture of it failed, with the reason.
    """
    failures: list[str] = []
    probe.watch_steps(lambda: None, lambda: None)
    folder = Path(settings.path) / probe.run.value.replace(" ", "_")
    # Names of modules have the number of their model where there are several.
    named = models[0] if len(models) == 1 else list(models)
    with ExitStack() as ending:
        ending.callback(probe.unwatch_steps)
        traced = probe.begin(settings, folder, named, failures.append)
        with ExitStack() as failing:
            failing.callback(traced.abandon)
            failing.callback(traced.pause)
            through = (Exception,) if probe.run is TracedRun.PLAIN else ()
            result, error = caught(step, *through)
            traced.took(result, error)
            failing.pop_all()
        traced.finish()
    if failures or probe.trace is None:
        raise UsageError(f"the step cannot be captured: {'; '.join(failures)}")
    return {"": probe.trace}


def _require_kind(name: str, given: Sequence[Any], kinds: tuple[type, ...], expected: str) -> None:
    """Require that each model or optimizer is of a kind."""
    for each in given:
        if not isinstance(each, kinds):
            raise UsageError(f"the {name} is of type {type(each).__name__}; expected {expected}")


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]
