"""Both halves of a check on one machine, in processes of their own, without Ray."""

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from records import call, row_of, tensor

from ray_precheck.check.settings import CheckSettings
from ray_precheck.replay.job import PrecheckOpener
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.runtime.tensors import loans
from ray_precheck.runtime.tensors.loans import Loan
from ray_precheck.runtime.workers.worker import Order, Worker
from ray_precheck.schema.done import Done
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import BENCH, DeviceSlot, TaskPayload

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not loans.CAN_LEND, reason="only Linux has memfd and /proc"),
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
    worker = Worker(DeviceSlot(kind, 0, "", "", ""), OPENER, 0)
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


@pytest.mark.parametrize("way", ["lent", "lent and handed over", "handed over"])
def test_however_it_goes_to_the_bench_the_result_is_that_of_one_process(
    way: str, device: Worker, bench: Worker
) -> None:
    whole = device.run(order(PAYLOADS, Stage.CHECK)).results
    before = open_descriptors()
    measured = device.run(order(PAYLOADS, Stage.DEVICE, is_near=way != "handed over")).measured
    assert [each.index for each in measured] == [0, 1]
    if way == "handed over":
        parcel = device.hand_over(7)
    else:
        parcel = device.lend(7)
        assert all(isinstance(lent, Loan) for lent in parcel.values())
        # Outputs, gradients, inputs and a cotangent: 3 + 2 + 1 of 30 x 30 float32.
        assert measured[0].nbytes > 6 * 3600
    if way == "lent and handed over":
        parcel = device.hand_over(7)
    halves = bench.run(order(PAYLOADS, Stage.BENCH), parcel).results
    assert list(map(timeless, halves)) == list(map(timeless, whole))
    assert row_of(whole[0]).backward is Verdict.PASS
    del parcel
    device.release(7)
    assert open_descriptors() == before


def test_memory_that_was_lent_is_used_again_once_it_is_released(
    device: Worker, bench: Worker
) -> None:
    side = tensor(400, 400, grad=True)
    calls = [
        replace(
            call("Torch.matmul", side, side, grads=[tensor(400, 400)]), name=f"Torch.matmul.{n}"
        )
        for n in range(3)
    ]
    found, places = [], []
    for payload in calls:
        found += device.run(order((payload,), Stage.CHECK)).results
        device.run(order((payload,), Stage.DEVICE, is_near=True))
        parcel = device.lend(7)
        (loan,) = parcel.values()
        assert isinstance(loan, Loan)
        places.append(loan.identity)
        found += bench.run(order((payload,), Stage.BENCH), parcel).results
        device.release(7)
    assert places[0] == places[1] == places[2]
    assert list(map(timeless, found[::2])) == list(map(timeless, found[1::2]))
    # Other inputs each, so that what was there before is not what is there now.
    assert len({each.details.replace(each.name.encode(), b"") for each in found}) == 3
    device.run(order((calls[0],), Stage.DEVICE, is_near=True))
    kept = device.lend(7)
    device.run(replace(order((calls[0],), Stage.DEVICE, is_near=True), ticket=8))
    other = device.lend(8)
    assert kept[0].identity == places[0] != other[0].identity
    device.release(7)
    device.release(8)


def test_what_cannot_be_got_at_is_refused_and_nobody_is_blamed(
    device: Worker, bench: Worker
) -> None:
    device.run(order(PAYLOADS, Stage.DEVICE, is_near=True))
    parcel = device.lend(7)
    device.release(7)
    report = bench.run(order(PAYLOADS, Stage.BENCH), parcel)
    assert report.refused
    assert (report.results, report.casualty) == ((), None)
    # It is as good as before.
    device.run(order(PAYLOADS, Stage.DEVICE, is_near=True))
    assert len(bench.run(order(PAYLOADS, Stage.BENCH), device.lend(7)).results) == 2
    device.release(7)


def test_a_worker_may_lend_more_records_than_1024(device: Worker) -> None:
    # The limit that most systems begin with would end it there.
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
