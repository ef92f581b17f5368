"""What the shipper's tests ship, and a store that stands for Ray's."""

import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.dump.tensors import ShippedFiles
from ray_precheck.replay.job import PrecheckInputFiles
from ray_precheck.runtime.shipper import Shipper
from ray_precheck.schema.task import Task

HEADER_BYTES = 128


class Stored:
    """What `put` returns; the store keeps what was put for as long as this lives."""

    def __init__(self, content: dict[int, ShippedFiles]) -> None:
        self.content = content


class Store:
    """Ray's object store. `gate` closed: a put waits until it is opened."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.refs: list[weakref.ref[Stored]] = []
        self.error: Exception | None = None

    def put(self, content: Any) -> Stored:
        self.entered.set()
        assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        stored = Stored(content)
        self.refs.append(weakref.ref(stored))
        return stored

    @property
    def alive(self) -> int:
        return sum(ref() is not None for ref in self.refs)


def captured(name: str | None, count: int = 4) -> dict[str, Any]:
    spec = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [count], "Max": 1, "Min": 0}
    return spec if name is None else {**spec, "data_name": name}


def forward(*inputs: str, count: int = 4, output: str | None = None) -> dict[str, Any]:
    return {
        "input_args": [captured(name, count) for name in inputs],
        "input_kwargs": {},
        "output": [captured(output, count)],
    }


def make_dump(folder: Path, **records: dict[str, Any]) -> Dump:
    """Write a dump in real mode and open it; `add_0_forward` is the key `Torch.add.0.forward`."""
    data = {f"Torch.{key.replace('_', '.')}": record for key, record in records.items()}
    (folder / "dump_tensor_data").mkdir(exist_ok=True)
    header = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}))
    return open_dump(folder / "dump.json")


def save(dump: Dump, name: str, count: int = 4, value: float = 1.0) -> None:
    """Save a tensor of as many float32; its file has 128 bytes more."""
    np.save(dump.data_folder / name, np.full(count, value, np.float32))


def tasks_of(dump: Dump, *indices: int) -> list[Task]:
    return [Task(i, dump.calls[i].name, 0.1) for i in indices or range(len(dump.calls))]


@contextmanager
def shipping(
    dump: Dump, store: Store, most_bytes: int = 1 << 20, **settings: Any
) -> Iterator[Shipper]:
    """Ship the captured files of a dump whose results are tested, unless `settings` say otherwise."""
    of_check = {"tests_dump": True, **settings}
    input_files = PrecheckInputFiles(
        dump, CheckSettings("pytorch", "tensor", dump.data_folder, **of_check)
    )
    shipper = Shipper(input_files, most_bytes, put=store.put)
    try:
        yield shipper
    finally:
        store.gate.set()
        shipper.close()
        dump.file.close()


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


def settle(shipper: Shipper) -> None:
    """Wait until the shipper's thread has nothing left that it could do.

    Its steps are lists of files, and transfers; a list may only now have had its transfer begun.
    """
    for _ in range(2):
        shipper._executor.submit(lambda: None).result(60)


def await_ready(shipper: Shipper, *tickets: int) -> None:
    """Wait for tickets, in any order; each is told of once."""
    assert sorted(await_any(shipper, len(tickets))) == sorted(tickets)


def await_any(shipper: Shipper, count: int) -> list[int]:
    """Wait until at least so many more tickets have become ready, and return them."""
    seen = shipper.ready()

    def are_enough() -> bool:
        seen.extend(shipper.ready())
        return len(seen) >= count

    until(are_enough)
    return seen


def one_each(folder: Path, counts: Sequence[int]) -> Dump:
    """Return a dump whose call i has one file of counts[i] elements."""
    records = {
        f"add_{i}_forward": forward(f"{i}.npy", count=count) for i, count in enumerate(counts)
    }
    dump = make_dump(folder, **records)
    for i, count in enumerate(counts):
        save(dump, f"{i}.npy", count, float(i))
    return dump
