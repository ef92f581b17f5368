"""Tensors that came into a recorded call although no recorded call has made them.

Comes in: each tensor that is looked at for the first time, what torch's other functions give, and what data
loaders hand over. Goes out: those that were made in this step by code that nobody saw. Asked by the recorder.

A tensor is known by its storage, so a view or a detached tensor is known with its base. What was there before
the step began is no output of it: Python's collector is asked, which sets aside (`gc.freeze`, in no time) all
objects that are there, until the step ends or a collection of all objects begins. From then on, and where the
script uses `gc.freeze` itself, nothing can be told of tensors without a graph.
"""

import gc
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

_DEEPEST = 6


class Origins:
    """Which storages are known, and whether an object was made since the step began."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}
        self._tells_age = False
        self.is_able = _storages_last()

    def begin(self) -> None:
        """Set aside all objects that are there, as not of this step."""
        if self.is_able and not self._tells_age and not gc.get_freeze_count():
            gc.freeze()
            self._tells_age = True
            gc.callbacks.append(self._on_collection)

    def end(self) -> None:
        """Let the collector look at all objects again."""
        if self._tells_age:
            self._tells_age = False
            gc.callbacks.remove(self._on_collection)
            gc.unfreeze()

    def _on_collection(self, phase: str, told: Mapping[str, Any]) -> None:
        """A collection of all objects is one of all objects, also in a captured step."""
        if phase == "start" and told.get("generation") == _OLDEST:
            self.end()

    def know(self, tensor: torch.Tensor) -> None:
        """Take note of a tensor that may come into calls."""
        storage = storage_of(tensor)
        if storage is not None:
            self._known[id(storage)] = weakref.ref(storage)

    def know_all(self, value: Any, depth: int = 0) -> None:
        """Take note of the tensors in what a data loader or a function gives."""
        if isinstance(value, torch.Tensor):
            self.know(value)
        elif depth < _DEEPEST:
            for each in _inside(value):
                self.know_all(each, depth + 1)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether the storage of a tensor is known; of one without any nothing can be told."""
        storage = storage_of(tensor)
        if storage is None:
            return True
        found = self._known.get(id(storage))
        return found is not None and found() is storage

    def made_now(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of some tensors that were made since the step began, as far as that can be told."""
        asked = {id(each): each for each in tensors}
        if not asked or not self._tells_age:
            return []
        return [asked[id(each)] for each in gc.get_objects() if id(each) in asked]


_OLDEST = 2


def storage_of(tensor: torch.Tensor) -> Any:
    """Return the storage object of a tensor, of a wrapped one that within; None where there is none."""
    for _ in range(_DEEPEST):
        try:
            return tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                return None
            tensor = torch._C._functorch.get_unwrapped(tensor)
    return None


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, tuple | list):
        return value
    return getattr(value, "__dict__", {}).values()


def _storages_last() -> bool:
    """Return whether torch has one object for a storage as long as the storage is there (since 2.1)."""
    try:
        tensor = torch.empty(1)
        found = weakref.ref(tensor.untyped_storage())
        return found() is not None and found() is tensor.untyped_storage()
    except (RuntimeError, TypeError, AttributeError):
        return False
