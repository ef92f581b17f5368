"""Who makes the collectives of a captured step: FSDP, with its parameters, and DTensor, with its placements.

Comes in: what torch calls where it gathers parameters, scatters gradients, and moves the parts of a DTensor;
none of it has a contract. Goes out: the fields `by`, `parameters` and `placements` of the records of the
collectives within. Put on by `probe` for the time of a captured step.

What FSDP itself calls between a collective and the parameters (buffers that nobody has filled yet, views of
them, copies into them) has no records: what a collective got and gave has.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import detour
from ray_precheck.capture.pytorch.collectives import imported
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.pytorch.tensors.text import placements_text
from ray_precheck.capture.writing.elements import array, quoted

# Makes a context in which the records of collectives have these fields.
Saying = Callable[[str], AbstractContextManager[None]]
_TENSORS = "torch.distributed.tensor"


class Sharded:
    """Says who makes collectives, while it is watched; `saying` adds fields to their records."""

    def __init__(self, recorder: TorchRecorder) -> None:
        self._recorder = recorder
        # The parameters of whole gradients that FSDP has reduced, kept so that no other gets their identity.
        self._reduced: dict[int, Any] = {}
        self._reduces_flat = False
        self.is_reducing = False

    def has_reduced(self, parameter: Any) -> bool:
        """Return whether FSDP has reduced the gradient of a parameter as autograd has accumulated it.

        Parameters of the older FSDP are parts of a flat one, while they are whole.
        """
        return id(parameter) in self._reduced or (self._reduces_flat and not parameter.is_leaf)

    @contextmanager
    def watched(self, saying: Saying) -> Iterator[None]:
        """Say who makes collectives, for the time of a captured step."""
        with ExitStack() as detours:

            def put(owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
                original = getattr(owner, name, None)
                if original is not None:
                    detours.enter_context(detour(owner, name, make(original)))

            # Each part is asked for by its name, so that a look-up of what is used can follow it.
            is_loaded, find = private_parts.is_loaded, private_parts.find
            groups = find(private_parts.FSDP) if is_loaded(private_parts.FSDP) else None
            put(groups, "foreach_all_gather", lambda run: self._of_params(run, saying))
            put(groups, "foreach_reduce", lambda run: self._of_params(run, saying, reduces=True))
            put(groups, "foreach_all_gather_copy_out", self._copying)
            handles = reductions = None
            if is_loaded(private_parts.FSDP_HANDLES):
                handles = getattr(find(private_parts.FSDP_HANDLES), "FlatParamHandle", None)
            if is_loaded(private_parts.FSDP_REDUCTIONS):
                reductions = find(private_parts.FSDP_REDUCTIONS)
            put(handles, "_all_gather_flat_param", lambda run: self._of_flat(run, saying, 0))
            put(reductions, "_reduce_grad", lambda run: self._of_flat(run, saying, 1))
            if private_parts.is_loaded(private_parts.DTENSOR_MOVES):
                for module in _having("redistribute_local_tensor", *imported()):
                    put(module, "redistribute_local_tensor", lambda run: _moving(run, saying))
            yield

    def _of_params(
        self, original: Callable[..., Any], saying: Saying, *, reduces: bool = False
    ) -> Callable[..., Any]:
        def exchange(params: Any, *args: Any, **kwargs: Any) -> Any:
            if reduces:
                for each in params:
                    whole = getattr(each, "_unsharded_param", None)
                    self._reduced[id(whole)] = whole
            names = [getattr(each, "_param_fqn", None) or "" for each in params]
            before, self.is_reducing = self.is_reducing, reduces
            try:
                with saying(_by_fsdp(names)), self._aside():
                    return original(params, *args, **kwargs)
            finally:
                self.is_reducing = before

        return exchange

    def _copying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def copy(result: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
            with self._aside():
                copied = original(result, params, *args, **kwargs)
            whole = [
                (getattr(each, "all_gather_outputs", ()), getattr(each, "_unsharded_param", None))
                for each in params
            ]
            self._recorder.forget(whole)
            if self._recorder.darkness is not None:
                self._recorder.darkness.know(whole)
            return copied

        return copy

    def _of_flat(
        self, original: Callable[..., Any], saying: Saying, place: int
    ) -> Callable[..., Any]:
        """Return a function of the older FSDP that says the parameters of a handle, its argument at a
        place."""

        def exchange(*args: Any, **kwargs: Any) -> Any:
            self._reduces_flat = True
            handle = args[place] if place < len(args) else kwargs.get("handle")
            names = getattr(getattr(handle, "flat_param", None), "_fqns", ())
            with saying(_by_fsdp(names)), self._aside():
                result = original(*args, **kwargs)
            if self._recorder.darkness is not None:
                self._recorder.darkness.know(result)
            return result

        return exchange

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Have no records of operators; collectives have theirs."""
        mode = self._recorder.mode
        if mode is None:
            yield
            return
        before, mode.paused = mode.paused, True
        try:
            yield
        finally:
            mode.paused = before


def _by_fsdp(names: Iterable[str]) -> str:
    return f', "by": "FSDP", "parameters": {array(map(quoted, names))}'


def _moving(original: Callable[..., Any], saying: Saying) -> Callable[..., Any]:
    def move(local: Any, before: Any, after: Any, *args: Any, **kwargs: Any) -> Any:
        placements = ", ".join(
            f'"{word}": {placements_text(spec.placements)}'
            for word, spec in (("from", before), ("to", after))
        )
        with saying(f', "by": "DTensor", "placements": {{{placements}}}'):
            return original(local, before, after, *args, **kwargs)

    return move


@functools.lru_cache(maxsize=1)
def _having(name: str, *_: object) -> list[Any]:
    """Return the modules of DTensor that have a function; it is asked with what `imported` says, so that all
    modules are looked through again only after another one was imported."""
    return [
        module
        for path, module in list(sys.modules.items())
        if path.startswith(_TENSORS) and callable(vars(module).get(name))
    ]
