"""The comparison of two files of JSON lines that hooks have written (torch_npu.hooks, `ray_precheck.hooks`).

Comes in: two files, `["0_Functional_linear_forward_input.0", values, "torch.float32", [2, 2]]` on each line.
Goes out: a CSV with the headings of that tool's guide. Called by `hooks.tools`. Each file is read twice: once
for its calls, which are aligned as those of captures are, and once for the values of each pair, so that
memory holds two lines and not two files. What only one file has keeps its row.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ray_precheck.errors import UsageError
from ray_precheck.formats.hook_files import LineCall, LineTensor, calls_of_lines, open_lines
from ray_precheck.numerics.arrays import same_values
from ray_precheck.schema.dtypes import Array
from ray_precheck.store.tables import encode_row
from ray_precheck.trace.alignment.align import Match, align
from ray_precheck.trace.alignment.calls import Call
from ray_precheck.trace.side import API

HEADINGS = (
    "Name",
    "Npu Tensor Dtype",
    "Bench Tensor Dtype",
    "Npu Tensor Shape",
    "Bench Tensor Shape",
    "Cosine",
    "RMSE",
    "MAPE",
)


def compare_lines(npu: Path, bench: Path, out: Path, *, same_shapes: bool = False) -> None:
    """Compare two files of lines and write the CSV.

    Cosine is that of both vectors, empty where one is zero; RMSE is the root of the mean squared difference,
    MAPE the mean of |n - b| / |b| over the values whose b is not zero, as a fraction. Values that are NaN
    or the same infinity on both sides are left out; where they are so on one side alone all three are nan.
    With `same_shapes` tensors of other shapes have no numbers; without it they have some if they hold as many
    values.

    Raises:
        UsageError: a file cannot be read or written, or a line is none of a hook's.
    """
    with open_lines(npu) as one, open_lines(bench) as two:
        ours = [call for call, _ in calls_of_lines(one, npu)]
        theirs = [call for call, _ in calls_of_lines(two, bench)]
        matches = align([_aligned(call) for call in ours], [_aligned(call) for call in theirs])
        try:
            with out.open("wb") as file:
                file.write(encode_row(HEADINGS))
                for own, other in _pairs(matches, ours, theirs):
                    file.write(encode_row(_row(own, other, one, two, same_shapes)))
        except OSError as error:
            raise UsageError(f"cannot write {out}: {error.strerror}") from None


def _aligned(call: LineCall) -> Call:
    """Return a call as the alignment sees it."""
    inputs = tuple(each.shape for each in call.tensors if each.part.startswith("input"))
    outputs = tuple(each.shape for each in call.tensors if each.part.startswith("output"))
    return Call(call.name, API, call.name, call.name, inputs, outputs, (), (call.norm,))


_Pair = tuple[LineTensor | None, LineTensor | None]


def _pairs(
    matches: Sequence[Match], ours: Sequence[LineCall], theirs: Sequence[LineCall]
) -> Iterator[_Pair]:
    """Yield each tensor of both files once, with its partner."""
    for match in matches:
        own = [tensor for place in match.target for tensor in ours[place].tensors]
        other = [tensor for place in match.golden for tensor in theirs[place].tensors]
        taken: set[int] = set()
        for tensor in own:
            found = next(
                (
                    place
                    for place, each in enumerate(other)
                    if place not in taken and each.part == tensor.part
                ),
                None,
            )
            if found is not None:
                taken.add(found)
            yield tensor, None if found is None else other[found]
        yield from ((None, each) for place, each in enumerate(other) if place not in taken)


def _row(
    own: LineTensor | None,
    other: LineTensor | None,
    one: BinaryIO,
    two: BinaryIO,
    same_shapes: bool,
) -> list[str]:
    named = own or other
    assert named is not None, "a pair has at least one side"
    facts = [
        named.name,
        own.dtype if own else "",
        other.dtype if other else "",
        str(list(own.shape)) if own else "",
        str(list(other.shape)) if other else "",
    ]
    if own is None or other is None or (same_shapes and own.shape != other.shape):
        return [*facts, "", "", ""]
    return [*facts, *_numbers(_values(one, own), _values(two, other))]


def _values(file: BinaryIO, tensor: LineTensor) -> Array:
    file.seek(tensor.offset)
    found: list[Any] = json.loads(file.readline())
    return np.asarray(found[1], np.float64)


def _numbers(npu: Array, bench: Array) -> tuple[str, str, str]:
    if npu.shape != bench.shape or not npu.size:
        return "", "", ""
    same = ~np.isfinite(npu) & same_values(npu, bench)
    npu, bench = npu[~same], bench[~same]
    if not (np.isfinite(npu).all() and np.isfinite(bench).all()):
        return "nan", "nan", "nan"
    if not npu.size:
        return "", "", ""
    # Scaled, so that squares of large values do not overflow.
    scale = max(float(np.abs(npu).max()), float(np.abs(bench).max())) or 1.0
    first, second = npu / scale, bench / scale
    norms = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    rmse = float(np.sqrt(np.mean((first - second) ** 2))) * scale
    others = bench != 0
    relative = np.abs((npu[others] - bench[others]) / bench[others])
    cosine = repr(float(first @ second) / norms) if norms else ""
    return cosine, repr(rmse), repr(float(relative.mean())) if relative.size else ""
