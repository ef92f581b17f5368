"""Sends and receives, counted from when a capture is made on, also where no step is captured.

Comes in: each call of `ProcessGroup.send` and its receives, by which torch's functions send, batches too.
Goes out: the number of each, counted for its sender, its receiver and the ranks of its group, so that the two
ends of a message have one number though each rank captures other steps. Put on by `probe` when a capture
begins to watch steps.

Whose message a receive from any rank has got is not known before it has arrived: from such a receive on this
rank's receives in that group have no numbers.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch.distributed as distributed

from ray_precheck.capture.pytorch.calls import detour

_ANY = "recv_anysource"
_Pair = tuple[int, int, tuple[int, ...]]


class Messages:
    """Counts what this process sends and receives, while it is watched."""

    def __init__(self) -> None:
        self._counts: Counter[_Pair] = Counter()
        self._from_anyone: set[tuple[int, ...]] = set()
        self._detours = ExitStack()
        # The numbers of the messages since `begin`, in their order; None where nobody asks.
        self._taken: list[int | None] | None = None

    def watch(self) -> None:
        """Count from now on."""
        self.remove()
        if distributed.is_available():
            for name in ("send", "recv", _ANY):
                original = getattr(distributed.ProcessGroup, name)
                by = self._counted(name, original)
                self._detours.enter_context(detour(distributed.ProcessGroup, name, by))

    def remove(self) -> None:
        """Count no longer."""
        self._detours.close()

    def begin(self) -> None:
        """Keep the numbers of the messages that follow, for `taken`."""
        self._taken = []

    def taken(self) -> list[int | None]:
        """Return the numbers of the messages since `begin`, None for one whose number is not known."""
        taken, self._taken = self._taken, None
        return taken or []

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            number = self._number(name, group, args[0] if args else -1)
            if self._taken is not None:
                self._taken.append(number)
            return original(group, tensors, *args, **kwargs)

        return counted

    def _number(self, name: str, group: Any, place: int) -> int | None:
        """Return the number of a message to or from the rank at a place in a group."""
        try:
            ranks = tuple(distributed.get_process_group_ranks(group))
            own = distributed.get_rank()
        except (ValueError, RuntimeError, KeyError):  # a group that torch.distributed does not know
            return None
        if name == _ANY:
            self._from_anyone.add(ranks)
        if (name != "send" and ranks in self._from_anyone) or not 0 <= place < len(ranks):
            return None
        peer = ranks[place]
        pair = (own, peer, ranks) if name == "send" else (peer, own, ranks)
        self._counts[pair] += 1
        return self._counts[pair] - 1
