"""Every function of torch that takes a tensor, run from a record that is made for it."""

import re
from collections import Counter

import pytest
import torch
from coverage_records import (
    ALL_NAMES,
    GENERATED,
    NO_KERNEL,
    SOME_AND_ALL_NAMES,
    Finding,
    differing_once,
    try_samples,
    unexplained,
)
from coverage_samples import opinfo_samples
from coverage_torch_recipes import names_of_recipes, recipes
from versions import DOCUMENTED, is_documented, unexpected

from ray_precheck.check.checker import Checker
from scripts.coverage.status import TORCH, statuses

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

# Why a name that has a bench is not executed with a verdict of PASS on the CPU: what the check says.
EXPLAINED = {
    "a dump's quantized dtype is not known": r"dtype 'torch\.quint8' is not supported",
    "torch takes parameters of quantisation in float32 alone, and the bench is float64": (
        r"the bench raised: RuntimeError: (expected scalar type Float|Scale must be Float)"
    ),
    "a oneDNN tensor cannot be float64": r"dense_to_mkldnn expects float",
    "it reads beyond its argument's own memory": r"setStorage: .* out of bounds for storage",
    "it takes torch's first-class dimensions, which no dump has": r"required positional argument: 'dims'",
    "it has kernels for CUDA alone": r"Could not run 'aten::",
}
# Makers and parts of sparse and quantized tensors, of which no sample is made here:
# capture_pytorch/test_storages.py captures such tensors and checks their records.
OF_STORAGES = frozenset(
    """
    Tensor.dense_dim Tensor.is_coalesced Tensor.q_scale Tensor.q_zero_point Tensor.qscheme Tensor.sparse_dim
    Torch.ccol_indices_copy Torch.col_indices_copy Torch.crow_indices_copy Torch.indices_copy Torch.q_scale
    Torch.q_zero_point Torch.row_indices_copy Torch.sparse_bsc_tensor Torch.sparse_bsr_tensor
    Torch.sparse_compressed_tensor Torch.sparse_csc_tensor Torch.sparse_csr_tensor Torch.values_copy
    """.split()
)
# Why a call that passes forward has no verdict backward.
NO_GRADIENT = (
    r"of several right outputs .* the device took others",
    r"not compared: torch has no derivative by this argument",  # acosh_, asinh_, atanh_
    r"derivative for aten::native_channel_shuffle is not implemented",
    r"one of the variables needed for gradient computation has been modified",
    r"linalg_eig_backward: The eigenvectors in the complex case are specified up to",
)
# Names of which one sample shows other numbers, and the next one, or its own inputs, none.
DIFFERS_ONCE = {
    "orgqr": "ill-conditioned inputs",
    "pinverse": "ill-conditioned inputs",
    "pinv": "ill-conditioned inputs",
}


@pytest.fixture(scope="module")
def findings(torch_checker: Checker, request: pytest.FixtureRequest) -> dict[str, Finding]:
    samples, own = opinfo_samples(), recipes()
    found = {}
    for namespace in TORCH:
        for status in statuses(namespace, torch_checker.bench)[:: request.param]:
            if status.is_covered:
                name = namespace.api(status.name).type_name
                if name in OF_STORAGES:
                    continue
                made = [*own.get(name, []), *samples.get(name, [])]
                found[name] = try_samples(torch_checker, name, made)
    return found


def test_every_recipe_is_of_a_name_that_the_documented_torch_has() -> None:
    if not is_documented("torch"):
        pytest.skip(
            f"COVERAGE.md holds for torch {DOCUMENTED['torch']}; here is {torch.__version__}"
        )
    assert recipes().keys() == names_of_recipes()


@ALL_NAMES
def test_nine_of_ten_names_are_executed_and_pass(findings: dict[str, Finding]) -> None:
    names = sum(len(statuses_of) for statuses_of in _names_by_namespace().values())
    executed = [name for name, found in findings.items() if found.executed]
    assert names > 1400
    assert len(executed) / len(findings) >= (0.98 if is_documented("torch") else 0.97)
    # Earlier versions have more names that no bench computes: named tensors, internals.
    assert len(executed) / names >= (0.90 if is_documented("torch") else 0.85)


def _names_by_namespace() -> dict[str, list[str]]:
    from scripts.coverage.status import function_names

    return {namespace.title: function_names(namespace) for namespace in TORCH}


@ALL_NAMES
def test_generated_inputs_are_enough_for_nearly_all(findings: dict[str, Finding]) -> None:
    ways = Counter(found.how for found in findings.values())
    assert ways[GENERATED] / len(findings) >= 0.95


@SOME_AND_ALL_NAMES
def test_every_name_that_is_not_executed_is_explained(findings: dict[str, Finding]) -> None:
    open_ones = {
        name: (found.how, found.reason) for name, found in unexplained(findings, EXPLAINED).items()
    }
    assert not unexpected(open_ones, findings, "torch")


@SOME_AND_ALL_NAMES
def test_a_name_whose_numbers_differ_for_one_sample_is_explained(
    findings: dict[str, Finding],
) -> None:
    assert differing_once(findings) <= set(DIFFERS_ONCE)


@SOME_AND_ALL_NAMES
def test_a_missing_kernel_is_found_by_the_run(findings: dict[str, Finding]) -> None:
    """Of torch's names only internals have no kernel on the CPU; then device and bench raise."""
    missing = [n for n, f in findings.items() if f.how == NO_KERNEL or "Could not run" in f.reason]
    assert all(name.startswith(("Torch.batch_norm_", "Torch.native_norm")) for name in missing)


@SOME_AND_ALL_NAMES
def test_every_differentiable_name_has_its_gradients_compared(
    findings: dict[str, Finding],
) -> None:
    """A sample has incoming gradients where the function is differentiable: they are compared."""
    patterns = [re.compile(pattern) for pattern in NO_GRADIENT]
    without = {
        name: found.reason
        for name, found in findings.items()
        if found.executed and "backward:" in found.reason
        if not any(p.search(found.reason) for p in patterns)
    }
    assert not unexpected(without, findings, "torch")
