"""The plan of locating in one pair of dumps: which calls are replayed, with which partners, at what cost.

Comes in: an open capture, perhaps a golden one, and the options. Goes out: a `LocationPlan`. Called by the
session.

Also here: what travels between the driver and the workers of `locate`: a call of both runs, and what was
measured.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.bench.checkable import is_random
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.compare.rows import GOLDEN, TARGET
from ray_precheck.commands.locate.options import SearchOptions
from ray_precheck.commands.locate.walk.estimate import EstimatedEvidence
from ray_precheck.commands.locate.walk.nouns import OwnError, ValueEvidence
from ray_precheck.descriptors.descriptor import framework_names, is_framework
from ray_precheck.dump.decode import decode_record
from ray_precheck.errors import DumpError, NotCheckable, UsageError
from ray_precheck.frameworks.base import require_framework
from ray_precheck.operators.drawing import DRAWING, Never
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.task import Task, TaskPayload
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.tables import Tables, decode_name, encode_name, encode_row, encode_text
from ray_precheck.trace.alignment.align import How, align
from ray_precheck.trace.alignment.calls import OF_LAYOUT, Call, calls_of
from ray_precheck.trace.alignment.origins import has_origins
from ray_precheck.trace.difference.measuring import kinds_of
from ray_precheck.trace.difference.rows import ComparisonMode
from ray_precheck.trace.flow import FlowRecord, is_collective
from ray_precheck.trace.items import INPUT, OUTPUT, Item
from ray_precheck.trace.side import (
    API,
    BACKWARD,
    FORWARD,
    CaptureSide,
    RecordEntry,
    call_entries,
)

# `locate_calls_{timestamp}.csv` and `locate_values_{timestamp}.csv`. A row of the values is of a record
# (its Value is ""), with its own error, or of one of its values.
LOCATION_TABLES = Tables(
    "locate",
    ("Call", "Result", "Golden Call", "Message"),
    (
        "Record", "Value", "Difference", "Order", "Content", "Golden Content", "Verdict", "Own Error",
        "Inherited Error", "Golden Own Error", "Golden Verdict", "Output", "Index", "Cause", "Message",
        "Call",
    ),
    detail_parts=None,
    verdicts=1,
    needs_details=False,
    words=("calls", "values"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocationSettings:
    """The settings of every worker: how calls of the target are replayed, and those of the golden run, None
    without one, or where it is of another framework. `golden_folder` has its tensors, None without one.
    `same_framework`: arguments have the same names on both sides."""

    target: CheckSettings
    golden: CheckSettings | None = None
    golden_folder: Path | None = None
    same_framework: bool = True

    @property
    def folders(self) -> dict[str, Path]:
        """The folders of tensors of both sides; without a golden run nothing is read of the second."""
        target = self.target.data_folder
        return {TARGET: target, GOLDEN: self.golden_folder or target}


@pickled_by_position
@dataclass(frozen=True, slots=True)
class LocationPayload:
    """A call of the target, and its partner of the golden run, None where it has none.

    `is_replayed` is False where its values are compared alone: collectives.
    """

    index: int
    name: str
    target: TaskPayload
    golden: TaskPayload | None = None
    is_replayed: bool = True


class MeasuredValue(NamedTuple):
    """What was measured of a value: how it differs, and what tells its contents from others."""

    evidence: ValueEvidence
    content: str = ""
    golden_content: str = ""


@dataclass(slots=True)
class MeasuredEvidence:
    """What the table of the values holds, as the walk asks for it; `otherwise` estimates values that have no
    files on both sides."""

    values: dict[tuple[str, str], MeasuredValue] = field(default_factory=dict)
    errors: dict[str, OwnError] = field(default_factory=dict)
    otherwise: EstimatedEvidence = field(default_factory=EstimatedEvidence)
    estimates: bool = False
    sees_elements: bool = True

    def value(self, key: str, target: Item, golden: Item) -> ValueEvidence:
        """Return how a value of a record differs from its partner."""
        found = self.values.get((key, target.path))
        if found is not None and not math.isnan(found.evidence.difference):
            return found.evidence
        return self.otherwise.value(key, target, golden)

    def own(self, key: str) -> OwnError | None:
        """Return the own error of a record; None where it was not replayed."""
        return self.errors.get(key)

    def content(self, key: str, path: str) -> str:
        """Return what tells a value of the target from others, "" where it was not read."""
        found = self.values.get((key, path))
        return found.content if found is not None else ""

    def golden_contents(self, partners: Mapping[str, str]) -> dict[tuple[str, str], str]:
        """Return the contents of the golden run's values by key and path; `partners` has its records."""
        return {
            (partners[key], path): each.golden_content
            for (key, path), each in self.values.items()
            if each.golden_content and key in partners
        }


def encoded_value(call: str, record: str, path: str, value: MeasuredValue) -> bytes:
    """Return the row of a value."""
    difference = value.evidence.difference
    cells = [
        encode_name(record),
        encode_name(path),
        "" if math.isnan(difference) else repr(difference),
        encode_text(value.evidence.order),
        value.content,
        value.golden_content,
        *[""] * 9,
        encode_name(call),
    ]
    return encode_row(cells)


def encoded_error(call: str, record: str, error: OwnError) -> bytes:
    """Return the row of a record."""
    cells = [
        encode_name(record),
        *[""] * 5,
        error.verdict,
        number_cell(error.own),
        number_cell(error.inherited),
        number_cell(error.golden),
        error.golden_verdict,
        encode_name(error.output),
        encode_text(error.index),
        encode_text(error.cause),
        encode_text(error.message),
        encode_name(call),
    ]
    return encode_row(cells)


def number_cell(value: float | None) -> str:
    """Return an error as a cell that is read back as it was, "" for what is not known."""
    return "" if value is None or math.isnan(value) else repr(float(value))


def read_measured(path: Path) -> MeasuredEvidence:
    """Read the table of the values of a run."""
    found = MeasuredEvidence()
    for cells in decoded_rows(path, LOCATION_TABLES.details):
        record, value = decode_name(cells[0]), decode_name(cells[1])
        if value:
            difference = float(cells[2]) if cells[2] else math.nan
            evidence = ValueEvidence(difference, cells[3])
            found.values[record, value] = MeasuredValue(evidence, cells[4], cells[5])
        else:
            found.errors[record] = OwnError(
                cells[6],
                float(cells[7]) if cells[7] else math.nan,
                float(cells[8]) if cells[8] else None,
                float(cells[9]) if cells[9] else None,
                cells[10],
                decode_name(cells[11]),
                cells[12],
                cells[13],
                cells[14],
            )
    return found


_UPDATE = "Optimizer."
# Seconds on one core: a replay of small tensors, and a byte of the target's tensors.
_CALL_S, _BYTE_S = 0.015, 4e-8


@dataclass(frozen=True, slots=True)
class LocationPlan:
    """The calls of one dump. `partners` has the golden record of each record of the target that has one,
    `alignment` what else is known of the calls of both.

    `payloads` are empty where the target has no files of tensors, or is of no framework whose calls are run
    here: then own errors are estimates.
    """

    payloads: Sequence[LocationPayload]
    partners: Mapping[str, str]
    costs_s: Sequence[float]
    options: SearchOptions
    is_replayed: bool
    alignment: "AlignedCalls" = field(default_factory=lambda: AlignedCalls())

    def tasks(self, done: set[str]) -> list[Task]:
        """Return a task for each call that is not done."""
        return [
            Task(payload.index, payload.name, self.costs_s[payload.index])
            for payload in self.payloads
            if payload.name not in done
        ]


@dataclass(frozen=True, slots=True)
class AlignedCalls:
    """The golden call of each call of the target that has one of its own; `alone` are the calls of both sides
    that have none, `renamed` those of the target whose partner is another operator. `is_recomputed`:
    a checkpoint computes some calls again, on one side at least. `joined` has the golden calls that are
    looked at as one, by the last of them, which is the partner: a compiled graph has fused them."""

    partners: Mapping[str, str] = field(default_factory=dict)
    alone: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    renamed: frozenset[str] = frozenset()
    is_recomputed: bool = False
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of calls of one side in the order of the run."""

    records: Sequence[FlowRecord]
    by_key: Mapping[str, FlowRecord] = field(default_factory=dict)


def run_records_of(side: CaptureSide) -> RunRecords:
    """Read all records of calls."""
    records = [FlowRecord(entry, side.items(entry)) for entry in call_entries(side)]
    return RunRecords(records, {record.entry.key: record for record in records})


def plan_location(
    target: CaptureSide, golden: CaptureSide | None, options: SearchOptions
) -> LocationPlan:
    """Align both runs, and plan the replay of the target's calls.

    Raises:
        UsageError: the captures have no call in common; a replay was asked for, and the target has no
            files of tensors or is another tool's; or neither files nor a golden run are there.
    """
    framework = target.header.framework
    if options.replay and not can_be_replayed(framework):
        raise UsageError(
            f"--replay needs operators that can be called here, but {target.path} is of {framework}; leave"
            " --replay out"
        )
    has_files = ComparisonMode.REAL in kinds_of(target) and can_be_replayed(framework)
    has_calls = any(entry.kind == API for entry in target.entries)
    if options.replay and not has_calls:
        raise UsageError(
            f"--replay needs captured calls, but {target.path} holds modules alone (level L0); capture with"
            " level L1 or mix, or leave --replay out"
        )
    if options.replay and not has_files:
        raise UsageError(
            f"--replay needs captured inputs, but {target.path} has no files of tensors (its task is"
            f" {target.header.task or 'statistics'}); capture with --task tensor, or leave --replay out"
        )
    partners: dict[str, str] = {}
    aligned = AlignedCalls()
    if golden is not None:
        aligned = aligned_calls(target, golden, options)
        here = {(entry.call, entry.direction): entry.key for entry in golden.entries}
        for entry in target.entries:
            other = here.get((aligned.partners.get(entry.call, ""), entry.direction))
            if other is not None:
                partners[entry.key] = other
    if not (has_files and has_calls):
        return LocationPlan((), partners, (), options, is_replayed=False, alignment=aligned)
    payloads = list(_payloads(target, golden, aligned.partners))
    costs_s = [_cost(each) for each in payloads]
    return LocationPlan(payloads, partners, costs_s, options, is_replayed=True, alignment=aligned)


def aligned_calls(target: CaptureSide, golden: CaptureSide, options: SearchOptions) -> AlignedCalls:
    """Return which call is which.

    Raises:
        UsageError: no call of the target has a partner.
    """
    names = _names(target)
    if (
        names == _names(golden) and not target.header.layout
    ):  # As `align` has it, which would read all records for no more.
        return AlignedCalls({name: name for name in names})
    ours, theirs = calls_of(target), calls_of(golden)
    found: dict[str, str] = {}
    alone: tuple[set[str], set[str]] = set(), set()
    renamed = set()
    joined: dict[str, tuple[str, ...]] = {}
    # What a compiled graph has alone, casts and constants, tells nothing of two programs.
    by_origin = has_origins(ours) and has_origins(theirs)
    for match in align(ours, theirs, exact=options.is_exact):
        mine, other = [ours[at] for at in match.target], [theirs[at] for at in match.golden]
        if len(mine) == len(other) == 1:
            found[mine[0].name] = other[0].name
            if mine[0].family != other[0].family and not by_origin:
                renamed.add(mine[0].name)
        elif by_origin:
            found |= {call.name: other[-1].name for call in mine if other}
            if len(other) > 1:
                joined[other[-1].name] = tuple(call.name for call in other)
        elif match.how is not How.RECOMPUTED:
            alone[0].update(call.name for call in mine if call.pair != OF_LAYOUT)
            alone[1].update(call.name for call in other if call.pair != OF_LAYOUT)
    if all(map(_is_update, found)) and not all(_is_update(call.name) for call in ours):
        # Every training has the update of an optimizer.
        raise UsageError(
            f"{target.path} and {golden.path} have no call in common: the first has {_first(ours)}, the"
            f" second {_first(theirs)}; are they captures of the same model?"
        )
    return AlignedCalls(
        found,
        (frozenset(alone[0]), frozenset(alone[1])),
        frozenset(renamed),
        any(call.recompute_of for call in (*ours, *theirs)),
        joined,
    )


def joined_records(
    golden: RunRecords, joined: Mapping[str, tuple[str, ...]]
) -> dict[str, FlowRecord]:
    """Return a record for each fusion of golden calls, by the key of the last one: what goes into the whole,
    in order, and what its calls give, the last one first."""
    forward = {each.entry.call: each for each in golden.records if each.entry.direction == FORWARD}
    found = {}
    for last, calls in joined.items():
        records = [forward[call] for call in calls if call in forward]
        if last not in forward:
            continue
        outputs = [item for record in reversed(records) for item in record.outputs]
        given = {item.origin for item in outputs if item.origin}
        inputs = [item for record in records for item in record.inputs if item.origin not in given]
        items = [
            item._replace(path=f"{part}.{number}")
            for part, each in ((INPUT, inputs), (OUTPUT, outputs))
            for number, item in enumerate(each)
        ]
        entry = forward[last].entry
        found[entry.key] = FlowRecord(entry, items)
    return found


def can_be_replayed(framework: str) -> bool:
    """Return whether calls of a framework can be run again; captures of other tools may be of any. A capture
    that does not name its framework is an error where its calls are run."""
    return not framework or is_framework(framework)


def _is_update(call: str) -> bool:
    """Return whether a call is the update of an optimizer."""
    return call.startswith(_UPDATE)


def _names(side: CaptureSide) -> list[str]:
    """Return the calls of a capture in the order of its file."""
    return list(dict.fromkeys(entry.call for entry in side.entries))


def _first(calls: Sequence[Call]) -> str:
    names = ", ".join(call.name for call in calls[:3])
    return f"{len(calls)} ({names}{', ...' if len(calls) > 3 else ''})"


def _by_call(side: CaptureSide) -> dict[str, dict[str, RecordEntry]]:
    found: dict[str, dict[str, RecordEntry]] = {}
    for entry in side.entries:
        found.setdefault(entry.call, {})[entry.direction] = entry
    return found


def _payloads(
    target: CaptureSide, golden: CaptureSide | None, partners: Mapping[str, str]
) -> Sequence[LocationPayload]:
    ours = {
        call: records
        for call, records in _by_call(target).items()
        if any(entry.kind == API for entry in records.values())
    }
    theirs = _by_call(golden) if golden is not None else {}
    found = []
    for index, (call, records) in enumerate(ours.items()):
        other = partners.get(call)
        mate = None
        if golden is not None and other in theirs:
            mate = _payload(golden, index, other, theirs[other])
        own = _payload(target, index, call, records)
        is_replayed = not is_collective(call)
        found.append(LocationPayload(index, call, own, mate, is_replayed))
    return found


def _payload(
    side: CaptureSide, index: int, call: str, records: Mapping[str, RecordEntry]
) -> TaskPayload:
    raw = [
        side.raw(records[direction]) if direction in records else None
        for direction in (FORWARD, BACKWARD)
    ]
    return TaskPayload(index, call, *raw)


def _cost(payload: LocationPayload) -> float:
    """Return the expected seconds of a call on one core: its records say how many bytes it reads."""
    both = 2.0 if payload.golden is not None else 1.0
    size = sum(
        _tensor_bytes(raw) for raw in (payload.target.forward, payload.target.backward) if raw
    )
    return both * (_CALL_S + _BYTE_S * size)


def _tensor_bytes(raw: bytes) -> int:
    import orjson

    try:
        record = orjson.loads(raw)
    except ValueError:
        return 0
    total, waiting = 0, [record]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            shape = value.get("shape")
            if isinstance(shape, list) and all(type(each) is int for each in shape):
                total += 4 * math.prod(shape)
            else:
                waiting += value.values()
    return total


def settings_of_replay(
    target: CaptureSide, golden: CaptureSide | None, errors: Path | None, slots: int
) -> LocationSettings:
    """Return the settings of every worker.

    Raises:
        DumpError: the target does not name its framework.
        PrecheckError: its bench is not installed.
    """
    framework = target.header.framework
    if not is_framework(framework):
        raise DumpError(
            f"{target.path} does not name its framework (found {framework!r}); expected one of"
            f" {', '.join(framework_names())}"
        )
    require_framework(framework, device_runs=False)
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def settings(side: CaptureSide, folder: Path | None) -> CheckSettings:
        return CheckSettings(
            framework=framework,
            task="tensor",
            data_folder=side.data_folder.absolute(),
            tests_dump=True,
            error_folder=folder,
            memory_limit_bytes=int(0.7 * machine_bytes / max(1, slots)),
            standard=load_standard("auto"),
            device_type="cpu",
            float32=side.header.float32,
        )

    if golden is None:
        return LocationSettings(settings(target, errors))
    same = golden.header.framework == framework
    is_replayed = same and ComparisonMode.REAL in kinds_of(golden)
    return LocationSettings(
        settings(target, errors),
        settings(golden, None) if is_replayed else None,
        golden.data_folder.absolute(),
        same,
    )


def drawing_calls(side: CaptureSide) -> Callable[[str], bool]:
    """Return a function that tells whether a call of a capture may draw random numbers, as its arguments
    say: attention with `dropout_p=0` does not. A call without a forward record that can be read may."""
    framework = side.header.framework
    forwards = {entry.call: entry for entry in side.entries if entry.direction == FORWARD}

    @cache
    def draws(call: str) -> bool:
        found = DRAWING.of(call.rpartition(".")[0], framework)
        if found is None or isinstance(found, Never):
            return False
        if call not in forwards:
            return True
        try:
            return is_random(decode_record(call, side.raw(forwards[call]), None, framework))
        except NotCheckable:
            return True

    return draws
