"""Which dumps of two runs are compared with each other.

Comes in: the paths of a target, of a golden side and of a second golden run. Goes out: a `DumpPair` for each
comparison, and the dumps without a partner. Called by `run`.

Also here: files of users that say which names of two captures belong together, in msprobe's YAML forms.

- operators (`-am`): a list of `{ms_api: Functional.conv2d, pt_api: Functional.conv2d, ms_args: [0, 1],
  pt_args: [0, 1], ms_outputs: [0], pt_outputs: [0]}`; arguments that are not listed have no partner;
- modules (`-cm`): `{fc2.Dense: fc2.Linear}`; a whole name, or the parts of names;
- values (`-dm`): `{Functional.add.0.forward.input.0: Torch.add.0.forward.input.1}`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ray_precheck.accuracy.standards.plain_yaml import read_yaml
from ray_precheck.commands.compare.layouts import DumpPair, whole_pairs
from ray_precheck.commands.compare.options import ComparisonConfig
from ray_precheck.dump.folders import FoundDump
from ray_precheck.dump.scan import ByteRange
from ray_precheck.errors import UsageError
from ray_precheck.foreign import read_file
from ray_precheck.formats.conversion import find_captures
from ray_precheck.trace.alignment.align import How, Match, align
from ray_precheck.trace.alignment.calls import Call, family_of
from ray_precheck.trace.items import GRADIENTS, INPUT, OUTPUT, PARAMETERS, Item
from ray_precheck.trace.side import API, BACKWARD, MODULE, entry_of


def pair_dumps(
    config: ComparisonConfig,
) -> tuple[list[DumpPair], tuple[str, ...]]:
    """Return the pairs of dumps, and the labels of dumps without a partner.

    Raises:
        DumpError: a path names nothing.
        UsageError: the folders have nothing in common.
    """
    target, golden = find_captures(config.target), find_captures(config.golden)
    noise = find_captures(config.noise).dumps if config.noise is not None else ()
    if len(target.dumps) == 1 and len(golden.dumps) == 1:
        # Whatever their folders are called: proc4711 and proc4712, or a dump that was copied.
        one, two = target.dumps[0], golden.dumps[0]
        third = tuple(each.path for each in noise[:1])
        return [DumpPair((one.path,), (two.path,), third, Path(), one.label)], ()
    layouts = config.layout, config.golden_layout
    whole = whole_pairs(target.dumps, golden.dumps, noise, layouts)
    if whole:
        return whole, ()
    others = _by_place(noise)
    pairs, without = paired_by_place(target.dumps, golden.dumps)
    found = []
    for place, (each, partner) in pairs.items():
        third = (others[place].path,) if place in others else ()
        found.append(DumpPair((each.path,), (partner.path,), third, each.place, each.label))
    if not found:
        raise UsageError(
            f"{config.target} has {in_words(target.dumps)} and {config.golden} {in_words(golden.dumps)}, of"
            " which no two are of the same step and rank, or ranks are missing that their groups name; name"
            " two folders that correspond"
        )
    if noise and not any(pair.noise for pair in found):
        raise UsageError(
            f"--noise {config.noise} has {in_words(noise)}, of which none is of the same step and rank as one"
            f" of {config.golden} that is compared; name a folder that corresponds to -gp"
        )
    return found, without


def in_words(dumps: Sequence[FoundDump]) -> str:
    """Return how many dumps there are, with the first labels."""
    named = ", ".join(each.label for each in dumps[:3])
    return f"{len(dumps)} dump{'s' if len(dumps) > 1 else ''} ({named}{', ...' if len(dumps) > 3 else ''})"


def paired_by_place(
    target: Sequence[FoundDump], golden: Sequence[FoundDump]
) -> tuple[dict[str, tuple[FoundDump, FoundDump]], tuple[str, ...]]:
    """Return the dumps of the same step and rank, by these, and the labels of those without a partner."""
    pairs, without, others = {}, [], _by_place(golden)
    for place, each in _by_place(target).items():
        partner = others.pop(place, None)
        if partner is None:
            without.append(f"{each.label} of the target")
        else:
            pairs[place] = each, partner
    without += [f"{each.label} of the golden side" for each in others.values()]
    return pairs, tuple(without)


def _by_place(dumps: Sequence[FoundDump]) -> dict[str, FoundDump]:
    """Return the dumps by step and rank; the number of a process that is alone in its step says nothing."""
    alone = Counter(each.step for each in dumps)
    return {
        each.step
        if alone[each.step] == 1 and each.rank.startswith("proc")
        else str(each.place): each
        for each in dumps
    }


_LARGEST_BYTES = 16 << 20
# The parts of a record that a pair of operators lists, by the end of the keys of both lists.
_LISTS = {
    INPUT: "args",
    OUTPUT: "outputs",
    PARAMETERS: "parameters",
    GRADIENTS: "parameters_grad",
}


@dataclass(frozen=True, slots=True)
class ApiPair:
    """Two operators that belong together, with the names of their values that do, by part of the record."""

    target: str
    golden: str
    values: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NameMapping:
    """The names that belong together: operators by the target's type, modules and values by name."""

    apis: dict[str, ApiPair] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it names nothing."""
        return not (self.apis or self.cells or self.values)

    def renamed(self, calls: Sequence[Call]) -> list[Call]:
        """Return the target's calls under the golden side's names, as far as they are mapped."""
        return [self._renamed(call) for call in calls]

    def _renamed(self, call: Call) -> Call:
        if call.kind == API and call.type_name in self.apis:
            golden = self.apis[call.type_name].golden
            name = call.name.replace(call.type_name, golden, 1)
            return call._replace(name=name, type_name=golden, family=family_of(golden))
        if call.kind == MODULE and self.cells:
            rest = call.type_name.partition(".")[2]
            other = self._cell(rest)
            if other != rest:
                type_name = f"Module.{other}"
                name = call.name.replace(call.type_name, type_name, 1)
                return call._replace(
                    name=name, type_name=type_name, family=type_name.rpartition(".")[2]
                )
        return call

    def _cell(self, name: str) -> str:
        """Return the golden side's name of a module: the whole name mapped, else each part of it."""
        if name in self.cells:
            return self.cells[name]
        for part, other in self.cells.items():
            name = name.replace(part, other, 1)
        return name

    def partner(self, type_name: str, key: str, item: Item) -> str | None:
        """Return the path of the golden value that belongs to a value of the target.

        "" where the mapping says that there is none; None where it says nothing. `type_name` is that of the
        target's call, `key` the key of its record. The lists of arguments and outputs are those of a forward
        pass: which gradients a backward pass gives, and at which places, differs between frameworks.
        """
        full = self.values.get(f"{key}.{item.path}")
        if full is not None:
            return full
        pair = self.apis.get(type_name)
        if pair is None or item.part not in pair.values or key.endswith(f".{BACKWARD}"):
            return None
        part, _, place = item.path.partition(".")
        other = pair.values[item.part].get(place)
        return "" if other is None else f"{part}.{other}"


def aligned(
    target: Sequence[Call], golden: Sequence[Call], mapping: NameMapping, *, exact: bool
) -> list[Match]:
    """Align the calls of two captures under the names of a mapping; calls whose values are mapped belong
    together whatever their names."""
    renamed = mapping.renamed(target)
    forced = _forced(mapping, target, golden)
    if not forced:
        found = align(renamed, golden, exact=exact)
    else:
        ours = [place for place in range(len(target)) if place not in forced]
        taken = set(forced.values())
        theirs = [place for place in range(len(golden)) if place not in taken]
        left = align([renamed[p] for p in ours], [golden[p] for p in theirs], exact=exact)
        found = [Match((own,), (other,), How.MAPPED) for own, other in forced.items()]
        for match in left:
            own = tuple(ours[place] for place in match.target)
            other = tuple(theirs[place] for place in match.golden)
            found.append(match._replace(target=own, golden=other))
    return [_as_mapped(match, target, renamed) for match in found]


def _as_mapped(match: Match, target: Sequence[Call], renamed: Sequence[Call]) -> Match:
    """Return a match under another name as one that the mapping made."""
    is_mapped = any(target[place].name != renamed[place].name for place in match.target)
    return match._replace(how=How.MAPPED) if is_mapped and match.how is How.EXACT else match


def _forced(mapping: NameMapping, target: Sequence[Call], golden: Sequence[Call]) -> dict[int, int]:
    """Return the positions of calls that belong together because values of them are mapped."""
    if not mapping.values:
        return {}
    ours = {call.name: place for place, call in enumerate(target)}
    theirs = {call.name: place for place, call in enumerate(golden)}
    found: dict[int, int] = {}
    for one, two in mapping.values.items():
        own, other = _place(one, ours), _place(two, theirs)
        if own is not None and other is not None and other not in found.values():
            found.setdefault(own, other)
    return found


def _place(value: str, places: dict[str, int]) -> int | None:
    """Return the position of the call that a value, `Torch.add.0.forward.input.1`, is of.

    The key of a module's record has the direction before the number, its call has none.
    """
    name = value
    while name:
        found = places.get(name, places.get(entry_of(name, ByteRange(0, 0)).call))
        if found is not None:
            return found
        name = name.rpartition(".")[0]
    return None


def read_mapping(apis: Path | None, cells: Path | None, values: Path | None) -> NameMapping:
    """Read the files that are given.

    Raises:
        UsageError: a file cannot be read or has another form.
    """
    return NameMapping(
        {pair.target: pair for pair in _api_pairs(apis)} if apis else {},
        _texts(cells, "-cm") if cells else {},
        _texts(values, "-dm") if values else {},
    )


class Named(NamedTuple):
    """What a mapping may name of a capture: the types of its calls and the keys of its records."""

    types: frozenset[str]
    keys: tuple[str, ...]

    def has_api(self, name: str) -> bool:
        """Return whether an operator has calls."""
        return name in self.types

    def has_cell(self, name: str) -> bool:
        """Return whether a module's name, or a part of it, is in the capture."""
        return any(name in each for each in self.types)

    def has_value(self, name: str) -> bool:
        """Return whether a record has the name of a value."""
        return name.rpartition(".")[0].startswith(self.keys)


def require_named(
    mapping: NameMapping, paths: Sequence[Path | None], target: Named, golden: Named
) -> None:
    """Raise where a file of a mapping has no pair of names of which each side has its own.

    `paths` are the files of `-am`, `-cm` and `-dm`, None for those that are not given.

    Raises:
        UsageError: names the file, and what the side has of which it names nothing.
    """
    apis = {name: pair.golden for name, pair in mapping.apis.items()}
    files = (
        (apis, Named.has_api),
        (mapping.cells, Named.has_cell),
        (mapping.values, Named.has_value),
    )
    for path, (pairs, has) in zip(paths, files, strict=True):
        if not pairs or any(has(target, a) and has(golden, b) for a, b in pairs.items()):
            continue
        is_of_target = any(has(target, name) for name in pairs)
        side, there = ("golden side", golden) if is_of_target else ("target", target)
        first = next(iter(pairs.values() if is_of_target else pairs))
        raise UsageError(
            f"{path} names nothing of the {side}: its first name is {first!r}, the {side} has"
            f" {', '.join(sorted(there.types)[:3])}, ...; the target's names stand first in a mapping"
        )


def _api_pairs(path: Path) -> list[ApiPair]:
    content = _content(path, "-am")
    if not isinstance(content, list):
        raise _wrong(path, "-am", "a list of pairs {ms_api: ..., pt_api: ...}", content)
    return [_api_pair(path, each) for each in content]


def _api_pair(path: Path, entry: Any) -> ApiPair:
    names = [entry.get(key) if isinstance(entry, dict) else None for key in ("ms_api", "pt_api")]
    if not all(isinstance(name, str) and name for name in names):
        raise _wrong(path, "-am", "a pair with the names ms_api and pt_api", entry)
    values: dict[str, dict[str, str]] = {}
    for part, end in _LISTS.items():
        ours, theirs = entry.get(f"ms_{end}"), entry.get(f"pt_{end}")
        if ours is None and theirs is None:
            continue
        if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
            raise _wrong(path, "-am", f"ms_{end} and pt_{end} of one length", entry)
        values[part] = dict(zip(map(str, ours), map(str, theirs), strict=True))
    return ApiPair(str(names[0]), str(names[1]), values)


def _texts(path: Path, option: str) -> dict[str, str]:
    content = _content(path, option)
    if not isinstance(content, dict) or not all(
        isinstance(each, str) for pair in content.items() for each in pair
    ):
        raise _wrong(path, option, "pairs of names, TARGET: GOLDEN", content)
    return content


def _content(path: Path, option: str) -> Any:
    try:
        raw = read_file(path)
    except OSError as error:
        raise UsageError(f"cannot read {option} {path}: {error.strerror}") from None
    if len(raw) > _LARGEST_BYTES:
        raise UsageError(f"{option} {path} has {len(raw)} bytes; a list of names is expected")
    return read_yaml(raw, f"{option} {path}")


def _wrong(path: Path, option: str, expected: str, found: Any) -> UsageError:
    return UsageError(f"{option} {path} has {str(found)[:80]!r} where {expected} is expected")
