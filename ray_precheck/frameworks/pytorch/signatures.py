"""Signatures of MindSpore's overloads, and how their arguments become torch's.

Comes in: a signature as text. Goes out: a `Row` that binds arguments. Of the rows of an API `mapped`
makes the function that takes the framework's arguments. Used by the tables, and by the mappings of frameworks
to the bench.

A signature is a list of parameters separated by blanks, in MindSpore's order. Each one is
`name[>torch_name][:kind][flags][=default]`:

    dim>axis     torch calls it axis; nothing after `>`: torch has no such argument, it is dropped
    dim:int      the overload is meant only if the value is an int (see `_KINDS`)
    dim?         None stands for "not given"
    dim!         the overload is meant only if this is given
    other&       a Python number becomes a tensor, because torch takes only tensors here
    index^       an integer tensor becomes int64, because torch takes only that
    axis=-1      passed where MindSpore's default is not torch's
    *dims        all positional arguments from here on, or the one sequence among them, as a tuple
    *            the parameters that follow are keyword-only

The first parameter is passed on by position, all others by keyword.
"""

import ast
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch.names import resolve_torch
from ray_precheck.schema.record import ApiName

_PARAMETER = re.compile(r"(\*?)(\w+)(>\w*)?(?::(\w+))?([?&^!]*)(?:=(\S+))?")
_MISSING = object()


_KINDS: dict[str, Callable[[Any], bool]] = {
    "any": lambda _: True,
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "tensor": torch.is_tensor,
    "dtype": lambda value: value is None or isinstance(value, torch.dtype),
    # An argument that torch lacks: only the value that says "not used" can be taken.
    "unused": lambda value: value is None or value is True,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of MindSpore; `target` is its name in torch, empty where torch has none."""

    name: str
    target: str
    kind: str
    flags: str
    default: Any
    variadic: bool
    keyword_only: bool

    def fits(self, given: dict[str, Any]) -> bool:
        """Return whether a value, or that none is given, fits this parameter."""
        if self.name in given:
            return _KINDS[self.kind](given[self.name])
        return "!" not in self.flags

    def convert(self, value: Any) -> Any:
        """Return a value as torch wants it, or `_MISSING` where it is not to be passed."""
        if value is None and "?" in self.flags:
            value = self.default
        if "&" in self.flags and isinstance(value, bool | int | float | complex):
            return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        if "^" in self.flags and torch.is_tensor(value) and not value.is_floating_point():
            return value.long()
        return value


@dataclass(frozen=True, slots=True)
class Row:
    """A reference: a torch name (`Torch.permute`) or a function, and the parameters of one overload of
    MindSpore."""

    target: str | Callable[..., Any]
    parameters: tuple[Parameter, ...]

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return torch's arguments, None if this overload does not take the given ones."""
        given = self._assign(args, kwargs)
        if given is None:
            return None
        positional: tuple[Any, ...] = ()
        keywords = {}
        for place, parameter in enumerate(self.parameters):
            if not parameter.fits(given):
                return None
            value = parameter.convert(given.get(parameter.name, parameter.default))
            if value is _MISSING or not parameter.target:
                continue
            if place == 0:
                positional = tuple(value) if parameter.variadic else (value,)
            else:
                keywords[parameter.target] = value
        return positional, keywords

    def _assign(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        given: dict[str, Any] = {}
        rest = list(args)
        for parameter in self.parameters:
            if not rest or parameter.keyword_only:
                break
            if parameter.variadic:
                alone = len(rest) == 1 and isinstance(rest[0], list | tuple)
                given[parameter.name], rest = tuple(rest[0] if alone else rest), []
            else:
                given[parameter.name] = rest.pop(0)
        known = {parameter.name for parameter in self.parameters} - set(given)
        if rest or not set(kwargs) <= known:
            return None
        return {**given, **kwargs}


def rows(target: str | Callable[..., Any], *signatures: str) -> tuple[Row, ...]:
    """Return a row for each overload that a reference serves."""
    return tuple(Row(target, parse_signature(text)) for text in signatures)


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def parse_signature(text: str) -> tuple[Parameter, ...]:
    """Return the parameters of a signature.

    Raises:
        ValueError: a parameter is not written as the module's docstring says.
    """
    parameters: list[Parameter] = []
    keyword_only = False
    for word in text.split():
        if word == "*":
            keyword_only = True
            continue
        match = _PARAMETER.fullmatch(word)
        if match is None or (match[4] or "any") not in _KINDS:
            raise ValueError(f"{word!r} in {text!r} is no parameter of a signature")
        star, name, target, kind, flags, default = match.groups()
        parameters.append(
            Parameter(
                name=name,
                target=name if target is None else target[1:],
                kind=kind or "any",
                flags=flags,
                default=_MISSING if default is None else ast.literal_eval(default),
                variadic=bool(star),
                keyword_only=keyword_only,
            )
        )
    return tuple(parameters)


def mapped(type_name: str, rows: Sequence[Row]) -> Callable[..., Any]:
    """Return the bench of an API, `Mint.add`, that has rows; of these the first is called whose
    signature takes the arguments.

    Raises:
        NotCheckable: the installed torch has the operator of none of the rows.
    """
    found = tuple(rows)
    _require_any(found)
    return functools.partial(_call, type_name, found)


@functools.cache
def _require_any(rows: tuple[Row, ...]) -> None:
    reasons = []
    for row in rows:
        try:
            target_of(row)
        except NotCheckable as reason:
            reasons.append(reason)
        else:
            return
    if reasons:
        raise reasons[0]


def _call(type_name: str, rows: tuple[Row, ...], *args: Any, **kwargs: Any) -> Any:
    """Call the first row whose signature takes the arguments."""
    for row in rows:
        bound = row.bind(args, kwargs)
        if bound is not None:
            return target_of(row)(*bound[0], **bound[1])
    raise NotCheckable(f"the bench of {type_name} does not know these arguments")


@functools.cache
def target_of(row: Row) -> Callable[..., Any]:
    """Return the function of a row, which may name one of torch's: `Torch.permute`.

    Raises:
        NotCheckable: torch has no operator of that name that may be called.
    """
    if not isinstance(row.target, str):
        return row.target
    prefix, _, api = row.target.partition(".")
    return resolve_torch(ApiName(prefix, api, 0))
