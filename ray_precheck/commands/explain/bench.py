"""Where the bench of an operator comes from, and why an operator has none.

Comes in: an operator, the modules of users' benches. Goes out: a `BenchAnswer`. Called by
`commands.explain.explanation`. Loads torch; where it is not installed the answer says so.
"""

import functools
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.bench.declared import BenchModule
from ray_precheck.commands.explain.asked import AskedOperator
from ray_precheck.errors import NotCheckable
from ray_precheck.operators.table import full_name
from ray_precheck.schema.record import ApiName

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class BenchAnswer:
    """Lines about the bench; `exists` is None where torch is not there to be asked."""

    exists: bool | None
    lines: tuple[str, ...]


def bench_answer(operator: AskedOperator, modules: Sequence[BenchModule]) -> BenchAnswer:
    """Return where the bench of an operator comes from, or why there is none.

    Raises:
        UsageError: a module of a user's cannot be loaded.
    """
    if importlib.util.find_spec("torch") is None:
        return BenchAnswer(None, ("torch, which computes the bench, is not installed here",))
    from ray_precheck.bench.run import Bench, References

    name = api_name(operator)
    where = f"torch {Bench.version} in float64 on the CPU"
    references = References(operator.framework, modules)
    try:
        function = inspect.unwrap(Bench(operator.framework, references).resolve(name))
    except NotCheckable as reason:
        return BenchAnswer(False, (str(reason),))
    origin = references.origin(name)
    if origin:
        return BenchAnswer(True, (f"a user's own: {origin}",))
    rows = references.rows(name)
    if rows:
        return BenchAnswer(True, ("a built-in one, by its formula", *_told(rows)))
    mapped = _rows_of(function)
    if mapped:
        return BenchAnswer(True, (f"{where}, by the arguments", *_told(mapped)))
    itself = " itself" if operator.name.startswith("torch.") else ", a namesake"
    target = _spelled(function, operator)
    return BenchAnswer(True, (f"{where}: {target}{itself}",))


def api_name(operator: AskedOperator) -> ApiName:
    """Return the name of an operator in a dump, as of its first call."""
    prefix, _, api = operator.type_names[0].partition(".")
    return ApiName(prefix, api, 0)


def _rows_of(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the rows that a bench was made of, () where it is torch's function itself."""
    if isinstance(function, functools.partial) and len(function.args) == 2:
        rows = function.args[1]
        return rows if isinstance(rows, tuple) else ()
    return ()


def _told(rows: Sequence[Any]) -> list[str]:
    """Return a line for each overload: its arguments, and the function that takes them."""
    return [f"({_parameters(row)}): {_target(row.target)}" for row in rows]


def _parameters(row: Any) -> str:
    shown = []
    for parameter in row.signature.parameters:
        star = "*" if parameter.variadic else ""
        shown.append(f"{star}{parameter.name}")
    return ", ".join(shown)


def _target(target: str | Callable[..., Any]) -> str:
    if isinstance(target, str):
        return full_name(target, "pytorch")
    module = getattr(target, "__module__", "")
    return f"{module}.{getattr(target, '__qualname__', target)}"


def _spelled(function: Callable[..., Any], operator: AskedOperator) -> str:
    if operator.name.startswith("torch."):
        return operator.name
    name = getattr(function, "__name__", operator.name.rpartition(".")[2])
    if hasattr(function, "__objclass__"):  # a method that is written in C
        return f"torch.Tensor.{name}"
    return f"{getattr(function, '__module__', None) or 'torch'}.{name}"
