"""Faults planted in torch's compiler are named, and honest programs are not."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ray_precheck.commands.bisect.targets.torch_compile.target import TARGET, CompileConfig
from ray_precheck.errors import UsageError
from ray_precheck.searching.bisection import (
    Limits,
    Rung,
    RungFinding,
    SearchEnd,
    Trial,
    TrialAnswer,
    solve,
)
from ray_precheck.searching.strategy import ladder

pytestmark = pytest.mark.frameworks
ROOT = Path(__file__).resolve().parents[3]
FAULTS, PROGRAMS = "scripts.bisect_compile.faults", "scripts.bisect_compile.programs"


class Searched:
    """What a search of a program has found, without Ray: each trial is run at once."""

    def __init__(self, scratch: Path, program: str, **options: object) -> None:
        config = CompileConfig(program=program, out=scratch, **options)
        self.survey = TARGET.survey(config, scratch, lambda text: None)
        assert self.survey.is_exact
        self.trials = 0
        self.findings: list[RungFinding] = []
        self.runner = TARGET.opener(config, self.survey).open(scratch)
        rungs: Sequence[Rung] = self.survey.rungs
        try:
            while rungs:
                found, trials = solve(ladder(rungs, Limits(repeats=1)), self._oracle(rungs))
                self.trials += len(trials)
                self.findings += found
                rungs = TARGET.further(config, self.survey, self.findings, scratch)
        finally:
            self.runner.close()
        self.lines = [TARGET.lines(config, self.survey, each) for each in self.findings]
        self.said = list(TARGET.close_up(config, self.survey, self.findings, scratch, scratch))

    def _oracle(self, rungs: Sequence[Rung]) -> Callable[[Trial], TrialAnswer]:
        by_name = {rung.name: rung for rung in rungs}
        return lambda trial: self.runner.run(trial, by_name[trial.rung]).answer

    def culprits(self, rung: str) -> set[str]:
        """The switches of the sets of a rung."""
        return {
            name
            for each in self.findings
            if each.rung.name == rung
            for name in frozenset().union(*each.sets)
        }


def test_what_the_look_did_not_see_is_as_the_last_of_its_kind() -> None:
    from ray_precheck.commands.bisect.targets.torch_compile.trials import Decisions

    decide = Decisions(on=("lowering a x",), off=("lowering a x #2", "decomposition b (all)"))
    asked = [decide.of("lowering", name, "a") for name in ("a x", "a y", "a x", "a z")]
    assert asked == [
        ("lowering a x", False),
        ("lowering a y", False),
        ("lowering a x #2", True),
        ("lowering a z", True),
    ]
    assert decide.of("decomposition", "b", "b") == ("decomposition b", True)
    assert decide.of("decomposition", "c", "c") == ("decomposition c", False)


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are named as modules of the folder where the command is started."""
    monkeypatch.chdir(ROOT)


def test_a_broken_lowering_is_named_after_one_compile_and_proven_by_two_trials(
    tmp_path: Path,
) -> None:
    found = Searched(tmp_path, f"{FAULTS}:lowering_erf")
    assert found.culprits("lowerings") == {"lowering aten.erf.default (all)"}
    assert len(found.survey.rungs[0].switches) == 1
    assert (
        found.findings[1].kind is SearchEnd.WRONG_AT_FOOT
    )  # It is not how code is joined or written.
    assert found.trials == 4
    assert "programs.py" in found.lines[0].said[0]
    assert "functional.gelu(self.up(x))" in found.lines[0].said[0]
    assert found.lines[0].code[0][1].endswith("make_fallback(torch.ops.aten.erf.default)")


def test_a_pass_that_changes_the_result_is_named_after_one_compile(tmp_path: Path) -> None:
    found = Searched(tmp_path, f"{FAULTS}:pass_locality")
    assert any("reorder_for_locality changes the result" in note for note in found.survey.notes)
    assert found.culprits("graph passes") == {"pass post_grad_passes reorder_for_locality"}
    assert found.trials == 2


def test_vector_code_is_told_from_the_lowering_that_it_is_of(tmp_path: Path) -> None:
    found = Searched(tmp_path, f"{FAULTS}:code_exp")
    assert found.culprits("lowerings") == {"lowering aten.exp.default (all)"}
    assert found.culprits("generated code") == {"code vector instructions"}


def test_operators_that_are_wrong_only_together_are_found_by_trials(tmp_path: Path) -> None:
    found = Searched(tmp_path, f"{FAULTS}:code_add")
    names = {name.split()[1] for name in found.culprits("lowerings")}
    assert {"aten.exp.default", "aten.add.Tensor"} <= names


def test_a_fault_that_hides_from_copies_is_found_by_trials_of_all_backends(tmp_path: Path) -> None:
    found = Searched(tmp_path, f"{FAULTS}:lowering_shy")
    assert found.findings[0].kind is SearchEnd.WRONG_AT_FOOT
    assert found.culprits("inductor") == {"lowering aten.tanh.default tanh"}
    assert found.said == [
        "observing changes the result: right while graphs were copied, wrong in trials"
    ]


def test_a_compile_that_raises_is_searched_with_fail_on_raise(tmp_path: Path) -> None:
    found = Searched(tmp_path, f"{FAULTS}:lowering_raises", fail_on="raise")
    assert "no tanh today" in found.survey.notes[0]
    assert found.culprits("inductor") == {"lowering aten.tanh.default tanh"}


def test_a_decomposition_is_named_in_a_script_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    script = "scripts/bisect_compile/train_digits.py"
    found = Searched(tmp_path, script, args=("decomposition of threshold_backward",))
    assert found.culprits("decompositions") == {
        "decomposition aten.threshold_backward.default (all)"
    }
    assert found.trials == 2


@pytest.mark.parametrize("program", ["autoencoder", "decoder"])
def test_nothing_is_found_in_an_honest_program(tmp_path: Path, program: str) -> None:
    found = Searched(tmp_path, f"{PROGRAMS}:{program}", backward=program == "autoencoder")
    assert [each.kind for each in found.findings] == [SearchEnd.CLEAN]
    assert found.trials == 1
    assert found.said == []


WRONG = """
import torch
def raises():
    raise ValueError("no data")
def returns_nothing():
    return None
def raises_eagerly():
    return (lambda x: x.view(7)), (torch.ones(2),)
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("nowhere.py", "nowhere.py: there is no such script; give a file, or module:function"),
        ("no_such_module:build", "no_such_module: cannot import it: ModuleNotFoundError"),
        (
            "wrong.py:build",
            "wrong.py has no function build; it has raises, returns_nothing, raises_eagerly",
        ),
        ("wrong.py:raises", "wrong.py:raises raises ValueError: no data"),
        ("wrong.py:returns_nothing", "returns None; return (callable, inputs)"),
        (
            "wrong.py:raises_eagerly",
            "the callable of wrong.py:raises_eagerly raises without torch.compile",
        ),
        ("wrong.py", "wrong.py calls nothing that torch.compile gave it"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        TARGET.survey(CompileConfig(program=program, out=tmp_path), tmp_path, lambda text: None)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_interpreter_without_torch_is_said(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    config = CompileConfig(program="x:y", out=tmp_path, python=str(python))
    with pytest.raises(UsageError, match="has no torch; name one that has it with --python"):
        TARGET.survey(config, tmp_path, lambda text: None)


NATIVE = """
import os
import torch
if os.environ.get("WRONG_SILU"):
    library = torch.library.Library("aten", "IMPL")
    library.impl("silu", lambda x: 1.01 * x * torch.sigmoid(x), "CPU")
def build():
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 4)
    return torch.nn.Sequential(*layers).eval(), (torch.randn(3, 8),)
"""


def test_an_operator_that_is_wrong_without_torch_compile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The golden outputs are those of a right kernel: nothing that is compiled is to blame."""
    import numpy as np

    program = tmp_path / "program.py"
    program.write_text(NATIVE)
    space: dict[str, Callable[[], tuple[Callable[..., object], Sequence[object]]]] = {}
    exec(NATIVE, space)
    model, inputs = space["build"]()
    np.savez(tmp_path / "golden.npz", output=model(*inputs).detach().numpy())  # type: ignore[attr-defined]
    monkeypatch.setenv("WRONG_SILU", "1")
    found = Searched(tmp_path, f"{program}:build", golden=tmp_path / "golden.npz")
    assert [each.kind for each in found.findings] == [SearchEnd.WRONG_AT_FOOT]
    assert found.said[0] == "wrong by themselves, without torch.compile:"
    assert found.said[1].startswith("  1. Functional.silu.0.forward: own error")
    assert len(found.said) == 3
