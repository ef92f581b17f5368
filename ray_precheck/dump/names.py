"""The grammar of a dump's keys.

Comes in: a key of `data`, such as `Torch.linalg.inv.0.forward`.
Goes out: the API's name and the direction, or the reason why the key names no API call.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from ray_precheck.schema.record import ApiName

DIRECTIONS = ("forward", "backward")
LONGEST_NAME = 1000
_MODULE_PREFIXES = ("Module", "Cell")
_MINIMUM_PARTS = 4
# Canonical, so that two keys never become one call; more digits than int() takes are none.
_MOST_DIGITS = 18
_NUMBER = re.compile(rf"0|[1-9][0-9]{{0,{_MOST_DIGITS - 1}}}")
_MOST_KINDS = 1 << 12


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that names an API call, and its direction."""

    name: ApiName
    direction: str


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A key that names no API call, with the reason. `is_module` is true of module records."""

    reason: str
    is_module: bool = False


def split_key(key: str) -> tuple[str, str] | None:
    """Return the name of the API call and the direction, None for a key that names no call.

    The same as `parse_key` says, in a fifth of the time: a dump can have millions of keys.
    """
    name, _, direction = key.rpartition(".")
    if direction not in DIRECTIONS or len(key) > LONGEST_NAME:
        return None
    kind, _, number = name.rpartition(".")
    is_number = number.isdigit() and number.isascii() and len(number) <= _MOST_DIGITS
    if not is_number or (number[0] == "0" and number != "0") or not _is_api(kind):
        return None
    return name, direction


@lru_cache(_MOST_KINDS)
def _is_api(kind: str) -> bool:
    """Return whether `Prefix.api` is that of an API; thousands of calls are of one."""
    parts = kind.split(".")
    return len(parts) > 1 and "" not in parts and parts[0] not in _MODULE_PREFIXES


def parse_key(key: str) -> ApiKey | ForeignKey:
    """Return the call and the direction that a key of the dump names; for other keys the reason.

    An API key is `Prefix.api.N.forward|backward`; an api with dots has more parts. Modules
    (`Module.conv1.Conv2d.forward.0`, `Cell...`) and `*.parameters_grad` are no APIs.
    """
    if len(key) > LONGEST_NAME:
        return ForeignKey(f"not an API: a name of {len(key)} characters")
    parts = key.split(".")
    if parts[0] in _MODULE_PREFIXES:
        return ForeignKey("not an API: the record of a module", is_module=True)
    if parts[-1] == "parameters_grad":
        return ForeignKey("not an API: gradients of a module's parameters", is_module=True)
    if parts[-1] not in DIRECTIONS:
        return ForeignKey("not an API: the name does not end in .forward or .backward")
    if len(parts) < _MINIMUM_PARTS:
        return ForeignKey("not an API: the name has too few parts (Prefix.api.N.forward expected)")
    number = parts[-2]
    if not _NUMBER.fullmatch(number) or "" in parts:
        return ForeignKey(
            f"not an API: {number!r} is no call number (Prefix.api.N.forward expected)"
        )
    return ApiKey(ApiName(parts[0], ".".join(parts[1:-2]), int(number)), parts[-1])
