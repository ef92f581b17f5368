"""Digests at each operator, which name the first one that differs between two runs.

Comes in: calls, from the mode of a captured step. Goes out: digests of what each got and gave, by the key
that its record has. Put between the mode and the recorder for the time of a watched step.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ray_precheck.capture.pytorch.calls import Sink
from ray_precheck.capture.pytorch.names import CallName
from ray_precheck.capture.pytorch.tensors.nested import tensors_in
from ray_precheck.capture.pytorch.verifying.digests import digest_of, random_digest, unseen
from ray_precheck.capture.verifying.trace import Moment, Sight

# What these give is whatever the memory held before.
_UNFILLED = ("empty", "resize")


class OperatorDigests:
    """Takes digests around each call; `recorder` makes its record, or none."""

    def __init__(self, recorder: Sink | None) -> None:
        self.sights: list[Sight] = []
        self._recorder = recorder
        self._counts: dict[str, Iterator[int]] = defaultdict(itertools.count)

    def call(
        self,
        name: CallName,
        frame: FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """Take digests of what a call gets and, behind its record, of what it got and gave."""
        key = f"{name.key}.{next(self._counts[name.key])}"
        forward = f"{key}.forward"
        # What is overwritten may hold anything before.
        read = {each: value for each, value in kwargs.items() if each != "out"}
        self._note(forward, Moment.GOT, (args[1:] if name.in_place else args, read))
        if self._recorder is None:
            result = run()
        else:
            result = self._recorder.call(name, frame, args, kwargs, run)
        if not any(word in name.name for word in _UNFILLED):
            self._note(forward, Moment.GAVE, (args, kwargs, result))
        self.sights.append(Sight(forward, Moment.RANDOM.value, random_digest()))
        self._watch(f"{key}.backward", args[0] if name.returns_nothing else result)
        return result

    def _watch(self, key: str, output: Any) -> None:
        """Take a digest of the gradients of the nodes behind the outputs, behind the recorder's hooks."""

        def hook(passed_on: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
            self._note(key, Moment.GAVE, (arrived, passed_on))

        with unseen():
            nodes = [tensor.grad_fn for tensor in tensors_in(output)]
        for node in dict.fromkeys(nodes):
            if node is not None:
                node.register_hook(hook)

    def _note(self, key: str, moment: Moment, value: Any) -> None:
        self.sights.append(Sight(key, moment.value, digest_of(value)))
