"""What one dump says that ranks can be compared by.

Comes in: the path of a dump. Goes out: a `RankTrace`. Called by the worker of the command `ranks`, once for
each dump. Of most records nothing but two checksums is taken (`checksums`).
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from ray_precheck.dump.mapped import MappedTensor, MappedTensors
from ray_precheck.dump.tensors import SKETCHES, read_sketches, stored
from ray_precheck.errors import DumpError, NotCheckable
from ray_precheck.numerics.sketch import BUCKETS, Array, sketch
from ray_precheck.numerics.statistics import FIELDS
from ray_precheck.trace.difference.measuring import open_item
from ray_precheck.trace.flow import meetings_of
from ray_precheck.trace.forms import open_formed
from ray_precheck.trace.items import GRADIENTS, INPUT, Item, bare_name, items_of
from ray_precheck.trace.ranks.checksums import NAMED, OPTIMIZER, record_sums
from ray_precheck.trace.ranks.nouns import (
    ExchangeFact,
    RankTrace,
    RestsOn,
    TensorFact,
    UpdateFact,
)
from ray_precheck.trace.side import MODULE_PREFIXES, CaptureSide, RecordEntry, open_side

_GENERATOR = re.compile(rb'"generator": ?"([0-9a-f]+)"')
_SKETCH = re.compile(rb'"sketch": ?(\d+)')
_GENERATOR_SIGN, _MESH_SIGN, _MODULE_SIGN = b'"generator"', b'"device_mesh"', b'"parameters": {"'
_GRADIENTS = f".{GRADIENTS}"
# The ranks of a group, which a meeting has, too: of 1,000 ranks most of the record.
_GROUP = re.compile(rb', ?"group": ?\{[^{}]*\}(?=[,}])')
_MESH = re.compile(rb'"device_mesh": ?(\[[\[\]0-9, ]*\])')
_LOSSES = re.compile(
    r"\w+\.(?:cross_entropy|nll_loss|mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div"
    r"|binary_cross_entropy|binary_cross_entropy_with_logits)\.\d+\.backward"
)
# What a replicated parameter's options may differ in: which of them these are.
_NO_OPTIONS = ("names", "params", "grads", "state", "group")


def summarize(
    path: Path, step: int, rank: int, name: str, *, reads_tensors: bool = False
) -> RankTrace:
    """Return the summary of a dump. With `reads_tensors` the files of tensors that have a name (parameters,
    gradients, inputs) are read, where there are any and neither sketches nor digests tell of them.

    Raises:
        DumpError: it cannot be read.
        OSError: likewise.
    """
    with open_formed(path) or open_side(path) as side:
        return _Reading(side, RankTrace(step, rank, name), reads_tensors).summary()


class _Reading:
    """One dump on its way to a summary."""

    def __init__(self, side: CaptureSide, found: RankTrace, reads_tensors: bool) -> None:
        self._side, self._found = side, found
        self._sketches = read_sketches(side.folder)
        self._marks = _marks_of(self._sketches)
        self._rows: list[int] = []
        self._row_of: dict[int, int] = {}
        self._seen: set[bytes] = set()
        self._repeated: set[str] = set()
        self._reads_tensors = reads_tensors
        self._files: MappedTensors | None = None
        self._contents: dict[str, _Content] = {}
        self.parameters: dict[str, TensorFact] = {}
        self.buffers: dict[str, TensorFact] = {}
        self.inputs: dict[str, TensorFact] = {}
        self.gradients: dict[str, TensorFact] = {}
        self.reduced: set[str] = set()
        self.updates: dict[str, UpdateFact] = {}
        self.options: list[Mapping[str, object]] = []
        self.masks: dict[str, str] = {}
        self.marks: dict[str, Mapping[str, object]] = {}
        self.has_digests = False
        self.uses: dict[str, str] = {}
        self.losses: dict[str, float] = {}
        self.call_meshes: dict[str, None] = {}
        self.own_meshes: dict[str, None] = {}

    def summary(self) -> RankTrace:
        side, found = self._side, self._found
        sums = record_sums(side, _tells_more, self._mark_of)
        found.got, found.gave, found.settings = sums.got, sums.gave, sums.settings
        found.has_tensors = sums.has_files
        if self._reads_tensors and sums.has_files and not len(self._sketches):
            self._files = MappedTensors(side.data_folder) if side.data_folder.is_dir() else None
        backward = (place for place, entry in enumerate(side.entries) if _is_backward(entry))
        first_backward = next(backward, len(side.entries))
        for place in sums.looked_at:
            entry = side.entries[place]
            self._take(entry, side.raw(entry), is_behind=place >= first_backward)
        meetings = meetings_of(side)
        exchanges = []
        for place, entry in enumerate(side.entries):
            if entry.key in meetings:
                kept = _GROUP.sub(b"", _SKETCH.sub(self._kept_row, side.raw(entry)))
                exchanges.append(ExchangeFact(entry.key, place, meetings[entry.key], kept))
        found.keys = tuple(entry.key for entry in side.entries)
        found.exchanges = tuple(exchanges)
        found.parameters, found.buffers, found.inputs = self.parameters, self.buffers, self.inputs
        if sum(entry.key.startswith(OPTIMIZER) for entry in side.entries) > 1:
            # The last gradient may be of another update or of another loss, as a discriminator's of its
            # generator's.
            for name in self._repeated:
                del self.gradients[name]
        found.gradients, found.updates = self.gradients, self.updates
        found.reduced = frozenset(self.reduced)
        found.options = tuple(self.options)
        found.masks, found.marks, found.uses = self.masks, self.marks, self.uses
        found.losses = self.losses
        found.call_meshes, found.own_meshes = tuple(self.call_meshes), tuple(self.own_meshes)
        read = [each.sketch for each in self._contents.values()]
        found.sketches = np.array(read, np.float32) if read else self._sketches[self._rows]
        found.rests_on = self._rests_on()
        found.note = side.note
        return found

    def _rests_on(self) -> RestsOn:
        if self.has_digests:
            return RestsOn.DIGESTS
        if self._contents:
            return RestsOn.TENSORS
        return RestsOn.SKETCHES if len(self._sketches) else RestsOn.STATISTICS

    def _kept_row(self, match: "re.Match[bytes]") -> bytes:
        return b'"sketch": %d' % (self._row(int(match[1])) if self._marks else -1)

    def _row(self, number: int) -> int:
        """Return which row of the summary's sketches a sketch of the dump is."""
        if number not in self._row_of:
            self._require(number)
            self._row_of[number] = len(self._rows)
            self._rows.append(number)
        return self._row_of[number]

    def _require(self, number: int) -> None:
        """Require that a sketch is there."""
        if number >= len(self._sketches):
            raise DumpError(
                f"{self._side.path} names sketch {number}, and {self._side.folder / SKETCHES} has"
                f" {len(self._sketches)}: it was cut; copy it again, or capture the step again"
            )

    def _mark_of(self, number: int) -> int:
        if not self._marks:
            return 0  # The file of the sketches is gone: statistics tell.
        self._require(number)
        return self._marks[number]

    def _take(self, entry: RecordEntry, raw: bytes, *, is_behind: bool) -> None:
        """Take what a record says of parameters, buffers, inputs, gradients, updates and random states;
        `is_behind`: the backward pass has begun."""
        key = entry.key
        if _MESH_SIGN in raw:
            # Behind the forward pass calls get distributed gradients, too, to clip them.
            is_own = is_behind or key.startswith((OPTIMIZER, *MODULE_PREFIXES))
            meshes = self.own_meshes if is_own else self.call_meshes
            meshes.update(dict.fromkeys(mesh.decode() for mesh in _MESH.findall(raw)))
        if _LOSSES.fullmatch(key):
            for item in items_of(self._side.record(entry), key)[:1]:
                self.losses[key] = item.mean if item.mean is not None else float("nan")
        if key.startswith(OPTIMIZER):
            self._take_update(entry)
            return
        if _GRADIENTS in key:
            self._take_gradients(entry)
            return
        if drawn := _GENERATOR.search(raw):
            self.masks[key] = drawn[1].decode()
        if _MODULE_SIGN in raw and key.startswith(MODULE_PREFIXES):
            self._take_parameters_of(entry)
        names = NAMED.findall(raw)
        if not self._seen.issuperset(names):
            self._seen.update(names)
            for item in items_of(self._side.record(entry), key):
                self._take_named(item, key)

    def _take_named(self, item: Item, key: str) -> None:
        if item.part != INPUT or not item.is_tensor:
            return
        for field, known in (
            ("parameter", self.parameters),
            ("buffer", self.buffers),
            ("argument", self.inputs),
        ):
            name = item.statistic(field)
            if isinstance(name, str) and bare_name(name) not in known:
                known[bare_name(name)] = self._fact(item)
                self.uses[bare_name(name)] = key
                marks = item.statistic("parallel")
                if isinstance(marks, dict):
                    self.marks[bare_name(name)] = marks

    def _take_parameters_of(self, entry: RecordEntry) -> None:
        """Take the parameters that the record of a module lists: `Module.{path}.{Class}.forward.{n}`."""
        path = ".".join(entry.key.split(".")[1:-3])
        listed = self._side.record(entry).get("parameters")
        for name, element in listed.items() if isinstance(listed, dict) else ():
            full = bare_name(f"{path}.{name}" if path else name)
            item = Item(full, INPUT, element if isinstance(element, dict) else None)
            if item.is_tensor and full not in self.parameters:
                self.parameters[full] = self._fact(item)
                self.uses.setdefault(full, entry.key)

    def _take_gradients(self, entry: RecordEntry) -> None:
        """Take the gradients of a module's parameters: `Module.{path}.{Class}.parameters_grad.{n}`; of
        several backward passes the last counts, which has the sum of all."""
        before, _, _ = entry.key.rpartition(f".{GRADIENTS}")
        path = ".".join(before.split(".")[1:-1])
        record = self._side.record(entry)
        for item in items_of(record, entry.key):
            full = bare_name(f"{path}.{item.path}" if path else item.path)
            if item.is_tensor:
                if full in self.gradients:
                    self._repeated.add(full)
                self.gradients[full] = self._fact(item)
                if record.get("reduction") == "after":
                    self.reduced.add(full)

    def _take_update(self, entry: RecordEntry) -> None:
        """Take what an update did; of several of them the first counts before, the last after."""
        record = self._side.record(entry)
        groups, given = record.get("input_args"), record.get("output")
        for number, group in enumerate(groups if isinstance(groups, list) else ()):
            if not isinstance(group, dict):
                continue
            after = given[number] if isinstance(given, list) and number < len(given) else {}
            self.options.append({k: v for k, v in group.items() if k not in _NO_OPTIONS})
            state = group.get("state")
            states = state if isinstance(state, dict) else {}
            for place, element in enumerate(_list_of(group, "names")):
                name = element.get("value") if isinstance(element, dict) else None
                if not isinstance(name, str) or not name:
                    continue
                full = bare_name(name)
                known = self.updates.get(full)
                before = self._at(group, "params", place)
                self.updates[full] = UpdateFact(
                    before if known is None else known.before,
                    self._at(group, "grads", place),
                    self._at(after, "params", place),
                    tuple(
                        (word, fact.checksum)
                        for word in sorted(states)
                        if (fact := self._at(states, word, place)) is not None
                    ),
                    len(self.options) - 1,
                )

    def _at(self, group: Any, name: str, place: int) -> TensorFact | None:
        listed = _list_of(group, name)
        element = listed[place] if place < len(listed) else None
        item = Item(name, INPUT, element if isinstance(element, dict) else None)
        return self._fact(item) if item.is_tensor else None

    def _fact(self, item: Item) -> TensorFact:
        if item.digest:
            self.has_digests = True
        elif self._files is not None and item.file:
            return self._read(item, self._files)
        number = item.statistic("sketch")
        row = self._row(number) if type(number) is int and len(self._sketches) else -1
        return fact_of(item, self._sketches[self._rows[row]] if row >= 0 else None)

    def _read(self, item: Item, files: MappedTensors) -> TensorFact:
        """Return what the file of a tensor says of its values.

        Raises:
            DumpError: it cannot be read.
        """
        if item.file not in self._contents:
            try:
                self._contents[item.file] = _content_of(open_item(item, files))
            except NotCheckable as error:
                raise DumpError(
                    f"{self._side.path}: the file of a tensor cannot be read ({error}); copy the folder"
                    f" {self._side.data_folder.name} again, or capture the step again"
                ) from None
        content = self._contents[item.file]
        fact = fact_of(item)
        return fact._replace(sketch=content.sketch, zeros=content.zeros, content=content.checksum)


class _Content(NamedTuple):
    """What the elements of a file say: their sketch, how many are 0, and a checksum."""

    sketch: Array
    zeros: int
    checksum: int


def _content_of(tensor: MappedTensor) -> _Content:
    values = tensor.carrier(tensor.raw)
    if values.dtype.kind == "f":
        values = values + np.zeros(1, values.dtype)  # A zero has no sign here.
    zeros = values.size - int(np.count_nonzero(values))
    row, _ = stored(sketch(values))
    return _Content(row.astype(np.float32), zeros, zlib.crc32(values.data))


def fact_of(item: Item, buckets: Array | None = None) -> TensorFact:
    """Return what the element of a tensor says of its values."""
    high, low, mean, norm = (
        float("nan") if (found := item.number(name)) is None else found for name in FIELDS
    )
    statistics = high, low, mean, norm
    shape = item.shape or ()
    said = [item.dtype, shape, [repr(each) for each in statistics], item.digest]
    checksum = zlib.crc32(orjson.dumps(said))
    if buckets is not None:
        checksum = zlib.crc32(buckets.tobytes(), checksum)
    placements = item.statistic("placements")
    placed = tuple(map(_placement, placements)) if isinstance(placements, list) else ()
    mesh = item.statistic("device_mesh")
    shown_mesh = orjson.dumps(mesh).decode() if isinstance(mesh, list) else ""
    health = item.statistic("health")
    zeros = health.get("zero", 0) if isinstance(health, dict) else 0 if buckets is not None else -1
    return TensorFact(
        item.dtype,
        shape,
        statistics,
        checksum,
        buckets,
        placed,
        shown_mesh,
        zeros,
    )


def _placement(told: Any) -> str:
    """Return a placement of a distributed tensor: Shard, Replicate, Partial."""
    return str(next(iter(told), "")) if isinstance(told, dict) else str(told).partition("(")[0]


def _marks_of(sketches: Array) -> list[int]:
    """Return for each sketch what stands for it in a checksum."""
    raw, size = sketches.tobytes(), BUCKETS * sketches.itemsize
    return [zlib.crc32(raw[at : at + size]) for at in range(0, len(raw), size)]


def _is_backward(entry: RecordEntry) -> bool:
    return entry.key.endswith(".backward")


def _tells_more(entry: RecordEntry, raw: bytes) -> bool:
    """Return whether a record tells more than checksums, besides names that it may be the first to have."""
    if _GENERATOR_SIGN in raw or _MESH_SIGN in raw or _MODULE_SIGN in raw:
        return True
    return _LOSSES.fullmatch(entry.key) is not None


def _list_of(group: Any, name: str) -> list[Any]:
    found = group.get(name) if isinstance(group, dict) else None
    return found if isinstance(found, list) else []


def named_tensors(summary: RankTrace) -> Iterator[tuple[str, TensorFact]]:
    """Yield the parameters of a summary with their values at the start of the step: before the first
    update where there is one, else at their first use."""
    for name, update in summary.updates.items():
        if update.before is not None:
            yield name, update.before
    for name, fact in summary.parameters.items():
        if name not in summary.updates:
            yield name, fact
