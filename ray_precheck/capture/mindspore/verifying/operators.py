"""Digests at each operator, which name the first one that differs between two runs.

Comes in: calls, from the replacements of a captured step. Goes out: digests of what each got and gave, by the
key that its record has. Put between the replacements and the recorder for the time of a watched step.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ray_precheck.capture.mindspore.gradients import node_of
from ray_precheck.capture.mindspore.names import OperatorName, region_name
from ray_precheck.capture.mindspore.recorder import MindSporeRecorder, tensors_within
from ray_precheck.capture.mindspore.verifying.digests import (
    mindspore_digest_of,
    mindspore_random_digest,
)
from ray_precheck.capture.verifying.trace import Moment, Sight

# What these give is whatever the memory held before.
_UNFILLED = ("empty", "resize")


class MindSporeOperatorDigests:
    """Takes digests around each call; `recorder` makes its record, or none."""

    def __init__(self, recorder: MindSporeRecorder | None) -> None:
        self.sights: list[Sight] = []
        self._recorder = recorder
        self._counts: dict[str, Iterator[int]] = defaultdict(itertools.count)

    def call(
        self,
        name: OperatorName,
        frame: FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        function: Callable[..., Any],
    ) -> Any:
        """Take digests of what a call gets and, behind its record, of what it got and gave."""
        key = f"{name.key}.{next(self._counts[name.key])}"
        forward = f"{key}.forward"
        # What is overwritten may hold anything before.
        read = {each: value for each, value in kwargs.items() if each != "out"}
        is_in_place = name.name.endswith("_") and not name.name.endswith("__")
        self._note(forward, Moment.GOT, (args[1:] if is_in_place else args, read))
        if self._recorder is None:
            result = function(*args, **kwargs)
        else:
            result = self._recorder.call(name, frame, args, kwargs, function)
        # A collective may still be underway.
        if not name.collective and not any(word in name.name for word in _UNFILLED):
            self._note(forward, Moment.GAVE, (args, kwargs, result))
        self.sights.append(Sight(forward, Moment.RANDOM.value, mindspore_random_digest()))
        self._watch(f"{key}.backward", args[0] if name.returns_nothing else result)
        return result

    def compiled(
        self,
        function: Any,
        frame: FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Take a digest of what a compiled function got and gave."""
        name = region_name(function)
        self._note(
            f"{name}.{next(self._counts[name])}.forward", Moment.GAVE, (args, kwargs, result)
        )
        if self._recorder is not None:
            self._recorder.compiled(function, frame, args, kwargs, result)

    def _watch(self, key: str, output: Any) -> None:
        """Take a digest of the gradients of the nodes behind the outputs, behind the recorder's hooks."""

        def hook(passed_on: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
            self._note(key, Moment.GAVE, (arrived, passed_on))

        for node in [node_of(tensor) for tensor in tensors_within(output)]:
            if node is not None:
                node.register_hook(hook)

    def _note(self, key: str, moment: Moment, value: Any) -> None:
        self.sights.append(Sight(key, moment.value, mindspore_digest_of(value)))
