"""A step of MindSpore that is a function of the script.

Comes in: the function, the Cells and the optimizers. Goes out: what runs it. Called by `verifying.function`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mindspore import nn

from ray_precheck.capture.mindspore.detour import OPTIMIZERS
from ray_precheck.capture.mindspore.verifying.state import saved_mindspore_state
from ray_precheck.capture.mindspore.verifying.tracing import MindSporeTracingProbe
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.verifying.steps import StepRuns, require_kind


def mindspore_step_runs(
    step: Callable[[], Any],
    models: Sequence[Any],
    optimizers: Sequence[Any],
    settings: CaptureSettings,
) -> StepRuns:
    """Return what runs a step from the state that is found now.

    Raises:
        UsageError: a model is no Cell, or an optimizer none of MindSpore's.
    """
    require_kind("model", models, (nn.Cell,), "mindspore.nn.Cell")
    require_kind("optimizer", optimizers, OPTIMIZERS, "mindspore.nn.Optimizer or one of mint.optim")
    restore = saved_mindspore_state(models, optimizers)
    return StepRuns(step, models, settings, MindSporeTracingProbe, restore)
