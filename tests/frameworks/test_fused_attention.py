"""Fused attention against torch's own, and against loops that are written from the definition."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fused_pairs import assert_same, fused, randn
from torch.nn.functional import scaled_dot_product_attention

from ray_precheck.bench.fused import attention
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.result import Uncompared

pytestmark = pytest.mark.frameworks

Tensor = torch.Tensor
NPU = fused("NPU.npu_fusion_attention")
COMPRESSED = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
# Of each layout, how a tensor (B, N, S, D) is laid out in it.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(1, 2),
    "BSH": lambda x: x.transpose(1, 2).flatten(2),
    "SBH": lambda x: x.permute(2, 0, 1, 3).flatten(2),
}


def qkv(
    heads: int = 4, key_heads: int = 2, rows: int = 5, columns: int = 7, batch: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a query and fewer heads of keys and values, (B, N, S, D)."""
    return (
        randn(batch, heads, rows, 6, seed=1),
        randn(batch, key_heads, columns, 6, seed=2),
        randn(batch, key_heads, columns, 6, seed=3),
    )


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Return torch's attention where several heads share a key; torch 2.4 has no `enable_gqa`."""
    times = query.shape[1] // key.shape[1]
    shared = [each.repeat_interleave(times, dim=1) for each in (key, value)]
    return scaled_dot_product_attention(query, *shared, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_every_layout_and_grouping_is_torchs_attention(layout: str, key_heads: int) -> None:
    inputs = qkv(key_heads=key_heads)
    laid = LAYOUTS[layout]
    ours = NPU(*[laid(x) for x in inputs], head_num=4, input_layout=layout, scale=0.3)
    expected = laid(grouped_attention(*inputs, scale=0.3))
    assert_same(ours, expected, inputs)


def test_packed_sequences_are_each_an_attention_of_their_own() -> None:
    query, key, value = randn(7, 4, 6, seed=1), randn(9, 2, 6, seed=2), randn(9, 2, 6, seed=3)
    ours = NPU(
        query, key, value, 4, "TND", scale=0.3, actual_seq_qlen=[2, 2, 5, 7],
        actual_seq_kvlen=[3, 4, 8, 9],
    )  # fmt: skip
    parts = []
    for (a, b), (c, d) in zip([(0, 2), (2, 5), (5, 7)], [(0, 3), (4, 8), (8, 9)], strict=True):
        one = [x.transpose(0, 1)[None] for x in (query[a:b], key[c:d], value[c:d])]
        parts.append(grouped_attention(*one, scale=0.3)[0])
    assert_same(ours, torch.cat([part.transpose(0, 1) for part in parts]), (query, key, value))


def test_sequences_that_end_at_0_take_no_part() -> None:
    query, key = randn(7, 1, 6, seed=1), randn(7, 1, 6, seed=2)
    lengths = {"actual_seq_qlen": [2, 5, 0, 0], "actual_seq_kvlen": torch.tensor([2, 5, 0, 0])}
    ours = NPU(query, key, key, 1, "TND", **lengths)[0]
    alone = NPU(query[:5], key[:5], key[:5], 1, "TND", None, None, None,
                actual_seq_qlen=[2, 5], actual_seq_kvlen=[2, 5])[0]  # fmt: skip
    assert_same(ours[:5], alone)
    assert ours.shape == query.shape
    assert not ours[5:].any()


def by_loops(
    query: Tensor, key: Tensor, value: Tensor, sees: Callable[[int, int, int], bool], scale: float
) -> Tensor:
    """Return attention written from its definition, (B, N, S, D); `sees` takes batch, row, column."""
    q, k, v = (x.detach().numpy() for x in (query, key, value))
    out = np.zeros(q.shape[:3] + v.shape[3:])
    group = q.shape[1] // k.shape[1]
    for b, n, i in itertools.product(*map(range, q.shape[:3])):
        seen = [j for j in range(k.shape[2]) if sees(b, i, j)]
        if seen:
            weights = np.exp([scale * q[b, n, i] @ k[b, n // group, j] for j in seen])
            out[b, n, i] = weights @ v[b, n // group, seen] / weights.sum()
    return torch.from_numpy(out)


# rows and columns of the calls below; `corner` is the column that the last row ends on with row 0
ROWS, COLUMNS = 5, 7
CORNER = COLUMNS - ROWS
MODES: dict[int, tuple[dict[str, Any], Callable[[int, int, int], bool]]] = {
    2: ({}, lambda b, i, j: j <= i),
    3: ({}, lambda b, i, j: j <= i + CORNER),
    4: (
        {"pre_tockens": 2, "next_tockens": 1},
        lambda b, i, j: i + CORNER - 2 <= j <= i + CORNER + 1,
    ),
    6: ({"prefix": [1, 4]}, lambda b, i, j: j <= i + CORNER or j < (1, 4)[b]),
    7: (
        {"pre_tockens": 9, "next_tockens": -2},
        lambda b, i, j: j <= i + CORNER - 2 if b == 1 else j <= i + CORNER,
    ),
    8: (
        {"pre_tockens": 9, "next_tockens": 1},
        lambda b, i, j: j <= i + CORNER + 1 if b == 0 else j <= i,
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_sparse_modes_with_a_compressed_mask_see_what_their_figures_show(mode: int) -> None:
    options, sees = MODES[mode]
    mask = torch.cat([COMPRESSED, COMPRESSED[:1024]]) if mode == 6 else COMPRESSED
    inputs = qkv(rows=ROWS, columns=COLUMNS)
    ours = NPU(*inputs, 4, "BNSD", atten_mask=mask, sparse_mode=mode, scale=0.4, **options)
    assert_same(ours, by_loops(*inputs, sees, 0.4))


@pytest.mark.parametrize("mode", [0, 1, 5])
@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (2, 4, 5, 7), (1, 1, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_full_masks_hide_what_they_name(
    mode: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    hidden = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.4
    hidden[..., 0] = False
    inputs = qkv()
    # A prefix of every column is what leaves all of it to the mask.
    ours = NPU(*inputs, 4, "BNSD", atten_mask=hidden.to(dtype), sparse_mode=mode, prefix=[7, 7])
    expected = grouped_attention(*inputs, attn_mask=~hidden, scale=1.0)
    assert_same(ours, expected, inputs)


def test_mode_0_also_hides_what_is_outside_of_its_tokens() -> None:
    inputs = qkv()
    mask = torch.zeros(ROWS, COLUMNS, dtype=torch.bool)
    ours = NPU(*inputs, 4, "BNSD", atten_mask=mask, scale=0.4, pre_tockens=1, next_tockens=2)
    assert_same(ours, by_loops(*inputs, lambda b, i, j: i - 1 <= j <= i + 2, 0.4))


def test_mode_5_adds_the_prefix_to_the_lower_right_triangle() -> None:
    inputs, mask = qkv(), torch.zeros(2, 1, ROWS, COLUMNS, dtype=torch.bool)
    ours = NPU(*inputs, 4, "BNSD", atten_mask=mask, scale=0.4, sparse_mode=5, prefix=[1, 4])
    assert_same(ours, by_loops(*inputs, MODES[6][1], 0.4))


def test_without_a_mask_nothing_is_hidden_whatever_the_mode() -> None:
    inputs = qkv()
    plain = NPU(*inputs, 4, "BNSD", scale=0.4)
    assert_same(NPU(*inputs, 4, "BNSD", scale=0.4, sparse_mode=2, next_tockens=0), plain)


def test_position_codes_are_added_before_the_scale_and_after_it_where_the_type_says_so() -> None:
    inputs, shift = qkv(key_heads=4), randn(1, 4, 5, 7, seed=4)
    before = scaled_dot_product_attention(*inputs, attn_mask=shift * 0.3, scale=0.3)
    after = scaled_dot_product_attention(*inputs, attn_mask=shift, scale=0.3)
    assert_same(NPU(*inputs, 4, "BNSD", pse=shift, scale=0.3), before, (*inputs, shift))
    second = fused("NPU.npu_fusion_attention_v2")
    for kind, expected in ((0, after), (1, before)):
        ours = second(*inputs, 4, "BNSD", pse=shift, scale=0.3, pse_type=kind)
        assert_same(ours, expected, (*inputs, shift))
    row = randn(2, 4, 1, 7, seed=5)
    expected = scaled_dot_product_attention(*inputs, attn_mask=row, scale=1.0)
    assert_same(NPU(*inputs, 4, "BNSD", row), expected, (*inputs, row))


def test_a_query_that_sees_nothing_gives_zeros_and_has_no_gradient() -> None:
    inputs = qkv(rows=7, columns=5)
    ours = NPU(*inputs, 4, "BNSD", atten_mask=COMPRESSED, sparse_mode=3, scale=0.4)[0]
    assert_same(ours, by_loops(*inputs, lambda b, i, j: j <= i - 2, 0.4))
    assert not ours[:, :, :2].any()
    grads = torch.autograd.grad(ours.sum(), inputs)
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert not grads[0][:, :, :2].any()


# Calls whose parts see other columns than the whole, some of them none.
PARTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "mask": (5, 7, {"sparse_mode": 0}),
    "mask and band": (5, 7, {"sparse_mode": 0, "pre_tockens": 1, "next_tockens": 2}),
    "band that leaves the keys": (5, 7, {"sparse_mode": 0, "pre_tockens": -4}),
    "corner": (5, 7, {"sparse_mode": 3, "atten_mask": COMPRESSED}),
    "rows before the corner": (7, 5, {"sparse_mode": 3, "atten_mask": COMPRESSED}),
    "prefix": (5, 7, {"sparse_mode": 5, "prefix": [1, 6]}),
}


@pytest.mark.parametrize("most", [1, 30])
@pytest.mark.parametrize("kind", PARTS)
def test_in_parts_the_result_is_the_same(
    kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns, options = PARTS[kind]
    inputs, shift = qkv(rows=rows, columns=columns), randn(2, 4, rows, columns, seed=4)
    mask = torch.rand(2, 4, rows, columns, generator=torch.Generator().manual_seed(0)) < 0.4
    options = {"atten_mask": mask, "pse": shift, **options}
    at_once = NPU(*inputs, 4, "BNSD", **options)
    assert torch.isfinite(at_once[0]).all()
    monkeypatch.setattr(attention, "_SCORES_OF_A_PART", most)
    monkeypatch.setattr(attention, "_MOST_SCORES", most)
    assert_same(NPU(*inputs, 4, "BNSD", **options), at_once, (*inputs, shift))


def test_a_long_attention_holds_few_scores_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    softmax = torch.softmax

    def watched(scores: Tensor, dim: int) -> Tensor:
        seen.append(scores.numel())
        return softmax(scores, dim)

    monkeypatch.setattr(torch, "softmax", watched)
    monkeypatch.setattr(attention, "_SCORES_OF_A_PART", 30)
    monkeypatch.setattr(attention, "_MOST_SCORES", 30)
    out = NPU(*qkv(), 4, "BNSD")[0]
    forward = sum(seen)
    torch.autograd.grad(out.sum(), out.grad_fn.next_functions[0][0].variable)  # type: ignore[union-attr]
    assert max(seen) <= 30
    assert forward == 2 * 4 * 5 * 7
    assert sum(seen) == 2 * forward


def test_mindspores_names_and_order_are_taken() -> None:
    query, key, value = qkv()
    laid = [LAYOUTS["BSH"](x) for x in (query, key, value)]
    mask = torch.ones(5, 7, dtype=torch.uint8).triu(1)
    score = fused("Functional.flash_attention_score")
    by_place = score(*laid, 4, None, None, None, mask, None, None, None, 1.0, 0.3)
    by_name = score(*laid, 4, attn_mask=mask, scalar_value=0.3, input_layout="BSH")
    expected = grouped_attention(query, key, value, attn_mask=mask == 0, scale=0.3)
    assert isinstance(by_place, Tensor)
    assert_same(by_place, LAYOUTS["BSH"](expected), (query, key, value))
    assert_same(by_name, by_place)
    fast = fused("Functional.speed_fusion_attention")
    assert_same(fast(*laid, 4, "BSH", atten_mask=mask, scale=0.3), by_place)


def test_the_six_other_outputs_are_not_compared() -> None:
    others = NPU(*qkv(), 4, "BNSD")[1:]
    assert len(others) == 6
    assert all(isinstance(other, Uncompared) for other in others)
    assert "seed" in others[3].reason


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keep_prob": 0.9}, "dropout (keep_prob 0.9)"),
        ({"padding_mask": torch.zeros(1)}, "padding_mask"),
        ({"input_layout": "NSD"}, "'NSD' is unknown; expected one of: BSH, SBH, BSND, BNSD, TND"),
        ({"input_layout": "TND"}, "needs actual_seq_qlen"),
        ({"atten_mask": torch.zeros(4, 7)}, "a mask of shape [4, 7] for 5 x 7 scores"),
        ({"atten_mask": torch.zeros(5, 7), "sparse_mode": 9}, "sparse_mode 9"),
        ({"atten_mask": COMPRESSED, "sparse_mode": 6, "prefix": [1]}, "needs a prefix"),
        ({"pse": torch.zeros(1, 4, 3, 7)}, "compressed ones are not supported"),
        ({"head_num": 3}, "3 heads of the query do not divide by 2"),
    ],
)
def test_what_has_no_published_answer_is_not_checked(options: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"head_num": 4, "input_layout": "BNSD", **options}
    with pytest.raises(NotCheckable) as caught:
        NPU(*qkv(), **arguments)
    assert says in str(caught.value)


@pytest.mark.parametrize("ends", [[2, 1, 7], [2, 8], [0, 0], None])
def test_lengths_that_do_not_rise_to_the_end_are_refused(ends: list[int] | None) -> None:
    x = randn(7, 1, 4)
    with pytest.raises(NotCheckable, match="actual_seq_qlen"):
        NPU(x, x, x, 1, "TND", actual_seq_qlen=ends, actual_seq_kvlen=ends)


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)]
)
def test_it_also_computes_in_the_recorded_dtypes(dtype: torch.dtype, limit: float) -> None:
    inputs, mask = qkv(), torch.ones(5, 7, dtype=torch.bool).triu(3)
    exact = NPU(*inputs, 4, "BNSD", atten_mask=mask, scale=0.4)[0]
    narrow = NPU(*[x.detach().to(dtype) for x in inputs], 4, "BNSD", atten_mask=mask, scale=0.4)[0]
    assert narrow.dtype is dtype
    assert (narrow.double() - exact).abs().max() < limit
