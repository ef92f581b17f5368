"""Collectives that a module lacks, or makes otherwise, beside others of its role.

Comes in: a summary, the groups, the modules of its records. Goes out: findings. Called by `checks`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.difference.rows import ERROR
from ray_precheck.trace.ranks.agreement import (
    shown_group,
)
from ray_precheck.trace.ranks.nouns import (
    RankFault,
    RankFinding,
    RankGroup,
    RankTrace,
)
from ray_precheck.trace.side import MODULE_PREFIXES
from ray_precheck.trace.sources import Modules

_FORWARD, _BACKWARD = ".forward", ".backward"
# The collectives of a module, each with its group.
_Made = tuple[tuple[str, str], ...]
# Records before that of a module among which those in it are looked for.
_NEAR = 40


def exchanges_by_module(
    summary: RankTrace, groups: Sequence[RankGroup], modules: Modules
) -> Iterator[RankFinding]:
    """Yield collectives that a module lacks, or makes otherwise, beside the others of its role and class."""
    first_backward = next(
        (place for place, key in enumerate(summary.keys) if _BACKWARD in key), len(summary.keys)
    )
    made: dict[str, list[tuple[str, str]]] = {}
    for key in summary.keys[:first_backward]:
        if key.startswith(MODULE_PREFIXES) and f"{_FORWARD}." in key:
            made.setdefault(key, [])
    places: dict[str, tuple[str, int]] = {}
    for each in summary.exchanges:
        module = modules.of(each.key)
        if each.place < first_backward and module in made and b'"by"' not in each.raw:
            made[module].append((each.meeting.operation, each.meeting.group))
            places.setdefault(module, (each.key, each.place))
    roles: dict[str, dict[str, _Made]] = defaultdict(dict)
    for module, operations in made.items():
        if module.endswith(f"{_FORWARD}.0"):
            roles[re.sub(r"\d+", "#", module)][module] = tuple(operations)
    frequent = Counter(operation for operations in made.values() for operation in operations)
    for alike in roles.values():
        counts = Counter(alike.values())
        if len(counts) < 2:
            continue
        usual, _ = max(
            counts.items(),
            key=lambda item: (item[1], bool(item[0]), max((frequent[name] for name in item[0]), default=0),
                              -len(item[0])),
        )  # fmt: skip
        for module, own in alike.items():
            if own != usual:
                like = next(other for other, done in alike.items() if done == usual)
                yield _unlike_module(summary, module, like, (own, usual), groups, places, modules)
                break


def _unlike_module(
    summary: RankTrace,
    module: str,
    like: str,
    made: tuple[_Made, _Made],
    groups: Sequence[RankGroup],
    places: Mapping[str, tuple[str, int]],
    modules: Modules,
) -> RankFinding:
    operations, usual = made
    short, other = (".".join(each.split(".")[1:-3]) for each in (module, like))
    key, place = places.get(module, (module, _begin_of(module, summary, modules)))
    meant = {where for _, where in (*usual, *operations)}
    group = next(
        (each for each in groups if summary.rank in each.ranks and ranges_of(each.ranks) in meant),
        None,
    )
    shown, right = _shown(operations) or "no collective", _shown(usual)
    message = (
        f"{short} makes {shown} in its forward pass, and {other}, which is alike, makes"
        f" {right or 'none'}: {_what_is_wrong(operations, usual)}"
    )
    return RankFinding(
        summary.step, ERROR, RankFault.COLLECTIVE, key, str(summary.rank),
        shown_group(group) if group is not None else "", right, shown, "the records",
        message, dump=summary.name, key=key, place=place,
    )  # fmt: skip


def _shown(made: _Made) -> str:
    return "; ".join(f"{operation} in the group {group}" for operation, group in made)


def _what_is_wrong(made: _Made, usual: _Made) -> str:
    """Return in words what tells the collectives of a module from those that others of its role make."""
    if len(made) < len(usual):
        return "a collective is missing"
    if len(made) > len(usual):
        return (
            "a collective is one too many, and what was summed is summed twice"
            if len(set(made)) == len(set(usual))
            else "a collective is one too many"
        )
    if [operation for operation, _ in made] == [operation for operation, _ in usual]:
        return "it runs in another group"
    return "another collective is made"


def _begin_of(module: str, summary: RankTrace, modules: Modules) -> int:
    """Return the place of the first record in a module; its own record stands behind them."""
    place = summary.keys.index(module)
    inside = (
        at for at in range(max(0, place - _NEAR), place) if modules.of(summary.keys[at]) == module
    )
    return next(inside, place)
