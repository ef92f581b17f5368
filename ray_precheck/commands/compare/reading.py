"""The tables of a comparison, read again for its view: pairs of records, and how far their values are apart.

Comes in: the table of calls of each step and rank. Goes out: a `ComparedRun` for each, and the suspects among
their calls. Called by `report`. Tables may be torn, or still be written: they are read as far as they go.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ray_precheck.commands.compare.closing import is_of_output
from ray_precheck.commands.compare.job import tables_of
from ray_precheck.running.capture_views import number_in_name, step_of, torn_note
from ray_precheck.running.views import MOST_CARDS, FoundRun, settings_of_run, state_of_run
from ray_precheck.schema.environment import Environment, environment_from_dict
from ray_precheck.schema.view import Tone, ViewState
from ray_precheck.store.results import headings_of, read_columns
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import RunFiles, decode_name, run_files
from ray_precheck.trace.alignment.align import How
from ray_precheck.trace.difference.limits import RowLimits, number_of_cell
from ray_precheck.trace.difference.rows import NOT_THERE, ComparisonMode

TONES = {
    "error": Tone.ERROR,
    "warning": Tone.WARNING,
    "unmatched": Tone.UNMATCHED,
    "pass": Tone.PASS,
}
_MOST_ROWS_OF_CARD = 64


@dataclass(slots=True)
class ComparedCall:
    """A pair of records: its cells in the table of calls.

    `is_own`: its inputs are in no error. `own` and `inherited` are the largest differences of its outputs and
    of its inputs in the unit of the standard, NaN where they are not known; `dtype` is that of the worst
    output. `members` are the other records of the target that it stands for.
    """

    name: str
    result: str
    golden: str
    match: str
    rows: str
    errors: str
    distance: str
    module: str
    source: str
    message: str
    is_own: bool = False
    own: float = math.nan
    inherited: float = math.nan
    dtype: str = ""
    members: tuple[str, ...] = ()

    @property
    def tone(self) -> Tone:
        """Its verdict."""
        return TONES.get(self.result, Tone.PLAIN)

    @property
    def golden_keys(self) -> list[str]:
        """The keys of its golden records."""
        return self.golden.split(", ") if self.golden else []


@dataclass(slots=True)
class ComparedRun:
    """The files of one pair of captures, read. `kept` are rows of suspects, by the name of the call."""

    found: FoundRun
    files: RunFiles
    settings: RunSettings | None
    state: ViewState
    there: Environment
    headings: list[str]
    limits: RowLimits
    calls: dict[str, ComparedCall] = field(default_factory=dict)
    kept: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    rows: int = 0
    lone_rows: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def results(self) -> Counter[str]:
        """How many pairs have each result."""
        return Counter(call.result for call in self.calls.values())

    @property
    def standard(self) -> str:
        """The standard that judged it."""
        return self.there.rule or setting_of(self.settings, "standard") or "msprobe"


@dataclass(frozen=True, slots=True)
class SuspectCall:
    """A call that has a card, in the first run that has it, and the labels of the others."""

    run: ComparedRun
    call: ComparedCall
    also: tuple[str, ...] = ()


def read_calls(found: FoundRun) -> ComparedRun:
    """Read the settings of a run and its table of calls."""
    files = run_files(found.main, tables_of(ComparisonMode.REAL))
    settings = settings_of_run(files)
    there = environment_from_dict(settings.environment) if settings is not None else Environment()
    headings = headings_of(files.details)
    max_err = number_of_cell(setting_of(settings, "max err"))
    limits = RowLimits(
        headings,
        there.rule or setting_of(settings, "standard") or "msprobe",
        None if math.isnan(max_err) else max_err,
    )
    run = ComparedRun(
        found, files, settings, state_of_run(files, settings), there, headings, limits
    )
    run.notes += settings.cut_short if settings is not None else ()
    run.notes += filter(None, map(torn_note, (files.result, files.details)))
    wanted = (
        "Call", "Result", "Golden Call", "Match", "Rows", "Errors", "Relative L2", "Module", "Source",
        "Message",
    )  # fmt: skip
    is_first = True
    for cells in read_columns(files.result, wanted):
        name, result, golden, match, rows, errors, distance, module, source, message = cells
        call = ComparedCall(
            decode_name(name), result, decode_name(golden), match, rows, errors, distance, module, source,
            message,
        )  # fmt: skip
        run.calls[call.name] = call
        # As in the closing lines: of the first of all an input that no call has made may be in error.
        call.is_own = call.result == "error" and (is_first or is_of_output(call.message))
        is_first = is_first and call.result != "error"
        run.rows += int(rows) if rows.isdecimal() and rows.isascii() else 0
    return run


def suspects_in(runs: Sequence[ComparedRun]) -> tuple[list[SuspectCall], int]:
    """Return the calls that have cards, and how many others are in error: first those whose inputs are in no
    error, by their steps and then in the order of the run, then others; warnings where nothing is in error. A
    call that several ranks of a step have in error has one card: what errs on one of them before a
    collective stands before the collective, which has the error on all."""
    worst = "error" if any(run.results["error"] for run in runs) else "warning"
    alike: dict[tuple[str, str], list[tuple[ComparedRun, ComparedCall]]] = {}
    places: dict[tuple[str, str], tuple[bool, int, int]] = {}
    for run in runs:
        step = step_of(run.found)
        for place, call in enumerate(run.calls.values()):
            if call.result == worst:
                key = step, call.name
                alike.setdefault(key, []).append((run, call))
                order = not call.is_own, number_in_name(step), place
                places[key] = min(order, places.get(key, order))
    ordered = sorted(alike.items(), key=lambda each: places[each[0]])
    suspects = []
    for _, some in ordered[:MOST_CARDS]:
        run, call = next(((run, call) for run, call in some if call.is_own), some[0])
        others = tuple(other.found.label for other, _ in some if other is not run)
        suspects.append(SuspectCall(run, call, others))
    return suspects, max(0, len(ordered) - MOST_CARDS)


def read_rows(run: ComparedRun, wanted: set[str]) -> None:
    """Take from the rows of tensors how far outputs and inputs of each call are apart, and keep those of the
    `wanted` calls."""
    limits = run.limits
    if not run.headings or "Result" not in run.headings:
        return
    at = {heading: place for place, heading in enumerate(run.headings)}
    result_at, call_at = at["Result"], at.get("Call", -1)
    name_at, golden_at, dtype_at = (
        at.get(each, -1) for each in ("NPU Name", "Bench Name", "NPU Dtype")
    )
    members: dict[str, set[str]] = {}
    for cells in read_columns(run.files.details, run.headings):
        call = run.calls.get(decode_name(cells[call_at]))
        if call is None:
            continue
        if (
            call.name in wanted
            and len(kept := run.kept.setdefault(call.name, [])) < _MOST_ROWS_OF_CARD
        ):
            kept.append(cells)
        if cells[result_at] == "unmatched":
            run.lone_rows += call.result != "unmatched"
        name = decode_name(cells[name_at])
        key, path = split_value(name if name != NOT_THERE else decode_name(cells[golden_at]))
        if call.match == How.SPLIT.value and name != NOT_THERE and key != call.name:
            members.setdefault(call.name, set()).add(key)
        times = limits.times(cells)
        if math.isnan(times):
            continue
        if path.startswith(("output", "changed", "parameters_grad")):
            if not call.own >= times:
                call.own, call.dtype = times, cells[dtype_at].rpartition(".")[2]
        elif not call.inherited >= times:
            call.inherited = times
    for name, keys in members.items():
        run.calls[name].members = tuple(sorted(keys))


def split_value(name: str) -> tuple[str, str]:
    """Return the key of a record and the path of a value, of the name of the value."""
    for word in (".forward.", ".backward."):
        place = name.rfind(word)
        if place >= 0:
            key, path = name[: place + len(word) - 1], name[place + len(word) :]
            number, _, rest = path.partition(".")
            return (f"{key}.{number}", rest) if number.isdigit() else (key, path)
    place = name.find(".parameters_grad")
    return (name, name[place + 1 :]) if place >= 0 else (name, "")


def setting_of(settings: RunSettings | None, name: str) -> str:
    """Return a setting that another run must have to go on with this one, "" where it is not known."""
    return settings.fingerprint.get(name, "") if settings is not None else ""
