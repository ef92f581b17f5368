"""Kernels that are wrong only under a condition are met and found: a short form of `scripts.attack`."""

import pytest

torch = pytest.importorskip("torch")

from ray_precheck.frameworks.pytorch.run import TorchPlace  # noqa: E402
from scripts.attack.kinds import KINDS, WrongKind  # noqa: E402
from scripts.attack.record import attack, honest, is_met  # noqa: E402

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

# One or two of every group: the kind, a dtype and a task.
SHORT = [
    ("transposed: contiguous", "float32", "statistics"),
    ("transposed: attention, heads", "bfloat16", "tensor"),
    ("channels_last: conv2d, gradient", "float32", "tensor"),
    ("expanded: gather, index", "float32", "statistics"),
    ("expanded gradient: layer_norm", "float16", "statistics"),
    ("transposed gradient: silu", "float32", "tensor"),
    ("offset: difference of shifted rows", "bfloat16", "statistics"),
    ("large strides: exp of every fourth", "float32", "tensor"),
    ("one memory twice: mul_ by itself", "float32", "statistics"),
    ("destination: copy_ into a slice", "float32", "tensor"),
    ("conj and neg bits: mul", "float32", "statistics"),
    ("conj and neg bits: add", "float32", "tensor"),
    ("repeated indices: embedding, gradient", "bfloat16", "statistics"),
    ("repeated indices: index_put_", "float32", "tensor"),
    ("masked rows: softmax of -inf", "float32", "statistics"),
    ("masked rows: attention without keys", "float16", "statistics"),
    ("ties: stable sort", "float32", "statistics"),
    ("rows of zeros: layer_norm", "float32", "statistics"),
    ("far from zero: batch_norm", "float32", "statistics"),
    ("changed argument: batch_norm, running_var", "float32", "statistics"),
    ("changed argument: max, out= indices", "float32", "statistics"),
    ("changed argument: AdamW, exp_avg", "float32", "tensor"),
    ("odd tail: gelu", "bfloat16", "statistics"),
    ("both broadcast: sub", "float32", "statistics"),
    ("number as a tensor: mul", "float16", "statistics"),
    ("exact functions: eq, always False", "float32", "tensor"),
    ("exact functions: ne, always True", "bfloat16", "statistics"),
    ("exact functions: ge for gt", "float16", "tensor"),
    ("exact functions: bool, always True", "float32", "statistics"),
    ("exact functions: logical_not, always False", "float32", "tensor"),
    ("exact functions: count_nonzero, one more", "float32", "statistics"),
    ("exact functions: searchsorted, on the right", "bfloat16", "tensor"),
    ("exact functions: bucketize, on the right", "float32", "tensor"),
    ("exact functions: to a half type, cut off", "float32", "statistics"),
    ("exact functions: to a half type, cut off", "float16", "tensor"),
    ("exact functions: clone, one unit off", "bfloat16", "statistics"),
    ("exact functions: embedding, one unit off", "float32", "tensor"),
    ("exact functions: sort, one unit off", "float16", "statistics"),
    ("rounding: add, towards zero", "float32", "statistics"),
    ("rounding: add, towards zero", "bfloat16", "tensor"),
    ("rounding: mul, by chance", "float16", "statistics"),
    ("rounding: matmul, by chance", "bfloat16", "statistics"),
    ("rounding: layer_norm, towards zero", "float16", "tensor"),
    ("rounding: gradient of linear, towards zero", "bfloat16", "statistics"),
    ("shape of the error: layer_norm, eps 1e-6", "bfloat16", "statistics"),
    ("shape of the error: weight gradient x 1.05", "bfloat16", "statistics"),
    ("shape of the error: matmul x 1.003", "bfloat16", "tensor"),
    ("shape of the error: gradient of softmax x 1.004", "bfloat16", "statistics"),
    ("random: randn, std 1.01", "bfloat16", "statistics"),
    ("random: dropout, 0.11 for 0.1", "float16", "tensor"),
    ("random: attention, the same mask", "bfloat16", "statistics"),
]
BY_NAME = {f"{kind.group}: {kind.name}": kind for kind in KINDS}
CASES = pytest.mark.parametrize(("name", "dtype", "task"), SHORT)


@CASES
def test_a_kernel_that_is_wrong_under_a_condition_is_met_and_found(
    name: str, dtype: str, task: str
) -> None:
    tried = attack(BY_NAME[name], dtype, task, "auto")
    assert tried.hits > 0, tried.said
    assert tried.found, tried.said


@CASES
def test_the_same_kernel_without_its_fault_is_not_accused(name: str, dtype: str, task: str) -> None:
    tried = attack(BY_NAME[name], dtype, task, "auto", is_on=False)
    assert tried.calls > 0
    assert not tried.accused


@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        ("serving", "float32"),
        ("graph", "float32"),
        ("decisions", "float32"),
        ("rounded", "bfloat16"),
    ],
)
def test_an_honest_program_is_not_accused(program: str, dtype: str) -> None:
    calls, accused = honest(program, dtype, "tensor", "auto")
    assert calls > 15
    assert accused == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.group}: {kind.name}")
def test_the_program_of_a_kind_meets_its_condition(kind: WrongKind) -> None:
    assert is_met(kind, "float32")


def test_the_measure_falls_where_inputs_lose_their_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone(memory_format=torch.contiguous_format)

    whole = TorchPlace.to_torch
    monkeypatch.setattr(
        TorchPlace, "to_torch", lambda *args, **kwargs: plain(whole(*args, **kwargs))
    )
    hits = {
        name: attack(BY_NAME[name], dtype, task, "auto").hits for name, dtype, task in SHORT[:8]
    }
    assert set(hits.values()) == {0}, hits
