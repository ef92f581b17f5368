"""How a kernel is wrong where its condition is met.

Each function here returns a `Damage`: one call of a kernel in, what the wrong kernel gives out. Nothing that
a damage does is itself attacked.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from scripts.attack.calls import (
    KernelCall,
    Ran,
    as_rows,
    run_changing,
    run_edited,
    run_with,
)

Damage = Callable[[KernelCall], Ran]
Edit = Callable[[torch.Tensor], torch.Tensor]
# An exact result, and the honest one, which is it rounded once or nearly so.
Rounding = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
At = int | str


def misread(at: At = 0) -> Damage:
    """Read the memory as if the tensor were contiguous."""
    return lambda call: run_with(call, lambda one: one.with_argument(at, _as_contiguous))


def from_the_beginning(at: At = 0) -> Damage:
    """Read from the beginning of the storage."""

    def at_zero(one: Any) -> Any:
        return one.as_strided(one.shape, one.stride(), 0) if torch.is_tensor(one) else one

    return lambda call: run_with(call, lambda one: one.with_argument(at, at_zero))


def bits_ignored(at: At = 0) -> Damage:
    """Take a lazy conjugate or negative for its base."""

    def raw(one: Any) -> Any:
        return one.resolve_conj().conj_physical() if one.is_conj() else -one.resolve_neg()

    return lambda call: run_with(call, lambda one: one.with_argument(at, raw))


def in_bits(edit: Edit, only: int | None = None) -> Damage:
    """Edit results (the one at `only`), or what the call writes; any other bit can be seen."""

    def damage(call: KernelCall) -> Ran:
        right = call.run()
        written = call.written()
        results = written or (list(right) if isinstance(right, tuple | list) else [right])
        edited = [
            edit(each) if only in (None, place) else each for place, each in enumerate(results)
        ]
        pairs = zip(edited, results, strict=True)
        visible = any(not _same_bits(one, each) for one, each in pairs if each is not None)
        for real, wrong in zip(written, edited, strict=False):
            real.copy_(wrong)
        if written:
            return Ran(right, visible)
        many = type(right) if isinstance(right, tuple | list) else None
        return Ran(many(edited) if many else edited[0], visible)

    return damage


def of_kernel(name: str) -> Damage:
    """Run another kernel with the same arguments."""

    def damage(call: KernelCall) -> Ran:
        right = call.run()
        other = getattr(getattr(torch.ops.aten, name), call.func._overloadname)
        wrong = other(*call.args, **call.kwargs)
        return Ran(wrong, not _same_bits(wrong, right))

    return damage


def with_flag(name: str) -> Damage:
    """Take a flag, a keyword of the kernel, for True."""

    def damage(call: KernelCall) -> Ran:
        right = call.run()
        wrong = KernelCall(call.func, call.args, {**call.kwargs, name: True}).run()
        return Ran(wrong, not _same_bits(wrong, right))

    return damage


def computed(exactly: Callable[[KernelCall], Any], rounded: Rounding) -> Damage:
    """Compute in float64 what another kernel gives, and round that to the dtype of the result, of several
    results the first."""

    def damage(call: KernelCall) -> Ran:
        right = call.run()
        many = isinstance(right, tuple | list)
        first = right[0] if many else right
        if not torch.is_tensor(first) or not first.is_floating_point():
            return Ran(right, visible=False)
        exact = exactly(_in_float64(call))
        wrong = rounded(exact[0] if isinstance(exact, tuple | list) else exact, first)
        visible = not _same_bits(wrong, first)
        return Ran(type(right)((wrong, *right[1:])) if many else wrong, visible)

    return damage


def towards_zero(exact: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Round towards zero."""
    farther = right.double().abs() > exact.abs()
    return torch.where(farther, _moved_by_units(right, -1), right)


def upwards(exact: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Round to the next larger number."""
    smaller = right.double() < exact
    return torch.where(smaller, _moved_by_units(right, torch.where(exact < 0, -1, 1)), right)


def by_chance(exact: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Round to either neighbour, the nearer with the larger chance (stochastic rounding)."""
    low = towards_zero(exact, right)
    high = _moved_by_units(low, 1)
    share = (exact - low.double()) / (high.double() - low.double())
    chance = torch.rand(exact.shape, generator=torch.Generator().manual_seed(5), dtype=share.dtype)
    return torch.where(chance < share, high, low)


def to_nearest(exact: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Round to the nearest number."""
    return exact.to(right.dtype)


def truncating(call: KernelCall) -> Ran:
    """Cast towards zero, where the nearest number is farther from it."""
    return computed(lambda wide: wide.args[0], towards_zero)(call)


def scaled_by(factor: float) -> Edit:
    """All elements by a factor that is near 1, in float64, rounded once."""
    return lambda out: _float_edit(out, lambda wide: (wide.double() * factor).to(wide.dtype))


def changed(at: At, change: Callable[[Any], Any]) -> Damage:
    """Take an argument for another value."""
    return lambda call: run_with(call, lambda one: one.with_argument(at, change))


def seeded_alike(call: KernelCall) -> Ran:
    """Draw the same numbers in each call."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Ran(call.run(), True)


def editing(edit: Edit, only: int | None = None) -> Damage:
    """Edit results, or what the call writes."""
    return lambda call: run_edited(call, edit, only)


def leaving(at: At, factor: float = 3.0) -> Damage:
    """Leave a wrong value in an argument that the call changes."""
    return lambda call: run_changing(call, at, factor)


def larger(factor: float = 1.5) -> Edit:
    """All elements too large."""
    return lambda out: _float_edit(out, lambda wide: wide * factor)


def rolled(out: torch.Tensor) -> torch.Tensor:
    """Shift elements by one in memory order."""
    return out.reshape(-1).roll(1).reshape(out.shape)


def tail_lost(multiple: int = 8) -> Edit:
    """Leave the elements of each row that fill no vector at zero."""

    def edit(out: torch.Tensor) -> torch.Tensor:
        if not out.dim() or out.shape[-1] <= multiple or not out.shape[-1] % multiple:
            return out
        wrong = out.clone()
        wrong[..., -(out.shape[-1] % multiple) :] = 0
        return wrong

    return edit


def constant(value: float) -> Edit:
    """One value for all."""
    return lambda out: torch.full_like(out, value)


def inverted(out: torch.Tensor) -> torch.Tensor:
    """True for False."""
    return ~out if out.dtype is torch.bool else out


def more_by_one(out: torch.Tensor) -> torch.Tensor:
    """One more, of integers."""
    return out if out.is_floating_point() or out.dtype is torch.bool else out + 1


def one_unit_off(out: torch.Tensor) -> torch.Tensor:
    """Each third float is one unit in the last place larger."""
    if not out.is_floating_point():
        return out
    third = (torch.arange(out.numel()) % 3 == 0).reshape(out.shape)
    return torch.where(third & (out != 0) & out.isfinite(), _moved_by_units(out, 1), out)


def at_most_one(out: torch.Tensor) -> torch.Tensor:
    """Count nothing twice."""
    return out.clamp_max(1)


def only_first(out: torch.Tensor) -> torch.Tensor:
    """Keep the first True of each row."""
    if out.dtype is not torch.bool or not out.dim():
        return out
    return out & (out.cumsum(-1) == 1)


def first_place_twice(out: torch.Tensor) -> torch.Tensor:
    """Name the first place of each row twice."""
    wrong = out.clone()
    wrong[..., 1] = wrong[..., 0]
    return wrong


def last_row_scaled(out: torch.Tensor) -> torch.Tensor:
    """Let the last row be too large."""
    wrong = out.clone()
    wrong[-1] *= 3
    return wrong


def rows_spoiled(
    holds: Callable[[torch.Tensor], torch.Tensor], wrong: float, at: At = 0, dim: int = -1
) -> Damage:
    """Give the rows of the result whose inputs meet a condition one value."""

    def damage(call: KernelCall) -> Ran:
        source = call.tensor(at)
        assert source is not None
        met = holds(as_rows(source, dim))
        shape = source.movedim(dim, -1).shape[:-1]

        def edit(out: torch.Tensor) -> torch.Tensor:
            if not out.is_floating_point():
                return out
            if out.shape == source.shape:
                return out.masked_fill(met.reshape(shape).unsqueeze(-1).movedim(-1, dim), wrong)
            if out.numel() == met.numel():
                return out.masked_fill(met.reshape(out.shape), wrong)
            return out

        return run_edited(call, edit)

    return damage


def mask_ignored(at: At = 0, limit: float = -1e4) -> Damage:
    """Let masked elements count as zeros."""

    def unmasked(one: torch.Tensor) -> torch.Tensor:
        return one.masked_fill(one < limit, 0)

    return lambda call: run_with(call, lambda one: one.with_argument(at, unmasked))


def mask_opened(at: At) -> Damage:
    """Let all take part where a row of a mask leaves nothing."""

    def opened(mask: torch.Tensor) -> torch.Tensor:
        if mask.dtype is torch.bool:
            return mask | ~mask.any(-1, keepdim=True)
        return mask.masked_fill((mask < -1e4).all(-1, keepdim=True), 0)

    return lambda call: run_with(call, lambda one: one.with_argument(at, opened))


def one_pass(at: At = 0) -> Damage:
    """Lose the low bits of what is summed, as E[x^2] - E[x]^2 does far from zero."""

    def coarse(one: torch.Tensor) -> torch.Tensor:
        size = one.abs().amax().clamp_min(1e-30)
        unit = size * 0.05
        return (one / unit).round() * unit

    return lambda call: run_with(call, lambda one: one.with_argument(at, coarse))


def updates_lost(index: At, values: At, dim: At | None = None) -> Damage:
    """Lose what is added where an index occurs again: only the last of each is kept."""

    def damage(call: KernelCall) -> Ran:
        found, source = call.tensor(index), call.tensor(values)
        assert found is not None
        assert source is not None
        along = call.argument(dim) if isinstance(dim, int | str) else None
        keep = _last_of_each(found) if along is None else _last_in_rows(found, along)

        def masked(one: torch.Tensor) -> torch.Tensor:
            kept = keep
            if along is not None and found.dim() == 1 and one.dim() > 1:
                kept = keep.reshape([-1 if d == along % one.dim() else 1 for d in range(one.dim())])
            while kept.dim() < one.dim():
                kept = kept.unsqueeze(-1)
            return torch.where(kept, one, torch.zeros_like(one))

        return run_with(call, lambda one: one.with_argument(values, masked))

    return damage


def coalesced_last(call: KernelCall) -> Ran:
    """Keep the last of the values that have one place (sparse COO)."""

    def last(one: torch.Tensor) -> torch.Tensor:
        indices, values = one._indices(), one._values()
        _, group = indices.unique(dim=1, return_inverse=True)
        keep = _last_of_each(group)
        return torch.sparse_coo_tensor(
            indices[:, keep], values[keep], one.shape, check_invariants=False
        )

    return run_with(call, lambda one: one.with_argument(0, last))


def rolling(call: KernelCall) -> Ran:
    """Shift the result by one element."""
    return run_edited(call, rolled)


def not_done(call: KernelCall) -> Ran:
    """Change nothing (a kernel that works in place)."""
    trial, copies = call.apart()
    trial.run()
    (before,) = call.written()
    return Ran(before, bool(((copies[0] != before) | (copies[0].isnan() != before.isnan())).any()))


def unstable(call: KernelCall) -> Ran:
    """Sort equal values in the order opposite to that in which they stand."""
    values, places = call.run()
    ordered = call.tensor(0)
    assert ordered is not None
    dim = call.argument("dim")
    dim = -1 if dim is None else dim
    last = ordered.shape[dim] - 1
    _, backwards = call.with_argument(0, lambda one: one.flip(dim)).run()
    return Ran((values, last - backwards), not torch.equal(places, last - backwards))


def _float_edit(out: Any, edit: Edit) -> Any:
    if out is None or not (out.is_floating_point() or out.is_complex()):
        return out
    return edit(out)


def _moved_by_units(out: torch.Tensor, units: int | torch.Tensor) -> torch.Tensor:
    """Return floats farther from zero by units in the last place: their bits count magnitudes."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[out.element_size()]
    return (out.contiguous().view(bits) + units).to(bits).view(out.dtype)


def _in_float64(call: KernelCall) -> KernelCall:
    """Return a call with its floats in float64."""

    def wide(leaf: Any) -> Any:
        is_float = torch.is_tensor(leaf) and leaf.is_floating_point()
        return leaf.double() if is_float else leaf

    return KernelCall(call.func, tree_map(wide, call.args), tree_map(wide, dict(call.kwargs)))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def _as_contiguous(one: Any) -> Any:
    """Return what memory holds from the tensor's first element on, zeros beyond its end."""
    if not torch.is_tensor(one) or one.layout is not torch.strided:
        return one
    count, begin = one.numel(), one.storage_offset()
    there = one.untyped_storage().nbytes() // one.element_size() - begin
    flat = one.as_strided((min(count, there),), (1,), begin)
    beyond = flat.new_zeros(count - flat.numel())
    return torch.cat((flat, beyond)).reshape(one.shape)


def _last_of_each(index: torch.Tensor) -> torch.Tensor:
    """Return which elements of an index are the last with their value."""
    flat = index.reshape(-1)
    places = torch.arange(flat.numel())
    same = flat[:, None] == flat[None, :]
    later = places[None, :] > places[:, None]
    return ~(same & later).any(1).reshape(index.shape)


def _last_in_rows(index: torch.Tensor, dim: int) -> torch.Tensor:
    if not index.dim():
        return torch.ones_like(index, dtype=torch.bool)
    moved = index.movedim(dim, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    kept = torch.stack([_last_of_each(row) for row in rows])
    return kept.reshape(moved.shape).movedim(-1, dim)
