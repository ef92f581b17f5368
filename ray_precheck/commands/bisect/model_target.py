"""What targets share whose trials run a model in the interpreter of its framework.

Comes in: a target's `inside.py`, its settings, and how outputs are judged. Goes out: a `TrialOpener`, and the
golden outputs with the floors of their comparison. Called by the targets paddle, torch-compile and onnx.

`inside.py` is asked, for a trial, {"kind": "run", "rung": name, "on": [...], "off": [...], "out": path},
writes the outputs to that .npz file, an array for each, and answers {"outputs": path}, with a "message" if it
has one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.commands.bisect.measure import OutputMeasure, honest_floors
from ray_precheck.commands.bisect.options import RAISE, ModelConfig
from ray_precheck.commands.bisect.target import TrialResult
from ray_precheck.commands.bisect.trial_process import Reply, TrialProcess, interpreter
from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught, first_line
from ray_precheck.searching.bisection import Rung, Trial, TrialAnswer

# A trial's own limit ends before that of the worker, which would count a hang as a crash of its process.
_SHARE_OF_TIMEOUT = 0.9


@dataclass(frozen=True)
class ModelOpener:
    """Opens a runner of trials; pickled for each worker. `settings` are those of `open_target`; `env` is set
    beside the environment of the process."""

    inside: Path
    settings: Mapping[str, Any]
    measure: OutputMeasure
    python: str = ""
    env: Mapping[str, str] | None = None
    fail_on: str = "wrong"
    timeout_s: float = 300.0

    def open(self, scratch: Path) -> "ModelRunner":
        """Return a runner; its process is started with the first trial."""
        process = TrialProcess(
            interpreter(self.python), self.inside, self.settings, scratch, self.env
        )
        return ModelRunner(self, process, scratch)


@dataclass(frozen=True)
class ModelRunner:
    """Runs trials in a process that stays warm."""

    opener: ModelOpener
    process: TrialProcess
    scratch: Path

    def run(self, trial: Trial, rung: Rung) -> TrialResult:
        """Run a trial and judge its outputs."""
        out = self.scratch / "outputs.npz"
        out.unlink(missing_ok=True)
        request = {
            "kind": "run",
            "rung": rung.name,
            "on": [name for name in rung.members if name in trial.enabled],
            "off": [name for name in rung.members if name not in trial.enabled],
            "out": str(out),
        }
        reply = self.process.ask(request, self.opener.timeout_s * _SHARE_OF_TIMEOUT)
        raises = self.opener.fail_on == RAISE
        if reply.answer is None:
            answer = TrialAnswer.FAIL if raises else TrialAnswer.UNRESOLVED
            return TrialResult(answer, reply.end, message=reply.reason)
        if raises:
            return TrialResult(TrialAnswer.PASS)
        found, error = caught(lambda: self.opener.measure.judge(out))
        if found is None:
            assert error is not None
            return TrialResult(TrialAnswer.UNRESOLVED, message=f"no outputs: {first_line(error)}")
        return found

    def close(self) -> None:
        """End the process."""
        self.process.close()


@dataclass(frozen=True, slots=True)
class Golden:
    """The golden outputs, the floors of their comparison, and whether two honest runs gave the same bits."""

    path: Path
    floors: Mapping[str, float]
    is_exact: bool


def asked_of(
    process: TrialProcess, request: Mapping[str, Any], timeout_s: float, what: str
) -> Reply:
    """Return the reply to a request that has to be answered.

    Raises:
        UsageError: it raised, crashed or hung; `what` says what was done ("the model with everything off").
    """
    reply = process.ask(request, timeout_s)
    if reply.answer is None:
        raise UsageError(f"{what} cannot be run: {reply.reason}{_last_line(reply.log)}")
    return reply


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f" ({lines[-1][:200]})" if lines else ""


def honest_outputs(
    process: TrialProcess, rung: Rung, scratch: Path, config: ModelConfig, runs: int = 2
) -> Golden:
    """Run a model some times with everything off; return what --golden names, or else the first outputs.

    Raises:
        UsageError: the model cannot be run, or --golden cannot be read or has other outputs.
    """
    found: list[dict[str, Any]] = []
    scratch.mkdir(parents=True, exist_ok=True)
    for number in range(runs):
        out = scratch / f"honest{number}.npz"
        request = {
            "kind": "run",
            "rung": rung.name,
            "on": [],
            "off": [*rung.members],
            "out": str(out),
        }
        asked_of(process, request, config.timeout_s, "the model with everything off")
        with np.load(out) as arrays:
            found.append(dict(arrays))
    floors = honest_floors(found, config.metric or "max")
    same = all(
        run[name].tobytes() == array.tobytes()
        for run in found[1:]
        for name, array in found[0].items()
    )
    path = scratch / "honest0.npz"
    if config.golden is not None:
        path = golden_file(config.golden, found[0])
    return Golden(path.absolute(), floors, same)


def golden_file(path: Path, outputs: Mapping[str, Any]) -> Path:
    """Return a golden file that has these outputs.

    Raises:
        UsageError: it cannot be read, or an output is missing or has another shape.
    """
    arrays, error = caught(lambda: dict(np.load(path, allow_pickle=False)))
    if arrays is None:
        assert error is not None
        raise UsageError(f"--golden {path}: cannot read it as .npz: {first_line(error)}")
    for name, array in arrays.items():
        if name not in outputs:
            there = ", ".join(outputs)
            raise UsageError(f"--golden {path}: the model has no output {name}; it has {there}")
        if array.shape != outputs[name].shape:
            shapes = f"{list(array.shape)}, the model's {list(outputs[name].shape)}"
            raise UsageError(f"--golden {path}: {name} has the shape {shapes}")
    if not arrays:
        raise UsageError(f"--golden {path} holds no array; give the outputs that are right")
    return path


def measure_of(config: ModelConfig, golden: Golden) -> OutputMeasure:
    """Return how trials of a model are judged."""
    return OutputMeasure(
        golden.path,
        golden.floors,
        config.metric or "",
        config.tolerance,
        config.check,
        config.timeout_s,
    )
