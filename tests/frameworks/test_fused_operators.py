"""Fused norms, activations, rotary embedding, gating, losses and data movement against torch's own
operators, or against loops that are written from the definition.
"""

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from fused_pairs import assert_same, fused, randn
from torch.nn import functional

from ray_precheck.bench.fused.table import MINDSPORE_ROWS, NPU_ROWS
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch.signatures import Row
from ray_precheck.schema.result import Uncompared

pytestmark = pytest.mark.frameworks

Tensor = torch.Tensor


@pytest.mark.parametrize("width", [(8,), (3, 8)])
def test_rms_norm_is_torchs_and_gives_the_reciprocal_root(width: tuple[int, ...]) -> None:
    x, gamma = randn(2, 3, 8), randn(*width, seed=1)
    expected = functional.rms_norm(x, width, gamma, 1e-3)
    ours, rstd = fused("NPU.npu_rms_norm")(x, gamma, epsilon=1e-3)
    assert_same(ours, expected, (x, gamma))
    by_hand = [
        1.0 / math.sqrt(float((row**2).mean()) + 1e-3)
        for row in x.detach().flatten(0, -len(width) - 1)
    ]
    assert torch.allclose(rstd.flatten(), torch.tensor(by_hand, dtype=torch.float64), rtol=1e-12)
    assert rstd.shape == (*x.shape[: 3 - len(width)], *[1] * len(width))
    assert not rstd.requires_grad


def test_rms_norm_has_the_published_default_of_epsilon() -> None:
    x, gamma = randn(2, 8) * 1e-4, randn(8, seed=1)
    for name in ("NPU.npu_rms_norm", "Functional.rms_norm"):
        assert_same(fused(name)(x, gamma)[0], functional.rms_norm(x, (8,), gamma, 1e-6))


@pytest.mark.parametrize("name", ["NPU.npu_add_rms_norm", "Functional.add_rms_norm"])
def test_add_rms_norm_normalises_the_sum_and_returns_it(name: str) -> None:
    x1, x2, gamma = randn(2, 3, 8), randn(2, 3, 8, seed=1), randn(8, seed=2)
    y, rstd, total = fused(name)(x1, x2, gamma, 1e-5)
    expected = (functional.rms_norm(x1 + x2, (8,), gamma, 1e-5), x1 + x2)
    assert_same((y, total), expected, (x1, x2, gamma))
    assert_same(rstd, fused("NPU.npu_rms_norm")(x1 + x2, gamma, 1e-5)[1])


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_eval_is_torchs_layer_norm(affine: bool) -> None:
    x = randn(4, 3, 8)
    weights = (randn(3, 8, seed=1), randn(3, 8, seed=2)) if affine else ()
    ours = fused("NPU.npu_layer_norm_eval")(x, [3, 8], *weights, eps=1e-3)
    assert_same(ours, functional.layer_norm(x, (3, 8), *weights, eps=1e-3), (x, *weights))


@pytest.mark.parametrize("shape", [(2, 6, 5, 3), (2, 6), (2, 6, 4)])
def test_group_norm_silu_is_torchs_silu_of_its_group_norm(shape: tuple[int, ...]) -> None:
    x, weight, bias = randn(*shape), randn(6, seed=1), randn(6, seed=2)
    ours, mean, rstd = fused("NPU.npu_group_norm_silu")(x, weight, bias, group=3, eps=1e-3)
    expected = functional.silu(functional.group_norm(x, 3, weight, bias, 1e-3))
    assert_same(ours, expected, (x, weight, bias))
    grouped = x.detach().reshape(2, 3, -1)
    assert_same(mean, grouped.mean(-1))
    assert_same(rstd, (grouped.var(-1, correction=0) + 1e-3).rsqrt())
    plain = fused("NPU.npu_group_norm_silu")(x, None, None, 3)[0]
    assert_same(plain, functional.silu(functional.group_norm(x, 3)))


X = torch.linspace(-40.0, 12.0, 53, dtype=torch.float64)
ACTIVATIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "NPU.npu_gelu": ({}, functional.gelu),
    "NPU.npu_silu": ({}, functional.silu),
    "NPU.npu_mish": ({}, functional.mish),
    "NPU.fast_gelu": ({}, lambda x: x * torch.sigmoid(1.702 * x)),
    "NPU.npu_fast_gelu": (
        {},
        lambda x: x / (1 + torch.exp(-1.702 * x.abs())) * torch.exp(0.851 * (x - x.abs())),
    ),
    "Functional.fast_gelu": (
        {},
        lambda x: x / (1 + torch.exp(-1.702 * x.abs())) * torch.exp(0.851 * (x - x.abs())),
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_torchs_or_their_published_formula(name: str) -> None:
    options, expected = ACTIVATIONS[name]
    x = X.clone().requires_grad_()
    assert_same(fused(name)(x, **options), expected(x), (x,))


def test_gelu_keeps_its_digits_far_below_zero() -> None:
    x = torch.tensor([-5.0, -8.0, -12.0], dtype=torch.float64)
    expected = [0.5 * value * math.erfc(-value / math.sqrt(2.0)) for value in x.tolist()]
    assert fused("NPU.npu_gelu")(x).tolist() == pytest.approx(expected, rel=1e-13, abs=0.0)


def test_gelu_by_tanh_is_torchs_and_other_approximations_are_refused() -> None:
    x = X.clone().requires_grad_()
    gelu = fused("NPU.npu_gelu")
    assert_same(gelu(x, approximate="tanh"), functional.gelu(x, approximate="tanh"), (x,))
    with pytest.raises(NotCheckable, match="'erf' is unknown"):
        gelu(x, "erf")


@pytest.mark.parametrize("name", ["NPU.npu_swiglu", "Functional.swiglu"])
@pytest.mark.parametrize("dim", [-1, 0])
def test_swiglu_gates_the_second_half_with_silu_of_the_first(name: str, dim: int) -> None:
    x = randn(4, 3, 6)
    a, b = x.split(x.shape[dim] // 2, dim)
    assert_same(fused(name)(x, dim=dim), functional.silu(a) * b, (x,))


@pytest.mark.parametrize("name", ["NPU.npu_rotary_mul", "Functional.rotary_position_embedding"])
def test_rotary_embedding_turns_pairs_as_complex_numbers(name: str) -> None:
    """With cos and sin of one angle a pair, a pair times exp(i angle) is what is meant."""
    x, angle = randn(2, 3, 5, 8), randn(1, 1, 5, 4, seed=1)
    modes = ("half", "interleave") if name.startswith("NPU") else (0, 1)
    turn = torch.polar(torch.ones_like(angle), angle)
    halves = torch.complex(x[..., :4], x[..., 4:]) * turn
    neighbours = torch.view_as_complex(x.unflatten(-1, (4, 2))) * turn
    expected = [
        torch.cat([halves.real, halves.imag], -1),
        torch.view_as_real(neighbours).flatten(-2),
    ]
    spread = [torch.cat([angle, angle], -1), angle.repeat_interleave(2, -1)]
    for mode, wanted, angles in zip(modes, expected, spread, strict=True):
        assert_same(fused(name)(x, angles.cos(), angles.sin(), mode), wanted, (x, angle))
    assert_same(fused(name)(x, spread[0].cos(), spread[0].sin()), expected[0])
    with pytest.raises(NotCheckable, match="rotary mode"):
        fused(name)(x, x, x, 2)


def test_rotary_gradients_reach_cos_and_sin() -> None:
    x, cos, sin = randn(2, 3, 5, 4), randn(1, 1, 5, 4, seed=1), randn(1, 1, 5, 4, seed=2)
    turned = torch.stack([-x[..., 2], -x[..., 3], x[..., 0], x[..., 1]], -1)
    ours = fused("NPU.npu_rotary_mul")(x, r1=cos, r2=sin, rotary_mode="half")
    assert_same(ours, x * cos + turned * sin, (x, cos, sin))


@pytest.mark.parametrize("fixed", [False, True])
def test_scaled_masked_softmax_is_softmax_over_what_is_left(fixed: bool) -> None:
    x, given = randn(2, 3, 4, 6), torch.rand(1, 1, 4, 6, generator=torch.Generator().manual_seed(1))
    mask = given < 0.3
    hidden = torch.ones(1, 1, 4, 6, dtype=torch.bool).triu(1) if fixed else mask
    ours = fused("NPU.npu_scaled_masked_softmax")(x, mask, 0.5, fixed)
    left = torch.where(hidden, -torch.inf, x * 0.5)
    assert_same(ours, left.softmax(-1), (x,))


def test_scaled_masked_softmax_of_a_row_without_anything_left_is_even() -> None:
    x, mask = randn(1, 2, 4, grad=False), torch.zeros(1, 2, 4, dtype=torch.bool)
    mask[0, 1] = True
    ours = fused("NPU.npu_scaled_masked_softmax")(x, mask)
    assert ours[0, 1].tolist() == [0.25] * 4


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_a_sum_of_products(bias: bool) -> None:
    x, weight = randn(2, 3, 5), randn(4, 5, seed=1)
    added = (randn(4, seed=2),) if bias else ()
    ours = fused("NPU.npu_linear")(x, weight, *added)
    expected = torch.einsum("abi,oi->abo", x, weight) + (added[0] if bias else 0.0)
    assert_same(ours, expected, (x, weight, *added))


def test_confusion_transpose_moves_elements_in_the_order_that_it_is_told() -> None:
    x = randn(2, 3, 4, 6)
    first = fused("NPU.npu_confusion_transpose")(x, (0, 2, 1, 3), (2, 4, 18), True)
    values = x.detach().numpy()
    assert np.array_equal(
        first.detach().numpy(), np.transpose(values, (0, 2, 1, 3)).reshape(2, 4, 18)
    )
    last = fused("NPU.npu_confusion_transpose")(x, [0, 2, 1], [2, 12, 6], transpose_first=False)
    expected = np.transpose(values.reshape(2, 12, 6), (0, 2, 1))
    assert np.array_equal(last.detach().numpy(), expected)
    (grad,) = torch.autograd.grad(last.sum() * 2.0, x)
    assert (grad == 2.0).all()


@pytest.mark.parametrize(("dim", "descending"), [(-1, False), (0, True)])
def test_sort_v2_is_sorted_values_alone(dim: int, descending: bool) -> None:
    x = randn(5, 6)
    ours = fused("NPU.npu_sort_v2")(x, dim=dim, descending=descending, out=torch.empty(5, 6))
    expected = np.sort(x.detach().numpy(), axis=dim)
    assert np.array_equal(ours.detach().numpy(), np.flip(expected, dim) if descending else expected)


def test_gating_picks_the_largest_shares_and_numbers_places_by_columns() -> None:
    x = torch.tensor([[1.0, 3.0, 2.0], [0.5, 0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    shares, experts, rows = fused("NPU.npu_moe_gating_top_k_softmax")(x, k=2)
    all_shares = functional.softmax(x, -1)
    expected = torch.stack([all_shares[0, [1, 2]], all_shares[1, [0, 1]]])
    assert_same(shares, expected, (x,))
    assert experts.tolist() == [[1, 2], [0, 1]]
    assert rows.tolist() == [[0, 2], [1, 3]]
    assert experts.dtype is rows.dtype is torch.int32


def test_gating_names_no_expert_for_finished_rows() -> None:
    x = randn(2, 3, 4)
    finished = torch.tensor([[True, False, False], [False, False, True]])
    shares, experts, rows = fused("NPU.npu_moe_gating_top_k_softmax")(x, finished, 2)
    assert (experts[finished] == 4).all()
    assert (experts[~finished] < 4).all()
    assert rows.flatten(0, 1).tolist() == [[row, row + 6] for row in range(6)]
    assert_same(shares, functional.softmax(x, -1).topk(2).values, (x,))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [True, False])
def test_cross_entropy_loss_is_torchs(reduction: str, smoothing: float, weighted: bool) -> None:
    x, target = randn(5, 4), torch.tensor([0, 3, 2, 3, 1])
    weight = torch.tensor([0.5, 1.0, 0.2, 0.7], dtype=torch.float64) if weighted else None
    options = {"ignore_index": 2, "label_smoothing": smoothing, "reduction": reduction}
    loss, log_prob, *rest = fused("NPU.npu_cross_entropy_loss")(x, target, weight, **options)
    expected = functional.cross_entropy(x, target, weight, **options)
    assert loss.shape == ((5,) if reduction == "none" else (1,))
    assert_same(loss, expected.reshape(loss.shape), (x,))
    assert_same(log_prob, functional.log_softmax(x, -1))
    assert not log_prob.requires_grad
    assert [type(other) for other in rest] == [Uncompared] * 2
    by_mindspore = fused("Functional.cross_entropy_loss")(x, target, weight, **options)
    assert_same(by_mindspore[0], loss)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"return_zloss": True}, "zloss"), ({"reduction": "max"}, "'max' is unknown")],
)
def test_losses_without_a_published_formula_are_not_checked(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(NotCheckable, match=says):
        fused("NPU.npu_cross_entropy_loss")(randn(2, 3), torch.tensor([0, 1]), **options)


# The parameters of torch_npu 2.14, in their order; ray_precheck/frameworks/ASCEND.md has the others.
PUBLISHED = {
    "NPU.fast_gelu": "self",
    "NPU.npu_add_rms_norm": "x1 x2 gamma epsilon",
    "NPU.npu_apply_adam": (
        "beta1_power beta2_power lr beta1 beta2 epsilon grad use_locking use_nesterov * out"
    ),
    "NPU.npu_apply_adam_w": (
        "beta1_power beta2_power lr weight_decay beta1 beta2 epsilon grad max_grad_norm amsgrad"
        " maximize * out"
    ),
    "NPU.npu_confusion_transpose": "self perm shape transpose_first",
    "NPU.npu_cross_entropy_loss": (
        "input target weight reduction ignore_index label_smoothing lse_square_scale_for_zloss"
        " return_zloss"
    ),
    "NPU.npu_fast_gelu": "input",
    "NPU.npu_fusion_attention": (
        "query key value head_num input_layout pse padding_mask atten_mask scale keep_prob"
        " pre_tockens next_tockens inner_precise prefix actual_seq_qlen actual_seq_kvlen sparse_mode"
        " gen_mask_parallel sync softmax_layout sink dropout_mask seed offset"
    ),
    "NPU.npu_fusion_attention_v2": (
        "query key value head_num input_layout * pse padding_mask atten_mask query_rope key_rope scale"
        " keep_prob pre_tokens next_tokens inner_precise prefix actual_seq_qlen actual_seq_kvlen"
        " sparse_mode gen_mask_parallel sync pse_type q_start_idx kv_start_idx softmax_layout sink"
        " dropout_mask seed offset"
    ),
    "NPU.npu_gelu": "input approximate",
    "NPU.npu_group_norm_silu": "input weight bias group eps",
    "NPU.npu_layer_norm_eval": "input normalized_shape weight bias eps",
    "NPU.npu_linear": "input weight bias",
    "NPU.npu_mish": "self",
    "NPU.npu_moe_gating_top_k_softmax": "x finished k",
    "NPU.npu_rms_norm": "self gamma epsilon",
    "NPU.npu_rotary_mul": "input r1 r2 rotary_mode rotate",
    "NPU.npu_scaled_masked_softmax": "x mask scale fixed_triu_mask",
    "NPU.npu_silu": "self",
    "NPU.npu_sort_v2": "self dim descending * out",
    "NPU.npu_swiglu": "self dim",
}


def test_every_fused_operator_is_here_with_its_published_parameters() -> None:
    assert set(PUBLISHED) == {name for name in NPU_ROWS if name.startswith("NPU.")}


def binds(rows: tuple[Row, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(row.bind(args, kwargs) is not None for row in rows)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameters_bind_by_keyword_and_in_their_order(name: str) -> None:
    by_place, _, by_name = PUBLISHED[name].partition(" * ")
    places, names = by_place.split(), by_name.split()
    keywords = dict.fromkeys(names)
    for count in range(len(places) + 1):
        rest = dict.fromkeys(places[count:])
        assert binds(NPU_ROWS[name], (None,) * count, {**rest, **keywords})
    assert not binds(NPU_ROWS[name], (None,) * (len(places) + 1), keywords)


@pytest.mark.parametrize(
    "name", [name for name, text in PUBLISHED.items() if text.split()[0] in ("self", "input")]
)
def test_the_first_tensor_may_be_called_self_or_input(name: str) -> None:
    first, *others = PUBLISHED[name].replace("* ", "").split()
    for given in ("self", "input"):
        assert binds(NPU_ROWS[name], (), dict.fromkeys([given, *others])), (first, given)


def test_mindspores_own_signatures_bind() -> None:
    mindspore = pytest.importorskip("mindspore")
    for name, rows in MINDSPORE_ROWS.items():
        api = name.removeprefix("Functional.")
        function = getattr(mindspore.ops, api, None) or getattr(mindspore.ops.auto_generate, api)
        parameters = inspect.signature(function).parameters.values()
        places = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        keywords = dict.fromkeys(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        assert binds(rows, (None,) * len(places), keywords), name
        assert binds(rows, (), {**dict.fromkeys(places), **keywords}), name


@pytest.mark.parametrize("name", sorted({*NPU_ROWS, *MINDSPORE_ROWS}))
def test_arguments_that_no_signature_has_are_refused(name: str) -> None:
    with pytest.raises(NotCheckable, match=f"the bench of {name} does not know these arguments"):
        fused(name)(randn(2, 2), nonsense=1)
