"""The precheck as a job: every API call of a dump, checked on a device and against the bench.

Comes in: an open dump and the settings of the check. Goes out: a `Job`, its `Opener` and its `Runner`.
The session makes a `PrecheckJob`; workers are given its opener, which loads frameworks and opens the
device in the check process.

Also here: the captured tensors of a dump, for workers on machines that do not see its folder.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ray_precheck.check.decode import needed_bytes
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.parse import Dump
from ray_precheck.dump.tensors import (
    JUDGED_BY_SIZE,
    FolderFiles,
    ShippedFiles,
    is_captured,
    most_file_bytes,
)
from ray_precheck.errors import NotCheckable
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers.shared import require_folders
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.result import Outcome, TaskResult, call_verdict, failed, skipped
from ray_precheck.schema.task import Cause, DeviceSlot, Done, Phase, Task, TaskPayload
from ray_precheck.schema.values import TensorSpec, walk_specs
from ray_precheck.store.tables import API_TABLES, Tables, detail_rows, result_row

if TYPE_CHECKING:
    from ray_precheck.check.checker import Checker


class PrecheckInputFiles(FolderFiles):
    """Reads captured files for other machines.

    Captured outputs and gradients are sent only if captured results are tested. No file is sent of a
    record that needs more memory than the limit, because its worker skips it.
    """

    def __init__(self, dump: Dump, settings: CheckSettings) -> None:
        super().__init__(dump.data_folder)
        self._dump = dump
        self._with_results = settings.tests_dump
        self._memory_limit_bytes = settings.memory_limit_bytes

    def limits(self, task: Task, most_bytes: int) -> Mapping[str, int]:
        """Return the files of a task by name, with the size above which each is not sent.

        A .npy or .safetensors file is not sent where it is larger than its tensor. A .pt file holds the
        whole storage of a tensor, of which the tensor may be a small part: it may have `most_bytes`.
        """
        payload = self._dump.payload(task)
        try:
            raw = (payload.name, payload.forward, payload.backward)
            record = decode_record(*raw, self._dump.framework)
        except NotCheckable:
            return {}  # Its worker finds the same.
        if self._memory_limit_bytes and needed_bytes(record) > self._memory_limit_bytes:
            return {}
        limits: dict[str, int] = {}
        for spec in _tensors(record, self._with_results):
            if is_captured(spec):
                name = spec.data_name or ""
                limits[name] = max(_file_limit(spec, most_bytes), limits.get(name, 0))
        return limits

    def packed(self, content: Mapping[str, Any]) -> ShippedFiles:
        """Return the files of one task as the checker reads them."""
        return ShippedFiles(content)


def _file_limit(spec: TensorSpec, most_bytes: int) -> int:
    if PurePath(spec.data_name or "").suffix in JUDGED_BY_SIZE:
        return most_file_bytes(spec)
    return max(most_file_bytes(spec), most_bytes)


def _tensors(record: ApiRecord, with_results: bool) -> Iterator[TensorSpec]:
    specs: Iterable[Any] = chain(
        (spec for _, spec in record.input_leaves()),
        record.grads_in or (),
        chain(record.outputs, record.grads_out or (), dict(record.changed or ()).values())
        if with_results
        else (),
    )
    leaves = (leaf for spec in specs for _, leaf in walk_specs(spec, ""))
    return (leaf for leaf in leaves if isinstance(leaf, TensorSpec))


def done_of(result: TaskResult, added: Sequence[str] = ()) -> Done:
    """Return a result with its rows encoded; `added` are the headings of the standard's columns."""
    return Done(
        result.index,
        result.name,
        call_verdict(result.forward, result.backward),
        result_row(result),
        detail_rows(result, *added),
        result.began_s,
        result.inputs_s,
        result.device_s,
        result.bench_s,
        result.evidence,
        result.heats,
    )


class PrecheckJob:
    """The calls of a dump as a job. `shared_fs`: every machine sees the dump's captured tensors."""

    def __init__(self, dump: Dump, settings: CheckSettings, *, shared_fs: bool = False) -> None:
        self._dump = dump
        self._settings = settings
        self._shares_files = settings.task == "tensor" and shared_fs
        self.names = [call.name for call in dump.calls]
        self.tables: Tables = API_TABLES
        self.has_bench = True
        # Captured results need no device: a bench worker can check them alone.
        self.bench_suffices = settings.tests_dump
        self.memory_limit_bytes = settings.memory_limit_bytes
        sends_files = settings.task == "tensor" and not shared_fs
        self.input_files = PrecheckInputFiles(dump, settings) if sends_files else None

    def payload(self, task: Task) -> TaskPayload:
        """Return the raw records of a call, read from the dump."""
        return self._dump.payload(task)

    def opener(self, *, is_home: bool) -> "PrecheckOpener":
        """Return the opener of a worker's checker. On other machines than the driver's, failing tensors
        are sent with the result; with a shared file system the folder of the captured tensors must
        exist."""
        shares = self._shares_files and self._settings.data_folder.is_dir()
        settings = replace(self._settings, sends_evidence=not is_home)
        return PrecheckOpener(settings, must_see_data=shares and not is_home)

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the rows of a call that broke its worker: it is an error."""
        return done_of(failed(task.index, task.name, outcome, reason, self._has_backward(task)))

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the rows of a call that could not be checked: SKIP."""
        return done_of(skipped(task.index, task.name, reason, self._has_backward(task)))

    def _has_backward(self, task: Task) -> bool:
        return self._dump.calls[task.index].backward is not None


@dataclass(frozen=True, slots=True)
class PrecheckOpener:
    """Opens the checker of a slot, in the check process.

    With `must_see_data` it refuses a machine without the folder of the captured tensors, where every
    record would be skipped.
    """

    settings: CheckSettings
    must_see_data: bool = False

    @property
    def memory_limit_bytes(self) -> int:
        """The limit in bytes for the tensors of one record, 0 for no limit."""
        return self.settings.memory_limit_bytes

    def open(self, slot: DeviceSlot, tell: Callable[[Phase], None]) -> "PrecheckRunner":
        """Load the frameworks, open the device and have it prove itself.

        Raises:
            DeviceError: the machine does not share the captured tensors that it is said to share.
        """
        if self.must_see_data:
            require_folders(slot, [self.settings.data_folder], "the captured tensors")
        from ray_precheck.frameworks.mindtorch.paths import prefer_native

        prefer_native()
        # Imported here: the frameworks behind it must not be loaded before the process is pinned.
        from ray_precheck.check.checker import Checker

        checker = Checker(self.settings, slot.kind, tell)
        checker.prove()
        return PrecheckRunner(checker, self.settings.added)


class PrecheckRunner:
    """Checks one call after the other with an open checker."""

    def __init__(self, checker: "Checker", added: Sequence[str]) -> None:
        self.checker = checker
        self._added = added
        self._message = ""

    @property
    def caveat(self) -> str:
        """A sentence about a limit of the device's precision, "" for none."""
        return self.checker.caveat

    def run(
        self,
        payload: TaskPayload,
        stage: Stage,
        *,
        files: Any = None,
        half: Any = None,
        threads: int = 1,
        is_near: bool = False,
    ) -> Any:
        """Check a call, or measure it on the device for a bench elsewhere; see `runtime.job`."""
        from ray_precheck.check.device import DeviceNeeded

        self._message, began_s = "", time.time()
        if stage is Stage.DEVICE:
            found = self.checker.measure(payload, files, with_inputs=is_near)
        else:
            try:
                found = self.checker.check(
                    payload, measured=half, files=files, bench_threads=threads
                )
            except DeviceNeeded:
                return None
        if not isinstance(found, TaskResult):
            return found
        self._message = found.message
        return done_of(replace(found, began_s=began_s), self._added)

    def damage(self) -> tuple[Cause, str] | None:
        """Return how the last call broke this process, and its Message; None if it did not."""
        cause = self.checker.damage()
        return None if cause is None else (cause, self._message or cause.value)
