"""The calls of a run, as the alignment of two layouts sees them.

Comes in: the open captures of all ranks of a run, and its layout. Goes out: the calls in the order of the
model (`RunCalls`), and their records on each rank. Called by `experts`, `partners`, `writing` and `together`.

One rank stands for its stage. Where ranks have experts of their own, those with the same experts are one more
stage (`homes`), whose calls one of them stands for.
"""

import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ray_precheck.trace.alignment.align import align
from ray_precheck.trace.alignment.calls import Call, calls_of
from ray_precheck.trace.items import INPUT, OUTPUT, bare_name, items_of
from ray_precheck.trace.layouts.axes import LayoutStage, SideLayout
from ray_precheck.trace.side import (
    API,
    BACKWARD,
    FORWARD,
    GRADIENTS,
    MODULE,
    CaptureSide,
    RecordEntry,
)

UPDATE = "Optimizer."
COLLECTIVES = ("Distributed.", "MintDistributed.", "fsdp.")
# Operators that move values without computing any: what a layout adds beside its collectives.
MOVES = frozenset(
    """clone view_as view reshape contiguous detach chunk split split_with_sizes narrow getitem setitem cat
    stack to transpose permute unsqueeze squeeze flatten empty empty_like zeros zeros_like new_empty new_zeros
    tensor_split select index_select copy requires_grad expand t T data unbind full ones ones_like
    register_hook tensor item movedim div mul as_strided""".split()
)
UNKNOWN = "unknown"
# Where an element names its parameter or buffer.
_NAMED = ("parameter", "buffer")


class RecordPlace(NamedTuple):
    """Where a record stands: at the byte of a record of the first rank, or as the n-th behind it."""

    start: int
    behind: int


class Occurrence(NamedTuple):
    """A call of a stage: the name that it has in the records of the stage's first rank."""

    stage: int
    call: str


@dataclass(slots=True)
class ModelCall:
    """A call of the model: where it was made, once for each part of a batch, and the call behind it that adds
    its bias, as often; `view` is what the alignment sees. `got` and `given` tell its inputs and outputs from
    other tensors; `tail` are calls of this run alone through which its output goes, one behind the other.
    `rows` is the first dimension of what it gets. `mixture` is the module around the experts that are spread
    over ranks and that it is among, "" for none, `expert` the path of the one that it is in, "" for the calls
    around them, `UNKNOWN` where nothing tells which of the other run's it is."""

    occurrences: list[Occurrence]
    view: Call
    parameters: tuple[str, ...] = ()
    module: str = ""
    dims: tuple[int, ...] = ()
    got: frozenset[Hashable] = frozenset()
    given: frozenset[Hashable] = frozenset()
    tail: "list[ModelCall]" = field(default_factory=list)
    bias: "ModelCall | None" = None
    is_of_layout: bool = False
    rows: int = 0
    mixture: str = ""
    expert: str = ""

    @property
    def name(self) -> str:
        """The name of the call in its capture."""
        return self.occurrences[0].call

    @property
    def is_expert(self) -> bool:
        """Whether it is among experts that are spread over ranks."""
        return bool(self.mixture)

    @property
    def path(self) -> str:
        """The path of the module that it is in, or is the record of."""
        if self.view.kind == API:
            return self.module
        return self.view.type_name.partition(".")[2].removesuffix("parameters_grad").strip(".")


@dataclass(slots=True)
class RunCalls:
    """The calls of a run. `names` has for each stage and rank the rank's name of each call of the first
    one's, by that name, where the two differ; `wrappers` are parts of the names of parameters and modules
    that the other run has not. `homes` has for each stage of experts the stage whose ranks have them: there
    `names` has the calls of the ranks that have these experts alone. `before` says how many experts other
    ranks have before those of a rank, by their path, where each rank counts its own from 0; `places` where a
    record of a stage of experts stands among those of its home's first rank."""

    sides: Sequence[CaptureSide]
    layout: SideLayout
    wrappers: frozenset[str] = frozenset()
    calls: list[ModelCall] = field(default_factory=list)
    names: dict[tuple[int, int], Mapping[str, str]] = field(default_factory=dict)
    entries: list[dict[tuple[str, str], RecordEntry]] = field(default_factory=list)
    stages: list[LayoutStage] = field(init=False)
    homes: dict[int, int] = field(default_factory=dict)
    before: dict[int, dict[str, int]] = field(default_factory=dict)
    places: dict[tuple[int, str], "RecordPlace"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stages = list(self.layout.stages)

    def entry(self, stage: int, rank: int, call: str, direction: str) -> RecordEntry | None:
        """Return the record of a call on a rank (its position), None where the rank has none."""
        known = self.names.get((stage, rank), {})
        name = known.get(call) if stage in self.homes else known.get(call, call)
        return None if name is None else self.entries[rank].get((name, direction))

    def place(self, stage: int, entry: RecordEntry) -> "RecordPlace":
        """Return where a record of the first rank of a stage stands among those of its home."""
        return self.places.get((stage, entry.key), RecordPlace(entry.span.start, 0))

    def home(self, stage: int) -> int:
        """Return the stage of the pipeline that a stage belongs to."""
        return self.homes.get(stage, stage)

    def record(self, rank: int, entry: RecordEntry) -> dict[str, Any]:
        """Return a record of a rank, whose parameters have names without wrappers."""
        record = dict(self.sides[rank].record(entry))
        if not (self.wrappers or self.before.get(rank)):
            return record
        renamed: dict[str, Any] = _renamed(record, lambda name: self.plain(rank, name))
        return renamed

    def plain(self, rank: int, name: str) -> str:
        """Return a name of a parameter or module of a rank without wrappers, with the number that its expert
        has among those of all ranks."""
        name = without_words(name, self.wrappers)
        for begin, before in self.before.get(rank, {}).items():
            bare = bare_name(name)
            number, dot, rest = bare.removeprefix(f"{begin}.").partition(".")
            if bare.startswith(f"{begin}.") and number.isdigit():
                return f"{begin}.{int(number) + before}{dot}{rest}"
        return name


def run_calls_of(
    sides: Sequence[CaptureSide], layout: SideLayout, wrappers: frozenset[str] = frozenset()
) -> RunCalls:
    """Read the calls of all stages of a run."""
    run = RunCalls(sides, layout, wrappers)
    run.entries = [
        {(entry.call, entry.direction): entry for entry in side.entries} for side in sides
    ]
    for number, stage in enumerate(layout.stages):
        first = sides[stage.first]
        views = calls_of(first)
        for rank in stage.ranks:
            run.names[number, rank] = _names_on(first, views, sides[rank])
        run.calls += stage_calls(number, run, stage.first, views)
    return run


def wrappers_between(one: RunCalls, other: RunCalls) -> tuple[frozenset[str], frozenset[str]]:
    """Return the parts of names that either run alone has: `added_words` of their parameters."""
    names = [{name for call in run.calls for name in call.parameters} for run in (one, other)]
    return added_words(names[0], names[1]), added_words(names[1], names[0])


def added_words(names: Iterable[str], others: Iterable[str]) -> frozenset[str]:
    """Return the parts of names of parameters that the others have not, and without which the names are those
    of the others: of a module of the user's around each checkpointed block."""
    theirs = frozenset(others)
    known = {part for name in theirs for part in name.split(".")}
    lone = [name.split(".") for name in names if name not in theirs]
    words = {part for name in lone for part in name} - known
    return frozenset(
        word
        for word in words
        if all(
            without_words(".".join(name), frozenset((word,))) in theirs
            for name in lone
            if word in name
        )
    )


def _renamed(value: Any, plain: Callable[[str], str], *, is_name: bool = False) -> Any:
    """Return a record or a part of it, in which the names of parameters are plain."""
    if isinstance(value, dict):
        return {
            key: _renamed(
                each,
                plain,
                is_name=key in (*_NAMED, "names") or (is_name and key == "value"),
            )
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_renamed(each, plain, is_name=is_name) for each in value]
    return plain(value) if is_name and isinstance(value, str) else value


def without_words(name: str, words: frozenset[str]) -> str:
    """Return a name without these of its parts."""
    return ".".join(part for part in name.split(".") if part not in words)


def _names_on(first: CaptureSide, views: Sequence[Call], other: CaptureSide) -> Mapping[str, str]:
    """Return what the calls of the first rank of a stage are called on another one, where that differs."""
    ours = dict.fromkeys(entry.call for entry in first.entries)
    theirs = dict.fromkeys(entry.call for entry in other.entries)
    if other is first or list(ours) == list(theirs):
        return {}
    others = calls_of(other)
    found = {}
    for match in align(
        [_without_values(each) for each in views], [_without_values(each) for each in others]
    ):
        if len(match.target) == len(match.golden) == 1:
            name, mate = views[match.target[0]].name, others[match.golden[0]].name
            if name != mate:
                found[name] = mate
    return found


def _without_values(call: Call) -> Call:
    return call._replace(digests=(), norms=())


def stage_calls(number: int, run: RunCalls, rank: int, views: Sequence[Call]) -> list[ModelCall]:
    """Return the calls of a rank as those of the stage of this number."""
    side = run.sides[rank]
    entries: dict[str, RecordEntry] = {}
    for entry in side.entries:
        if entry.call not in entries or entry.direction != BACKWARD:
            entries[entry.call] = entry
    found = []
    for view in views:
        entry = entries[view.name]
        items = items_of(run.record(rank, entry), entry.key)
        tensors = [item for item in items if item.is_tensor]
        names = tuple(bare_name(item.state_name) for item in tensors if item.state_name)
        module = run.plain(rank, plain_module_path(side.modules.get(entry.key, "")))
        seen = [_number(bare_name(item.state_name), 1) if item.state_name else (0,) * len(item.shape or ())
                for item in tensors if item.part == INPUT]  # fmt: skip
        given = [
            (0,) * len(item.shape or ())
            for item in tensors
            if item.part == OUTPUT and not item.is_changed
        ]
        name, type_name, family = view.name, view.type_name, view.family
        if view.kind in (MODULE, GRADIENTS):
            name, type_name = (
                f"Module.{run.plain(rank, each.removeprefix('Module.'))}"
                for each in _module_call(view)
            )
            family = type_name
        plain = view._replace(
            name=name, type_name=type_name, family=family, inputs=(_number(module, 2), *seen),
            outputs=tuple(given), digests=(), norms=(),
        )  # fmt: skip
        dims = tuple(len(item.shape or ()) for item in tensors if item.part == INPUT)
        marks = [
            frozenset(item.mark for item in tensors if item.part == part and item.norm is not None)
            for part in (INPUT, OUTPUT)
        ]
        got, given_marks = marks
        found.append(
            ModelCall(
                [Occurrence(number, view.name)],
                plain,
                names,
                module,
                dims,
                got,
                given_marks,
                rows=next((shape[0] for shape in view.inputs if shape), 0),
            )
        )
    return found


def _number(text: str, dims: int) -> tuple[int, ...]:
    """Return a number for a name, as a shape of so many dimensions."""
    return (zlib.crc32(text.encode()) if text else 0,) * dims


def plain_module_path(record: str) -> str:
    """Return the plain path of a module, of the key of its record: `Module.layers.0.q.Linear.forward.0`."""
    if not record:
        return ""
    for direction in (FORWARD, BACKWARD):
        before, found, _ = record.rpartition(f".{direction}.")
        if found:
            return bare_name(before.partition(".")[2].rpartition(".")[0])
    return ""


def _module_call(view: Call) -> tuple[str, str]:
    """Return the name and the type of a module's call without its class, which other layouts change."""
    before, _, number = view.name.rpartition(".")
    middle = before.rpartition(".")[0]
    if view.kind == GRADIENTS:
        words = view.name.split(".")
        at = words.index("parameters_grad") if "parameters_grad" in words else len(words)
        path, rest = ".".join(words[1 : at - 1]), ".".join(words[at:])
        return (
            f"Module.{bare_name(path + '.')}{rest}",
            f"Module.{bare_name(path + '.')}parameters_grad",
        )
    path = bare_name(middle.partition(".")[2] + ".")
    return f"Module.{path}{number}", f"Module.{path}"
