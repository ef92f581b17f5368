"""The bench as a stage of its own, on a real Ray cluster."""

import json
import shutil
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from conftest import DATA, fresh_store_state, store_state
from dumps import additions, broken, large, many_times, write_dump
from together import begun_together

from ray_precheck import PrecheckReport, precheck
from ray_precheck.runtime import driver
from ray_precheck.runtime.crew import Crew
from ray_precheck.runtime.ray_actors import RayActors
from ray_precheck.runtime.scheduling.bench_stage import BenchStage
from ray_precheck.runtime.scheduling.scheduler import Scheduler

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def benches_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no device begin before the bench workers have started: it would do all records whole."""
    monkeypatch.setattr(Scheduler, "worker_ready", begun_together())


def run(
    dump: Path, out: Path, address: str, bench_workers: int | None, **options: object
) -> PrecheckReport:
    report = precheck(dump, out=out, address=address, bench_workers=bench_workers, **options)
    assert report.completed, report.stop_reason
    return report


def both_files(report: PrecheckReport) -> tuple[bytes, bytes]:
    return report.files.result.read_bytes(), report.files.details.read_bytes()


def stages(report: PrecheckReport) -> Counter[tuple[str, str]]:
    """Return how many records each row of the timeline has in each stage."""
    events = json.loads(report.files.timeline.read_text())
    rows = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    return Counter(
        (rows[event["pid"], event["tid"]], event["cat"]) for event in events if event["ph"] == "X"
    )


def test_with_bench_workers_and_without_the_files_have_the_same_bytes(
    tmp_path: Path, cluster_address: str
) -> None:
    costly = [large(number, 600 + 50 * number) for number in range(12)]
    dump = write_dump(tmp_path / "dump.json", additions(300), *costly)
    fused = run(dump, tmp_path / "fused", cluster_address, 0)
    staged = run(dump, tmp_path / "staged", cluster_address, 2)
    assert both_files(fused) == both_files(staged)
    assert set(stages(fused)) == {("cpu:0", "check")}
    seen = stages(staged)
    benches = seen["bench:0", "bench"] + seen["bench:1", "bench"]
    assert benches == seen["cpu:0", "device"] > 0
    # Small ones stay where they are: to hand them over costs more than their bench.
    assert seen["cpu:0", "check"] >= 300


WAYS = ["opened there", "copied", "refused", "the device's worker killed"]


@pytest.fixture(scope="module", name="fused")
def run_fused(
    tmp_path_factory: pytest.TempPathFactory, cluster_address: str
) -> tuple[Path, PrecheckReport]:
    """Return a dump of costly records and its run without a bench worker."""
    folder = tmp_path_factory.mktemp("fused")
    costly = [large(number, 1000 + 50 * number) for number in range(16)]
    dump = write_dump(folder / "dump.json", additions(50), *costly)
    return dump, run(dump, folder, cluster_address, 0)


@pytest.mark.parametrize(
    "way", ["lent", "store", *(pytest.param(way, marks=pytest.mark.exhaustive) for way in WAYS[2:])]
)
def test_however_tensors_go_to_the_bench_the_files_have_the_same_bytes(
    fused: tuple[Path, PrecheckReport],
    tmp_path: Path,
    cluster_address: str,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    dump, alone = fused
    asked = watched(monkeypatch, way)
    staged = run(dump, tmp_path, cluster_address, 1)
    assert both_files(alone) == both_files(staged)
    benches = stages(staged)["bench:0", "bench"]
    if way in ("opened there", "copied"):
        assert benches == stages(staged)["cpu:0", "device"] > 0
    if way == "refused":
        # Once is enough to know: the others are copied by Ray.
        assert benches > 0
    assert (asked[True] > 0) is (way != "copied")
    assert (asked[False] > 0) is (way in ("copied", "refused"))


def watched(monkeypatch: pytest.MonkeyPatch, way: str) -> Counter[bool]:
    """Have tensors go to the bench in a way; returns how often they were to be opened (True) and copied."""
    asked: Counter[bool] = Counter()
    call = RayActors.call

    def call_so(self: RayActors, handle: Any, method: str, *args: Any) -> Any:
        if method != "hand_over":
            return call(self, handle, method, *args)
        ticket, is_near = args
        is_near = is_near and way != "copied"
        asked[is_near] += 1
        answer = call(self, handle, method, ticket, is_near)
        if way == "refused" and is_near:
            # What it says is of a process that is not this container's.
            lost = {
                index: replace(each, shared=replace(each.shared, path="/proc/0/fd/0"))
                for index, each in ray.get(answer).items()
            }
            return ray.put(lost)
        if way == "the device's worker killed" and asked[True] == 1:
            ray.get(answer)
            ray.kill(handle)
        return answer

    monkeypatch.setattr(RayActors, "call", call_so)
    return asked


def test_what_is_lent_does_not_pass_through_the_object_store(
    tmp_path: Path, cluster_address: str
) -> None:
    # What a test before has put there is counted until it is freed, once a second, and reported.
    until = time.monotonic() + 300
    while fresh_store_state().get("num local plasma objects", 0):
        assert time.monotonic() < until, store_state()
    most = 0
    stop = threading.Event()

    def look() -> None:
        nonlocal most
        while not stop.wait(0.2):
            most = max(most, store_state().get("num local plasma objects", 0))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        dump = write_dump(tmp_path / "dump.json", *(large(number, 1800) for number in range(10)))
        report = run(dump, tmp_path / "out", cluster_address, 1)
        fresh_store_state()
    finally:
        stop.set()
        watcher.join()
    assert stages(report)["bench:0", "bench"] > 3
    assert most == 0


@pytest.mark.exhaustive  # In simulated runs: tests/unit/runtime/test_runtime_bench_stage.py.
def test_records_whose_results_were_captured_need_no_device(
    tmp_path: Path, cluster_address: str
) -> None:
    capture = Path(shutil.copytree(DATA / "torch_llm_tensor", tmp_path / "capture"))
    dump = many_times(capture / "dump.json", 40)
    alone = run(dump, tmp_path / "alone", cluster_address, 0)
    helped = run(dump, tmp_path / "helped", cluster_address, 1)
    assert both_files(alone) == both_files(helped)
    assert stages(helped)["bench:0", "check"] > 0


@pytest.mark.parametrize("bench_workers", [1, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_a_bench_over_its_budget_is_a_skip_and_its_neighbours_are_checked(
    tmp_path: Path, cluster_address: str, bench_workers: int
) -> None:
    slow = broken("airy_ai", size=1500)
    dump = write_dump(tmp_path / "dump.json", slow, large(0), additions(5))
    report = run(dump, tmp_path, cluster_address, bench_workers, bench_budget_s=3.0)
    rows = report.results.set_index("API Name")
    assert list(rows.loc["Torch.special.airy_ai.0"]) == [
        "SKIP", "", "its bench took longer than 3 s (--bench-budget)",
    ]  # fmt: skip
    assert set(rows.drop("Torch.special.airy_ai.0")["Forward Test Success"]) == {"pass"}


@pytest.mark.exhaustive  # In simulated runs: tests/unit/runtime/test_runtime_bench_stage.py.
def test_a_bench_that_crashes_elsewhere_gives_the_row_that_it_gives_beside_its_device(
    tmp_path: Path, cluster_address: str
) -> None:
    dump = write_dump(
        tmp_path / "dump.json", broken("modified_bessel_i0", size=1500), large(0), additions(5)
    )
    fused = run(dump, tmp_path / "fused", cluster_address, 0)
    staged = run(dump, tmp_path / "staged", cluster_address, 1)
    assert both_files(fused) == both_files(staged)
    row = fused.results.set_index("API Name").loc["Torch.special.modified_bessel_i0.0"]
    assert row["Forward Test Success"] == "error"
    assert row["Message"].startswith("killed its worker (SIGSEGV")


def test_outputs_that_wait_for_a_bench_are_never_spilled_to_disk(
    tmp_path: Path, cluster_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched(monkeypatch, "copied")
    monkeypatch.setattr(Crew, "_keeps_near", lambda *_: False)
    # However much waits, the device never does a record whole. What waits is in the device's own memory: Ray
    # has a copy only of what a bench has been given, so that not even lifted bounds make it spill.
    monkeypatch.setattr(BenchStage, "backlog_s", 0.0)
    monkeypatch.setattr(driver, "_STORE_SHARE", 10**6)
    monkeypatch.setattr(driver, "_MEMORY_SHARE", 10**6)
    assert not is_spilled(tmp_path, cluster_address)


def is_spilled(folder: Path, cluster_address: str) -> bool:
    """Return whether a run writes anything of the object store to disk."""
    before = fresh_store_state()["cumulative spill requests"]
    objects: list[int] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.2):
            objects.append(store_state().get("num local plasma objects", 0))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        # 24 outputs of 19 MB go through a store of 128 MB.
        folder.mkdir(exist_ok=True)
        dump = write_dump(folder / "dump.json", *(large(number, 2200) for number in range(24)))
        report = run(dump, folder / "out", cluster_address, 1)
        after = fresh_store_state()["cumulative spill requests"]
    finally:
        stop.set()
        watcher.join()
    assert stages(report)["bench:0", "bench"] > 3
    assert max(objects) > 0
    return bool(after > before)
