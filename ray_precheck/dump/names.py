"""The grammar of a dump's keys.

Comes in: a key of `data`, such as `Torch.linalg.inv.0.forward`.
Goes out: the API's name and the direction, or the reason why the key names no API call.
"""

import re
from dataclasses import dataclass

from ray_precheck.schema.record import ApiName

DIRECTIONS = ("forward", "backward")
_MODULE_PREFIXES = ("Module", "Cell")
_MINIMUM_PARTS = 4
# Canonical, so that two keys never become one call; more digits than int() takes are none.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


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


def parse_key(key: str) -> ApiKey | ForeignKey:
    """Return what a key of the dump names.

    An API key is `Prefix.api.N.forward|backward`; an api with dots has more parts. Modules
    (`Module.conv1.Conv2d.forward.0`, `Cell...`) and `*.parameters_grad` are no APIs.
    """
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
