"""Every function of MindSpore that has a bench, run from a record that is made for it.

What has no kernel on the CPU is found by the run. The gradients of all that MindSpore can
differentiate are compared with the bench's.
"""

import re
import warnings

import pytest
from coverage_records import (
    ALL_NAMES,
    FAILED,
    NO_KERNEL,
    SOME_AND_ALL_NAMES,
    Finding,
    Sample,
    differing_once,
    try_samples,
    unexplained,
)
from coverage_samples import opinfo_samples
from versions import unexpected

from ray_precheck.check.checker import Checker
from scripts.coverage.status import MINDSPORE, Kind, Namespace, statuses

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("mindspore")

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

# Where torch has a function of the same name, its samples are tried.
_TWINS = {
    "Mint": ("Torch", "Functional"),
    "MintFunctional": ("Functional", "Torch"),
    "Tensor": ("Tensor", "Torch"),
    "Functional": ("Torch", "Functional"),
}
# Why a name that has a bench and is no name without a kernel does not pass on MindSpore's CPU.
EXPLAINED = {
    "no kernel, in words of its own": (
        r"should not come here for|Not found op \w+ on device CPU|There is no branch to go"
        r"|support Ascend only|Not implement exception|is not supported on this device"
        r"|only support decimals equal 0|The kernel \w+ unregistered"
    ),
    "MindSpore takes a tuple, a dump has it as a list": (
        r"but got type 'list'|\bList\[|List<|ValueList|AbstractList|size \(\["
    ),
    "MindSpore defines no gradient": r"bprop not defined",
    "eigenvalues come in any order": r"Functional\.eig(vals)?\.0\.forward\.output\.",
    "MindSpore's method does not pass its own argument on": (
        r"eigvals\(\) missing 1 required|'Registry' object has no attribute 'triangular_solve'"
    ),
    "MindSpore's gradient of a view fails on the CPU": (
        r"InplaceCopy, an unexpected kernel|The pointer\[input_tensor\] is null"
    ),
    "MindSpore's gradient of hinge_embedding_loss adds booleans": (
        r"For primitive\[Add\], the input argument\[x\] must be a type of"
    ),
}
# What MindSpore's CPU computes wrong, measured against float64 torch.
WRONG_ON_THE_CPU = {
    "erfinv": "a rational approximation: off by up to 0.05 near 1",
    "tanh": "a rational approximation: off by up to 1e-4, its gradient by 2e-4",
    "selu": "its gradient is wrong for negative inputs",
    "kl_div": "its gradient for the target is always zero",
    "full": "without a dtype it makes whole numbers of 1.5",
    "inplace_add": "its gradients are all zero",
    "inplace_sub": "its gradients are all zero",
    "inplace_update": "its gradients are all zero",
}
# Names of which one sample shows other numbers, and the next one, or its own inputs, none.
DIFFERS_ONCE = {
    "argsort": "ties",
    "msort": "ties, in its gradient",
    "scatter_mul": "its gradient where an index comes twice",
    "cholesky_inverse": "inputs that are no factor of a positive definite matrix",
    "cartesian_prod": "of one vector MindSpore makes a matrix",
    "mish": "made of tanh",
    "tanhshrink": "made of tanh",
    "binary_cross_entropy": "a sample without dimensions, not looked into",
}


@pytest.fixture(scope="module")
def findings(mindspore_checker: Checker, request: pytest.FixtureRequest) -> dict[str, Finding]:
    from coverage_mindspore_recipes import recipes

    own, found = recipes(), {}
    for namespace in MINDSPORE:
        for status in statuses(namespace, mindspore_checker.bench)[:: request.param]:
            if status.kind is Kind.BENCH:
                name = namespace.api(status.name).type_name
                samples = own.get(name) or _twins(namespace, status.name)
                found[name] = try_samples(mindspore_checker, name, samples)
    return found


def _twins(namespace: Namespace, name: str) -> list[Sample]:
    from coverage_mindspore_recipes import sample_of

    api = namespace.api(name)
    found = [
        sample_of(api.type_name, sample.args, sample.kwargs)
        for twin in _TWINS[namespace.prefix]
        for sample in opinfo_samples().get(f"{twin}.{api.api}", [])
    ]
    return [sample for sample in found if sample.fits]


@SOME_AND_ALL_NAMES
def test_every_name_with_a_kernel_passes_or_is_explained(findings: dict[str, Finding]) -> None:
    open_ones = {
        name: (found.how, found.reason)
        for name, found in unexplained(findings, EXPLAINED).items()
        if found.how != NO_KERNEL and name.rsplit(".", 1)[-1] not in WRONG_ON_THE_CPU
    }
    assert not unexpected(open_ones, findings, "mindspore")


@SOME_AND_ALL_NAMES
def test_a_name_whose_numbers_differ_for_one_sample_is_explained(
    findings: dict[str, Finding],
) -> None:
    assert not unexpected(differing_once(findings) - set(DIFFERS_ONCE), findings, "mindspore")


@ALL_NAMES
def test_what_is_called_wrong_on_the_cpu_is_wrong_there(findings: dict[str, Finding]) -> None:
    wrong = {name.rsplit(".", 1)[-1] for name, found in findings.items() if found.how == FAILED}
    assert not unexpected(set(WRONG_ON_THE_CPU) - wrong, findings, "mindspore")


@ALL_NAMES
def test_hundreds_of_names_are_executed(findings: dict[str, Finding]) -> None:
    executed = sum(found.executed for found in findings.values())
    without_kernel = sum(found.how == NO_KERNEL for found in findings.values())
    assert executed >= 950
    assert executed / (len(findings) - without_kernel) >= 0.95


@SOME_AND_ALL_NAMES
def test_only_what_has_no_gradient_is_not_compared_backward(findings: dict[str, Finding]) -> None:
    without = {
        name: found.reason
        for name, found in findings.items()
        if found.executed and "backward:" in found.reason
        if "the CPU has no kernel" not in found.reason
        # torch's ZeroTensor, and statistics that are no inputs of a gradient in torch
        if not re.search(r"ZeroTensor|not differentiable with respect to", found.reason)
    }
    assert without == {}
