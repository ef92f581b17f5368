"""Make two runs of many ranks, of which one rank has a fault, to measure how long `locate` takes.

    python -m scripts.speed.locate_scale FOLDER [--ranks N] [--calls N] [--variants N]
    ray-precheck locate -tp FOLDER/target -gp FOLDER/golden -o OUT

Comes in: a folder. Goes out: captures of statistics in `FOLDER/target` and `FOLDER/golden`; place 1 must be
`faulty_call` in rank `faulty_rank`. The same arguments give the same bytes.

A rank is a chain of layers (linear, gelu, linear, add, layer_norm); every 20 layers the ranks add up what
they have, as data-parallel training does. Honest rounding moves each statistic of each operator by some
1e-7. In the target one linear call of one rank gives 1 % too much: all that follows in that rank differs,
and, from the next sum on, a thousandth in every rank. Of the other ranks `--variants` have statistics
of their own; the rest are hard links to them, which spares the disk and not the search.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.schema.dtypes import Array

RANKS, CALLS, VARIANTS = 1000, 10_000, 32
# The operators of a layer. After so many layers there is one call that adds up over the ranks.
LAYER = ("linear", "gelu", "linear", "add", "layer_norm")
LAYERS_OF_A_SUM = 20
ROUNDING, FAULT, SPREAD = 2e-7, 1e-2, 1e-3
SHAPE = [8, 1024]
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_MEAN = 2


def main() -> None:
    """Make the captures that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--variants", type=int, default=VARIANTS)
    given = parser.parse_args()
    make_runs(given.folder, given.ranks, given.calls, given.variants)


def operators(calls: int) -> list[str]:
    """Return the operator of each call."""
    block = [*LAYER * LAYERS_OF_A_SUM, "all_reduce"]
    return [block[number % len(block)] for number in range(calls)]


def faulty_call(calls: int) -> int:
    """Return the call with the fault: a linear one after two fifths of the run, in a later layer."""
    named = operators(calls)
    return next(number for number in range(2 * calls // 5, calls) if named[number] == "linear")


def faulty_rank(ranks: int) -> int:
    """Return the rank with the fault, which is neither the first nor the last one."""
    return min(17, ranks // 2)


def make_runs(folder: Path, ranks: int, calls: int, variants: int) -> None:
    """Write the captures of both runs."""
    variants = min(variants, ranks - 1)
    others = [rank for rank in range(ranks) if rank != faulty_rank(ranks)]
    for side in ("golden", "target"):
        values = _values(side, calls, variants, np.bincount(np.arange(ranks - 1) % variants))
        for number in range(variants):
            mine = others[number::variants]
            first = _dump_of(folder, side, mine[0])
            _write(first, values[number], calls, ranks)
            for rank in mine[1:]:
                path = _dump_of(folder, side, rank)
                path.unlink(missing_ok=True)
                os.link(first, path)
        _write(_dump_of(folder, side, faulty_rank(ranks)), values[variants], calls, ranks)


def _dump_of(folder: Path, side: str, rank: int) -> Path:
    path = folder / side / "step0" / f"rank{rank}" / "dump.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _values(side: str, calls: int, variants: int, counts: Array) -> Array:
    """Return the statistics of what each call gives, `(variants + 1, calls, 4)` float64; the last variant
    is the rank with the fault, `counts` are the ranks of the others."""
    draw = np.random.default_rng(7)
    base = np.abs(draw.normal(size=(variants + 1, calls, 4))) + 0.5
    base[..., 0] += 2.0
    base[..., 1] *= -1.0
    base[..., _MEAN] *= 0.05
    base[..., 3] = 90.0 + 5.0 * base[..., 3]
    noise = np.random.default_rng(1 if side == "golden" else 2)
    found = base * (1.0 + ROUNDING * noise.normal(size=base.shape))
    sums = [number for number, name in enumerate(operators(calls)) if name == "all_reduce"]
    if side == "target":
        at = faulty_call(calls)
        spread = next((number for number in sums if number > at), calls)
        moved = draw.normal(size=base.shape) * 0.2 + 1.0
        found[-1, at:spread] *= 1.0 + FAULT * moved[-1, at:spread]
        found[:, spread:] *= 1.0 + SPREAD * moved[:, spread:]
    weights = np.array([*counts, 1.0])
    for number in sums:
        found[:, number] = found[0, number]
        found[:, number, _MEAN] = weights @ found[:, number - 1, _MEAN]
    return found.astype(np.float32).astype(np.float64)


def _write(path: Path, given: Array, calls: int, ranks: int) -> None:
    """Write the dump of one rank; `given` are the statistics of what each call gives, `(calls, 4)`."""
    group = {"type": "torch.ProcessGroup", "group_ranks": list(range(ranks)), "group_id": "f1"}
    path.unlink(missing_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.write('{\n "task": "statistics",\n "level": "L1",\n "framework": "pytorch",\n')
        file.write(' "dump_data_dir": null,\n "data": {\n')
        for number, (key, record) in enumerate(_records(given, calls, group)):
            file.write(f'{"," if number else ""}\n  "{key}": {record}')
        file.write("\n }\n}\n")


def _records(given: Array, calls: int, group: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the records of a rank with their keys."""
    numbers: dict[str, int] = {}
    said = [_tensor(row) for row in given.tolist()]
    first = _tensor([3.0, -3.0, 0.01, 90.5])
    in_group = json.dumps(group)
    for at, name in enumerate(operators(calls)):
        last = said[at - 1] if at else first
        number = numbers.get(name, 0)
        numbers[name] = number + 1
        prefix = {"all_reduce": "Distributed", "add": "Torch"}.get(name, "Functional")
        arguments = [last]
        if name == "linear":
            arguments += [_weight(at, [1024, 1024]), _weight(at + calls, [1024])]
        elif name == "add":
            arguments.append(said[at - 4] if at >= 4 else first)
        elif name == "layer_norm":
            size = '{"type": "torch.Size", "value": [1024]}'
            arguments += [size, _weight(at, [1024]), _weight(at + calls, [1024])]
        more = f', "group": {in_group}' if name == "all_reduce" else ""
        yield (
            f"{prefix}.{name}.{number}.forward",
            f'{{"input_args": [{", ".join(arguments)}], "input_kwargs": {{}}, "output": [{said[at]}]{more}}}',
        )


def _weight(seed: int, shape: Sequence[int]) -> str:
    """Return a weight, which is the same in both runs and on all ranks."""
    high = 0.5 + (seed * 0.6180339887) % 0.25
    return _tensor([high, -high * 0.9, high * 1e-3, high * 40.0], shape, "parameter.Parameter")


def _tensor(values: Sequence[float], shape: Sequence[int] = SHAPE, name: str = "Tensor") -> str:
    kind = f"torch.nn.{name}" if "." in name else f"torch.{name}"
    numbers = ", ".join(
        f'"{word}": {value!r}' for word, value in zip(_STATISTICS, values, strict=True)
    )
    return (
        f'{{"type": "{kind}", "dtype": "torch.float32", "shape": {list(shape)}, {numbers},'
        ' "requires_grad": true}'
    )


if __name__ == "__main__":
    main()
