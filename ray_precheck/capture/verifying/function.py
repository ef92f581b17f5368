"""The verification of a step that is a function of the script.

Comes in: the function, with the model and the optimizer that it changes. Goes out: a verdict. Called by users
as `ray_precheck.capture.verify`.
"""

import tempfile
from collections.abc import Callable
from typing import Any

from ray_precheck.capture.settings import capture_settings
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
    those of `Capture`, without a path: no dump is left. PyTorch only.

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
    if any(
        base.__module__.startswith("mindspore.") for each in models for base in type(each).__mro__
    ):
        raise UsageError(
            "a step of MindSpore cannot be put back to where it began, because its random kernels keep states"
            " of their own; verify the script: ray-precheck capture --verify -- python train.py"
        )
    if not models:
        raise UsageError("the model is missing, whose parameters the step begins with each time")
    from ray_precheck.capture.pytorch.verifying.steps import TorchStepRuns

    with tempfile.TemporaryDirectory(prefix="ray_precheck_verify_") as folder:
        chosen = capture_settings(path=folder, **settings)
        runs = TorchStepRuns(step, models, optimizers, chosen)
        try:
            return verify_runs(runs.run)
        finally:
            runs.restore()


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]
