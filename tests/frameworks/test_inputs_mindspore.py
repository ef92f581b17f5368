"""Roles hold for MindSpore's names and orders of arguments, and uniform stays what it was."""

import hashlib
from collections.abc import Iterator

import pytest
from records import DATA, call, ms_tensor, payloads_of

from ray_precheck.check.checker import Checker
from ray_precheck.dump.decode import decode_record
from ray_precheck.inputs import RECORDED
from ray_precheck.inputs.generate import generated_tensors
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.frameworks


def ints(*shape: int) -> dict[str, object]:
    """Whole numbers of which the dump has no statistics."""
    found = ms_tensor(*shape, dtype="Int64")
    return type(found)({**found, "Max": None, "Min": None, "Mean": None, "Norm": None})


CALLS = {
    "ops.gather": call("Functional.gather", ms_tensor(5, 9), ints(4), 1),
    "mint.gather": call("Mint.gather", ms_tensor(5, 9), 1, ints(5, 4)),
    "gather_nd": call("Functional.gather_nd", ms_tensor(5, 9), ints(4, 2)),
    "index_select": call("Mint.index_select", ms_tensor(5, 9), 1, ints(4)),
    "embedding": call("MintFunctional.embedding", ints(4), ms_tensor(5, 9)),
    "scatter": call("Mint.scatter", ms_tensor(5, 9), 1, ints(5, 4), ms_tensor(5, 4)),
    "subscript": call("Tensor.__getitem__", ms_tensor(5, 9), ints(4)),
}


# MindSpore's CPU has no kernel for these. The argument that holds the indices, and the length of
# the axis that they point into.
WITHOUT_KERNEL = {"index_select": ("input_args.2", 9), "embedding": ("input_args.0", 5)}


@pytest.mark.parametrize("name", sorted(set(CALLS) - set(WITHOUT_KERNEL)))
def test_a_call_of_which_no_index_is_known_passes(name: str, mindspore_checker: Checker) -> None:
    result = mindspore_checker.check(CALLS[name])
    assert result.forward is Verdict.PASS, result.message
    assert "safer" not in result.message


@pytest.mark.parametrize("name", WITHOUT_KERNEL)
def test_indices_of_a_call_that_the_cpu_cannot_run_point_into_their_axis(name: str) -> None:
    payload = CALLS[name]
    record = decode_record(payload.name, payload.forward, payload.backward)
    path, length = WITHOUT_KERNEL[name]
    drawn: set[int] = set()
    for seed in range(20):
        source = generated_tensors(seed, record, RECORDED)
        drawn.update(source.tensor(dict(record.input_tensors())[path], path).data.tolist())
    assert drawn == set(range(length))


CAPTURES = sorted(path.parent.name for path in DATA.glob("*/dump.json"))
# SHA-256 of every tensor that the version before `--distribution` drew for these, seed 7.
UNIFORM = "a9d073eff4066a6d0c8efd84ca51ed7cf10ec5f521d2593db54d9a85abd9933e"


def _specs(record: ApiRecord) -> Iterator[tuple[str, TensorSpec]]:
    yield from record.input_tensors()
    for position, spec in enumerate(record.grads_in or ()):
        if isinstance(spec, TensorSpec):
            yield f"backward input.{position}", spec


def test_the_uniform_distribution_gives_the_bytes_of_the_version_before_it() -> None:
    digest = hashlib.sha256()
    for capture in CAPTURES:
        for payload in payloads_of(capture):
            record = decode_record(payload.name, payload.forward, payload.backward)
            source = generated_tensors(7, record, "uniform")
            for path, spec in _specs(record):
                digest.update(source.tensor(spec, path).data.tobytes())
    assert CAPTURES == [
        "mindspore_llm",
        "mindspore_llm_fp16",
        "mindspore_llm_tensor",
        "torch_cnn",
        "torch_llm",
        "torch_llm_bf16",
        "torch_llm_tensor",
    ]
    assert digest.hexdigest() == UNIFORM
