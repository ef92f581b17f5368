"""The verification of a step that is a function of the script.

Comes in: the function, with the model and the optimizer that it changes. Goes out: a verdict. Called by users
as `ray_precheck.capture.verify`.
"""

import tempfile
from collections.abc import Callable
from typing import Any

from ray_precheck.capture.scope import Scope
from ray_precheck.capture.settings import capture_settings
from ray_precheck.capture.verifying.steps import StepRuns
from ray_precheck.capture.verifying.verdict import LookingVerdict, verify_runs
from ray_precheck.errors import UsageError


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
    make = _step_runs_of(models)
    with tempfile.TemporaryDirectory(prefix="ray_precheck_verify_") as folder:
        chosen = capture_settings(path=folder, **settings)
        Scope(chosen.scope, chosen.chosen)
        runs = make(step, models, optimizers, chosen)
        try:
            return verify_runs(runs.run)
        finally:
            runs.restore()


def _step_runs_of(models: list[Any]) -> Callable[..., StepRuns]:
    """Return what a framework has to run steps, by the class of the models."""
    if any(
        base.__module__.startswith("mindspore.") for each in models for base in type(each).__mro__
    ):
        from ray_precheck.capture.mindspore.verifying.steps import mindspore_step_runs

        return mindspore_step_runs
    from ray_precheck.capture.pytorch.verifying.steps import torch_step_runs

    return torch_step_runs


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]
