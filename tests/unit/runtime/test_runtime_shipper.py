"""What the shipper reads ahead, how much of it is in flight, and what becomes of its errors."""

import gc
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from shipper_dumps import (
    HEADER_BYTES,
    Store,
    await_any,
    await_ready,
    captured,
    forward,
    make_dump,
    one_each,
    save,
    settle,
    shipping,
    tasks_of,
    until,
)

from ray_precheck.dump.tensors import CapturedTensors, Refused, ShippedFiles, SizeOnly
from ray_precheck.errors import StoppedError
from ray_precheck.runtime.shipper import Shipper, StoredFiles
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.unit


def transfer(shipper: Shipper, ticket: int) -> StoredFiles:
    taken = shipper.take(ticket)
    assert taken is not None
    return taken


def files_of(shipper: Shipper, ticket: int, index: int) -> ShippedFiles:
    content = transfer(shipper, ticket).ref.content[index]
    assert isinstance(content, ShippedFiles)
    return content


def test_a_transfer_has_the_files_of_each_task_each_file_once(tmp_path: Path) -> None:
    dump = make_dump(
        tmp_path,
        add_0_forward=forward("a.npy", "b.npy", output="c.npy"),
        add_0_backward={"input": [captured("d.npy")], "output": [captured("e.npy")]},
        add_1_forward=forward("b.npy", "b.npy"),
        add_2_forward=forward(),
    )
    for value, name in enumerate("abcdez"):
        save(dump, f"{name}.npy", value=float(value))
    with shipping(dump, Store()) as shipper:
        shipper.prepare(7, tasks_of(dump))
        await_ready(shipper, 7)
        taken = transfer(shipper, 7)
        names = {index: set(files.files) for index, files in taken.ref.content.items()}
        assert names == {0: {f"{n}.npy" for n in "abcde"}, 1: {"b.npy"}, 2: set()}
        assert taken.nbytes == 5 * (16 + HEADER_BYTES)
        assert files_of(shipper, 7, 0).files["b.npy"] is files_of(shipper, 7, 1).files["b.npy"]
        source = CapturedTensors(files_of(shipper, 7, 0))
        tensor = source.tensor(TensorSpec("float32", (4,), data_name="d.npy"), "x")
        assert tensor.data.tolist() == [3.0] * 4
        assert shipper.ready() == []
        assert shipper.take(7) is taken


def test_results_stay_where_a_device_is_what_is_tested(tmp_path: Path) -> None:
    dump = make_dump(
        tmp_path,
        add_0_forward=forward("a.npy", output="c.npy"),
        add_0_backward={"input": [captured("d.npy")], "output": [captured("e.npy")]},
    )
    with shipping(dump, Store(), tests_dump=False) as shipper:
        shipper.prepare(1, tasks_of(dump))
        await_ready(shipper, 1)
        assert set(files_of(shipper, 1, 0).files) == {"a.npy", "d.npy"}


def test_a_file_that_is_missing_or_too_large_is_sent_as_the_reason(tmp_path: Path) -> None:
    dump = make_dump(tmp_path, add_0_forward=forward("gone.npy", "big.npy", "../up.npy", "x.bin"))
    with (dump.data_folder / "big.npy").open("wb") as file:
        file.truncate(1 << 40)
    with shipping(dump, Store()) as shipper:
        shipper.prepare(1, tasks_of(dump))
        await_ready(shipper, 1)
        assert transfer(shipper, 1).nbytes == 0
        assert files_of(shipper, 1, 0).files == {
            "gone.npy": Refused(f"no file 'gone.npy' in {dump.data_folder}"),
            "big.npy": SizeOnly(1 << 40),
            "../up.npy": Refused(f"no file '../up.npy' in {dump.data_folder}"),
        }


def test_a_pt_file_larger_than_its_tensor_goes_up_to_what_may_be_in_flight(tmp_path: Path) -> None:
    dump = make_dump(tmp_path, add_0_forward=forward("fits.pt", "huge.pt"))
    for name, size in (("fits.pt", 1 << 20), ("huge.pt", (1 << 20) + 1)):
        with (dump.data_folder / name).open("wb") as file:
            file.truncate(size)
    with shipping(dump, Store(), most_bytes=1 << 20) as shipper:
        shipper.prepare(1, tasks_of(dump))
        await_ready(shipper, 1)
        assert transfer(shipper, 1).nbytes == 1 << 20
        reason = files_of(shipper, 1, 0).files["huge.pt"]
        assert isinstance(reason, Refused)
        assert "more than the 1048576 that are sent to another machine" in reason.reason


def test_nothing_is_read_for_a_record_that_its_worker_skips(tmp_path: Path) -> None:
    huge = 10**9
    dump = make_dump(
        tmp_path,
        add_0_forward=forward("a.npy", count=huge),
        add_1_forward={"input_args": 3},
        add_2_backward={"input": [captured("a.npy")], "output": []},
        add_3_forward=forward("a.npy"),
    )
    with (dump.data_folder / "a.npy").open("wb") as file:
        file.truncate(4 * huge)
    with shipping(dump, Store(), memory_limit_bytes=1 << 30) as shipper:
        shipper.prepare(1, tasks_of(dump, 0, 1, 2))
        shipper.prepare(2, tasks_of(dump, 3))
        await_ready(shipper, 1, 2)
        content = transfer(shipper, 1).ref.content
        assert content == {0: ShippedFiles({}), 1: ShippedFiles({}), 2: ShippedFiles({})}
        assert files_of(shipper, 2, 3).files == {"a.npy": SizeOnly(4 * huge)}


def test_a_ticket_has_nothing_to_take_until_it_is_put(tmp_path: Path) -> None:
    store = Store()
    store.gate.clear()
    dump = one_each(tmp_path, [4])
    with shipping(dump, store) as shipper:
        shipper.prepare(1, tasks_of(dump))
        assert store.entered.wait(20)
        assert shipper.take(1) is None
        assert shipper.ready() == []
        store.gate.set()
        await_ready(shipper, 1)
        assert transfer(shipper, 1).nbytes == 16 + HEADER_BYTES
        with pytest.raises(KeyError):
            shipper.take(2)


def test_what_has_no_room_is_read_once_enough_is_forgotten(tmp_path: Path) -> None:
    store = Store()
    one = 16 + HEADER_BYTES
    dump = one_each(tmp_path, [4] * 4)
    with shipping(dump, store, most_bytes=2 * one) as shipper:
        for ticket in range(4):
            shipper.prepare(ticket, tasks_of(dump, ticket))
        await_ready(shipper, 0, 1)
        settle(shipper)
        assert (shipper.ready(), shipper.take(2), shipper.take(3)) == ([], None, None)
        shipper.forget(1)
        await_ready(shipper, 2)
        assert (shipper.take(3), len(store.refs), store.alive) == (None, 3, 2)


def test_a_transfer_that_is_larger_than_all_room_goes_alone(tmp_path: Path) -> None:
    store = Store()
    dump = one_each(tmp_path, [4, 4000, 4])
    with shipping(dump, store, most_bytes=1000) as shipper:
        for ticket in range(3):
            shipper.prepare(ticket, tasks_of(dump, ticket))
        await_ready(shipper, 0)
        settle(shipper)
        assert (shipper.take(1), len(store.refs)) == (None, 1)
        shipper.forget(0)
        await_ready(shipper, 1)
        assert transfer(shipper, 1).nbytes > 1000
        settle(shipper)
        assert (shipper.take(2), len(store.refs)) == (None, 2)
        shipper.forget(1)
        await_ready(shipper, 2)


def test_a_batch_without_files_needs_no_room(tmp_path: Path) -> None:
    batches = {"add_0_forward": forward("a.npy"), "add_1_forward": forward()}
    dump = make_dump(tmp_path, **batches, add_2_forward=forward("too_large.npy"))
    save(dump, "a.npy")
    save(dump, "too_large.npy", 100_000)
    with shipping(dump, Store(), most_bytes=1) as shipper:
        for ticket in range(3):
            shipper.prepare(ticket, tasks_of(dump, ticket))
        await_ready(shipper, 0, 1, 2)
        assert transfer(shipper, 1).nbytes == 0


@pytest.mark.parametrize("seed", range(40))
def test_no_more_is_in_flight_than_was_set_and_every_batch_arrives(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    counts = [random.choice([0, 4, 100, 300]) for _ in range(12)]
    most_bytes = random.randrange(1, 3000)
    dump = one_each(tmp_path, counts)
    held: dict[int, int] = {}
    over: list[dict[int, int]] = []

    def put(content: Any) -> int:
        ((index, files),) = content.items()
        held[index] = sum(one.nbytes for one in files.files.values())
        now = dict(held)
        if sum(now.values()) > most_bytes and len(now) > 1:
            over.append(now)
        return int(index)

    store = Store()
    store.put = put  # type: ignore[method-assign,assignment]
    with shipping(dump, store, most_bytes) as shipper:
        for index in range(len(counts)):
            shipper.prepare(index, tasks_of(dump, index))
        there: list[int] = []
        for _ in counts:
            there += await_any(shipper, 0 if there else 1)
            time.sleep(random.choice([0, 0.002]))  # Let more of them come before one goes.
            ticket = there.pop(random.randrange(len(there)))
            assert transfer(shipper, ticket).ref == ticket
            del held[ticket]
            shipper.forget(ticket)
        assert over == []
        assert shipper._in_flight_bytes == 0


def test_what_is_forgotten_is_freed_at_once(tmp_path: Path) -> None:
    store = Store()
    gc.disable()
    try:
        dump = one_each(tmp_path, [4, 4])
        with shipping(dump, store) as shipper:
            shipper.prepare(0, tasks_of(dump, 0))
            await_ready(shipper, 0)
            assert store.alive == 1
            shipper.forget(0)
            shipper.forget(0)
            until(lambda: store.alive == 0)
            store.gate.clear()
            store.entered.clear()
            shipper.prepare(1, tasks_of(dump, 1))
            assert store.entered.wait(20)
            shipper.forget(1)  # while it is being put
            assert shipper._in_flight_bytes == 16 + HEADER_BYTES
            store.gate.set()
            until(lambda: len(store.refs) == 2 and store.alive == 0)
            until(lambda: shipper._in_flight_bytes == 0)
            assert shipper.ready() == []
    finally:
        gc.enable()


def test_a_batch_that_is_forgotten_before_it_is_read_is_never_read(tmp_path: Path) -> None:
    store = Store()
    store.gate.clear()
    dump = one_each(tmp_path, [4] * 3)
    with shipping(dump, store, most_bytes=200) as shipper:
        for ticket in range(3):
            shipper.prepare(ticket, tasks_of(dump, ticket))
        assert store.entered.wait(20)
        shipper.forget(1)
        store.gate.set()
        await_ready(shipper, 0)
        shipper.forget(0)
        await_ready(shipper, 2)
        assert len(store.refs) == 2


def test_a_batch_that_is_forgotten_before_its_turn_is_never_read(tmp_path: Path) -> None:
    store = Store()
    first = store.gate
    first.clear()
    dump = one_each(tmp_path, [4] * 3)
    with shipping(dump, store) as shipper:
        shipper.prepare(0, tasks_of(dump, 0))
        assert store.entered.wait(20)
        shipper.prepare(1, tasks_of(dump, 1))
        shipper.prepare(2, tasks_of(dump, 2))
        store.gate, store.entered = threading.Event(), threading.Event()
        first.set()
        assert store.entered.wait(20)  # 1 is being put, 2 is next: there is room for it.
        shipper.forget(2)
        store.gate.set()
        await_ready(shipper, 0, 1)
        shipper.close()
        assert len(store.refs) == 2


def test_the_next_batch_goes_on_when_one_that_was_forgotten_has_ended(tmp_path: Path) -> None:
    store = Store()
    store.gate.clear()
    dump = one_each(tmp_path, [4] * 2)
    with shipping(dump, store, most_bytes=150) as shipper:
        shipper.prepare(0, tasks_of(dump, 0))
        shipper.prepare(1, tasks_of(dump, 1))
        assert store.entered.wait(20)
        shipper.forget(0)
        store.gate.set()
        await_ready(shipper, 1)


def test_a_batch_that_waits_for_room_holds_nobody_up_once_forgotten(tmp_path: Path) -> None:
    dump = one_each(tmp_path, [4, 4000, 4])
    with shipping(dump, Store(), most_bytes=1000) as shipper:
        for ticket in range(3):
            shipper.prepare(ticket, tasks_of(dump, ticket))
        await_ready(shipper, 0)
        settle(shipper)
        assert shipper.take(2) is None
        shipper.forget(1)
        await_ready(shipper, 2)
        assert transfer(shipper, 2).nbytes > 0


def test_an_error_is_told_by_take_and_the_next_batch_goes_on(tmp_path: Path) -> None:
    store = Store()
    store.error = MemoryError("the object store is full\nand more")
    dump = one_each(tmp_path, [4, 4])
    with shipping(dump, store, most_bytes=150) as shipper:
        shipper.prepare(0, tasks_of(dump, 0))
        await_ready(shipper, 0)
        store.error = None
        for _ in range(2):
            with pytest.raises(StoppedError) as stopped:
                shipper.take(0)
        assert str(stopped.value) == (
            f"cannot send the captured tensors in {tmp_path / 'dump_tensor_data'} to another"
            " machine: the object store is full"
        )
        assert isinstance(stopped.value.__cause__, MemoryError)
        shipper.prepare(1, tasks_of(dump, 1))
        shipper.forget(0)
        await_ready(shipper, 1)


def test_a_dump_that_cannot_be_read_any_more_is_told_by_take(tmp_path: Path) -> None:
    dump = one_each(tmp_path, [4])
    with shipping(dump, Store()) as shipper:
        dump.file.close()
        shipper.prepare(0, tasks_of(dump, 0))
        await_ready(shipper, 0)
        with pytest.raises(StoppedError, match="closed file"):
            shipper.take(0)


def test_closing_ends_the_thread_and_begins_nothing_that_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    dump = one_each(tmp_path, [4] * 3)
    with shipping(dump, store, most_bytes=150) as shipper:
        for ticket in range(3):
            shipper.prepare(ticket, tasks_of(dump, ticket))
        await_ready(shipper, 0)
        assert any(thread.name.startswith("shipper") for thread in threading.enumerate())
        begun: list[object] = []
        monkeypatch.setattr(shipper, "_begin", begun.append)
        shipper.close()
        shipper.close()
        assert begun == []
        assert not any(thread.name.startswith("shipper") for thread in threading.enumerate())
        assert (len(store.refs), store.alive, shipper.ready()) == (1, 0, [])
