"""The plan of a comparison: which records belong together, what can be compared, and what it costs.

Comes in: two open captures, perhaps a second golden run, and the options. Goes out: a `ComparisonPlan`.
Called by the session.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ray_precheck.commands.compare.inside import ParameterGaps, parameter_gaps
from ray_precheck.commands.compare.options import ComparisonConfig
from ray_precheck.commands.compare.pairing import Named, aligned, read_mapping, require_named
from ray_precheck.commands.compare.rows import (
    GOLDEN,
    NOISE,
    TARGET,
    ComparisonSettings,
    PieceReading,
)
from ray_precheck.errors import UsageError
from ray_precheck.options.shared import EXACT
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.trace.alignment.align import RecordPair, align, pieces_of
from ray_precheck.trace.alignment.calls import Call, calls_of
from ray_precheck.trace.difference.measuring import Reading, common_kinds, kinds_of, reading_of
from ray_precheck.trace.difference.rows import ComparisonMode
from ray_precheck.trace.difference.unsteady import (
    NEVER,
    OPTIMIZER,
    PLAIN,
    Unsteady,
    are_apart,
    unsteady_parameters,
)
from ray_precheck.trace.items import INPUT, OUTPUT, Item
from ray_precheck.trace.side import CaptureSide, RecordEntry

# Seconds on one core: a record, its rows and their encoding; and a byte of both captures' tensors.
_RECORD_S, _BYTE_S = 2e-4, 1e-9
_OTHER_BYTES = 4


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """The pieces in the order of their rows, each with its expected seconds, and the settings."""

    pieces: Sequence[RecordPair]
    settings: ComparisonSettings
    reading: PieceReading
    costs_s: Sequence[float]
    noise_of: dict[str, RecordEntry] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the pieces, each unique."""
        return [piece.name for piece in self.pieces]


def plan_comparison(
    target: CaptureSide, golden: CaptureSide, noise: CaptureSide | None, config: ComparisonConfig
) -> ComparisonPlan:
    """Align two captures and plan their comparison.

    Raises:
        UsageError: they have nothing in common: no record, or no kind of values.
    """
    mapping = read_mapping(config.api_mapping, config.cell_mapping, config.data_mapping)
    reading = _readings(target, golden, noise)
    mode = reading.pair.mode
    exact = config.match == EXACT
    calls = calls_of(target), calls_of(golden)
    files = (config.api_mapping, config.cell_mapping, config.data_mapping)
    if not mapping.is_empty:
        require_named(mapping, files, *map(_named_in, (target, golden), calls))
    matches = aligned(*calls, mapping, exact=exact)
    pieces = pieces_of(target, golden, calls, matches)
    if not any(piece.target and piece.golden for piece in pieces):
        raise UsageError(
            f"{target.path} and {golden.path} have no call in common: the first has"
            f" {_first_names(calls[0])}, the second {_first_names(calls[1])}; are they captures of the same"
            " model?"
        )
    noise_of = {} if noise is None else _partners(golden, noise, calls[1], exact=exact)
    if noise is not None and not noise_of:
        raise UsageError(
            f"--noise {noise.path} has no call in common with {golden.path}; it is to be another capture of"
            " the golden run"
        )
    settings = ComparisonSettings(
        mode,
        config.standard,
        {
            side: capture.data_folder.absolute()
            for side, capture in ((TARGET, target), (GOLDEN, golden), (NOISE, noise))
            if capture is not None
        },
        reading.pair.same_framework,
        reading.pair.framework,
        mapping,
        *_moved(target, golden, pieces, reading.pair),
        max_err=config.max_err,
    )
    return ComparisonPlan(pieces, settings, reading, _costs(target, pieces, mode), noise_of)


def _moved(
    target: CaptureSide, golden: CaptureSide, pieces: Sequence[RecordPair], reading: Reading
) -> tuple[Unsteady, int, ParameterGaps]:
    """Return the target's parameters that honest updates move by rounding alone, the first piece that may
    have got them, and which parameters are apart before an update."""
    found: Unsteady = {}
    gaps: ParameterGaps = {}
    if reading.mode is not ComparisonMode.STATISTICS:
        reading = Reading(
            ComparisonMode.STATISTICS
        )  # The files of all parameters are not read twice.
    updates, begin = 0, NEVER
    for place, piece in enumerate(pieces):
        if not piece.name.startswith(OPTIMIZER) or len(piece.target) != 1 or len(piece.golden) != 1:
            continue
        updates += 1
        ours, theirs = target.items(piece.target[0]), golden.items(piece.golden[0])
        is_plain = piece.name.startswith(PLAIN)
        here = unsteady_parameters(ours, theirs, updates, is_plain=is_plain)
        for mark, slack in here.items():
            found[mark] = max(slack, found.get(mark, 0.0))
        for name, gap in parameter_gaps(ours, theirs, here, reading).items():
            gaps[name] = max(gap, gaps.get(name, gap))
        if are_apart(ours, theirs, here, INPUT):
            begin = 0
        elif are_apart(ours, theirs, here, OUTPUT):
            begin = min(begin, place)
    return found, begin, gaps


def _named_in(side: CaptureSide, calls: Sequence[Call]) -> Named:
    types = frozenset(call.type_name for call in calls)
    return Named(types, tuple(entry.key for entry in side.entries))


def _first_names(calls: Sequence[Call]) -> str:
    names = ", ".join(call.name for call in calls[:3])
    return f"{len(calls)} ({names}{', ...' if len(calls) > 3 else ''})"


def _partners(
    golden: CaptureSide, noise: CaptureSide, calls: Sequence[Call], *, exact: bool
) -> dict[str, RecordEntry]:
    """Return the record of the second golden run for each record of the first one that has one."""
    theirs = calls_of(noise)
    pieces = pieces_of(golden, noise, (calls, theirs), align(calls, theirs, exact=exact))
    return {
        piece.target[0].key: piece.golden[0]
        for piece in pieces
        if len(piece.target) == len(piece.golden) == 1
    }


def _readings(target: CaptureSide, golden: CaptureSide, noise: CaptureSide | None) -> PieceReading:
    """Return how the captures are read: by the best that both have.

    Raises:
        UsageError: they have no kind of values in common.
    """
    if not common_kinds(target, golden):
        ours, theirs = kinds_of(target), kinds_of(golden)
        others = " of another kind" if ComparisonMode.DIGESTS in ours & theirs else ""
        raise UsageError(
            f"{target.path} has {_named(ours)} and {golden.path} {_named(theirs)}{others}: nothing that could"
            " be compared; capture both with the same task and summary mode"
        )
    pair = reading_of(target, golden)
    return PieceReading(pair, None if noise is None else reading_of(golden, noise))


def _named(kinds: set[ComparisonMode]) -> str:
    words = {
        ComparisonMode.REAL: "tensors",
        ComparisonMode.STATISTICS: "statistics",
        ComparisonMode.DIGESTS: "digests",
    }
    return " and ".join(words[mode] for mode in words if mode in kinds) or "no values (structure)"


def _costs(target: CaptureSide, pieces: Sequence[RecordPair], mode: ComparisonMode) -> list[float]:
    """Return the expected seconds of each piece on one core."""
    if mode is not ComparisonMode.REAL:
        return [_RECORD_S] * len(pieces)
    return [
        _RECORD_S
        + _BYTE_S * 2 * sum(map(_bytes, (i for e in piece.target for i in target.items(e))))
        for piece in pieces
    ]


def _bytes(item: Item) -> int:
    if not item.file or item.shape is None:
        return 0
    size = 1
    for each in item.shape:
        size *= each
    known = DTYPES.get(item.dtype.rpartition(".")[2].lower())
    return size * (known.bits // 8 if known is not None else _OTHER_BYTES)
