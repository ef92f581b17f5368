"""Which faults are planted in a model: drawn at random, and the same each time.

Comes in: the calls that can be victims, a name and counts. Goes out: keys with their faults. Called by
`making`. The kinds of operators are gone through in a random order, and of each one call is drawn.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scripts.locate_faults.planted import FAULTS

_GRADIENT_FAULTS = (
    "scale 1 + 1e-2",
    "last 1/16 zeroed",
    "scale 1 + 1e-3",
    "one element",
    "NaN",
    "rows shifted",
)
_UPDATE_FAULTS = ("scale 1.1", "last 1/16 zeroed", "scale 1 + 1e-2", "rows shifted", "one element")
# Of a call that was not captured nothing is known but its neighbours; rounding shows nowhere.
_HIDDEN_FAULTS = ("scale 1.1", "rows shifted", "scale 1 + 1e-2", "last 1/16 zeroed", "one element")


@dataclass(frozen=True)
class Counts:
    """How many of each there are for a model in a dtype."""

    seeds: int = 3
    forward: int = 10
    gradient: int = 2
    update: int = 1
    hidden: int = 2


@dataclass(frozen=True)
class FaultPlan:
    """Faults by victims: pairs of a key and the name of a fault."""

    forward: tuple[tuple[str, str], ...]
    gradient: tuple[tuple[str, str], ...]
    update: tuple[str, ...]
    hidden: tuple[tuple[str, str], ...]


def plan_faults(
    name: str,
    victims: Mapping[str, str],
    differentiated: Mapping[str, str],
    counts: Counts,
) -> FaultPlan:
    """Draw the faults of a model, whose name seeds the draw."""
    dice = random.Random(name)
    start = dice.randrange(len(FAULTS))
    turned = [*FAULTS][start:] + [*FAULTS][:start]
    forward = _drawn(victims, turned, counts.forward, dice)
    gradient = _drawn(differentiated, _turned(_GRADIENT_FAULTS, dice), counts.gradient, dice)
    hidden = _drawn(differentiated, _turned(_HIDDEN_FAULTS, dice), counts.hidden, dice)
    update = _turned(_UPDATE_FAULTS, dice)[: counts.update]
    return FaultPlan(forward, gradient, tuple(update), hidden)


def _turned(faults: tuple[str, ...], dice: random.Random) -> list[str]:
    start = dice.randrange(len(faults))
    return [*faults[start:], *faults[:start]]


def _drawn(
    victims: Mapping[str, str], faults: list[str], count: int, dice: random.Random
) -> tuple[tuple[str, str], ...]:
    calls = _by_turns(victims, dice)
    pairs = []
    for number in range(count):
        key = next(calls, None)
        if key is not None:
            pairs.append((key, faults[number % len(faults)]))
    return tuple(pairs)


def _by_turns(victims: Mapping[str, str], dice: random.Random) -> Iterator[str]:
    """Yield calls, of each kind of operator one, then of each a second one, and so on."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for key, kind in victims.items():
        kinds[kind].append(key)
    order = list(kinds.values())
    dice.shuffle(order)
    for keys in order:
        dice.shuffle(keys)
    while any(order):
        for keys in order:
            if keys:
                yield keys.pop()
