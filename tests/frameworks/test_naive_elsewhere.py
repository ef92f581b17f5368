"""Calls in processes with variables that torch reads when it starts."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from records import call, leaf, tensor

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.bench.declared import read_bench_modules
from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.naive.contrast import Contrast, Contraster, first_unlike
from ray_precheck.commands.naive.elsewhere import PlainProcesses, PlainRun
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.switches import SwitchBoard, switches_of
from ray_precheck.schema.result import Verdict

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
SCALAR = {"ATEN_CPU_CAPABILITY": "default"}
SIGMOID = call("Torch.sigmoid", leaf(4096, low=-8.0, high=8.0), grads=[tensor(4096)])
# A function under test that shows the variable, one that ends the process that has it.
MODULE = """
import os
import torch
import ray_precheck

def shown(x):
    return x + (os.environ.get("ATEN_CPU_CAPABILITY") == "default")

def ending(x):
    if os.environ.get("ATEN_CPU_CAPABILITY") == "default":
        os._exit(7)
    return x + 0

@ray_precheck.reference("Torch.tanh", tested=shown)
@ray_precheck.reference("Torch.neg", tested=ending)
def unchanged(x):
    return x + 0
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> CheckSettings:
    path = tmp_path_factory.mktemp("benches") / "mine.py"
    path.write_text(MODULE)
    own = {"bench_modules": read_bench_modules([path]), "standard": Auto(), "device_type": "cpu"}
    return CheckSettings("pytorch", "statistics", Path(), **own)


@pytest.fixture(scope="module")
def processes(settings: CheckSettings) -> Iterator[PlainProcesses]:
    made = PlainProcesses(settings, "cpu")
    yield made
    made.close()


@pytest.fixture(scope="module")
def contraster(settings: CheckSettings, processes: PlainProcesses) -> Contraster:
    switches = [each for each in switches_of("pytorch") if each.name in ("onednn", "vector_units")]
    board = SwitchBoard(switches, "cpu")
    assert board.names == ("onednn", "vector_units")
    return Contraster(Checker(settings, "cpu"), board, processes, 2)


def contrasted(contraster: Contraster, name: str) -> Contrast:
    found, _, _ = contraster.checker.walk_over(call(name, tensor(8)), contraster.contrast)
    assert isinstance(found, Contrast), found
    return found


def test_a_call_has_the_same_inputs_and_other_kernels_there(
    contraster: Contraster, processes: PlainProcesses
) -> None:
    here = contraster.checker.run(contraster.checker.inputs(SIGMOID))
    there = processes.run(SCALAR, PlainRun(SIGMOID, ("vector_units",)))
    assert there.gradients is not None
    assert first_unlike(here, there).startswith("forward.output.0 [")
    assert first_unlike(there, processes.run(SCALAR, PlainRun(SIGMOID, ()))) == ""
    judged = contraster.checker.judge(contraster.checker.inputs(SIGMOID), there)
    assert judged.forward.verdict is Verdict.PASS


def test_a_switch_of_the_environment_is_named(contraster: Contraster) -> None:
    found = contrasted(contraster, "Torch.tanh")
    assert (found.verdict, found.wrong, found.switches) == (
        Verdict.ERROR,
        "naive",
        ("vector_units",),
    )


def test_a_call_that_ends_the_process_there_is_judged_here_and_the_next_one_gets_another(
    contraster: Contraster,
) -> None:
    found = contrasted(contraster, "Torch.neg")
    assert (found.verdict, found.wrong) == (Verdict.PASS, "")
    assert found.said == (
        "under plain kernels it cannot be judged: the process with ATEN_CPU_CAPABILITY=default ended"
        " (exit code 7)",
    )
    assert contrasted(contraster, "Torch.sigmoid").verdict is Verdict.PASS


def test_an_error_there_is_a_sentence(processes: PlainProcesses) -> None:
    with pytest.raises(NotCheckable, match=r"^with ATEN_CPU_CAPABILITY=default: .*nothing"):
        processes.run(SCALAR, PlainRun(call("Torch.nothing", tensor(2)), ()))


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_a_few_processes_are_kept(settings: CheckSettings) -> None:
    processes, before = PlainProcesses(settings, "cpu"), children()
    for number in range(4):
        found = processes.run({"SOME_VARIABLE": str(number)}, PlainRun(SIGMOID, ()))
        assert isinstance(found, Measured)
    assert len(children() - before) == 3
    processes.close()
    assert children() == before


def test_a_process_may_be_started_before_it_is_asked(settings: CheckSettings) -> None:
    processes, before = PlainProcesses(settings, "cpu"), children()
    processes.prepare({})
    assert children() == before
    processes.prepare(SCALAR)
    started = children() - before
    assert len(started) == 1
    assert isinstance(processes.run(SCALAR, PlainRun(SIGMOID, ())), Measured)
    assert children() - before == started
    processes.close()
