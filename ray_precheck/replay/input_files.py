"""The captured tensors of a dump, for workers on machines that do not see its folder.

Comes in: tasks. Goes out: which files their records name, and the contents of these. Called by the
runtime's shipper, on a thread of its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path, PurePath
from typing import Any

from ray_precheck.check.decode import needed_bytes
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.parse import Dump
from ray_precheck.dump.tensors import (
    FolderFiles,
    Shipped,
    ShippedFiles,
    is_captured,
    most_file_bytes,
)
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.task import Task
from ray_precheck.schema.values import TensorSpec, walk_specs


class PrecheckInputFiles:
    """Reads captured files for other machines.

    Captured outputs and gradients are sent only if captured results are tested. No file is sent of a
    record that needs more memory than the limit, because its worker skips it.
    """

    def __init__(self, dump: Dump, settings: CheckSettings) -> None:
        self._dump = dump
        self._files = FolderFiles(dump.data_folder)
        self._with_results = settings.tests_dump
        self._memory_limit_bytes = settings.memory_limit_bytes

    @property
    def folder(self) -> Path:
        """The folder that the files are in."""
        return self._files.folder

    def limits(self, task: Task, most_bytes: int) -> Mapping[str, int]:
        """Return the files of a task by name, with the size above which each is not sent.

        A .npy file is not sent where it is larger than its tensor. A .pt file holds the whole storage
        of a tensor, of which the tensor may be a small part: it may have `most_bytes`.
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

    def size_bytes(self, name: str) -> int:
        """Return how many bytes a file has; 0 where it cannot be read."""
        return self._files.size_bytes(name)

    def ship(self, name: str, limit_bytes: int) -> Shipped:
        """Read a file; returns its content, or why it is not sent."""
        return self._files.ship(name, limit_bytes)

    def packed(self, content: Mapping[str, Any]) -> ShippedFiles:
        """Return the files of one task as the checker reads them."""
        return ShippedFiles(content)


def _file_limit(spec: TensorSpec, most_bytes: int) -> int:
    if PurePath(spec.data_name or "").suffix == ".npy":
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
