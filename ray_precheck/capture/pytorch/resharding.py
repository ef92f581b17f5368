"""What an operator computes with where it is given distributed tensors (DTensor).

Comes in: what torch does within a call before this rank computes its part. Goes out: what this rank's
operator got. Asked by the recorder for each call; put on by `probe` for each captured step.

Torch moves the parts of arguments as the operator needs them: a bias that all ranks have whole is added as a
part of a sum, one share on each; rows of an embedding that are elsewhere are masked; what is sharded along a
softmax is gathered. An operator that exchanges values with other ranks in its midst (a loss over a sharded
vocabulary) is no operator on this rank's parts.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import detour
from ray_precheck.capture.pytorch.tensors.text import UNDER_WAY, tensors_in

_EXCHANGES = ("all_reduce", "all_gather_tensor", "reduce_scatter_tensor", "all_to_all_single")
_EXCHANGED = ', "exchanges": true'


class _Moved(NamedTuple):
    before: torch.Tensor
    after: torch.Tensor
    spec: Any


class Resharding:
    """Takes note of the parts that are moved within a call, around which it is entered."""

    def __init__(self) -> None:
        self._moved: list[_Moved] = []
        self._is_exchanging = False
        self._is_on = self._is_moving = False

    def __enter__(self) -> None:
        self._is_on = True

    def __exit__(self, *_: object) -> None:
        self._is_on = False

    def again(
        self,
        before: str,
        write: Callable[[str, tuple[Any, ...], dict[str, Any]], str],
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> str:
        """Return the fields of what the last call got, by `write` once more if it was known only later."""
        if self._moved or self._is_exchanging:
            found: set[int] = set()
            args, kwargs = self._given((args, kwargs), found)
            is_all = len(found) == len(self._moved) and not self._is_exchanging
            self._moved.clear()
            self._is_exchanging = False
            return write(key, args, kwargs) + ("" if is_all else _EXCHANGED)
        if UNDER_WAY in before and all(_under_way(each) is None for each in tensors_in(result)):
            for tensor in tensors_in((args, kwargs)):
                waiting = _under_way(tensor)
                if waiting is not None:
                    waiting.trigger_wait()  # as the call has done, of a view of it
            return write(key, args, kwargs)
        return before

    def _given(self, value: Any, found: set[int]) -> Any:
        if isinstance(value, tuple | list):
            items = [self._given(each, found) for each in value]
            return items if type(value) is list else tuple(items)
        if isinstance(value, dict):
            return {name: self._given(each, found) for name, each in value.items()}
        local = getattr(value, "_local_tensor", None)
        for number, moved in enumerate(self._moved):
            if local is moved.before:
                found.add(number)
                part = moved.after.detach()
                where = moved.spec.mesh, moved.spec.placements
                given = type(value).from_local(part, *where, run_check=False)
                return given.requires_grad_(value.requires_grad)
        return value

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See parts that are moved, for the time of a captured step."""
        with ExitStack() as detours:
            dispatch = functional = None
            if private_parts.is_loaded(private_parts.DTENSOR_MOVES):
                dispatch = private_parts.find(private_parts.DTENSOR_MOVES)
                functional = private_parts.find(private_parts.DTENSOR_EXCHANGES)
            move = getattr(dispatch, "redistribute_local_tensor", None)
            if move is not None:
                by = self._moving(move)
                detours.enter_context(detour(dispatch, "redistribute_local_tensor", by))
                for name in _EXCHANGES:
                    original = getattr(functional, name, None)
                    if original is not None:
                        by = self._exchanging(original)
                        detours.enter_context(detour(functional, name, by))
            yield

    def _moving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def move(local: Any, before: Any, after: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_on:
                return original(local, before, after, *args, **kwargs)
            self._is_moving = True
            try:
                result = original(local, before, after, *args, **kwargs)
            finally:
                self._is_moving = False
            self._moved.append(_Moved(local, result, after))
            return result

        return move

    def _exchanging(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def exchange(*args: Any, **kwargs: Any) -> Any:
            if self._is_on and not self._is_moving:
                self._is_exchanging = True
            return original(*args, **kwargs)

        return exchange


def _under_way(tensor: torch.Tensor) -> Any:
    """Return what a functional collective has given that may not have arrived, None for other tensors."""
    local = getattr(tensor, "_local_tensor", tensor)
    return local if type(local).__name__ == "AsyncCollectiveTensor" else None
