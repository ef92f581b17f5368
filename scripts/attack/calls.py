"""One call of a kernel, as torch's dispatcher has it below autograd: what it gets, and how it runs wrongly.

Comes in: the operator and its arguments. Goes out: a `KernelCall`, which conditions look at and damages run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class KernelCall:
    """A call of an operator of torch's dispatcher; `args` has every positional argument of the schema."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def kernel(self) -> str:
        """The operator's name without its overload."""
        return str(self.func.overloadpacket.__name__)

    def argument(self, at: int | str) -> Any:
        """Return an argument by its position or its name, None where it is not given."""
        if isinstance(at, str):
            if at in self.kwargs:
                return self.kwargs[at]
            names = [each.name for each in self.func._schema.arguments]
            at = names.index(at) if at in names else len(self.args)
        return self.args[at] if at < len(self.args) else None

    def tensor(self, at: int | str) -> torch.Tensor | None:
        """Return an argument that is a tensor with elements, or the first of a list; else None."""
        value = self.argument(at)
        if isinstance(value, list | tuple) and value:
            value = next((each for each in value if torch.is_tensor(each)), None)
        return value if torch.is_tensor(value) and value.numel() else None

    def run(self) -> Any:
        """Run the honest kernel."""
        return self.func(*self.args, **self.kwargs)

    def with_argument(self, at: int | str, change: Callable[[Any], Any]) -> "KernelCall":
        """Return the call with one argument changed, of a list each."""
        changed = tree_map(change, self.argument(at))
        if isinstance(at, str) and at in self.kwargs:
            return KernelCall(self.func, self.args, {**self.kwargs, at: changed})
        if isinstance(at, str):
            at = [each.name for each in self.func._schema.arguments].index(at)
        args = (*self.args[:at], changed, *self.args[at + 1 :])
        return KernelCall(self.func, args, self.kwargs)

    def written(self) -> list[torch.Tensor]:
        """Return the tensors that the schema says the call writes."""
        found = []
        for position, each in enumerate(self.func._schema.arguments):
            if each.alias_info is not None and each.alias_info.is_write:
                value = self.kwargs.get(each.name) if each.kwarg_only else self.argument(position)
                found += [leaf for leaf in tree_flatten(value)[0] if torch.is_tensor(leaf)]
        return found

    def apart(self) -> tuple["KernelCall", list[torch.Tensor]]:
        """Return the same call that writes into copies, and the copies in the order of `written`.

        Arguments that are the very same tensor stay the same.
        """
        copies = {id(tensor): tensor.clone() for tensor in self.written()}

        def swapped(leaf: Any) -> Any:
            return copies.get(id(leaf), leaf)

        args, kwargs = tree_map(swapped, (self.args, dict(self.kwargs)))
        return KernelCall(self.func, args, kwargs), [copies[id(each)] for each in self.written()]


@dataclass(frozen=True)
class Ran:
    """What a wrong kernel gives, and whether anybody could see it."""

    result: Any
    visible: bool


def run_with(call: KernelCall, change: Callable[[KernelCall], KernelCall]) -> Ran:
    """Run a kernel that takes its arguments for others; what it writes is as wrong as what it returns."""
    trial, copies = call.apart()
    wrong = change(trial).run()
    right = call.run()
    written = call.written()
    visible = any(map(_differs, copies, written)) or _differ(wrong, right)
    for real, copy in zip(written, copies, strict=True):
        real.copy_(copy)
    return Ran(right if written else wrong, visible)


def run_edited(
    call: KernelCall, edit: Callable[[torch.Tensor], torch.Tensor], only: int | None = None
) -> Ran:
    """Run the kernel, and edit its results (the one at `only`), or what it has written."""
    right = call.run()
    written = call.written()
    if written:
        chosen = written if only is None else written[only : only + 1]
        edited = [edit(each) for each in chosen]
        visible = any(map(_differs, edited, chosen))
        for real, wrong in zip(chosen, edited, strict=True):
            real.copy_(wrong)
        return Ran(right, visible)
    if only is not None:
        results = list(right)
        results[only] = edit(results[only])
        wrong = tuple(results)
    else:
        wrong = tree_map(lambda leaf: edit(leaf) if torch.is_tensor(leaf) else leaf, right)
    return Ran(wrong, _differ(wrong, right))


def run_changing(call: KernelCall, at: int | str, factor: float) -> Ran:
    """Run the kernel, and leave a wrong value in an argument that it changes."""
    result = call.run()
    changed = [leaf for leaf in tree_flatten(call.argument(at))[0] if torch.is_tensor(leaf)]
    before = [leaf.clone() for leaf in changed]
    for leaf in changed:
        leaf.mul_(factor) if leaf.is_floating_point() else leaf.add_(1)
    return Ran(result, any(map(_differs, changed, before)))


def as_rows(tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Return a tensor as rows along a dimension, contiguous, as float64 for floats."""
    wide = tensor.double() if tensor.is_floating_point() else tensor
    wide = wide.movedim(dim, -1) if wide.dim() else wide.reshape(1)
    return wide.reshape(-1, wide.shape[-1])


def _differ(wrong: Any, right: Any) -> bool:
    pairs = zip(_tensors(wrong), _tensors(right), strict=True)
    return any(_differs(one, other) for one, other in pairs)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_flatten(value)[0] if torch.is_tensor(leaf))


def _differs(wrong: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two results differ by more than rounding, of any dtype here."""
    if wrong.shape != right.shape:
        return True
    if right.layout is not torch.strided:
        wrong, right = wrong.to_dense(), right.to_dense()
    if not right.numel():
        return False
    if not (right.is_floating_point() or right.is_complex()):
        return not torch.equal(wrong, right)
    kind = torch.complex128 if right.is_complex() else torch.float64
    wide_wrong, wide_right = wrong.to(kind), right.to(kind)
    if not torch.equal(wide_wrong.isfinite(), wide_right.isfinite()):
        return True
    apart = (wide_wrong - wide_right).abs().nan_to_num(0, 0, 0)
    size = wide_right.abs().nan_to_num(0, 0, 0).max()
    return bool(apart.max() > 0.05 * size)
