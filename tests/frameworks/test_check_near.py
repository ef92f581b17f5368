"""Both halves of a check on one machine, in processes of their own, without Ray."""

import gc
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from records import call, row_of, tensor

from ray_precheck.check.settings import CheckSettings
from ray_precheck.replay.job import PrecheckOpener
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers.shared import CAN_LEND
from ray_precheck.runtime.workers.worker import Order, Worker
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import BENCH, DeviceSlot, Done, TaskPayload

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not CAN_LEND, reason="only Linux has memfd and /proc"),
]
OPENER = PrecheckOpener(CheckSettings("pytorch", "statistics", Path()))
MATRIX = tensor(30, 30, grad=True)
PAYLOADS = (
    call("Torch.matmul", MATRIX, MATRIX, grads=[tensor(30, 30)]),
    replace(call("Torch.neg", tensor(5)), index=1),
)


@pytest.fixture(scope="module", autouse=True)
def _devices() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # Set by the worker for its processes; put back afterwards.
        for name in ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            patch.setenv(name, "")
        yield


@pytest.fixture(scope="module")
def device() -> Iterator[Worker]:
    yield from started("cpu")


@pytest.fixture(scope="module")
def bench() -> Iterator[Worker]:
    yield from started(BENCH)


def started(kind: str) -> Iterator[Worker]:
    worker = Worker(DeviceSlot(kind, 0, "", "", ""), OPENER)
    worker.open(0)
    yield worker
    worker.close()


def order(payloads: tuple[TaskPayload, ...], stage: Stage, *, is_near: bool = False) -> Order:
    count = len(payloads)
    return Order(payloads, (60.0,) * count, (1,) * count, 1, 7, stage, is_near=is_near)


def timeless(done: Done) -> Done:
    return replace(done, inputs_s=0.0, device_s=0.0, bench_s=0.0, began_s=0.0)


def open_descriptors() -> set[str]:
    gc.collect()  # what earlier tests have left behind
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("way", ["opened here", "copied", "drawn again"])
def test_however_it_goes_to_the_bench_the_result_is_that_of_one_process(
    way: str, device: Worker, bench: Worker
) -> None:
    whole = device.run(order(PAYLOADS, Stage.CHECK)).results
    before = open_descriptors()
    measured = device.run(order(PAYLOADS, Stage.DEVICE, is_near=way != "drawn again")).measured
    assert [each.index for each in measured] == [0, 1]
    transfer = device.hand_over(7, way == "opened here")
    shares = [each.shared is not None for each in transfer.values()]
    assert shares == [way == "opened here"] * 2
    if way != "drawn again":
        # Outputs, gradients, inputs and a cotangent: 3 + 2 + 1 of 30 x 30 float32.
        assert measured[0].nbytes > 6 * 3600
    halves = bench.run(order(PAYLOADS, Stage.BENCH), transfer).results
    assert list(map(timeless, halves)) == list(map(timeless, whole))
    assert row_of(whole[0]).backward is Verdict.PASS
    del transfer
    device.release(7)
    assert open_descriptors() == before


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_cannot_be_got_at_needs_the_device_again_and_nobody_is_blamed(
    is_gone: bool, device: Worker, bench: Worker
) -> None:
    device.run(order(PAYLOADS, Stage.DEVICE, is_near=True))
    lent = pickle.loads(pickle.dumps(device.hand_over(7, True)))
    device.release(7)
    # The driver has heard of its end, or the memory is not there any more when it is opened.
    report = bench.run(order(PAYLOADS, Stage.BENCH), {} if is_gone else lent)
    assert report.needs_device == (0, 1)
    assert (report.results, report.failure) == ((), None)
    # It is as good as before.
    device.run(order(PAYLOADS, Stage.DEVICE, is_near=True))
    assert len(bench.run(order(PAYLOADS, Stage.BENCH), device.hand_over(7, True)).results) == 2
    device.release(7)


def test_a_worker_may_lend_more_records_than_1024(device: Worker) -> None:
    # The limit that most systems begin with would end it there.
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
