"""Which dumps are searched, and with which golden ones.

Comes in: the paths of a target and, perhaps, of a golden run. Goes out: a `DumpToLocate` for each dump.
Called by the session.
"""

from dataclasses import dataclass
from pathlib import Path

from ray_precheck.commands.compare.dumps import in_words, paired_by_place
from ray_precheck.dump.folders import FoundDump, find_existing_dumps
from ray_precheck.errors import UsageError


@dataclass(frozen=True, slots=True)
class DumpToLocate:
    """A dump of the target, and its partner; `place` is the folder of its results."""

    target: Path
    golden: Path | None
    place: Path
    label: str
    step: str
    rank: str


def dumps_to_locate(
    target: Path, golden: Path | None
) -> tuple[list[DumpToLocate], tuple[str, ...]]:
    """Return the dumps in the order of their steps and ranks, and the labels of those without a partner.

    Raises:
        UsageError: the folders have nothing in common, or other numbers of ranks.
    """
    ours = find_existing_dumps(target)
    if golden is None:
        found = [_found(each, None, is_many=ours.is_many) for each in ours.dumps]
        return found, ()
    theirs = find_existing_dumps(golden)
    if len(ours.dumps) == len(theirs.dumps) == 1:
        # Whatever their folders are called: proc4711 and proc4712, or a dump that was copied.
        return [_found(ours.dumps[0], theirs.dumps[0], is_many=False)], ()
    pairs, without = paired_by_place(ours.dumps, theirs.dumps)
    if not pairs:
        raise UsageError(
            f"{target} has {in_words(ours.dumps)} and {golden} {in_words(theirs.dumps)}, of which no two are"
            " of the same step and rank; name two folders that correspond (`compare` knows runs with another"
            " number of ranks)"
        )
    return [_found(*pair, is_many=True) for pair in pairs.values()], without


def _found(each: FoundDump, golden: FoundDump | None, *, is_many: bool) -> DumpToLocate:
    return DumpToLocate(
        each.path,
        golden.path if golden is not None else None,
        each.place if is_many else Path(),
        each.label,
        _digits(each.step),
        _digits(each.rank),
    )


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())
