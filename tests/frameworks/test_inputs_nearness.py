"""Generated inputs resemble the captured ones: in the verdict, and in the errors that it is made of.

Each call of a capture with tensors runs on the CPU as the device under test, with the captured tensors and
with ones that are generated from the statistics in the same record, and is compared with the float64 bench as
in a run. What this came to for four captures stands in `scripts/README.md`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from records import DATA, NEEDS_MINDSPORE

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.bench.checkable import is_random, skip_by_name
from ray_precheck.check.checker import Checker
from ray_precheck.check.decode import decoded_record
from ray_precheck.check.inputs import make_inputs
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.inputs.generate import TensorSource, generated_tensors
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Task, TaskPayload
from ray_precheck.schema.values import HostTensor

pytestmark = pytest.mark.frameworks


@dataclass(frozen=True)
class Errors:
    """What one output showed: its verdict, and its largest error and RMSE against float64."""

    verdict: Verdict
    values: tuple[float, float]


@dataclass(frozen=True)
class Pair:
    """One output with generated inputs beside the same one with the real ones."""

    real: Errors
    generated: Errors

    @property
    def same_verdict(self) -> bool:
        return self.real.verdict is self.generated.verdict

    def distance(self, metric: int) -> float:
        """Return |log2| of the ratio of an error; infinity where one alone is 0."""
        real, generated = self.real.values[metric], self.generated.values[metric]
        if real == generated:
            return 0.0
        return abs(math.log2(generated / real)) if real and generated else math.inf


def _records(dump: Dump) -> Iterator[tuple[TaskPayload, ApiRecord]]:
    """Yield the calls that are judged element by element."""
    for index, call in enumerate(dump.calls):
        payload = dump.payload(Task(index, call.name, 0.0))
        try:
            record = decode_record(payload.name, payload.forward, payload.backward, dump.framework)
        except NotCheckable:
            continue
        if not skip_by_name(record.name, dump.framework) and not is_random(record):
            yield payload, record


def _errors(
    checker: Checker, payload: TaskPayload, record: ApiRecord, source: TensorSource
) -> dict[str, Errors]:
    """Return what each floating output and gradient shows; {} where a side cannot run."""
    try:
        judged = checker.judge(make_inputs(decoded_record(payload, record), source))
    except NotCheckable:
        return {}
    found: dict[str, Errors] = {}
    for row in judged.rows:
        sides = row.tested, row.bench
        if not all(isinstance(leaf, HostTensor) and leaf.data.size for leaf in sides):
            continue
        if row.tested.data.dtype.kind == "f":
            tested, bench = (leaf.data.astype(np.float64) for leaf in sides)
            finite = np.isfinite(tested) & np.isfinite(bench)
            off = np.abs(tested[finite] - bench[finite])
            rmse = math.sqrt(float((off * off).mean())) if off.size else 0.0
            errors = float(off.max(initial=0.0)), rmse
            found[row.check.name] = Errors(row.check.verdict, errors)
    return found


def pairs_of(name: str, distributions: Sequence[str], seeds: int) -> dict[str, list[Pair]]:
    """Run every call of a capture with the real inputs and with generated ones."""
    pairs: dict[str, list[Pair]] = defaultdict(list)
    with open_dump(DATA / name / "dump.json") as dump:
        settings = CheckSettings(
            dump.framework, "statistics", dump.data_folder, standard=STANDARDS["msprobe"]()
        )
        checker = Checker(settings, "cpu")
        for payload, record in _records(dump):
            real = _errors(checker, payload, record, CapturedTensors(dump.data_folder))
            for distribution in distributions if real else ():
                for seed in range(seeds):
                    source = generated_tensors(seed, record, distribution)
                    generated = _errors(checker, payload, record, source)
                    shared = real.keys() & generated.keys()
                    pairs[distribution] += [Pair(real[key], generated[key]) for key in shared]
    return pairs


def _typical(pairs: list[Pair], metric: int) -> float:
    distances = [pair.distance(metric) for pair in pairs if pair.real.values[metric]]
    return float(np.median([distance for distance in distances if np.isfinite(distance)]))


def capture(name: str) -> Any:
    """A capture as a parameter; one of MindSpore needs MindSpore."""
    return pytest.param(name, marks=NEEDS_MINDSPORE if name.startswith("mindspore") else ())


@pytest.mark.parametrize("name", map(capture, ("mindspore_llm_tensor", "torch_llm_tensor")))
def test_errors_of_recorded_inputs_are_nearer_to_those_of_the_real_ones(name: str) -> None:
    pairs = pairs_of(name, ("recorded", "uniform"), seeds=2)
    for metric in range(2):
        recorded, uniform = (_typical(pairs[key], metric) for key in ("recorded", "uniform"))
        assert recorded < 0.5 * uniform
        assert recorded < 0.5
    same = [pair.same_verdict for pair in pairs["recorded"]]
    assert np.mean(same) >= np.mean([pair.same_verdict for pair in pairs["uniform"]])
