"""Fused attention: softmax(mask(scale * (Q K^T + pse))) V, for every layout, with grouped heads.

Comes in: torch tensors and the arguments of `npu_fusion_attention`. Goes out: a new tensor in the
layout of the query. Named by `table`.

Formula, layouts and outputs: Ascend/op-plugin, docs/context/torch_npu-npu_fusion_attention.md;
CANN, aclnnFlashAttentionScore (pse is added before the scale) and aclnnFlashAttentionScoreV2
(`pse_type` 1 as before, other values: scale * Q K^T + pse). MindSpore's `flash_attention_score` calls
the former kernel; where its own text says scale * Q K^T + pse, the kernel's counts.

Sparse modes 0 to 8 leave scores out: docs/context/torch_npu-npu_fusion_attention.md, sparse_mode and its
figures. Modes 2 to 4, 6, 7 and 8 come with a compressed mask of a fixed content, 2048 x 2048 (mode 6:
3072 x 2048), which follows from the mode, so it is not read.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ray_precheck.errors import NotCheckable
from ray_precheck.schema.result import Uncompared

# The number for "no limit" in pre_tokens and next_tokens.
UNBOUNDED = 2147483647
_COMPRESSED = {(2048, 2048), (3072, 2048)}
_PREFIX_MODES = (5, 6)
# The lowest and the highest diagonal (column minus row) that are computed.
_Band = tuple[int, int]
Tensor = torch.Tensor
# Of each layout, with heads as a dimension of their own, the order that makes it (B, N, S, D).
_TO_BNSD = {"BSH": (0, 2, 1, 3), "SBH": (1, 2, 0, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}
_HEADS_IN_HIDDEN = ("BSH", "SBH")
_PACKED = "TND"
# Scores that are computed at once, small enough for a cache.
_SCORES_OF_A_PART = 1 << 20
# More scores than this are not kept for the gradient but computed again, part by part.
_MOST_SCORES = 1 << 25
_NOT_JUDGED = (
    Uncompared("softmax_max, which the kernel keeps for its backward pass"),
    Uncompared("softmax_sum, which the kernel keeps for its backward pass"),
    Uncompared("softmax_out, which is reserved"),
    Uncompared("the seed of the dropout mask"),
    Uncompared("the offset of the dropout mask"),
    Uncompared("the length of the dropout mask"),
)


@dataclass(frozen=True, slots=True)
class Sparsity:
    """A sparse mode, how far it looks back and ahead, and the prefix of each batch entry."""

    mode: int
    pre_tokens: int = UNBOUNDED
    next_tokens: int = UNBOUNDED
    prefix: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """One batch entry of so many: `rows` queries meet `columns` keys."""

    batch: int
    batches: int
    rows: int
    columns: int

    @property
    def corner(self) -> int:
        """The diagonal (column minus row) that ends in the lower right corner."""
        return self.columns - self.rows


def _band(sparsity: Sparsity, origin: int) -> _Band:
    return origin - sparsity.pre_tokens, origin + sparsity.next_tokens


def _up_to(diagonal: int) -> _Band:
    return -UNBOUNDED, diagonal


_BANDS: dict[int, Callable[[Sparsity, Block], _Band]] = {
    0: lambda sparsity, block: _band(sparsity, 0),
    1: lambda sparsity, block: _up_to(UNBOUNDED),
    2: lambda sparsity, block: _up_to(0),
    3: lambda sparsity, block: _up_to(block.corner),
    4: lambda sparsity, block: _band(sparsity, block.corner),
    5: lambda sparsity, block: _up_to(block.corner),
    6: lambda sparsity, block: _up_to(block.corner),
    # A long sequence was cut: its last (7) or first (8) part has a band, the others are as before.
    7: lambda sparsity, block: (
        _band(sparsity, block.corner) if block.batch == block.batches - 1 else _up_to(block.corner)
    ),
    8: lambda sparsity, block: _band(sparsity, block.corner) if block.batch == 0 else _up_to(0),
}


def seen_columns(sparsity: Sparsity, mask: Tensor | None, block: Block, rows: range) -> range:
    """Return the columns outside of which the mode leaves out every score of some rows.

    It is never empty: for rows that see nothing it is any column.
    """
    if mask is None or not block.columns or sparsity.mode not in _BANDS:
        return range(block.columns)
    lowest, highest = _BANDS[sparsity.mode](sparsity, block)
    first, last = rows.start + lowest, rows.stop - 1 + highest
    if sparsity.mode in _PREFIX_MODES:
        first, last = 0, max(last, _prefix(sparsity, block) - 1)
    first = min(max(first, 0), block.columns - 1)
    return range(first, max(min(last + 1, block.columns), first + 1))


def hidden_scores(
    sparsity: Sparsity, mask: Tensor | None, block: Block, rows: range, columns: range
) -> Tensor | None:
    """Return a mask of the scores of some rows and columns of a batch entry that are left out, bool
    `(N or 1, rows, columns)`; None if no score is left out.

    Without a mask in the call no score is left out in any mode.

    Raises:
        NotCheckable: the mode is unknown, or the mask has another shape.
    """
    if mask is None:
        return None
    if sparsity.mode not in _BANDS:
        raise NotCheckable(f"sparse_mode {sparsity.mode} has no published meaning")
    hidden = _outside(sparsity, block, rows, columns)
    if tuple(mask.shape) in _COMPRESSED and sparsity.mode not in (0, 1, 5):
        return hidden
    given = _of_batch(mask, block)[:, rows.start : rows.stop, columns.start : columns.stop]
    return hidden | given.bool()


def _outside(sparsity: Sparsity, block: Block, rows: range, columns: range) -> Tensor:
    """Return the scores that the mode itself leaves out, `(1, rows, columns)`."""
    lowest, highest = _BANDS[sparsity.mode](sparsity, block)
    places = torch.arange(columns.start, columns.stop)
    diagonal = places - torch.arange(rows.start, rows.stop).unsqueeze(-1)
    hidden = (diagonal < lowest) | (diagonal > highest)
    if sparsity.mode in _PREFIX_MODES:
        hidden = hidden & (places >= _prefix(sparsity, block))
    return hidden.unsqueeze(0)


def _prefix(sparsity: Sparsity, block: Block) -> int:
    if sparsity.prefix is None or len(sparsity.prefix) <= block.batch:
        raise NotCheckable(f"sparse_mode {sparsity.mode} needs a prefix for each batch entry")
    return sparsity.prefix[block.batch]


def _of_batch(mask: Tensor, block: Block) -> Tensor:
    """Return the mask of one batch entry, `(N or 1, S1, S2)`; `(S, S)` serves all of them."""
    if mask.ndim == 2:
        found = mask[: block.rows, : block.columns].unsqueeze(0)
    elif mask.ndim == 4 and mask.shape[0] in (1, block.batches):
        found = mask[block.batch if mask.shape[0] > 1 else 0]
    else:
        found = mask.new_empty(0)
    if tuple(found.shape[1:]) != (block.rows, block.columns):
        raise NotCheckable(
            f"a mask of shape {list(mask.shape)} for {block.rows} x {block.columns} scores"
        )
    return found


def npu_fusion_attention(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return the attention and, not compared, the six other outputs of `npu_fusion_attention`."""
    return (fusion_attention(*args, **kwargs), *_NOT_JUDGED)


def fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str = "BSH",
    *,
    pse: Tensor | None = None,
    pse_type: int = 1,
    drop_mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    prefix: Any = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
) -> Tensor:
    """Return softmax(mask(scale * (query key^T + pse))) value, in the layout of `query`.

    `atten_mask` is true where a score is left out. A query all of whose scores are left out gives
    zeros. Keys may have fewer heads than queries: head n of the query meets head n // group.

    Raises:
        NotCheckable: dropout, compressed position codes, or arguments that do not fit together.
    """
    if keep_prob != 1.0 or drop_mask is not None:
        raise NotCheckable(
            f"its output is random: dropout (keep_prob {keep_prob:g}) draws its mask on the device"
        )
    if padding_mask is not None:
        raise NotCheckable("padding_mask has no published meaning")
    queries = _per_batch(query, head_num, input_layout, actual_seq_qlen)
    width = queries[0].shape[-1]
    heads = _key_heads(key, input_layout, width)
    if head_num % heads:
        raise NotCheckable(f"{head_num} heads of the query do not divide by {heads} of the key")
    keys = _per_batch(key, heads, input_layout, actual_seq_kvlen)
    values = _per_batch(value, heads, input_layout, actual_seq_kvlen)
    sparsity = Sparsity(sparse_mode, pre_tokens, next_tokens, _integers(prefix))
    outputs = []
    for batch, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        block = Block(batch, len(queries), q.shape[1], k.shape[1])
        entry = _Entry(sparsity, atten_mask, block, _shift(pse, block), scale, pse_type == 1)
        outputs.append(entry.attend(q, k, v))
    return _from_batches(outputs, input_layout, query)


def _key_heads(key: Tensor, layout: str, width: int) -> int:
    if layout in _HEADS_IN_HIDDEN:
        return key.shape[-1] // width
    return key.shape[1] if layout in ("BNSD", _PACKED) else key.shape[2]


def _per_batch(tensor: Tensor, heads: int, layout: str, ends: Any) -> list[Tensor]:
    """Return a tensor `(N, S, D)` for each batch entry."""
    if layout == _PACKED:
        lengths = _lengths(_integers(ends), tensor.shape[0])
        starts = itertools.accumulate(lengths, initial=0)
        return [
            tensor[start : start + length].transpose(0, 1)
            for start, length in zip(starts, lengths, strict=False)
        ]
    if layout not in _TO_BNSD:
        known = ", ".join((*_TO_BNSD, _PACKED))
        raise NotCheckable(f"input_layout {layout!r} is unknown; expected one of: {known}")
    hidden = layout in _HEADS_IN_HIDDEN
    apart = tensor.reshape(*tensor.shape[:-1], heads, -1) if hidden else tensor
    if apart.ndim != 4:
        raise NotCheckable(f"a tensor of shape {list(tensor.shape)} is not in layout {layout}")
    return list(apart.permute(_TO_BNSD[layout]).unbind(0))


def _integers(given: Any) -> tuple[int, ...] | None:
    if given is None:
        return None
    return tuple(int(n) for n in (given.tolist() if torch.is_tensor(given) else given))


def _lengths(ends: Sequence[int] | None, total: int) -> list[int]:
    """Return the length of each sequence from where they end; zeros at the end are no sequences."""
    if ends is None:
        raise NotCheckable("layout TND needs actual_seq_qlen and actual_seq_kvlen")
    used = list(ends)
    while used and used[-1] == 0:
        used.pop()
    lengths = [end - start for start, end in itertools.pairwise([0, *used])]
    if not used or min(lengths) < 0 or used[-1] > total:
        raise NotCheckable(
            f"actual_seq_qlen or actual_seq_kvlen {list(ends)[:8]} does not rise up to {total}"
        )
    return lengths


def _shift(pse: Tensor | None, block: Block) -> Tensor | None:
    """Return the position code of one batch entry, `(N or 1, S1 or 1, S2)`."""
    if pse is None:
        return None
    rows = pse.shape[-2]
    if pse.ndim != 4 or rows not in (1, block.rows) or pse.shape[-1] < block.columns:
        raise NotCheckable(
            f"a position code of shape {list(pse.shape)} for {block.rows} x {block.columns} scores"
            " (compressed ones are not supported)"
        )
    return pse[block.batch if pse.shape[0] > 1 else 0, ..., : block.columns]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One batch entry: the scores that are left out, and the changes to the others."""

    sparsity: Sparsity
    mask: Tensor | None
    block: Block
    shift: Tensor | None
    scale: float
    shift_first: bool

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention of all heads, `(N1, S1, D)`; in parts where it is large."""
        group, rows, columns = query.shape[0] // key.shape[0], self.block.rows, self.block.columns
        step = max(1, _SCORES_OF_A_PART // max(1, group * columns))
        is_large = len(query) * rows * columns > _MOST_SCORES and torch.is_grad_enabled()
        heads = []
        for number, (of_key, of_value) in enumerate(zip(key, value, strict=True)):
            first = number * group
            parts = []
            for start in range(0, max(1, rows), step):
                queries = query[first : first + group, start : start + step]
                arguments = (queries, of_key, of_value, first, start)
                # Scores are made again for the gradient, so that those of one part are held.
                parts.append(
                    checkpoint(
                        self._part, *arguments, use_reentrant=False, preserve_rng_state=False
                    )
                    if is_large
                    else self._part(*arguments)
                )
            heads.append(torch.cat(parts, 1))
        return torch.cat(heads)

    def _part(self, query: Tensor, key: Tensor, value: Tensor, head: int, start: int) -> Tensor:
        """Return the attention of queries from a head and a row on, which share a key head."""
        rows = range(start, start + query.shape[1])
        columns = seen_columns(self.sparsity, self.mask, self.block, rows)
        key, value = key[columns.start : columns.stop], value[columns.start : columns.stop]
        scores = (query * self.scale) @ key.transpose(-1, -2)
        if self.shift is not None:
            shift = _cut(self.shift, head, start, query)[..., columns.start : columns.stop]
            scores = scores + (shift * self.scale if self.shift_first else shift)
        hidden = hidden_scores(self.sparsity, self.mask, self.block, rows, columns)
        if hidden is None:
            return torch.softmax(scores, -1) @ value
        hidden = _cut(hidden, head, 0, query)
        blind = hidden.all(-1, keepdim=True)
        # Of a row without a score softmax makes NaN; its gradient ends where the scores are masked.
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
        return (weights.masked_fill(blind, 0.0) if blind.any() else weights) @ value


def _cut(tensor: Tensor, head: int, start: int, query: Tensor) -> Tensor:
    """Return the part of `(N or 1, S1 or 1, S2)` that belongs to queries from a head and a row on."""
    heads, rows = query.shape[:2]
    tensor = tensor[head : head + heads] if tensor.shape[0] > 1 else tensor
    return tensor[:, start : start + rows] if tensor.shape[1] > 1 else tensor


def _from_batches(outputs: list[Tensor], layout: str, query: Tensor) -> Tensor:
    """Return the outputs `(N, S, D)` of all batch entries in the query's layout."""
    if layout == _PACKED:
        packed = torch.cat([part.transpose(0, 1) for part in outputs])
        rest = query.shape[0] - packed.shape[0]
        return torch.cat([packed, packed.new_zeros(rest, *packed.shape[1:])]) if rest else packed
    order = _TO_BNSD[layout]
    apart = torch.stack(outputs).permute([order.index(axis) for axis in range(4)])
    return apart.flatten(-2) if layout in _HEADS_IN_HIDDEN else apart
