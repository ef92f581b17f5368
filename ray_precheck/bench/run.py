"""The float64 bench.

Comes in: an API name and the `HostCall` that the device got. Goes out: a `TorchExecution` in
float64 on the CPU. Called by `check`. Integers and booleans keep their dtypes, complex numbers become
complex128; dtype arguments that name a float become float64, and the result is rounded to the tested
dtype only when it is compared. A user's own bench comes first, then the benches of fused operators,
then the function to which the framework's descriptor maps the name. The first two are one node of the
autograd graph, as a fused operator is: a capture holds the gradients that the node of an API's first output
passed on.
"""

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import torch

from ray_precheck.bench.checkable import unsupported_prefix
from ray_precheck.bench.declared import RAISED, BenchModule, Declaration, load_declarations
from ray_precheck.descriptors.descriptor import find_framework, load_part
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Backend, CallPlan, Execution, flatten_outputs, map_leaves
from ray_precheck.frameworks.pytorch.names import absence
from ray_precheck.frameworks.pytorch.run import TorchExecution, TorchPlace
from ray_precheck.frameworks.pytorch.signatures import Row, mapped
from ray_precheck.frameworks.pytorch.storages import on_meaning
from ray_precheck.operators.table import one_table
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall

Tensor = torch.Tensor
_Run = Callable[[Iterator[Tensor]], list[Any]]
_OWN = "--bench-module FILE can add one"
# A network calls some hundred operators, each of them often.
_MOST_FOUND = 1 << 12
_PLACE = TorchPlace(device="cpu", widen=True)


def load_bench(framework: str) -> None:
    """Import what the bench of a framework imports at its first calls; nothing is computed."""
    # torch imports sympy by it at the first backward pass.
    with suppress(ImportError):
        importlib.import_module("torch.fx.experimental.symbolic_shapes")
    torch.overrides.get_overridable_functions()  # Asked by every name, and kept by torch.
    load_part(find_framework(framework).bench)
    References(framework)


class References:
    """The references of one framework: those of users' modules, then those of fused operators.

    Raises:
        UsageError: a module cannot be loaded, see `load_declarations`.
    """

    def __init__(self, framework: str, modules: Sequence[BenchModule] = ()) -> None:
        self._framework = framework
        self._declared = load_declarations(modules)
        own = find_framework(framework)
        self._unlisted = own.unlisted
        self._fused: Mapping[str, tuple[Row, ...]]
        self._fused = one_table(f"references of {own.title}", *map(load_part, own.fused))

    def find(self, name: ApiName) -> Callable[..., Any] | None:
        """Return the bench of an API, None where the framework's own names decide.

        Raises:
            NotCheckable: no list of the framework has such names, and there is no bench here.
        """
        declared = self._declared.get(name.type_name)
        if declared is not None:
            function = functools.partial(_of_user, declared)
            return function if _is_in_place(name) else as_one_node(function)
        rows = self._fused.get(name.type_name)
        if rows is not None:
            return as_one_node(mapped(name.type_name, rows))
        if name.prefix in self._unlisted:
            raise NotCheckable(f"{name.type_name} has no bench: {self._unlisted[name.prefix]}")
        reason = unsupported_prefix(name, self._framework)
        if reason:
            raise NotCheckable(f"{name.type_name} has no bench: {reason}; {_OWN}")
        return None

    def rows(self, name: ApiName) -> tuple[Row, ...]:
        """Return the rows of a built-in bench of a fused operator, () where it has none."""
        return self._fused.get(name.type_name, ())

    def origin(self, name: ApiName) -> str:
        """Return file and function of the user's that is the bench, "" where it is none."""
        declared = self._declared.get(name.type_name)
        return "" if declared is None else declared.origin

    def tested(self, name: ApiName) -> Callable[..., Any] | None:
        """Return the function under test that a user's module names, None if it names none.

        Raises:
            NotCheckable: there is nothing at its dotted path.
        """
        declared = self._declared.get(name.type_name)
        if declared is None or declared.tested is None:
            return None
        return declared.tested if callable(declared.tested) else _at(declared.tested, declared)

    def finds_tested(self, backend: Backend) -> Backend:
        """Return the backend, extended by the functions under test that users' modules name."""
        return _FindsTested(backend, self) if self._declared else backend


class Bench:
    """Finds and runs references for the APIs of one framework; `version` is that of torch."""

    version = torch.__version__

    def __init__(self, framework: str, references: References | None = None) -> None:
        # One thread: the same bits on every host, and the cores are shared out over records.
        torch.set_num_threads(1)
        self._resolve: Callable[[ApiName], Callable[..., Any]]
        self._resolve = load_part(find_framework(framework).bench)
        self._references = references or References(framework)
        self._found: dict[str, Callable[..., Any]] = {}

    def warm_up(self) -> None:
        """Compute something small, forward and backward: the first time takes 0.3 s longer."""
        value = torch.ones((64, 64), dtype=torch.float64, requires_grad=True)
        product = torch.nn.functional.linear(value, value)
        torch.autograd.grad(product, value, torch.ones_like(product))

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return the function that is the bench of an API; raises `NotCheckable` where there is none."""
        found = self._found.get(name.type_name)
        if found is None:
            found = self._references.find(name) or on_meaning(self._resolve(name))
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            self._found[name.type_name] = found
        return found

    def origin(self, name: ApiName) -> str:
        """Return file and function of a user's own bench, "" for every other."""
        return self._references.origin(name)

    def forward(
        self, function: Callable[..., Any], call: HostCall, plan: CallPlan
    ) -> TorchExecution:
        """Run the reference in float64.

        Raises:
            NotCheckable: the reference uses a part of torch that the installed version lacks.
        """
        try:
            return TorchExecution(function, call, plan, _PLACE)
        except AttributeError as error:
            lacking = _part_of_torch(error)
            if lacking:
                raise NotCheckable(absence(lacking)) from error
            raise
        except TypeError as error:
            # Arguments come with versions, too.
            if "unexpected keyword argument" in str(error):
                raise TypeError(f"{error} (torch {self.version})") from error
            raise


def _part_of_torch(error: AttributeError) -> str:
    """Return the full name of the part of torch that an error misses, "" where it misses another."""
    home = error.obj
    name = getattr(home, "__name__", "") if isinstance(home, ModuleType) else ""
    return f"{name}.{error.name}" if name.split(".")[0] == "torch" else ""


@contextmanager
def computing_threads(count: int) -> Iterator[None]:
    """Let torch compute with this number of threads inside the block."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def as_one_node(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose outputs, a flat tuple, all come from one node.

    A function that returns one tensor does so still. In-place functions must not be wrapped,
    because they would change a copy.
    """

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        tensors: list[Tensor] = []
        map_leaves((args, kwargs), lambda value: tensors.append(value) if _is(value) else None)
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            return function(*args, **kwargs)
        others: list[Any] = []

        def run(leaves: Iterator[Tensor]) -> list[Any]:
            def fill(value: Any) -> Any:
                return next(leaves) if _is(value) else value

            result = function(*map_leaves(args, fill), **map_leaves(kwargs, fill))
            others.extend(flatten_outputs(result, _is))
            return others

        made = iter(_OneNode.apply(run, *tensors))  # type: ignore[no-untyped-call]
        results = tuple(next(made) if _is(leaf) else leaf for leaf in others)
        return results[0] if len(results) == 1 else results

    return called


def _is(value: Any) -> bool:
    return isinstance(value, Tensor)


class _OneNode(torch.autograd.Function):
    """Runs a function with a graph of its own inside, and differentiates that one."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        wanted = ctx.needs_input_grad[1:]
        ctx.leaves = [
            tensor.detach().requires_grad_(wants)
            for tensor, wants in zip(tensors, wanted, strict=True)
        ]
        with torch.enable_grad():
            ctx.results = [leaf for leaf in run(iter(ctx.leaves)) if _is(leaf)]
        outputs = tuple(result.detach() for result in ctx.results)
        pairs = zip(outputs, ctx.results, strict=True)
        ctx.mark_non_differentiable(*[out for out, result in pairs if not result.requires_grad])
        return outputs

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        pairs = [
            (result, grad)
            for result, grad in zip(ctx.results, incoming, strict=True)
            if grad is not None and result.requires_grad
        ]
        leaves = [leaf for leaf in ctx.leaves if leaf.requires_grad]
        results, grads = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        found = iter(
            torch.autograd.grad(results, leaves, grads, retain_graph=True, allow_unused=True)
        )
        return (None, *[next(found) if leaf.requires_grad else None for leaf in ctx.leaves])


class BenchError(Exception):
    """A function of a user's raised; the message names it."""


class _FindsTested:
    """A backend that looks for an API among users' functions before its own."""

    def __init__(self, backend: Backend, references: References) -> None:
        self._backend = backend
        self._references = references
        self.framework = backend.framework

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return the function under test; raise `NotCheckable` if it is missing or may not be called."""
        tested = self._references.tested(name)
        if tested is not None:
            return tested
        try:
            return self._backend.resolve(name)
        except NotCheckable as reason:
            origin = self._references.origin(name)
            if not origin:
                raise
            where = "@reference(..., tested=...) says where else it is"
            raise NotCheckable(f"{reason}; {origin}: {where}") from None

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> Execution:
        """Run it on the device."""
        return self._backend.forward(function, call, plan)

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether an error says that the device has no kernel."""
        return self._backend.lacks_kernel(error)

    def prove(self) -> None:
        """Compute 1 + 1 on the device."""
        self._backend.prove()


def _is_in_place(name: ApiName) -> bool:
    return name.api.endswith("_") and not name.api.endswith("__")


def _of_user(declared: Declaration, *args: Any, **kwargs: Any) -> Any:
    """Call a user's function; its exceptions get its name."""
    try:
        return declared.function(*args, **kwargs)
    except RAISED as error:
        text = " ".join(str(error).split())
        raise BenchError(f"{declared.origin} raised {type(error).__name__}: {text}") from error


def _at(path: str, declared: Declaration) -> Callable[..., Any]:
    """Return the function at a dotted path, of the longest part of it that is a module."""
    module, _, rest = path.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), rest)
    except RAISED as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise NotCheckable(
            f"{declared.origin}: tested={path!r} cannot be imported here: {text}"
        ) from error
    if not callable(found):
        raise NotCheckable(f"{declared.origin}: tested={path!r} is no function")
    return found  # type: ignore[no-any-return]
