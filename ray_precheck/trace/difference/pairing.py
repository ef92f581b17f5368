"""Which value of the target is compared with which value of the golden operator.

Comes in: the values of two operators that were aligned. Goes out: pairs. Called by `rows`.
"""

from collections.abc import Callable, Hashable, Sequence

from ray_precheck.trace.items import Item

Pair = tuple[Item | None, Item | None]
_Key = Callable[[Item], Hashable]


def pair_items(
    target: Sequence[Item], golden: Sequence[Item], *, same_framework: bool = True
) -> list[Pair]:
    """Return pairs in which each value of both sides is exactly once, None where there is no other.

    Values of the same path are a pair. Of those that are left, tensors of one part (inputs, parameters,
    outputs) with one shape are paired at the same position, then in any order, because frameworks and
    versions name, order and pass arguments differently; then tensors at the same position whatever their
    shapes. Values that are no tensors have to be of one type. Between frameworks the names of keywords
    say less than shapes do: a tensor with another shape under the same path waits until shapes have
    been tried. The order is that of the target, with what only the golden side has at the end of its part.
    """
    if same_framework and _are_alike(target, golden):
        return [*zip(target, golden, strict=True)]
    matches: dict[int, int] = {}
    left = [*range(len(golden))]
    places = {id(item): place for items in (target, golden) for item, place in _places(items)}
    by_shape: list[_Key] = [
        lambda item: (_part(item), places[id(item)], _alike(item)),
        lambda item: (_part(item), _alike(item)),
    ]
    keys: list[_Key] = [lambda item: (item.path, item.part), *by_shape]
    if not same_framework:
        keys = [lambda item: (item.path, item.part, _alike(item)), *by_shape, keys[0]]
    keys.append(
        lambda item: (_part(item), places[id(item)]) if item.is_tensor else (id(item), item.path)
    )
    for key in keys:
        if not left or len(matches) == len(target):
            break
        left = _match(target, golden, matches, left, key)
    return _in_order(target, golden, matches, left)


def _are_alike(target: Sequence[Item], golden: Sequence[Item]) -> bool:
    """Return whether both sides have the same paths in the same order, as nearly all operators do."""
    if len(target) != len(golden):
        return False
    for ours, theirs in zip(target, golden, strict=True):
        if ours.path != theirs.path or ours.part != theirs.part:
            return False
    return True


def _places(items: Sequence[Item]) -> list[tuple[Item, int]]:
    """Return each value with its number among the tensors, or the others, of its part."""
    counts: dict[Hashable, int] = {}
    found = []
    for item in items:
        kind = (_part(item), item.is_tensor)
        found.append((item, counts.get(kind, 0)))
        counts[kind] = counts.get(kind, 0) + 1
    return found


def _part(item: Item) -> Hashable:
    """Return the part in which an item may have a partner: what a call has changed is none of its results."""
    return item.part, item.is_changed


def _alike(item: Item) -> Hashable:
    return ("tensor", item.shape) if item.is_tensor else ("value", item.type_name)


def _match(
    target: Sequence[Item],
    golden: Sequence[Item],
    matches: dict[int, int],
    left: list[int],
    key: _Key,
) -> list[int]:
    """Pair what has no pair yet and equal keys, in order; return what is left of the golden side."""
    waiting: dict[Hashable, list[int]] = {}
    for place in reversed(left):
        waiting.setdefault(key(golden[place]), []).append(place)
    taken = set()
    for place, item in enumerate(target):
        if place not in matches and (found := waiting.get(key(item))):
            matches[place] = found.pop()
            taken.add(matches[place])
    return [place for place in left if place not in taken]


def _in_order(
    target: Sequence[Item], golden: Sequence[Item], matches: dict[int, int], left: list[int]
) -> list[Pair]:
    pairs: list[Pair] = []
    rest = [golden[place] for place in left]
    for place, item in enumerate(target):
        mate = matches.get(place)
        pairs.append((item, None if mate is None else golden[mate]))
        last = place + 1 == len(target) or target[place + 1].part != item.part
        if last and rest:
            pairs += [(None, other) for other in rest if other.part == item.part]
            rest = [other for other in rest if other.part != item.part]
    return pairs + [(None, other) for other in rest]
