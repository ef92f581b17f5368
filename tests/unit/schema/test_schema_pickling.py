"""Values that go from process to process for every record."""

import pickle
from dataclasses import fields
from typing import Any

import pytest

from ray_precheck.runtime.workers.messages import Answer, Sealed, Work
from ray_precheck.schema.result import Metrics, Outcome, OutputCheck, TaskResult, Verdict
from ray_precheck.schema.task import Done, MeasuredTask, TaskPayload

pytestmark = pytest.mark.unit

METRICS = Metrics(0.5, 1e-6, 2e-6)
CHECK = OutputCheck(
    "Mint.a.0.forward.output.0", "Float64", "Float32", "(2,)", METRICS, Verdict.PASS
)
RESULT = TaskResult(
    0, "Mint.a.0", Outcome.COMPLETED, Verdict.PASS, Verdict.NONE, checks=(CHECK,), bench_s=0.5
)
DONE = Done(0, "Mint.a.0", Verdict.PASS, b"Mint.a.0,pass\r\n", b"", 1.0, bench_s=0.5)
PAYLOAD = TaskPayload(0, "Mint.a.0", b"{}", None)
VALUES = [
    METRICS,
    CHECK,
    RESULT,
    PAYLOAD,
    MeasuredTask(0, 5, 1.0, 2.0),
    Sealed(b"head", ()),
    DONE,
    Work(0, PAYLOAD),
    Answer(0, DONE),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_is_pickled_comes_back(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value, 5)) == value


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_it_is_pickled_by_its_fields_alone(value: Any) -> None:
    whole, values = value.__reduce_ex__(5)
    assert whole is type(value)
    assert values == tuple(getattr(value, field.name) for field in fields(value))
