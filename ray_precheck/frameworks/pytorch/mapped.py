"""A bench by rows: torch's operators, or functions of torch tensors, with another framework's arguments.

Comes in: the rows of an API, as `signatures.rows` makes them. Goes out: a function that takes the
framework's arguments. Called by the mappings of frameworks to the bench.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch.names import resolve_torch
from ray_precheck.frameworks.pytorch.signatures import Row
from ray_precheck.schema.record import ApiName


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
        bound = row.signature.bind(args, kwargs)
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
