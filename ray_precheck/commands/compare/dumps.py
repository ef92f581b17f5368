"""Which dumps of two runs are compared with each other.

Comes in: the paths of a target, of a golden side and of a second golden run. Goes out: a `DumpPair` for each
comparison, the dumps without a partner, and open captures: that of a dump, or of the dumps of all ranks put
together. Called by `run`.
"""

import contextlib
import hashlib
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.commands.compare.options import ComparisonConfig
from ray_precheck.dump.folders import FoundDump, find_existing_dumps
from ray_precheck.errors import UsageError
from ray_precheck.trace.gathering import gather_ranks, ranks_of_layout
from ray_precheck.trace.side import CaptureSide, open_side


@dataclass(frozen=True, slots=True)
class DumpPair:
    """Two dumps that are compared, and the second golden run; `place` is the folder of their results.

    A side of several dumps is that of all ranks, whose parts of tensors are put together.
    """

    target: tuple[Path, ...]
    golden: tuple[Path, ...]
    noise: tuple[Path, ...]
    place: Path
    label: str


def pair_dumps(
    config: ComparisonConfig,
) -> tuple[list[DumpPair], tuple[str, ...]]:
    """Return the pairs of dumps, and the labels of dumps without a partner.

    Raises:
        DumpError: a path names nothing.
        UsageError: the folders have nothing in common.
    """
    target, golden = find_existing_dumps(config.target), find_existing_dumps(config.golden)
    noise = find_existing_dumps(config.noise).dumps if config.noise is not None else ()
    if len(target.dumps) == 1 and len(golden.dumps) == 1:
        # Whatever their folders are called: proc4711 and proc4712, or a dump that was copied.
        one, two = target.dumps[0], golden.dumps[0]
        third = tuple(each.path for each in noise[:1])
        return [DumpPair((one.path,), (two.path,), third, Path(), one.label)], ()
    whole = _other_layouts(target.dumps, golden.dumps, noise)
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
            " which no two are of the same step and rank, and no layout says how tensors are distributed"
            " over ranks (captures of DTensors do); name two folders that correspond"
        )
    if noise and not any(pair.noise for pair in found):
        raise UsageError(
            f"--noise {config.noise} has {in_words(noise)}, of which none is of the same step and rank as one"
            f" of {config.golden} that is compared; name a folder that corresponds to -gp"
        )
    return found, without


def _other_layouts(
    target: Sequence[FoundDump], golden: Sequence[FoundDump], noise: Sequence[FoundDump]
) -> list[DumpPair]:
    """Return a pair for each step, with all ranks of both sides, where the sides have other numbers of ranks
    and say how their tensors are distributed over these; [] otherwise."""
    sides = [_by_step(each) for each in (target, golden, noise)]
    if len(sides[0]) == len(sides[1]) == 1:  # Whatever the steps are called.
        sides = [{"": next(iter(each.values()), [])} for each in sides]
    found = []
    for step, ours in sides[0].items():
        theirs, others = sides[1].get(step, []), sides[2].get(step, [])
        if not theirs or len(ours) == len(theirs):
            return []
        for ranks in (ours, theirs, others):
            if len(ranks) > 1 and not _is_distributed(ranks):
                return []
        paths = [tuple(each.path for each in ranks) for ranks in (ours, theirs, others)]
        label = f"{step or ours[0].step or 'dumps'}, {len(ours)} ranks against {len(theirs)}"
        found.append(DumpPair(paths[0], paths[1], paths[2], Path(step), label))
    return found


def _is_distributed(ranks: Sequence[FoundDump]) -> bool:
    with open_side(ranks[0].path) as side:
        return 0 < ranks_of_layout(side) <= len(ranks)


def _by_step(dumps: Sequence[FoundDump]) -> dict[str, list[FoundDump]]:
    found: dict[str, list[FoundDump]] = {}
    for each in dumps:
        found.setdefault(each.step, []).append(each)
    return found


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


def opened_side(paths: Sequence[Path], own: Path, held: ExitStack) -> CaptureSide:
    """Open a dump, or that of all ranks, which is made in a folder beside the results (`own`).

    The folder is named for its dumps and gets its name when it is whole: another run that is resumed,
    or runs at the same time, has the same one.
    """
    if len(paths) == 1:
        return held.enter_context(open_side(paths[0]))
    with ExitStack() as ranks:
        sides = [ranks.enter_context(open_side(path)) for path in paths]
        digests = "".join(side.digest() for side in sides)
        folder = own / f"gathered_{hashlib.sha256(digests.encode()).hexdigest()[:12]}"
        if not folder.is_dir():
            own.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=own, prefix=".gathering_") as made:
                gather_ranks(sides, Path(made, "whole"))
                with contextlib.suppress(OSError):
                    Path(made, "whole").rename(folder)
    return held.enter_context(open_side(folder / "dump.json"))
