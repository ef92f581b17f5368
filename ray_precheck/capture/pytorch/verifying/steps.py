"""A step of PyTorch that is a function of the script.

Comes in: the function, the models and the optimizers. Goes out: what runs it. Called by `verifying.function`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from ray_precheck.capture.pytorch.verifying.state import saved_state
from ray_precheck.capture.pytorch.verifying.tracing import TracingProbe
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.verifying.steps import StepRuns, require_kind


def torch_step_runs(
    step: Callable[[], Any],
    models: Sequence[Any],
    optimizers: Sequence[Any],
    settings: CaptureSettings,
) -> StepRuns:
    """Return what runs a step from the state that is found now.

    Raises:
        UsageError: a model is no module, or an optimizer none of torch's.
    """
    require_kind("model", models, (torch.nn.Module,), "torch.nn.Module")
    require_kind("optimizer", optimizers, (Optimizer,), "torch.optim.Optimizer")
    return StepRuns(step, models, settings, TracingProbe, saved_state(models, optimizers))
