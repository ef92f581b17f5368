"""Locating as a job: every call of the target replayed on what it was captured to get, and compared.

Comes in: the calls of a capture, perhaps with those of a golden run, and the settings. Goes out: a `Job`, its
`Opener` and its `Runner`. The session makes a `LocationJob` for each dump with tensors in files, and walks
through the capture when all rows are there. Captured results need no device: every slot is a core.
"""

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_precheck.commands.compare.rows import (
    GOLDEN,
    TARGET,
    ComparisonInputFiles,
    PairFiles,
    Records,
)
from ray_precheck.commands.locate.plan import (
    LOCATION_TABLES,
    LocationPayload,
    LocationSettings,
    MeasuredValue,
    encoded_error,
    encoded_value,
)
from ray_precheck.commands.locate.walk.nouns import OwnError, ValueEvidence
from ray_precheck.dump.mapped import MappedTensor
from ray_precheck.dump.tensors import CapturedTensors, FolderFiles, RememberedTensors, TensorFiles
from ray_precheck.errors import NotCheckable
from ray_precheck.runtime.job import InputFiles, Tell
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers.shared import require_folders, seen_folders
from ray_precheck.schema.result import Outcome, Verdict, verdict_in
from ray_precheck.schema.task import BENCH, Cause, DeviceSlot, Done, Task, TaskPayload
from ray_precheck.store.tables import Tables, encode_name, encode_row, encode_text
from ray_precheck.trace.difference.elements import element_difference, other_order, same_statistics
from ray_precheck.trace.difference.measuring import dtype_of, pair_items
from ray_precheck.trace.items import Item, items_of
from ray_precheck.trace.side import BACKWARD, FORWARD, record_from_json

if TYPE_CHECKING:
    from ray_precheck.commands.locate.replay import CallReplay

COLLECTIVE = "its result depends on other ranks"
# Only values that differ by so much of their norm are looked at for another order.
_MOVED = 1e-3


class LocationJob:
    """The calls of a dump as a job. `shared_fs`: every machine sees the folders of tensors."""

    has_bench = bench_suffices = False

    def __init__(
        self,
        payloads: Sequence[LocationPayload],
        settings: LocationSettings,
        *,
        shared_fs: bool = False,
    ) -> None:
        self._payloads = payloads
        self.settings = settings
        self.names = [payload.name for payload in payloads]
        self.tables: Tables = LOCATION_TABLES
        self.memory_limit_bytes = settings.target.memory_limit_bytes
        self._shares_files = shared_fs
        self.input_files: InputFiles | None = (
            None if shared_fs else ComparisonInputFiles(self._records, settings.folders)
        )

    def _records(self, task: Task) -> dict[str, Records]:
        payload = self.payload(task)
        return {TARGET: _keyed(payload.target), GOLDEN: _keyed(payload.golden)}

    def payload(self, task: Task) -> LocationPayload:
        """Return the raw records of a call of both runs."""
        return self._payloads[task.index]

    def opener(self, *, is_home: bool) -> "LocationOpener":
        """Return the opener of runners, which need no device. With a shared file system other machines must
        see the folders of the tensors."""
        target = replace(self.settings.target, sends_evidence=not is_home)
        both = (target.data_folder, self.settings.golden_folder)
        must_see = seen_folders(both if self._shares_files else (), is_home=is_home)
        return LocationOpener(replace(self.settings, target=target), must_see)

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the rows of a call that broke its worker: nothing is known of it."""
        return self.unchecked(task, reason)

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the rows of a call that could not be replayed."""
        payload = self.payload(task)
        errors = {
            direction: OwnError(Verdict.SKIP.value, message=reason)
            for direction, _ in _records_of(payload.target)
        }
        return _done(payload, errors, b"", 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class LocationOpener:
    """Opens a runner in the check process; loads the frameworks of the bench. `must_see` are folders that its
    machine has to have."""

    settings: LocationSettings
    must_see: tuple[Path, ...] = ()

    @property
    def memory_limit_bytes(self) -> int:
        """The limit in bytes for the tensors of one record, 0 for no limit."""
        return self.settings.target.memory_limit_bytes

    def open(self, slot: DeviceSlot, tell: Tell) -> "LocationRunner":
        """Load the bench and let it prove itself.

        Raises:
            DeviceError: the machine does not share the captured tensors that it is said to share.
        """
        require_folders(slot, self.must_see, "the captured tensors")
        from ray_precheck.frameworks.mindtorch.paths import prefer_native

        prefer_native()
        # Imported here: the frameworks behind it must not be loaded before the process is pinned.
        from ray_precheck.check.checker import Checker
        from ray_precheck.commands.locate.replay import CallReplay

        target = Checker(self.settings.target, BENCH, tell)
        target.prove()
        golden = None
        if self.settings.golden is not None:
            golden = Checker(self.settings.golden, BENCH, tell)
        return LocationRunner(self.settings, CallReplay(target, golden))


class LocationRunner:
    """Replays and compares one call after the other."""

    caveat = ""

    def __init__(self, settings: LocationSettings, replay: "CallReplay") -> None:
        self._settings = settings
        self._replay = replay
        self._folders: Mapping[str, TensorFiles] = {
            side: FolderFiles(folder) for side, folder in settings.folders.items()
        }

    def run(
        self, payload: LocationPayload, stage: Stage = Stage.DEVICE, *, files: Any = None, **_: Any
    ) -> Done:
        """Replay and compare a call; `files` has its files on a machine that sees no folder."""
        began_s, began = time.time(), time.perf_counter()
        folders = files.folders() if isinstance(files, PairFiles) else self._folders
        ours, theirs = RememberedTensors(folders[TARGET]), RememberedTensors(folders[GOLDEN])
        # Without a golden run nothing is compared, and statistics tell which value is which.
        has_golden = self._settings.golden_folder is not None
        values = (
            b"".join(_values(payload, ours, theirs, self._settings.same_framework))
            if has_golden
            else b""
        )
        evidence: tuple[tuple[str, bytes], ...] = ()
        if payload.is_replayed:
            errors, evidence = self._replay.errors(payload, ours, theirs)
        else:
            errors = {
                direction: OwnError(Verdict.SKIP.value, message=COLLECTIVE)
                for direction, _ in _records_of(payload.target)
            }
        done = _done(payload, errors, values, began_s, time.perf_counter() - began)
        return replace(done, evidence=evidence)

    def damage(self) -> tuple[Cause, str] | None:
        """Return None: the bench alone runs here."""
        return None


def _records_of(payload: TaskPayload | None) -> list[tuple[str, bytes]]:
    """Return the raw records of a call with their directions."""
    if payload is None:
        return []
    both = ((FORWARD, payload.forward), (BACKWARD, payload.backward))
    return [(direction, raw) for direction, raw in both if raw is not None]


def _keyed(payload: TaskPayload | None) -> Records:
    """Return the raw records of a call with their keys."""
    return tuple(
        (f"{payload.name}.{direction}" if payload else "", raw)
        for direction, raw in _records_of(payload)
    )


def _values(
    payload: LocationPayload,
    ours: CapturedTensors,
    theirs: CapturedTensors,
    same_framework: bool,
) -> Iterator[bytes]:
    """Yield the rows of the tensors of a call: contents, and how they differ from the golden run's."""
    golden = dict(_records_of(payload.golden))
    for direction, raw in _records_of(payload.target):
        key = f"{payload.name}.{direction}"
        items = items_of(record_from_json(raw), key)
        partners = items_of(record_from_json(golden[direction])) if direction in golden else []
        for item, partner in pair_items(items, partners, same_framework=same_framework):
            if item is not None and item.is_tensor:
                value = _measured(item, partner, ours, theirs)
                yield encoded_value(payload.name, key, item.path, value)


def _measured(
    item: Item, partner: Item | None, ours: CapturedTensors, theirs: CapturedTensors
) -> MeasuredValue:
    target = _opened(item, ours)
    content = _content(target)
    if partner is None or not partner.is_tensor:
        return MeasuredValue(ValueEvidence(), content)
    golden = _opened(partner, theirs)
    golden_content = _content(golden)
    if item.shape != partner.shape:
        return MeasuredValue(ValueEvidence(math.inf), content, golden_content)
    if target is None or golden is None:
        return MeasuredValue(ValueEvidence(), content, golden_content)
    if content == golden_content:
        return MeasuredValue(ValueEvidence(0.0), content, golden_content)
    found = element_difference(target, golden)
    difference = math.inf if found.odd else found.relative_l2
    is_moved = difference > _MOVED and same_statistics(item, partner)
    order = other_order(target, golden) if is_moved else ""
    return MeasuredValue(ValueEvidence(difference, order), content, golden_content)


def _opened(item: Item, tensors: CapturedTensors) -> MappedTensor | None:
    """Return the tensor of a value; None where it cannot be read."""
    dtype = dtype_of(item.dtype)
    if dtype is None or not item.file:
        return None
    try:
        found = tensors.tensor(item.spec(dtype), item.path).dense
    except NotCheckable:
        return None
    return MappedTensor(dtype, found.shape, found.data.reshape(-1))


def _content(tensor: MappedTensor | None) -> str:
    """Return what tells a tensor from others: its dtype and a digest of its elements in row-major order."""
    if tensor is None:
        return ""
    state = hashlib.blake2b(tensor.dtype.encode(), digest_size=10)
    state.update(np.ascontiguousarray(tensor.raw).view(np.uint8).data)
    return state.hexdigest()


def _done(
    payload: LocationPayload,
    errors: Mapping[str, OwnError],
    values: bytes,
    began_s: float,
    took_s: float,
) -> Done:
    name = payload.name
    rows = b"".join(encoded_error(name, f"{name}.{each}", own) for each, own in errors.items())
    verdicts = [verdict_in(own.verdict) for own in errors.values()]
    verdict = next(
        (each for each in (Verdict.ERROR, Verdict.PASS, Verdict.SKIP) if each in verdicts),
        Verdict.SKIP,
    )
    said = "; ".join(dict.fromkeys(own.message for own in errors.values() if own.message))
    golden = payload.golden.name if payload.golden is not None else ""
    row = encode_row([encode_name(name), verdict.value, encode_name(golden), encode_text(said)])
    return Done(payload.index, name, verdict, row, rows + values, began_s, device_s=took_s)
