"""The arguments of a random call, by name.

Comes in: a `HostCall`, the tested outputs and a signature as text. Goes out: `RandomCall`. Called by
`check.random.rules`. A signature is a list of parameters in their order, separated by blanks, each
`name|other_name=default`; `...` stands for further arguments, which have no name here.
"""

import ast
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ray_precheck.accuracy.random.statistics import Draws, draws_of, sampled
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Leaf
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import HostCall, HostTensor


def bind(signature: str, call: HostCall) -> dict[str, Any]:
    """Return the arguments of a call by the first name of each parameter, defaults where they have
    one; parameters that are not given and have no default are left out."""
    bound: dict[str, Any] = {}
    rest = list(call.args)
    for word in signature.split():
        if word == "...":
            break
        names, _, default = word.partition("=")
        aliases = names.split("|")
        keyword = next((name for name in aliases if name in call.kwargs), None)
        if rest:
            bound[aliases[0]] = rest.pop(0)
        elif keyword is not None:
            bound[aliases[0]] = call.kwargs[keyword]
        elif default:
            bound[aliases[0]] = ast.literal_eval(default)
    return bound


@dataclass(frozen=True)
class RandomCall:
    """A random call: its arguments by name (`arguments`) and as recorded (`call`), and its outputs.

    `spread` is a generator for the tests of discrete draws, whose values it spreads evenly over the
    steps of their distribution function.
    """

    arguments: dict[str, Any]
    call: HostCall
    outputs: list[Leaf]
    spread: np.random.Generator

    def tensor(self, name: str) -> HostTensor:
        """Return an argument that is a tensor; raise `NotCheckable` if it is no tensor."""
        value = self.arguments.get(name)
        if not isinstance(value, HostTensor):
            raise NotCheckable(f"its argument {name} is no tensor")
        return value

    def number(self, name: str) -> float:
        """Return a finite argument: a number, or a tensor of one element; else raise `NotCheckable`."""
        value = self.arguments.get(name)
        if isinstance(value, HostTensor) and value.data.size == 1:
            value = value.data.item()
        if not isinstance(value, int | float):
            raise NotCheckable(f"its argument {name} is no number")
        if not math.isfinite(value):
            raise NotCheckable(f"its argument {name} is not finite: no statistic of that is known")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return whether an argument is given and true."""
        return self.arguments.get(name) is True

    def parameter(self, name: str) -> float | Array:
        """Return a parameter of the distribution: a number, or one for each element of `draws`."""
        value = self.arguments.get(name)
        if not isinstance(value, HostTensor) or value.data.size == 1:
            return self.number(name)
        if DTYPES[value.dtype].kind == "complex":
            raise NotCheckable(f"its argument {name} is complex, and no statistic of that is known")
        try:
            whole = np.broadcast_to(value.data, self.out.shape)
        except ValueError:
            raise NotCheckable(
                f"its argument {name} of shape {list(value.shape)} does not fit its output of shape"
                f" {list(self.out.shape)}"
            ) from None
        found = whole.reshape(-1)[sampled(self.out.data.size)].astype(np.float64)
        if not np.isfinite(found).all():
            raise NotCheckable(f"its argument {name} is not finite: no statistic of that is known")
        return found

    @property
    def out(self) -> HostTensor:
        """The first output; raises `NotCheckable` if it is no tensor."""
        if not self.outputs or not isinstance(self.outputs[0], HostTensor):
            raise NotCheckable("its output is no tensor")
        return self.outputs[0]

    @cached_property
    def draws(self) -> Draws:
        """The elements of the first output that statistics use; a complex element counts as two."""
        out = self.out
        if DTYPES[out.dtype].kind == "complex":
            part = f"float{DTYPES[out.dtype].bits // 2}"
            out = HostTensor(part, np.ascontiguousarray(out.data).view(part))
        return draws_of(out)

    @property
    def whole_numbers(self) -> list[int]:
        """The whole numbers among the positional arguments."""
        return [value for value in self.call.args if type(value) is int]
