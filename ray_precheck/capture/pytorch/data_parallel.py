"""What `DistributedDataParallel` exchanges in a captured step, which torch does in C++.

Comes in: the recorder of a captured step, and each call of such a model. Goes out: a record of each bucket of
gradients that its reducer averages (`Distributed.ddp_all_reduce.{n}`), and of the buffers and parameters that
it broadcasts (`Distributed.ddp_broadcast.{n}`). Put on by `probe` for the time of a captured step.

    input_args    one list: the gradients of this rank before the reduction; null where it has none
    input_kwargs  `op`, AVG; nothing where a hook of the script says what is exchanged (its name is in `hook`)
                  or where ranks may have no input left (`join`)
    output        one list: the same gradients after it
    parameters    their names, in the same order; also `by`, and `group`

The reducer has no hook of ours, which would make it another one: then it does not divide before it sums.
Torch calls hooks on an accumulated gradient before it calls the reducer's, so what is seen there is what the
reducer gets. It copies the averages into the gradients in a callback at the end of the backward pass; ours is
put behind it by a callback that is put on within a callback. Of nested backward passes (checkpoints with
`use_reentrant=True`) the reducer says whether it has done.

A backward pass within `no_sync` reduces nothing, and has no record. One that does not reach all parameters
is never reduced, which torch says at the next forward pass; it has no record, either.
"""

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as distributed

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import detour, is_compiling
from ray_precheck.capture.pytorch.elements import group_text
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.settings import STRUCTURE
from ray_precheck.capture.writing.elements import NULL, array, quoted
from ray_precheck.foreign import caught

REDUCED, BROADCAST = "Distributed.ddp_all_reduce", "Distributed.ddp_broadcast"
NameOf = Callable[[torch.Tensor], str]
_BY = ', "by": "DistributedDataParallel"'
_AVERAGE = '{"op": {"type": "torch.distributed.ReduceOp", "value": "RedOpType.AVG"}}'
# Torch tells the buckets by zeros of their sizes. So much memory is taken for it on an accelerator.
_MOST_ZERO_BYTES = 1 << 28


class DataParallel:
    """Records what models in `DistributedDataParallel` exchange, while they are watched.

    `name_of` names a parameter, "" where it does not know it.
    """

    def __init__(self, recorder: TorchRecorder, name_of: NameOf) -> None:
        self._recorder, self._name_of = recorder, name_of
        self._engine = private_parts.find(private_parts.AUTOGRAD_ENGINE)
        # The reductions that will come, by the identity of their model; the models whose parameters have
        # hooks, with their buckets; and the hooks.
        self._awaited: dict[int, _Reduction] = {}
        self._hooked: dict[int, _Buckets] = {}
        self._handles: list[Any] = []
        # The parameters that are reduced in this step.
        self._reduced: set[int] = set()
        # The modules whose wrappers run, the innermost last.
        self._modules: list[Any] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See what is exchanged, for the time of a captured step."""
        if not distributed.is_available():
            yield
            return
        kind = torch.nn.parallel.DistributedDataParallel
        broadcast = private_parts.find(private_parts.DDP_BROADCAST)
        with ExitStack() as detours:
            detours.enter_context(detour(kind, "forward", self._forward(kind.forward)))
            if broadcast is not None:
                detours.enter_context(detour(kind, "__init__", self._made(kind.__init__)))
                by = self._broadcasting(broadcast)
                detours.enter_context(detour(distributed, "_broadcast_coalesced", by))
            try:
                yield
            finally:
                for handle in self._handles:
                    handle.remove()
                self._handles.clear()
                self._hooked.clear()
                self._awaited.clear()

    def reduces(self, parameter: torch.Tensor) -> bool:
        """Return whether the gradient of a parameter is reduced in this step."""
        return id(parameter) in self._reduced

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(model: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._recorder.stopped:
                return original(model, *args, **kwargs)
            with self._within(model.module):
                result = original(model, *args, **kwargs)
            if torch.is_grad_enabled() and model.require_backward_grad_sync:
                self._recorder.guarded(REDUCED, lambda: self._await(model))
            else:
                self._awaited.pop(id(model), None)
            return result

        return forward

    def _made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def made(model: Any, *args: Any, **kwargs: Any) -> None:
            with self._within(args[0] if args else kwargs.get("module")):
                original(model, *args, **kwargs)

        return made

    @contextmanager
    def _within(self, module: Any) -> Iterator[None]:
        self._modules.append(module)
        try:
            yield
        finally:
            self._modules.pop()

    def _await(self, model: Any) -> None:
        """Wait for the gradients that the next backward pass through a model will reduce."""
        if self._engine is None or getattr(model, "reducer", None) is None:
            return
        if id(model) not in self._hooked:
            self._hooked[id(model)] = _Buckets(model, self._name_of)
            mine, identity = weakref.ref(self), id(model)

            def take(parameter: torch.Tensor) -> None:
                watching = mine()
                if watching is not None:
                    watching.take(identity, parameter)

            for parameter in model.module.parameters():
                if parameter.requires_grad:
                    self._reduced.add(id(parameter))
                    self._handles.append(parameter.register_post_accumulate_grad_hook(take))
        self._awaited[id(model)] = _Reduction(self._recorder, model, self._hooked[id(model)])

    def take(self, identity: int, parameter: torch.Tensor) -> None:
        """Take a gradient that the reducer of a model is about to get, in the backward pass."""
        reduction = self._awaited.get(identity)
        if reduction is None or self._recorder.stopped:
            return
        self._recorder.guarded(REDUCED, lambda: reduction.take(parameter))
        if reduction.enters_pass():

            def end() -> None:
                if self._awaited.get(identity) is reduction and reduction.is_done():
                    del self._awaited[identity]
                    if not self._recorder.stopped:
                        frame = sys._getframe()
                        self._recorder.guarded(REDUCED, lambda: reduction.write(frame))

            engine: Any = self._engine
            engine.queue_callback(lambda: engine.queue_callback(end))

    def _broadcasting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def broadcast(
            group: Any, tensors: Any, size: Any, source: int = 0, *args: Any, **kwargs: Any
        ) -> Any:
            recorder = self._recorder
            run = functools.partial(original, group, tensors, size, source, *args, **kwargs)
            if recorder.stopped or is_compiling() or not self._modules:
                return run()
            key = f"{BROADCAST}.{recorder.number(BROADCAST)}.forward"
            if not recorder.scope.wants(key):
                return run()
            frame, tensors = sys._getframe(1), list(tensors)
            named = {"src": distributed.get_global_rank(group, source)}
            before = recorder.guarded(key, lambda: recorder.before(key, (tensors,), named)) or ""
            result = run()

            def write() -> None:
                recorder.forget(tensors)
                fields = before + recorder.after(key, (tensors,))
                fields += said(self._states(tensors), group)
                recorder.write(key, fields, recorder.stack_of(frame), recorder.parent)

            if not recorder.stopped:
                recorder.guarded(key, write)
            return result

        return broadcast

    def _states(self, tensors: list[torch.Tensor]) -> list[str]:
        """Return the names of parameters and buffers of the module whose wrapper runs."""
        module = self._modules[-1]
        known = {each.data_ptr(): f"module.{name}" for name, each in module.named_buffers()}
        for name, each in module.named_parameters():
            known[each.data_ptr()] = self._name_of(each) or f"module.{name}"
        return [known.get(each.data_ptr(), "") for each in tensors]


class _Buckets:
    """The parameters of a model in the order in which they are reduced, with their names."""

    def __init__(self, model: Any, name_of: NameOf) -> None:
        self._model, self._name_of = model, name_of
        self._is_rebuilt: Any = None
        self._known: list[list[torch.Tensor]] = []
        self._names: dict[int, str] = {}

    def now(self) -> list[list[torch.Tensor]]:
        """Return the parameters of each bucket; all in one where torch does not say."""
        is_rebuilt = getattr(self._model, "_has_rebuilt_buckets", None)
        if not self._known or is_rebuilt != self._is_rebuilt:
            self._is_rebuilt = is_rebuilt
            self._known = self._told() or [list(self._reduced().values())]
        return self._known

    def name(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter in the model that runs."""
        known = self._name_of(parameter)
        if not known and not self._names:
            for name, each in self._model.named_parameters():
                self._names.setdefault(id(each), name)
        return known or self._names.get(id(parameter), "")

    def _reduced(self) -> dict[str, torch.Tensor]:
        ignored = self._model.parameters_to_ignore
        return {
            name: each
            for name, each in self._model.module.named_parameters()
            if each.requires_grad and name not in ignored
        }

    def _told(self) -> list[list[torch.Tensor]]:
        zeros = private_parts.find(private_parts.DDP_BUCKETS)
        parameters = self._reduced().values()
        size = sum(each.nbytes for each in parameters)
        if zeros is None or (
            size > _MOST_ZERO_BYTES and not all(each.is_cpu for each in parameters)
        ):
            return []
        # It cannot tell those of sparse gradients, and has no memory left in the worst case.
        found, _ = caught(lambda: [each.parameters() for each in zeros(self._model.reducer)])
        return found or []


class _Reduction:
    """The gradients of one backward pass through a model, on their way through its reducer."""

    def __init__(self, recorder: TorchRecorder, model: Any, buckets: _Buckets) -> None:
        self._recorder, self._model, self._buckets = recorder, model, buckets
        self._parts: list[list[torch.Tensor]] = []
        self._keys: list[str] = []
        self._places: dict[int, tuple[str, str]] = {}
        self._before: dict[int, str] = {}
        self._task = private_parts.find(private_parts.GRAPH_TASK)
        self._tasks: set[int] = set()

    def take(self, parameter: torch.Tensor) -> None:
        """Take a gradient before its reduction; of several in one pass the last one counts."""
        if not self._parts:
            self._begin()
        key, place = self._places.get(id(parameter), ("", ""))
        if key and self._recorder.scope.wants(key):
            self._recorder.place = key
            self._before[id(parameter)] = self._recorder.elements.one(parameter.grad, place)

    def _begin(self) -> None:
        """Number the buckets, and note where in their records the gradients stand that are wanted there."""
        settings = self._recorder.settings
        is_wanted = settings.task != STRUCTURE and settings.wants("forward", "input")
        self._parts = self._buckets.now()
        for part in self._parts:
            key = f"{REDUCED}.{self._recorder.number(REDUCED)}.forward"
            self._keys.append(key)
            for number, each in enumerate(part) if is_wanted else ():
                self._places[id(each)] = key, f"input.0.{number}"

    def enters_pass(self) -> bool:
        """Return whether the backward pass that runs, of nested ones the innermost, is met first now."""
        task = -1 if self._task is None else self._task()
        is_new = task not in self._tasks
        self._tasks.add(task)
        return is_new

    def is_done(self) -> bool:
        """Return whether the reducer has written what it has averaged."""
        ask = private_parts.find(private_parts.DDP_FINALIZED)
        return ask is None or caught(lambda: ask(self._model.reducer))[1] is None

    def write(self, frame: FrameType) -> None:
        """Write the records of all buckets."""
        model, recorder = self._model, self._recorder
        joins = bool(getattr(getattr(model, "_join_config", None), "enable", False))
        hook = _hook_of(model)
        for key, part in zip(self._keys, self._parts, strict=True):
            if not recorder.scope.wants(key):
                continue
            gradients = [each.grad for each in part]
            recorder.forget(gradients)
            fields = ""
            if self._before:
                before = array([self._before.get(id(each), NULL) for each in part])
                named = "{}" if hook or joins else _AVERAGE
                fields = f'"input_args": [{before}], "input_kwargs": {named}'
            fields += recorder.after(key, (gradients,))
            fields += said(map(self._buckets.name, part), model.process_group)
            fields += f', "hook": {quoted(hook)}' if hook else ""
            fields += ', "join": true' if joins else ""
            recorder.write(key, fields, recorder.stack_of(frame), None)


def said(names: Iterable[str], group: Any) -> str:
    """Return the fields of the parameters of a record, who made it, and in which group."""
    return f'{_BY}, "parameters": {array(map(quoted, names))}, "group": {group_text(group)}'


def _hook_of(model: Any) -> str:
    """Return the name of the function that exchanges the gradients in the reducer's place, "" for none."""
    hooks = [hook for hook, _ in getattr(model, "_comm_hooks", ())]
    if hooks:
        return str(getattr(hooks[-1], "__qualname__", type(hooks[-1]).__name__))
    return str(model._get_ddp_logging_data().get("comm_hook", ""))
