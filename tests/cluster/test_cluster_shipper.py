"""Captured tensors through Ray's own object store, to a process that cannot see the dump's folder."""

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from conftest import DATA

from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.dump.tensors import CapturedTensors, ShippedFiles
from ray_precheck.errors import NotCheckable
from ray_precheck.replay.job import PrecheckInputFiles
from ray_precheck.runtime.shipper import Shipper
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.task import Task, TaskPayload
from ray_precheck.schema.values import TensorSpec, walk_specs

pytestmark = [pytest.mark.cluster, pytest.mark.frameworks]

BATCH = 4
MOST_BYTES = 16 << 10

Tensors = dict[str, tuple[str, str, tuple[int, ...], bytes] | str]


def tensors_of(record: ApiRecord) -> dict[str, TensorSpec]:
    """Return all tensors of a record by their argument path."""
    parts = {
        "input": record.args,
        "output": record.outputs,
        "grads_in": record.grads_in or (),
        "grads_out": record.grads_out or (),
    }
    return {
        path: leaf
        for part, specs in parts.items()
        for position, spec in enumerate(specs)
        for path, leaf in walk_specs(spec, f"{part}.{position}")
        if isinstance(leaf, TensorSpec)
    }


def decode_all(payload: TaskPayload, source: CapturedTensors) -> Tensors:
    """Return the bits of every tensor of a call, or the reason why there are none."""
    record = decode_record(payload.name, payload.forward, payload.backward)
    found: Tensors = {}
    for path, spec in tensors_of(record).items():
        try:
            tensor = source.tensor(spec, path)
        except NotCheckable as reason:
            found[path] = str(reason)
        else:
            data = tensor.data
            found[path] = (tensor.dtype, str(data.dtype), data.shape, data.tobytes())
    return found


@ray.remote(num_cpus=1)
def decode_elsewhere(
    payloads: list[TaskPayload], transfer: dict[int, ShippedFiles]
) -> list[Tensors]:
    """Decode what has arrived, away from the folder; its files are views of Ray's store."""
    for files in transfer.values():
        assert not any(one.flags.owndata for one in files.files.values() if hasattr(one, "flags"))
    return [decode_all(p, CapturedTensors(transfer[p.index])) for p in payloads]


def ship_all(dump: Dump) -> list[Tensors]:
    """Send every call of a dump through the store, in batches, and return what arrived."""
    tasks = [Task(i, call.name, 0.1) for i, call in enumerate(dump.calls)]
    batches = [tasks[i : i + BATCH] for i in range(0, len(tasks), BATCH)]
    settings = CheckSettings("pytorch", "tensor", dump.data_folder, tests_dump=True)
    shipper = Shipper(PrecheckInputFiles(dump, settings), MOST_BYTES, put=ray.put)
    arrived: dict[int, list[Tensors]] = {}
    try:
        for ticket, batch in enumerate(batches):
            shipper.prepare(ticket, batch)
        until = time.monotonic() + 300
        while len(arrived) < len(batches):
            assert time.monotonic() < until
            for ticket in shipper.ready():
                transfer = shipper.take(ticket)
                assert transfer is not None
                payloads = [dump.payload(task) for task in batches[ticket]]
                arrived[ticket] = ray.get(decode_elsewhere.remote(payloads, transfer.ref))
                del transfer
                shipper.forget(ticket)
            time.sleep(0.01)
    finally:
        shipper.close()
    return [tensors for ticket in sorted(arrived) for tensors in arrived[ticket]]


@pytest.fixture
def functions_by_value() -> Iterator[None]:
    """Let Ray send the functions of this file: its workers cannot import it."""
    module = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.usefixtures("functions_by_value")
@pytest.mark.parametrize("capture", ["mindspore_llm_tensor", "torch_llm_tensor"])
def test_tensors_arrive_bit_by_bit_through_rays_object_store(
    cluster_address: str, tmp_path: Path, capture: str
) -> None:
    shutil.copytree(DATA / capture, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "dump_tensor_data"
    missing, torn = sorted(folder.iterdir())[:2]
    missing.unlink()
    torn.write_bytes(torn.read_bytes()[:-70])
    ray.init(address=cluster_address, log_to_driver=False, logging_level="ERROR")
    try:
        with open_dump(tmp_path / "dump.json") as dump:
            tasks = [Task(i, call.name, 0.1) for i, call in enumerate(dump.calls)]
            source = CapturedTensors(folder)
            expected = [decode_all(dump.payload(task), source) for task in tasks]
            arrived = ship_all(dump)
    finally:
        ray.shutdown()
    assert arrived == expected
    found = [tensor for tensors in expected for tensor in tensors.values()]
    reasons = [text for text in found if isinstance(text, str)]
    assert len(reasons) == 2
    assert any(f"no file '{missing.name}'" in text for text in reasons)
    assert any(f"{torn.name} is not a readable" in text for text in reasons)
    assert len(found) > 70
