"""Benches that are not the frameworks' own operators: those of users, and those of `bench.fused`.

Comes in: the API's name, and the users' modules of the run. Goes out: the function that is the bench,
and the function under test where a user's module names it. Called by the bench and by the checker.
"""

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray_precheck.bench.checkable import unsupported_prefix
from ray_precheck.bench.declared import RAISED, BenchModule, Declaration, load_declarations
from ray_precheck.bench.fused.one_node import as_one_node
from ray_precheck.descriptors.known import find_framework, load_part
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Backend, CallPlan, Execution
from ray_precheck.frameworks.pytorch.signatures import Row
from ray_precheck.operators.table import one_table
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall

_OWN = "--bench-module FILE can add one"


class BenchError(Exception):
    """A function of a user's raised; the message names it."""


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
            return as_one_node(functools.partial(_bound, name.type_name, rows))
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


def _bound(type_name: str, rows: tuple[Row, ...], *args: Any, **kwargs: Any) -> Any:
    """Call the reference of the first signature that takes the arguments."""
    for row in rows:
        found = row.signature.bind(args, kwargs)
        if found is not None and callable(row.target):
            return row.target(*found[0], **found[1])
    raise NotCheckable(f"the bench of {type_name} does not know these arguments")


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
