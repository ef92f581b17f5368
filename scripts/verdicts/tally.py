"""What counts as a fault, and how often each standard finds it or calls an honest result an error.

Comes in: a `Run` with honest and faulty results. Goes out: a `Tally`. Called by `verdicts.py`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ray_precheck.accuracy.ambiguous import is_exact
from ray_precheck.accuracy.metrics import metrics_of, rounded_bench
from ray_precheck.accuracy.standards.base import Comparison, Standard
from ray_precheck.numerics.arrays import smallest_normal
from ray_precheck.operators.exact import exactness
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.values import HostTensor
from scripts.verdicts.subject import Key, Results, Run

# A fault counts when it moves an error to more than so many times that of the worst honest result.
COUNTS_FROM = 4.0
Cell = tuple[str, str, str]  # standard, dtype, fault or honest implementation


@dataclass(slots=True)
class Tally:
    """Counts by (standard, dtype, fault): of faults that count, of those found; and the same of
    honest results, of those called an error. `missed` and `alarms` name them for people."""

    planted: Counter[Cell] = field(default_factory=Counter)
    found: Counter[Cell] = field(default_factory=Counter)
    honest: Counter[Cell] = field(default_factory=Counter)
    alarmed: Counter[Cell] = field(default_factory=Counter)
    missed: list[tuple[str, ...]] = field(default_factory=list)
    alarms: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def standards(self) -> list[str]:
        """The standards that judged, in their order."""
        return list(dict.fromkeys(standard for standard, _, _ in (*self.honest, *self.planted)))

    def add_honest(self, standard: str, dtype: str, name: str, where: str, message: str) -> None:
        """Count one honest result; a `message` that is not empty is its error."""
        self.honest[standard, dtype, name] += 1
        if message:
            self.alarmed[standard, dtype, name] += 1
            self.alarms.append((standard, dtype, name, where, message))

    def add_fault(self, standard: str, dtype: str, name: str, where: str, found: bool) -> None:
        """Count one fault that counts."""
        self.planted[standard, dtype, name] += 1
        if found:
            self.found[standard, dtype, name] += 1
        else:
            self.missed.append((standard, dtype, name, where))

    def named(self) -> list[str]:
        """Return a line for each fault that was missed and each honest result called an error."""
        lines = [f"missed: {' | '.join(one)}" for one in self.missed]
        return [*lines, *(f"alarm: {' | '.join(one)}" for one in self.alarms)]


@dataclass(frozen=True, slots=True)
class Error:
    """RMSE and largest error of a result against the unrounded bench, and how many elements are
    NaN, infinite or (integers) simply not what the bench has."""

    rmse: float = 0.0
    largest: float = 0.0
    wrong: int = 0

    def beyond(self, honest: "Error") -> bool:
        """Return whether this is a fault that counts."""
        return (
            self.rmse > COUNTS_FROM * honest.rmse
            or self.largest > COUNTS_FROM * honest.largest
            or self.wrong > honest.wrong
        )


def error_of(out: Array, bench: Array, dtype: str) -> Error:
    """Return the error of a result."""
    if DTYPES[dtype].kind != "float":
        return Error(wrong=int(np.count_nonzero(out != bench)))
    rounded = rounded_bench(bench, dtype)
    finite = np.isfinite(out) & np.isfinite(rounded)
    agree = (out == rounded) | (np.isnan(out) & np.isnan(rounded))
    with np.errstate(all="ignore"):
        error = np.where(finite, np.abs(out.astype(np.float64) - bench), 0.0)
    rmse = float(np.sqrt(np.mean(np.square(error)))) if error.size else 0.0
    wrong = int(np.count_nonzero(~finite & ~agree))
    return Error(rmse, float(error.max(initial=0.0)), wrong)


def worst(errors: Iterable[Error]) -> Error:
    """Return the worst of each number."""
    found = Error()
    for one in errors:
        found = Error(
            max(found.rmse, one.rmse), max(found.largest, one.largest), max(found.wrong, one.wrong)
        )
    return found


class Court:
    """Judges the results of runs by several standards."""

    def __init__(self, standards: Mapping[str, Standard]) -> None:
        self._standards = standards
        self.tally = Tally()

    def judge_run(self, run: Run, label: str, faults: Iterable[tuple[str, Results]]) -> None:
        """Judge every honest result of a run, and every fault that counts."""
        honest = {key: self._honest_error(run, key) for key in run.bench}
        for name, results in run.honest.items():
            for key, leaf in self._comparable(run, results):
                for standard, message in self._messages(run, key, leaf):
                    self.tally.add_honest(standard, leaf.dtype, name, _where(label, key), message)
        for name, results in faults:
            for key, leaf in self._comparable(run, results):
                if not error_of(leaf.data, run.bench[key].data, leaf.dtype).beyond(honest[key]):
                    continue
                for standard, message in self._messages(run, key, leaf):
                    where = _where(label, key)
                    self.tally.add_fault(standard, leaf.dtype, name, where, bool(message))

    def _honest_error(self, run: Run, key: Key) -> Error:
        results = (
            leaf for r in run.honest.values() for k, leaf in self._comparable(run, r) if k == key
        )
        return worst(error_of(leaf.data, run.bench[key].data, leaf.dtype) for leaf in results)

    def _comparable(self, run: Run, results: Results) -> Iterable[tuple[Key, HostTensor]]:
        for key, leaf in results.items():
            if key in run.native and leaf.shape == run.bench[key].shape:
                yield key, leaf

    def _messages(self, run: Run, key: Key, leaf: HostTensor) -> Iterable[tuple[str, str]]:
        """Yield what each standard says of a result, "" for a pass."""
        comparison = comparison_of(run, key, leaf)
        for name, standard in self._standards.items():
            judgement = standard.judge(comparison)
            is_error = judgement.verdict is Verdict.ERROR
            yield name, (judgement.message or "error") if is_error else ""


def comparison_of(run: Run, key: Key, leaf: HostTensor) -> Comparison:
    """Return what a standard is given of one result, as `accuracy.outputs` makes it."""
    bench = run.bench[key].data
    direction, position = key
    known = exactness(run.type_name, run.framework) if direction == "forward" else None
    given = run.bench_call if known is not None and known.compares else run.call
    return Comparison(
        type_name=run.type_name,
        direction=direction,
        dtype=leaf.dtype,
        device_out=leaf.data,
        bench_out=bench,
        metrics=metrics_of(
            leaf.data, rounded_bench(bench, leaf.dtype), smallest_normal(leaf.dtype)
        ),
        implementations=lambda: run.implementations[direction].of(position, leaf),
        framework=run.framework,
        is_exact=is_exact(known, given, position, leaf.dtype),
    )


def _where(label: str, key: Key) -> str:
    return f"{label} {key[0]}.{key[1]}"
