"""A recorder that owes nothing to the package: clones of what every call of torch got and gave.

Comes in: a program that runs under it. Goes out: a list of `SeenCall` in the order of the calls. Gradients
are those of hooks on tensors: on each output, and on an alias of each input, through which one call alone is
connected. It is a mode of torch of its own, in a run of its own.
"""

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode

Leaf = tuple[str, torch.Tensor]
# Memory that was never written holds anything.
UNWRITTEN = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"})


@dataclass(eq=False)
class SeenCall:
    """A call: its name, tensors in the order of arguments and outputs, and gradients.

    `after` has the inputs once the call has run; `arrived` has the gradients of the outputs by number, and
    `passed` those of the inputs by number among the tensors, one of each backward pass. `unwritten` are the
    numbers of inputs whose memory nothing was written to yet.
    """

    name: str
    inputs: list[torch.Tensor]
    after: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    arrived: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    passed: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    unwritten: set[int] = field(default_factory=set)


class IndependentRecorder(TorchFunctionMode):
    """Records every call of torch of this thread.

    `derived` are names of calls whose inputs get an alias, so that the gradient of this call alone is seen.
    """

    def __init__(self, derived: Container[str] = ()) -> None:
        super().__init__()
        self.calls: list[SeenCall] = []
        self.updates: list[SeenCall] = []
        self._derived = derived

    def __enter__(self) -> "IndependentRecorder":
        self._hooks = (
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        )
        super().__enter__()
        return self

    def __exit__(self, *told: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*told)

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.updates.append(SeenCall(type(optimizer).__name__, _held_by(optimizer)))

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.updates[-1].outputs = _held_by(optimizer)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__", "__delete__"):
            return func(*args, **kwargs)
        if name in _INSIDE:
            # Python of torch itself, whose calls a capture sees, too.
            super().__enter__()
            try:
                return _INSIDE[name](*args, **kwargs)
            finally:
                super().__exit__(None, None, None)
        call = SeenCall(name, _values(args, kwargs))
        for number, (_, tensor) in enumerate([*leaves_of(args), *leaves_of(kwargs)]):
            if tensor.__dict__.pop("_unwritten", False):
                call.unwritten.add(number)
        if name in self._derived and torch.is_grad_enabled():
            args, kwargs = _aliased(call, args, kwargs)
        result = func(*args, **kwargs)
        if name == "linear" and len(call.inputs) > 2:
            call.inputs[2] = call.inputs[2] / _shares_of(result)
        call.after = _values(args, kwargs)
        if name in UNWRITTEN and type(result) is torch.Tensor:
            result.__dict__["_unwritten"] = True
        given = args[0] if result is None and args else result
        tensors = [tensor for _, tensor in leaves_of(given)]
        call.outputs = [printed_value(tensor) for tensor in tensors]
        several = sum(tensor.requires_grad for tensor in tensors) > 1
        if name in self._derived and several and isinstance(result, tuple):
            # One output may be computed from another: what comes from outside alone is at an alias.
            result = type(result)(map(_alias_of, result))
            tensors = [tensor for _, tensor in leaves_of(result)]
        if torch.is_grad_enabled() and not torch._C._functorch.maybe_current_level():
            for number, tensor in enumerate(tensors):
                if tensor.requires_grad and tensor.grad_fn is not None:
                    _listen(tensor, call.arrived.setdefault(number, []))
        self.calls.append(call)
        return result


def _held_by(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return parameters, gradients and states of an optimizer."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    grads = [each.grad for each in parameters if each.grad is not None]
    states = [leaf for state in optimizer.state.values() for _, leaf in leaves_of(dict(state))]
    return [printed_value(each) for each in (*parameters, *grads, *states)]


def leaves_of(value: Any, path: str = "") -> Iterator[Leaf]:
    """Yield tensors with their places in nested lists and dicts, as `1.0` or `out`."""
    if torch.is_tensor(value):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves_of(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        for number, item in enumerate(value):
            yield from leaves_of(item, f"{path}.{number}" if path else str(number))


def printed_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of what torch would print of a tensor, contiguous and dense."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        tensor = tensor.detach()
        if isinstance(tensor, torch.nn.Parameter) or type(tensor) is not torch.Tensor:
            tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                tensor = torch._C._functorch.get_unwrapped(tensor)
        if tensor.is_meta:
            return tensor
        if tensor.is_quantized:
            tensor = tensor.int_repr()
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _shares_of(result: Any) -> int:
    """Return of how many ranks the values are the sum, of which each adds its share of a bias."""
    mesh = getattr(result, "device_mesh", None)
    placements = getattr(result, "placements", ())
    return math.prod(mesh.size(at) for at, each in enumerate(placements) if each.is_partial())


def _values(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    return [printed_value(tensor) for _, tensor in [*leaves_of(args), *leaves_of(kwargs)]]


def _backward(
    tensors: Any,
    gradients: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *_: Any,
    **more: Any,
) -> None:
    """Run a backward pass with the mode on, where torch's own functions would turn it off."""
    roots = [tensors] if torch.is_tensor(tensors) else list(tensors)
    given = more.get("gradient", more.get("grad_tensors", gradients))
    given = [given] * len(roots) if given is None or torch.is_tensor(given) else list(given)
    pairs = zip(roots, given, strict=True)
    with torch._C.DisableTorchFunction():
        grads = [torch.ones_like(root) if grad is None else grad for root, grad in pairs]
    run = torch.autograd.graph._engine_run_backward
    retain = create_graph if retain_graph is None else retain_graph
    inputs = tuple(more.get("inputs") or ())
    run(
        tuple(roots), tuple(grads), retain, create_graph, inputs,
        allow_unreachable=True, accumulate_grad=True,
    )  # fmt: skip


def _divided(tensor: torch.Tensor, other: Any) -> torch.Tensor:
    return tensor.reciprocal() * other


_INSIDE: dict[str, Callable[..., Any]] = {"backward": _backward, "__rdiv__": _divided}


def _aliased(
    call: SeenCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    numbers = count()

    def alias(value: Any) -> Any:
        if torch.is_tensor(value):
            number = next(numbers)
            if not value.requires_grad or value.layout is not torch.strided:
                return value
            other = _alias_of(value)
            _listen(other, call.passed.setdefault(number, []))
            return other
        if type(value) in (list, tuple):
            return type(value)(map(alias, value))
        return value

    return tuple(map(alias, args)), {key: alias(value) for key, value in kwargs.items()}


def _alias_of(value: Any) -> Any:
    if not torch.is_tensor(value) or not value.requires_grad:
        return value
    with torch._C.DisableTorchFunction():
        return value.view_as(value)


def _listen(tensor: torch.Tensor, into: list[torch.Tensor]) -> None:
    hook: Callable[[torch.Tensor], None] = lambda grad: into.append(printed_value(grad))  # noqa: E731
    tensor.register_hook(hook)
