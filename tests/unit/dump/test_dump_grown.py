"""Dumps that `scripts/speed/scale.py` grows out of a real one."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.parse import open_dump
from ray_precheck.schema.values import TensorSpec
from scripts.speed import scale

pytestmark = pytest.mark.unit

CALLS = 300  # two whole copies of the capture's 125 calls, and a part of the third


@pytest.fixture
def grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scale, "NOT_FINITE_EVERY", 10)
    path = tmp_path / "dump.json"
    assert scale.grow(scale.CAPTURE, path, CALLS) == 0
    return path


def test_it_has_so_many_calls_numbered_on_for_each_api(grown: Path) -> None:
    with open_dump(grown) as dump:
        names = [call.name for call in dump.calls]
        assert all(call.forward is not None and not call.foreign for call in dump.calls)
    assert len(set(names)) == CALLS
    seen: Counter[str] = Counter()
    for name in names:
        kind, _, number = name.rpartition(".")
        assert int(number) == seen[kind]
        seen[kind] += 1


def test_every_call_has_the_records_of_the_call_that_it_is_made_of(grown: Path) -> None:
    real = json.loads(scale.CAPTURE.read_bytes())["data"]
    calls = [key.rpartition(".")[0] for key in real if key.endswith(".forward")]
    with open_dump(grown) as dump:
        for index, call in enumerate(dump.calls):
            source = calls[index % len(calls)]
            assert (call.backward is not None) == (f"{source}.backward" in real)
            made = decode_record(call.name, dump.raw(call.forward), dump.raw(call.backward))
            shapes = [list(spec.shape) for _, spec in made.input_tensors()]
            recorded = json.dumps(real[f"{source}.forward"])
            assert all(f'"shape": {shape}' in recorded for shape in shapes)


def test_backward_records_stand_in_reverse_order_behind_the_forward_records(grown: Path) -> None:
    with open_dump(grown) as dump:
        forward = [call.forward.start for call in dump.calls if call.forward]
        backward = [call.backward.start for call in dump.calls if call.backward]
    assert forward == sorted(forward)
    assert backward == sorted(backward, reverse=True)
    assert max(forward) < min(backward)


def test_bare_nan_and_infinity_reach_the_record(grown: Path) -> None:
    with open_dump(grown) as dump:
        for call in dump.calls[9::10]:
            raw = dump.raw(call.forward)
            assert raw is not None
            assert b'"Mean": NaN' in raw
            record = decode_record(call.name, raw, dump.raw(call.backward))
            outputs = [spec for spec in record.outputs if isinstance(spec, TensorSpec)]
            specs = [*(spec for _, spec in record.input_tensors()), *outputs]
            assert (-math.inf, math.inf) in [(spec.low, spec.high) for spec in specs]


def test_the_same_arguments_give_the_same_bytes_and_no_two_records_are_the_same(
    grown: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again.json"
    scale.grow(scale.CAPTURE, again, CALLS)
    assert again.read_bytes() == grown.read_bytes()
    with open_dump(grown) as dump:
        first, second = (dump.raw(dump.calls[index].forward) for index in (1, 126))
    assert first != second
