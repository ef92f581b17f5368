"""Show how near generated inputs come to the real ones: in the verdict, and in the errors it is made of.

    python -m scripts.inputs [CAPTURE ...] [--dtypes float32 bfloat16] [--seeds 5] [--per-api]
                             [--distributions recorded uniform]

A CAPTURE is a dump.json of a tensor-mode dump with its files beside it; by default those of
tests/data. Each call of it runs on this machine's CPU as the device under test, once with the
captured tensors and then, for each distribution and seed, with tensors that are generated from the
statistics in the same record, forward and backward, and is compared with the float64 bench as in a
run. Where another dtype than the captured one is asked for, the records name that dtype and the
captured tensors are rounded to it.

What is printed for each distribution:

- verdicts: the share of outputs and gradients whose verdict is that of the real inputs, under the
  standard that is named (`--standard`, msprobe by default);
- MaxAbsErr and RMSE: |log2(error with generated / error with real inputs)| of each output, its
  median and 90th percentile. 0 is the same error, 1 twice or half of it. Outputs whose error is 0
  with both (data movement) are left out; 0 with one alone counts in "one is 0", and nowhere else.

Calls that a side cannot run, or whose files the capture does not have, are counted as left out.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.bench.checkable import skip_by_name
from ray_precheck.bench.drawing import is_random
from ray_precheck.check.checker import Checker
from ray_precheck.check.decode import decoded_record
from ray_precheck.check.inputs import make_inputs
from ray_precheck.check.judged import Judged
from ray_precheck.check.options import DISTRIBUTIONS
from ray_precheck.check.settings import CheckSettings
from ray_precheck.descriptors.dtypes import framework_dtype
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.parse import open_dump
from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.inputs.generate import (
    TensorSource,
    generated_tensors,
)
from ray_precheck.numerics.rounding import round_to_dtype
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Task, TaskPayload
from ray_precheck.schema.values import HostTensor, TensorSpec

ROOT = Path(__file__).resolve().parent.parent

DATA = ROOT / "tests" / "data"
CAPTURES = ("mindspore_llm_tensor", "torch_llm_tensor")
CAPTURED_DTYPE = "float32"
METRICS = ("MaxAbsErr", "RMSE")


@dataclass(frozen=True, slots=True)
class Errors:
    """What one output showed: its verdict, and its errors against float64."""

    verdict: Verdict
    values: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Pair:
    """One output with generated inputs beside the same one with the real ones."""

    api: str
    real: Errors
    generated: Errors

    @property
    def same_verdict(self) -> bool:
        return self.real.verdict is self.generated.verdict

    def distance(self, metric: int) -> float:
        """Return |log2| of the ratio of an error; infinity where one alone is 0."""
        real, generated = self.real.values[metric], self.generated.values[metric]
        if real == generated:
            return 0.0
        if not real or not generated:
            return math.inf
        return abs(math.log2(generated / real))


class RoundedTensors:
    """Captured tensors, rounded to the dtype that a recast record names."""

    def __init__(self, folder: Path, captured: str, dtype: str) -> None:
        self._files = CapturedTensors(folder)
        self._captured, self._dtype = captured, dtype

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        """Return the tensor of a file."""
        if spec.dtype != self._dtype:
            return self._files.tensor(spec, path)
        found = self._files.tensor(replace(spec, dtype=self._captured), path)
        return HostTensor(self._dtype, round_to_dtype(found.data.astype(np.float64), self._dtype))


class CapturedCalls:
    """A tensor-mode dump whose calls are run with one source of inputs after the other."""

    def __init__(self, path: Path, dtype: str, standard: str) -> None:
        with open_dump(path) as dump:
            if dump.task != "tensor":
                raise SystemExit(f"{path} is of task {dump.task}; captured tensors are needed")
            self.framework, self.folder = dump.framework, dump.data_folder
            self._payloads = [
                dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)
            ]
        self._dtype = dtype
        settings = CheckSettings(
            self.framework, "statistics", self.folder, standard=load_standard(standard)
        )
        self._checker = Checker(settings, "cpu")

    def records(self) -> Iterator[tuple[TaskPayload, ApiRecord]]:
        """Yield the calls that are judged element by element, in the dtype that is asked for."""
        for payload in self._payloads:
            try:
                recast = replace(
                    payload,
                    forward=self._recast(payload.forward),
                    backward=self._recast(payload.backward),
                )
                record = decode_record(recast.name, recast.forward, recast.backward, self.framework)
            except NotCheckable:
                continue
            if not skip_by_name(record.name, self.framework) and not is_random(record):
                yield recast, record

    def _recast(self, raw: bytes | None) -> bytes | None:
        if raw is None or self._dtype == CAPTURED_DTYPE:
            return raw
        before, after = (
            framework_dtype(dtype, self.framework) for dtype in (CAPTURED_DTYPE, self._dtype)
        )
        return raw.replace(json.dumps(before).encode(), json.dumps(after).encode())

    def real(self) -> TensorSource:
        """Return the source of the captured tensors."""
        return RoundedTensors(self.folder, CAPTURED_DTYPE, self._dtype)

    def run(
        self, payload: TaskPayload, record: ApiRecord, source: TensorSource
    ) -> dict[str, Errors]:
        """Return what each output and gradient shows, by its name; {} where a side cannot run."""
        found: dict[str, Errors] = {}
        try:
            inputs = make_inputs(decoded_record(payload, record), source)
            found |= errors_of(self._checker.judge(inputs))
        except NotCheckable:
            pass
        return found


def errors_of(judged: Judged) -> dict[str, Errors]:
    """Return verdict and errors of each floating leaf of a call."""
    found: dict[str, Errors] = {}
    for row in judged.rows:
        check, device_out, bench_out = row.check, row.tested, row.bench
        if not isinstance(device_out, HostTensor) or not isinstance(bench_out, HostTensor):
            continue
        if device_out.data.dtype.kind != "f" or not device_out.data.size:
            continue
        tested, bench = (leaf.data.astype(np.float64) for leaf in (device_out, bench_out))
        finite = np.isfinite(tested) & np.isfinite(bench)
        off = np.abs(tested[finite] - bench[finite])
        largest = float(off.max(initial=0.0))
        rmse = math.sqrt(float((off * off).mean())) if off.size else 0.0
        found[check.name] = Errors(check.verdict, (largest, rmse))
    return found


def pairs_of(
    capture: CapturedCalls, distributions: Sequence[str], seeds: int
) -> dict[str, list[Pair]]:
    """Run every call with the real inputs and with generated ones; return pairs by distribution."""
    pairs: dict[str, list[Pair]] = defaultdict(list)
    left_out = 0
    for payload, record in capture.records():
        real = capture.run(payload, record, capture.real())
        left_out += not real
        for distribution in distributions if real else ():
            for seed in range(seeds):
                source = generated_tensors(seed, record, distribution)
                generated = capture.run(payload, record, source)
                pairs[distribution] += [
                    Pair(record.name.type_name, real[name], generated[name])
                    for name in real
                    if name in generated
                ]
    print(f"calls left out: {left_out}")
    return pairs


def row(pairs: Sequence[Pair]) -> str:
    """Return one line of the table."""
    cells = [f"{len(pairs):6d}", f"{share(pair.same_verdict for pair in pairs):9.1%}"]
    for metric in range(len(METRICS)):
        distances = [
            pair.distance(metric)
            for pair in pairs
            if pair.real.values[metric] or pair.generated.values[metric]
        ]
        finite = [distance for distance in distances if math.isfinite(distance)]
        middle, most = np.quantile(finite, (0.5, 0.9)) if finite else (math.nan, math.nan)
        alone = 1 - len(finite) / max(len(distances), 1)
        cells.append(f"{middle:10.2f} {most:6.2f} {alone:9.1%}")
    return "  ".join(cells)


def share(facts: Iterable[bool]) -> float:
    """Return how many of some facts are true."""
    known = list(facts)
    return sum(known) / len(known)


def print_capture(pairs: dict[str, list[Pair]], *, per_api: bool) -> None:
    """Print the table of a capture: all outputs, and each API where that is asked for."""
    head = "  ".join(f"{name:>10} {'90 %':>6} {'one is 0':>9}" for name in METRICS)
    print(f"{'':42} {'pairs':>6}  {'verdicts':>9}  {head}")
    apis = sorted({pair.api for found in pairs.values() for pair in found}) if per_api else []
    for api in ("", *apis):
        for distribution, found in pairs.items():
            chosen = [pair for pair in found if api in ("", pair.api)]
            if chosen:
                print(f"{api or 'all':31} {distribution:10} {row(chosen)}")


def main() -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("captures", nargs="*", type=Path, metavar="CAPTURE")
    parser.add_argument("--dtypes", nargs="+", default=[CAPTURED_DTYPE, "bfloat16"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--standard", default="msprobe")
    parser.add_argument("--distributions", nargs="+", default=[*reversed(DISTRIBUTIONS)])
    parser.add_argument("--per-api", action="store_true")
    options = parser.parse_args()
    captures = options.captures or [DATA / name / "dump.json" for name in CAPTURES]
    for path in captures:
        for dtype in options.dtypes:
            print(f"\n{path.parent.name}, {dtype}, standard {options.standard}")
            capture = CapturedCalls(path, dtype, options.standard)
            pairs = pairs_of(capture, options.distributions, options.seeds)
            print_capture(pairs, per_api=options.per_api)


if __name__ == "__main__":
    main()
