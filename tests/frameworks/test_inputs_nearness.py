"""Generated inputs resemble the captured ones: the demonstration of scripts/inputs.py, in small."""

from typing import Any

import numpy as np
import pytest
from records import NEEDS_MINDSPORE

from scripts.inputs import CAPTURES, DATA, CapturedCalls, Pair, pairs_of

pytestmark = pytest.mark.frameworks


def _typical(pairs: list[Pair], metric: int) -> float:
    distances = [pair.distance(metric) for pair in pairs if pair.real.values[metric]]
    return float(np.median([distance for distance in distances if np.isfinite(distance)]))


def capture(name: str) -> Any:
    """A capture as a parameter; one of MindSpore needs MindSpore."""
    return pytest.param(name, marks=NEEDS_MINDSPORE if name.startswith("mindspore") else ())


@pytest.mark.parametrize("name", map(capture, CAPTURES))
def test_errors_of_recorded_inputs_are_nearer_to_those_of_the_real_ones(name: str) -> None:
    capture = CapturedCalls(DATA / name / "dump.json", "float32", "msprobe")
    pairs = pairs_of(capture, ("recorded", "uniform"), seeds=2)
    for metric in range(2):
        recorded, uniform = (_typical(pairs[key], metric) for key in ("recorded", "uniform"))
        assert recorded < 0.5 * uniform
        assert recorded < 0.5
    same = [pair.same_verdict for pair in pairs["recorded"]]
    assert np.mean(same) >= np.mean([pair.same_verdict for pair in pairs["uniform"]])
