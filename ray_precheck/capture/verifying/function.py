"""The verification of a step that is a function of the script, which runs several times from the same state.

Comes in: the function, with the model and the optimizer that it changes. Goes out: a verdict. Called by users
as `ray_precheck.capture.verify`.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ray_precheck.capture.capturing import framework_behind
from ray_precheck.capture.recording.scope import Scope
from ray_precheck.capture.settings import CaptureSettings, capture_settings
from ray_precheck.capture.verifying.process import tracing_probe
from ray_precheck.capture.verifying.trace import TracedRun, Traces
from ray_precheck.capture.verifying.verdict import LookingVerdict, verify_runs
from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught


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
