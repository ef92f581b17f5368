"""The precheck's runner with a real checker: whole calls, both halves, and what breaks the process."""

from dataclasses import replace
from pathlib import Path

import pytest
from records import call, raising, replace_kernel, row_of, statistics_checker, tensor

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.replay.job import PrecheckOpener, PrecheckRunner, done_of
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import BENCH, Cause, DeviceSlot, Done, Phase
from ray_precheck.store.tables import DETAIL_COLUMNS, decode_row

pytestmark = pytest.mark.frameworks
NEG = call("Torch.neg", tensor(3))


@pytest.fixture
def checker() -> Checker:
    return statistics_checker("pytorch")


def timeless(done: object) -> Done:
    assert isinstance(done, Done)
    return replace(done, began_s=0.0, inputs_s=0.0, device_s=0.0, bench_s=0.0)


def test_an_opener_opens_one_that_has_proven_its_device_and_tells_its_phases() -> None:
    told: list[Phase] = []
    settings = CheckSettings("pytorch", "statistics", Path())
    runner = PrecheckOpener(settings).open(DeviceSlot("cpu", 0, "", "", ""), told.append)
    done = runner.run(NEG, Stage.CHECK)
    assert row_of(done).forward is Verdict.PASS
    assert {Phase.DEVICE, Phase.BENCH} <= set(told)
    assert done.began_s > 1.6e9  # seconds since the epoch
    assert runner.damage() is None


def test_an_opened_one_makes_the_columns_of_the_details() -> None:
    settings = CheckSettings("pytorch", "statistics", Path(), standard=Auto())
    for last, cell in (("RMSE", "0.0"), ("HonestBy", "equality")):
        kept = replace(settings, columns=("Standard", last))
        runner = PrecheckOpener(kept).open(DeviceSlot("cpu", 0, "", "", ""), lambda phase: None)
        cells = decode_row(runner.run(NEG, Stage.CHECK).details.splitlines()[0])
        assert cells[len(DETAIL_COLUMNS) :] == ["auto", cell]


def test_both_halves_give_the_rows_of_a_whole_call(checker: Checker) -> None:
    runner = PrecheckRunner(checker, ())
    whole = runner.run(NEG, Stage.CHECK)
    assert timeless(whole) == timeless(done_of(checker.check(NEG)))
    half = runner.run(NEG, Stage.DEVICE)
    assert isinstance(half, Measured)
    assert half.inputs == {}
    near = runner.run(NEG, Stage.DEVICE, is_near=True)
    assert list(near.inputs) == ["input_args.0"]
    for each in (half, near):
        assert timeless(runner.run(NEG, Stage.BENCH, half=each)) == timeless(whole)


def test_a_call_whose_device_half_says_all_is_finished_with_it(checker: Checker) -> None:
    runner = PrecheckRunner(checker, ())
    done = runner.run(call("Torch.nothing_of_that_name", tensor(3)), Stage.DEVICE)
    assert row_of(done).forward is Verdict.SKIP


def test_one_without_a_device_says_that_a_call_needs_one() -> None:
    bench = Checker(CheckSettings("pytorch", "statistics", Path()), BENCH)
    assert PrecheckRunner(bench, ()).run(NEG, Stage.CHECK) is None


def test_what_broke_the_process_is_told_in_the_words_of_its_message(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = PrecheckRunner(checker, ())
    with monkeypatch.context() as patch:
        replace_kernel(patch, checker.device(), raising(MemoryError("no room")))
        done = runner.run(NEG, Stage.CHECK)
    message = row_of(done).message
    assert message.startswith("ran out of memory: ")
    assert runner.damage() == (Cause.OUT_OF_MEMORY, message)
    # It says nothing of the next call.
    runner.run(NEG, Stage.CHECK)
    assert runner.damage() is None
