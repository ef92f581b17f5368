"""Calls under default and plain kernels: which side is wrong, which switch does it, what does not repeat."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from records import NEEDS_MINDSPORE, call, leaf, ms_tensor, raising, replace_kernel, tensor, whole

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.naive.contrast import Contrast, Contraster
from ray_precheck.commands.naive.elsewhere import PlainProcesses
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.switches import SwitchBoard, switches_of
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
MUL = call("Torch.mul", tensor(3, 4), tensor(3, 4))
MATMUL = call("Torch.matmul", leaf(8, 32), leaf(32, 4), grads=[tensor(8, 4)])


def contraster_of(framework: str, count: int = 3) -> Contraster:
    """Without the switches of the environment: what a test changes in this process holds in no other."""
    switches = [each for each in switches_of(framework) if not each.environment]
    settings = CheckSettings(framework, "statistics", Path(), standard=Auto(), device_type="cpu")
    checker, board = Checker(settings, "cpu"), SwitchBoard(switches, "cpu")
    return Contraster(checker, board, PlainProcesses(settings, "cpu"), count)


@pytest.fixture(scope="module")
def contraster() -> Contraster:
    return contraster_of("pytorch")


def contrasted(contraster: Contraster, payload: TaskPayload) -> Contrast:
    found, device_s, bench_s = contraster.checker.walk_over(payload, contraster.contrast)
    assert isinstance(found, Contrast), found
    assert device_s > 0
    assert bench_s > 0 or found.outputs == ()
    return found


def broken(
    monkeypatch: pytest.MonkeyPatch,
    contraster: Contraster,
    is_broken: Callable[[], bool],
    factor: float = 1.01,
) -> None:
    """Let every function under test be off by a factor where it is broken."""

    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            found = function(*args, **kwargs)
            return found * factor if is_broken() else found

        return kernel

    replace_kernel(monkeypatch, contraster.checker.device(), change)


def onednn() -> bool:
    return bool(torch.backends.mkldnn.enabled)


def nnpack() -> bool:
    (value,) = torch.backends.nnpack.set_flags(True)
    torch.backends.nnpack.set_flags(value)
    return bool(value)


@pytest.mark.parametrize("payload", [MUL, MATMUL])
def test_an_honest_call_passes_on_both_sides_and_repeats_itself(
    contraster: Contraster, payload: TaskPayload
) -> None:
    found = contrasted(contraster, payload)
    assert (found.verdict, found.wrong, found.switches, found.unlike) == (Verdict.PASS, "", (), "")
    assert found.said == ()
    assert all(each.verdict is Verdict.PASS for each in found.outputs)
    assert len(found.outputs) == (3 if payload is MATMUL else 1)


def test_a_large_product_is_measured_against_the_whole_bench(contraster: Contraster) -> None:
    payload = call("Torch.matmul", leaf(128, 256), leaf(256, 384), grads=[tensor(128, 384)])
    found = contrasted(contraster, payload)
    assert found.verdict is Verdict.PASS
    assert len(found.outputs) == 3
    for each in found.outputs:
        assert each.default_error is not None
        assert each.default_error > 0, "float32 is never float64"


def test_wrong_default_kernels_are_named_with_their_switch(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, contraster, onednn)
    found = contrasted(contraster, MUL)
    assert (found.verdict, found.wrong, found.switches) == (Verdict.ERROR, "default", ("onednn",))
    (output,) = found.outputs
    assert output.default_error is not None
    assert output.default_error > 1000 * (output.naive_error or 0)
    assert found.said[0].startswith(
        "the default kernels are wrong and the plain ones right: forward."
    )
    assert found.said[1].endswith("oneDNN: torch.backends.mkldnn.enabled = False")


def test_two_switches_that_are_needed_together_are_both_named(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, contraster, lambda: onednn() or nnpack())
    found = contrasted(contraster, MUL)
    assert (found.wrong, set(found.switches)) == ("default", {"onednn", "nnpack"})


def test_wrong_plain_kernels_are_named_with_the_switch_that_asks_for_them(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, contraster, lambda: not onednn())
    found = contrasted(contraster, MUL)
    assert (found.verdict, found.wrong, found.switches) == (Verdict.ERROR, "naive", ("onednn",))
    assert found.said[0].startswith("the plain kernels are wrong and the default ones right")


def test_kernels_that_are_wrong_on_both_sides_have_no_switch(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, contraster, lambda: True)
    found = contrasted(contraster, MUL)
    assert (found.verdict, found.wrong, found.switches) == (Verdict.ERROR, "both", ())
    assert "no single switch mends it" in found.said[0]


def test_a_switch_that_mends_what_is_wrong_on_both_sides_is_named(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, contraster, lambda: onednn() == nnpack())
    found = contrasted(contraster, MUL)
    assert (found.wrong, found.switches) == ("both", ("nnpack",))


def test_a_gradient_alone_may_differ(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any) -> Any:
            found = function(*args)
            if onednn():  # The same values with another gradient.
                found = 1.01 * found - 0.01 * found.detach()
            return found

        return kernel

    replace_kernel(monkeypatch, contraster.checker.device(), change)
    found = contrasted(contraster, MATMUL)
    assert (found.wrong, found.switches) == ("default", ("onednn",))
    assert {each.name for each in found.outputs if each.verdict is Verdict.ERROR} == {
        "Torch.matmul.0.backward.output.0",
        "Torch.matmul.0.backward.output.1",
    }


def test_a_call_that_does_not_repeat_itself_is_an_error_with_its_switch(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = itertools.count()

    def unlike(function: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any) -> Any:
            found = function(*args)
            if not torch.are_deterministic_algorithms_enabled() and next(runs) % 2:
                found = torch.nextafter(found, found + 1)
            return found

        return kernel

    replace_kernel(monkeypatch, contraster.checker.device(), unlike)
    found = contrasted(contraster, MUL)
    assert (found.verdict, found.wrong, found.switches) == (Verdict.ERROR, "", ("deterministic",))
    assert found.unlike == "forward.output.0 [0, 0]"
    assert found.said[0] == "3 equal runs differ in bits, first at forward.output.0 [0, 0]"
    assert "use_deterministic_algorithms" in found.said[1]


def test_one_that_repeats_itself_with_no_switch_says_so(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = itertools.count()
    broken(monkeypatch, contraster, lambda: bool(next(runs) % 2), 1 + 2**-23)
    found = contrasted(contraster, MUL)
    assert (found.verdict, found.switches) == (Verdict.ERROR, ())
    assert found.said[1:] == ("no switch makes them equal",)


def test_random_calls_are_excepted_with_their_seed_restored(contraster: Contraster) -> None:
    found = contrasted(contraster, call("Functional.dropout", tensor(64, 8), 0.5, True))
    assert (found.verdict, found.outputs) == (Verdict.PASS, ())
    assert "repeats itself with its seed restored" in found.said[0]


def test_a_random_call_that_draws_anew_is_no_error(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = itertools.count()
    broken(monkeypatch, contraster, lambda: bool(next(runs) % 2))
    found = contrasted(contraster, call("Functional.dropout", tensor(64, 8), 0.5, True))
    assert found.verdict is Verdict.SKIP
    assert found.unlike.startswith("forward.output.0 [")


def test_kernels_that_raise_are_wrong_and_plain_ones_that_cannot_be_judged_are_said(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any) -> Any:
            if onednn() is raises_by_default:
                raise RuntimeError(reason)
            return function(*args)

        return kernel

    raises_by_default, reason = True, "it fails"
    with monkeypatch.context() as patch:
        replace_kernel(patch, contraster.checker.device(), change)
        found = contrasted(contraster, MUL)
    assert (found.wrong, found.switches) == ("default", ("onednn",))
    raises_by_default, reason = False, "not implemented for 'Half'"
    with monkeypatch.context() as patch:
        replace_kernel(patch, contraster.checker.device(), change)
        found = contrasted(contraster, MUL)
    assert found.verdict is Verdict.PASS
    assert found.said[-1].startswith(
        "under plain kernels it cannot be judged: the CPU has no kernel"
    )


def test_a_call_that_neither_side_can_run_is_skipped_with_its_reason(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_kernel(monkeypatch, contraster.checker.device(), raising(NotCheckable("no such thing")))
    found, _, _ = contraster.checker.walk_over(MUL, contraster.contrast)
    assert isinstance(found, TaskResult)
    assert (found.forward, found.message) == (Verdict.SKIP, "no such thing")


def test_a_race_of_threads_is_found() -> None:
    """max_unpool of indices that occur twice writes both values to one place, in any order."""
    indices = whole(1, 1, 64, 64, high=3)
    sizes = {"kernel_size": 2, "output_size": [128, 128]}
    # Where other work of the machine lets the threads run one after the other, few runs differ.
    found = contrasted(
        contraster_of("pytorch", count=100),
        call("Functional.max_unpool2d", tensor(1, 1, 64, 64), indices, **sizes),
    )
    assert found.verdict is Verdict.ERROR
    assert found.switches == ("threads",)


@pytest.mark.parametrize("share", [0.15, 0.5, 0.9])
@pytest.mark.parametrize("factor", [1.01, 1 + 2**-23], ids=["wrong", "unlike"])
def test_a_switch_under_which_a_race_was_won_by_luck_is_not_named(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch, share: float, factor: float
) -> None:
    draw = random.Random(0)
    broken(monkeypatch, contraster, lambda: nnpack() and draw.random() < share, factor)
    every = [contrasted(contraster, MUL) for _ in range(60)]
    assert {each.switches for each in every if each.verdict is Verdict.ERROR} == {("nnpack",)}


def test_a_race_that_is_too_rare_names_no_switch_and_says_so(
    contraster: Contraster, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = itertools.count()
    broken(monkeypatch, contraster, lambda: nnpack() and next(runs) in (1, 40), 1 + 2**-23)
    found = contrasted(contraster, MUL)
    assert (found.verdict, found.switches) == (Verdict.ERROR, ())
    assert found.said[1:] == ("in 300 runs too few differ to tell which switch ends that",)


@NEEDS_MINDSPORE
def test_mindspore_has_a_deterministic_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    import mindspore as ms

    contraster = contraster_of("mindspore")
    payload = call("Mint.matmul", ms_tensor(8, 32), ms_tensor(32, 4), grads=[ms_tensor(8, 4)])
    assert contrasted(contraster, payload).verdict is Verdict.PASS
    broken(monkeypatch, contraster, lambda: ms.get_context("deterministic") != "ON")
    found = contrasted(contraster, payload)
    assert (found.wrong, found.switches) == ("default", ("deterministic",))
    assert ms.get_context("deterministic") == "OFF"
