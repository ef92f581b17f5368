"""What a call needs in memory is known before it is allocated."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.check.decode import needed_bytes
from ray_precheck.dump.decode import decode_record
from ray_precheck.replay.config import RunConfig

pytestmark = pytest.mark.unit


def tensor(dtype: str, *shape: int) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": shape, "Max": 1, "Min": 0}


def needed(forward: dict[str, Any], backward: dict[str, Any] | None = None) -> int:
    behind = None if backward is None else json.dumps(backward).encode()
    return needed_bytes(decode_record("Torch.add.0", json.dumps(forward).encode(), behind))


def test_a_float32_tensor_counts_on_host_and_device_and_widened() -> None:
    # 4 bytes on the host, 4 on the device, 8 in the bench
    assert needed({"input_args": [tensor("float32", 10)]}) == 10 * 16


def test_a_bfloat16_tensor_is_held_in_float32_on_the_host() -> None:
    assert needed({"input_args": [tensor("bfloat16", 10)]}) == 10 * (4 + 2 + 8)


def test_outputs_and_gradients_count_too() -> None:
    forward = {"input_args": [tensor("float32", 10)], "output": [tensor("float32", 10)]}
    backward = {"input": [tensor("float32", 10)], "output": []}
    assert needed(forward) == 10 * (16 + 24)
    assert needed(forward, backward) == 10 * (16 + 24 + 24 + 24)


def test_what_a_standard_compares_with_counts_too() -> None:
    forward = {"input_args": [tensor("float32", 10)], "output": [tensor("float32", 10)]}
    record = decode_record("Torch.add.0", json.dumps(forward).encode(), None)
    # The run of one implementation in float64, the estimate of its errors, and two results in the recorded
    # dtype.
    more = 10 * (8 + 8) + 3 * 10 * 8 + 2 * 10 * 4
    assert needed_bytes(record, with_implementations=True) == needed_bytes(record) + more


def test_extents_that_no_machine_holds_are_counted_not_allocated() -> None:
    assert needed({"input_args": [tensor("float32", 10**6, 10**6)]}) == 16 * 10**12


def test_the_default_limit_is_a_share_for_each_device() -> None:
    config = RunConfig(dump=Path("x"), devices=(0, 1))
    assert config.memory_limit_bytes(1000) == 350
    assert RunConfig(dump=Path("x"), max_memory_gib=2).memory_limit_bytes(1000) == 2**31
