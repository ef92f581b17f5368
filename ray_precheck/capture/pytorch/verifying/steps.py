"""A step that is a function of the script: runs it several times from the same state.

Comes in: the function, the models and the optimizers. Goes out: traces of its runs. Called by
`verifying.function`.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from ray_precheck.capture.pytorch.verifying.state import saved_state
from ray_precheck.capture.pytorch.verifying.tracing import TracingProbe
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.verifying.trace import TracedRun, Traces
from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught


class TorchStepRuns:
    """Runs a step from the state that it found when it was made, and puts that back at the end.

    Raises:
        UsageError: a model is no module, or an optimizer none of torch's.
    """

    def __init__(
        self,
        step: Callable[[], Any],
        models: Sequence[Any],
        optimizers: Sequence[Any],
        settings: CaptureSettings,
    ) -> None:
        for kind, given, expected, name in (
            ("model", models, torch.nn.Module, "torch.nn.Module"),
            ("optimizer", optimizers, Optimizer, "torch.optim.Optimizer"),
        ):
            for each in given:
                if not isinstance(each, expected):
                    raise UsageError(
                        f"the {kind} is of type {type(each).__name__}; expected {name}"
                    )
        self._step = step
        # Names of modules have the number of their model where there are several.
        self._models = models[0] if len(models) == 1 else list(models)
        self._settings = settings
        self.restore = saved_state(models, optimizers)

    def run(self, how: TracedRun) -> Traces:
        """Run the step; what it raises is a part of its trace, but in a plain run.

        Raises:
            UsageError: the capture of it failed, with the reason.
        """
        self.restore()
        probe, failures = TracingProbe(how), list[str]()
        probe.watch_steps(lambda: None, lambda: None)
        folder = Path(self._settings.path) / how.value.replace(" ", "_")
        with ExitStack() as ending:
            ending.callback(probe.unwatch_steps)
            traced = probe.begin(self._settings, folder, self._models, failures.append)
            with ExitStack() as failing:
                failing.callback(traced.abandon)
                failing.callback(traced.pause)
                through = (Exception,) if how is TracedRun.PLAIN else ()
                result, error = caught(self._step, *through)
                traced.took(result, error)
                failing.pop_all()
            traced.finish()
        if failures or probe.trace is None:
            raise UsageError(f"the step cannot be captured: {'; '.join(failures)}")
        return {"": probe.trace}
