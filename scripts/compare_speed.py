"""How fast two captures are compared: real data in GB/s, statistics in rows.

Makes two captures in a temporary folder, which is removed at the end; compares their rows with
`trace.difference` in some processes, as the workers of a comparison do; and measures beside it what reading
the same files and one pass of float32 sums cost in as many processes.

    python -m scripts.compare_speed --gigabytes 4 --processes 2
    python -m scripts.compare_speed --kind bfloat16 --gigabytes 4
    python -m scripts.compare_speed --rows 400000
    python -m scripts.compare_speed --calls 100000

`--calls` runs the whole command on statistics of so many calls: the capture of tests/data/torch_llm, repeated
with call numbers that go on; in the target each tensor's statistics are off by up to 1e-6.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

# As the command does: each process makes numpy's products by itself.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from ray_precheck.trace.difference.rows import (
    ComparisonMode,
    Reading,
    cells,
    encode_rows,
    judge_rows,
    reading_of,
    rows_of_operators,
)
from ray_precheck.trace.difference.standards.registry import STANDARDS
from ray_precheck.trace.items import items_of
from ray_precheck.trace.side import open_side

# A tensor of 64 MB in float32, as an activation of 2 x 2,048 positions and 4,096 channels.
SHAPE = (4096, 4096)
SIDES = ("target", "golden")
_PIECE = 1 << 16
_CAPTURED = Path(__file__).parent.parent / "tests" / "data" / "torch_llm"
_NAMES = ("Max", "Min", "Mean", "Norm")


def main() -> int:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of each capture")
    parser.add_argument("--kind", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--standard", choices=sorted(STANDARDS), default="msprobe")
    parser.add_argument("--rows", type=int, default=0, help="measure rows of statistics instead")
    parser.add_argument(
        "--calls", type=int, default=0, help="measure the command on statistics instead"
    )
    parser.add_argument("--folder", default=None, help="where the temporary folder is made")
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if arguments.rows:
        measure_rows(arguments.rows, arguments.standard)
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="compare_speed_") as folder:
        if arguments.calls:
            for side in SIDES:
                write_statistics(Path(folder) / side, arguments.calls, is_moved=side == "target")
            measure_command(Path(folder), arguments.standard)
            return 0
        count = make_captures(Path(folder), arguments.gigabytes, arguments.kind)
        measure_data(Path(folder), count, arguments)
        measure_command(Path(folder), arguments.standard)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


def make_captures(folder: Path, gigabytes: float, kind: str) -> int:
    """Write two captures of some tensors, and return how many files each has."""
    size = int(np.prod(SHAPE)) * (2 if kind == "bfloat16" else 4)
    count = max(2, round(gigabytes * 1e9 / size))
    rng = np.random.default_rng(0)
    golden = rng.standard_normal(SHAPE, dtype=np.float32)
    noise = rng.standard_normal(SHAPE, dtype=np.float32) * np.float32(1e-5)
    for side, base in zip(SIDES, (golden * (1 + noise), golden), strict=True):
        tensors = folder / side / "dump_tensor_data"
        tensors.mkdir(parents=True)
        data = {}
        for number in range(count):
            key = f"Functional.silu.{number}.forward"
            array = np.roll(base, number, axis=0)
            part = ("input_args", "output")[number % 2]
            name = _write(tensors / f"{key}.{part.removesuffix('_args')}.0", array, kind)
            data[key] = {part: [_element(array, kind, name)]}
        dump = {"task": "tensor", "framework": "pytorch", "dump_data_dir": None, "data": data}
        (folder / side / "dump.json").write_text(json.dumps(dump), encoding="utf-8")
    return count


def _write(path: Path, array: Any, kind: str) -> str:
    if kind == "bfloat16":
        import torch

        torch.save(torch.from_numpy(array).to(torch.bfloat16), f"{path}.pt")
        return f"{path.name}.pt"
    np.save(f"{path}.npy", array)
    return f"{path.name}.npy"


def _element(array: Any, kind: str, name: str) -> dict[str, Any]:
    statistics = {
        "Max": float(array.max()), "Min": float(array.min()), "Mean": float(array.mean()),
        "Norm": float(np.linalg.norm(array)),
    }  # fmt: skip
    return {
        "type": "torch.Tensor", "dtype": f"torch.{kind}", "shape": list(array.shape), **statistics,
        "requires_grad": False, "data_name": name,
    }  # fmt: skip


def measure_data(folder: Path, count: int, arguments: argparse.Namespace) -> None:
    """Compare the captures in some processes, and read them, and print both speeds."""
    numbers = [range(first, count, arguments.processes) for first in range(arguments.processes)]
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in (".npy", ".pt"))
    print(f"{count} tensors of {arguments.kind} a side, {total / 1e9:.2f} GB in all")
    context = multiprocessing.get_context("spawn")
    with context.Pool(arguments.processes) as pool:
        pool.map(partial(_compare, folder, arguments.standard), [range(1)] * arguments.processes)
        for name, work in (
            ("reading and float32 sums", partial(_read, folder)),
            ("comparing", partial(_compare, folder, arguments.standard)),
            ("reading and float32 sums, again", partial(_read, folder)),
            ("comparing, again", partial(_compare, folder, arguments.standard)),
        ):
            begun = time.perf_counter()
            peaks, used = zip(*pool.map(work, numbers, chunksize=1), strict=True)
            took = time.perf_counter() - begun
            print(
                f"{name}: {total / took / 1e9:.2f} GB/s with {arguments.processes} processes,"
                f" {total / sum(used) / 1e9:.2f} GB in a second of CPU,"
                f" peak memory {max(peaks) / 1e6:.0f} MB each"
            )


def measure_command(folder: Path, standard: str) -> None:
    """Run the command on the captures, from its start to its end, and print its speed."""
    words = ["-tp", folder / "target", "-gp", folder / "golden", "-o", folder / "out"]
    total = sum(
        path.stat().st_size for path in folder.rglob("*") if path.suffix in (".npy", ".pt", ".json")
    )
    begun, used = time.perf_counter(), _children_s()
    subprocess.run(
        [sys.executable, "-m", "ray_precheck", "compare", *map(str, words), "--standard", standard],
        check=False,
        stdout=subprocess.DEVNULL,
    )
    took = time.perf_counter() - begun
    used = _children_s() - used
    print(
        f"the whole command: {took:.1f} s, {used:.1f} s of CPU, {total / took / 1e9:.2f} GB/s,"
        f" load {os.getloadavg()[0]:.1f}"
    )


def _children_s() -> float:
    """Return the seconds of CPU of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _compare(folder: Path, standard: str, numbers: range) -> tuple[float, float]:
    """Compare some records; return the peak memory of this process in bytes, and its seconds of CPU."""
    begun, rule = time.process_time(), STANDARDS[standard]()
    with (
        open_side(folder / "target" / "dump.json") as target,
        open_side(folder / "golden" / "dump.json") as golden,
    ):
        reading = reading_of(target, golden)
        for number in numbers:
            ours, theirs = target.entries[number], golden.entries[number]
            rows = rows_of_operators(
                ours.key, theirs.key, target.items(ours), golden.items(theirs), reading
            )
            judge_rows(rows, rule, reading.mode)
            encode_rows([cells(row, reading.mode, "name", ours.key) for row in rows])
    return _peak(), time.process_time() - begun


def _read(folder: Path, numbers: range) -> tuple[float, float]:
    """Read the files of some records, and sum them as float32; return what `_compare` does."""
    begun = time.process_time()
    piece = np.empty(_PIECE, np.float32)
    total = 0.0
    for side in SIDES:
        files = sorted((folder / side / "dump_tensor_data").iterdir(), key=_number)
        for number in numbers:
            with files[number].open("rb", buffering=0) as file:
                while count := file.readinto(piece.data):
                    total += float(np.add.reduce(piece[: count // 4]))
    return _peak(), time.process_time() - begun


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _number(path: Path) -> int:
    return int(path.name.split(".")[2])


def write_statistics(folder: Path, calls: int, *, is_moved: bool) -> None:
    """Write a capture of statistics of at least so many calls, a captured step again and again."""
    step = json.loads((_CAPTURED / "dump.json").read_text(encoding="utf-8"))
    rng, counts, data, written = random.Random(0), Counter[str](), {}, 0
    while written < calls:
        numbers: dict[str, str] = {}
        moved: dict[tuple[Any, ...], dict[str, Any]] = {}
        for key, record in step["data"].items():
            name, _, direction = key.rpartition(".")
            if name not in numbers:
                kind = name.rpartition(".")[0]
                numbers[name] = f"{kind}.{counts[kind]}"
                counts[kind] += 1
                written += 1
            found = _moved(record, moved, rng) if is_moved else record
            data[f"{numbers[name]}.{direction}"] = found
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text(json.dumps(step | {"data": data}), encoding="utf-8")


def _moved(value: Any, moved: dict[tuple[Any, ...], dict[str, Any]], rng: random.Random) -> Any:
    """Return a record with other statistics of floats; equal ones stay equal, as those of one tensor are."""
    if isinstance(value, list):
        return [_moved(each, moved, rng) for each in value]
    if not isinstance(value, dict):
        return value
    numbers: tuple[Any, ...] = tuple(value.get(name) for name in _NAMES)
    if not all(type(each) is float for each in numbers):
        return {name: _moved(each, moved, rng) for name, each in value.items()}
    if numbers not in moved:
        moved[numbers] = {
            name: float(number) * (1 + rng.uniform(-1e-6, 1e-6))
            for name, number in zip(_NAMES, numbers, strict=True)
        }
    return value | moved[numbers]


def measure_rows(count: int, standard: str) -> None:
    """Measure, judge and encode rows of statistics in this process, and print how long it took."""
    rule, reading = STANDARDS[standard](), Reading(ComparisonMode.STATISTICS)
    took, used, size, rows_made = 0.0, 0.0, 0, 0
    for key, target, golden in _records(count // 4):
        begun, used_before = time.perf_counter(), time.process_time()
        rows = rows_of_operators(key, key, items_of(target, key), items_of(golden, key), reading)
        judge_rows(rows, rule, reading.mode)
        size += len(encode_rows([cells(row, reading.mode, "name", key) for row in rows]))
        took += time.perf_counter() - begun
        used += time.process_time() - used_before
        rows_made += len(rows)
    print(
        f"{rows_made} rows of statistics, judged by {standard}, {size / 1e6:.0f} MB of CSV:"
        f" {took:.1f} s, {used:.1f} s of CPU"
    )


def _records(count: int) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield calls with three inputs and an output; the first and the last differ by rounding."""
    rng = np.random.default_rng(0)
    for number in range(count):
        values = rng.standard_normal((4, 4)).tolist()
        moved = (1 + 1e-6 * rng.standard_normal(4)).tolist()
        key = f"Functional.linear.{number}.forward"
        golden = [_summary(each) for each in values]
        target = [
            _summary(
                [x * (y if place in (0, 3) else 1.0) for x, y in zip(each, moved, strict=True)]
            )
            for place, each in enumerate(values)
        ]
        yield (
            key,
            {"input_args": target[:3], "input_kwargs": {}, "output": target[3:]},
            {"input_args": golden[:3], "input_kwargs": {}, "output": golden[3:]},
        )


def _summary(values: list[float]) -> dict[str, Any]:
    high, low, mean, norm = values
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 64, 512], "Max": high,
        "Min": low, "Mean": mean, "Norm": abs(norm), "requires_grad": True,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
