"""A step that is a function of the script: runs it several times from the same state.

Comes in: the function, its models, and what a framework has for the rest. Goes out: traces of its runs. Made
by the framework's `step_runs`, called by `verifying.function`.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.verifying.step import TracingOfFramework
from ray_precheck.capture.verifying.trace import TracedRun, Traces
from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught


class StepRuns:
    """Runs a step from the state that `restore` puts back, also at the end."""

    def __init__(
        self,
        step: Callable[[], Any],
        models: Sequence[Any],
        settings: CaptureSettings,
        make_probe: Callable[[TracedRun], TracingOfFramework],
        restore: Callable[[], None],
    ) -> None:
        self._step = step
        # Names of modules have the number of their model where there are several.
        self._models = models[0] if len(models) == 1 else list(models)
        self._settings = settings
        self._make_probe = make_probe
        self.restore = restore

    def run(self, how: TracedRun) -> Traces:
        """Run the step; what it raises is a part of its trace, but in a plain run.

        Raises:
            UsageError: the capture of it failed, with the reason.
        """
        self.restore()
        probe, failures = self._make_probe(how), list[str]()
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


def require_kind(name: str, given: Sequence[Any], kinds: tuple[type, ...], expected: str) -> None:
    """Require that each model or optimizer is of a kind.

    Raises:
        UsageError: one is not.
    """
    for each in given:
        if not isinstance(each, kinds):
            raise UsageError(f"the {name} is of type {type(each).__name__}; expected {expected}")
