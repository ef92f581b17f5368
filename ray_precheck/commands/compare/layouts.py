"""Two runs of other parallel layouts as pairs of dumps, and their whole captures beside the results.

Comes in: the dumps of both sides and the layouts that the user gave. Goes out: a `DumpPair` for each step,
and the folders of its whole captures, made once. Called by the sessions of `compare` and `locate`, and by the
page of `locate`, which reads what a run has made.
"""

import contextlib
import hashlib
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ray_precheck.dump.folders import FoundDump
from ray_precheck.errors import DumpError
from ray_precheck.trace.items import bare_name, parameter_names
from ray_precheck.trace.layouts.axes import groups_of, parsed_axes
from ray_precheck.trace.layouts.run_calls import UPDATE, added_words
from ray_precheck.trace.layouts.together import put_together
from ray_precheck.trace.side import API, FORWARD, CaptureSide, open_side

_FOLDERS = ("target", "golden")
# The first records of a rank have most of its parameters; a run of the same layout has the same ones.
_RECORDS = 2_000
# A rank that has fewer than this share of the other side's parameters has a stage of the model.
_A_STAGE = 0.75


@dataclass(frozen=True, slots=True)
class DumpPair:
    """Two dumps that are compared, and the second golden run; `place` is the folder of their results.

    A side of several dumps is that of all ranks. Where the sides are of other layouts (`is_whole`), their
    tensors are put together; `layouts` are those that the user gave, "" for what the records tell.
    """

    target: tuple[Path, ...]
    golden: tuple[Path, ...]
    noise: tuple[Path, ...]
    place: Path
    label: str
    is_whole: bool = False
    layouts: tuple[str, str] = ("", "")


class WholePaths(NamedTuple):
    """The dump.json files of the whole captures of a pair, and of its second golden run."""

    target: Path
    golden: Path
    noise: Path | None = None


def whole_pairs(
    target: Sequence[FoundDump],
    golden: Sequence[FoundDump],
    noise: Sequence[FoundDump] = (),
    layouts: tuple[str, str] = ("", ""),
) -> list[DumpPair]:
    """Return a pair for each step of two runs of other layouts, with all ranks of both; [] where both have
    the same layout.

    Raises:
        UsageError: a layout has another form.
    """
    sides = [_by_step(each) for each in (target, golden, noise)]
    if len(sides[0]) == len(sides[1]) == 1:  # Whatever the steps are called.
        sides = [{"": next(iter(each.values()), [])} for each in sides]
    found = []
    for step, ours in sides[0].items():
        theirs, others = sides[1].get(step, []), sides[2].get(step, [])
        if not theirs or not _are_other(ours, theirs, layouts):
            return []
        paths = [tuple(each.path for each in ranks) for ranks in (ours, theirs, others)]
        label = f"{step or ours[0].step or 'dumps'}, {len(ours)} ranks against {len(theirs)}"
        found.append(DumpPair(paths[0], paths[1], paths[2], Path(step), label, True, layouts))
    return found


def written_whole(pair: DumpPair, own: Path, *, is_made: bool = True) -> WholePaths:
    """Return the whole captures of a pair, in a folder beside its results (`own`), which is made if missing.

    The folder is named for its dumps and gets its name when it is whole: another run that is resumed, or runs
    at the same time, has the same one. With `is_made` it has to be there.

    Raises:
        DumpError: a dump cannot be read, or the folder is not there though it has to be.
        UsageError: a layout that was given has another number of ranks.
    """
    with ExitStack() as held:
        target, golden, noise = (
            [held.enter_context(open_side(path)) for path in paths]
            for paths in (pair.target, pair.golden, pair.noise)
        )
        first = _folder(pair.layouts, own, target, golden)
        if not first.is_dir():
            if not is_made:
                raise DumpError(f"{first} is not there any more: the whole tensors of both runs")
            _make(first, own, target, golden, pair.layouts)
        found = WholePaths(first / _FOLDERS[0] / "dump.json", first / _FOLDERS[1] / "dump.json")
        if not noise:
            return found
        # The same target tells the second golden run's calls by the same numbers.
        second = _folder(pair.layouts, own, target, noise)
        if not second.is_dir():
            _make(second, own, target, noise, pair.layouts)
        return found._replace(noise=second / _FOLDERS[1] / "dump.json")


def _folder(layouts: tuple[str, str], own: Path, *sides: Sequence[CaptureSide]) -> Path:
    digests = "|".join("".join(side.digest() for side in each) for each in sides)
    name = hashlib.sha256(f"{layouts}{digests}".encode()).hexdigest()[:12]
    return own / f"gathered_{name}"


def _make(
    folder: Path,
    own: Path,
    target: Sequence[CaptureSide],
    golden: Sequence[CaptureSide],
    layouts: tuple[str, str],
) -> None:
    own.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=own, prefix=".gathering_") as made:
        whole = Path(made, "whole")
        put_together(target, golden, layouts, (whole / _FOLDERS[0], whole / _FOLDERS[1]))
        with contextlib.suppress(OSError):
            whole.rename(folder)


def _by_step(dumps: Sequence[FoundDump]) -> dict[str, list[FoundDump]]:
    found: dict[str, list[FoundDump]] = {}
    for each in dumps:
        found.setdefault(each.step, []).append(each)
    return found


class _Held(NamedTuple):
    """What a rank has: the shapes of its parameters, the names of those that its optimizer updates, and
    whether it has distributed tensors; `uses` has how many calls get a parameter, and the first dimension
    of what they get with it."""

    shapes: dict[str, tuple[int, ...]]
    updated: frozenset[str]
    is_distributed: bool
    uses: dict[str, tuple[int, int]]


def _are_other(
    target: Sequence[FoundDump], golden: Sequence[FoundDump], layouts: tuple[str, str]
) -> bool:
    """Return whether the ranks of a step have other layouts on both sides: their number, the layouts that
    were given, or parameters of the first ranks, of which one side has other parts."""
    if len(target) != len(golden):
        return all(map(_is_complete, (target, golden)))
    if len(target) == 1:
        return False
    if all(layouts) and parsed_axes(layouts[0]) != parsed_axes(layouts[1]):
        return True
    try:
        with open_side(target[0].path) as ours, open_side(golden[0].path) as theirs:
            first, second = _held_by(ours), _held_by(theirs)
    except DumpError:
        return False  # It is said where the dumps are compared.
    if any(second.shapes.get(name, shape) != shape for name, shape in first.shapes.items()):
        return True
    fewer, more = sorted((first.shapes.keys(), second.shapes.keys()), key=len)
    is_stage = bool(fewer) and fewer < more and len(fewer) < _A_STAGE * len(more)
    if is_stage or first.is_distributed is not second.is_distributed:
        return True
    updates = sorted(map(len, (first.updated, second.updated)))
    is_wrapped = any(
        added_words(*names)
        for names in ((first.shapes, second.shapes), (second.shapes, first.shapes))
    )
    return is_wrapped or 0 < updates[0] < _A_STAGE * updates[1] or _are_batched(first, second)


def _are_batched(one: _Held, other: _Held) -> bool:
    """Return whether one side makes its calls several times, each for so many parts of the other's batch."""
    ratios = Counter(
        max(count, calls) / min(count, calls)
        for name, (count, batch) in one.uses.items()
        for calls, samples in [other.uses.get(name, (0, 0))]
        if calls and calls != count and count * batch == calls * samples
    )
    ratio, number = next(iter(ratios.most_common(1)), (1.5, 0))
    return ratio.is_integer() and 2 * number > len(one.uses)


def _is_complete(dumps: Sequence[FoundDump]) -> bool:
    """Return whether the dumps of a step are those of all ranks that its groups name."""
    try:
        with open_side(dumps[0].path) as side:
            return all(rank < len(dumps) for group in groups_of(side) for rank in group)
    except DumpError:
        return False


def _held_by(side: CaptureSide) -> _Held:
    shapes: dict[str, tuple[int, ...]] = {}
    updated: set[str] = set()
    uses: dict[str, tuple[int, int]] = {}
    is_distributed = False
    entries = side.entries
    if len(entries) > 2 * _RECORDS:
        entries = [*islice(entries, _RECORDS), *entries[-_RECORDS:]]
    for entry in entries:
        raw = side.raw(entry)
        is_distributed = is_distributed or b'"global_shape"' in raw
        if b'"parameter"' in raw:
            for item in side.items(entry):
                if item.is_tensor and item.state_name:
                    shapes.setdefault(bare_name(item.state_name), item.shape or ())
            if entry.kind == API and entry.direction == FORWARD:
                tensors = [item for item in side.items(entry) if item.is_tensor]
                names = [bare_name(item.state_name) for item in tensors if item.state_name]
                for name in names[:1]:
                    uses[name] = uses.get(name, (0, 0))[0] + 1, (tensors[0].shape or (0,))[0]
        if entry.call.startswith(UPDATE):
            updated.update(map(bare_name, parameter_names(side.items(entry)).values()))
    return _Held(shapes, frozenset(updated), is_distributed, uses)
