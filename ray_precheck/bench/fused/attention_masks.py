"""The sparse modes of fused attention: the scores that each of them leaves out.

Comes in: a sparse mode with its numbers, the mask of the call, and one batch entry. Goes out: a
mask, true where a score is left out. Called by `attention`.

Modes 0 to 8: Ascend/op-plugin, docs/context/torch_npu-npu_fusion_attention.md, sparse_mode and its
figures. Modes 2 to 4, 6, 7 and 8 come with a compressed mask of a fixed content, 2048 x 2048 (mode 6:
3072 x 2048), which follows from the mode, so it is not read.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ray_precheck.errors import NotCheckable

Tensor = torch.Tensor
# The number for "no limit" in pre_tokens and next_tokens.
UNBOUNDED = 2147483647
_COMPRESSED = {(2048, 2048), (3072, 2048)}
_PREFIX_MODES = (5, 6)


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


# The lowest and the highest diagonal (column minus row) that are computed.
_Band = tuple[int, int]


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
