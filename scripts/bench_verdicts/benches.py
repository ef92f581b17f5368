"""The benches that are compared: exact, those that `--bench` names, and a weak one that must be caught.

Comes in: the name of a bench, and a standard. Goes out: a checker that has it. Called by
`bench_verdicts.main`. The exact checker may remember what does not depend on the tested results, so that
many faults of one call cost one bench; honest calls are judged without that, and timed.
"""

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from typing import Any
from unittest import mock

import numpy as np

from ray_precheck.accuracy.metrics import rounded_bench
from ray_precheck.accuracy.outputs import check_output
from ray_precheck.bench.run import Bench
from ray_precheck.check import judge
from ray_precheck.check.bench import Implementations, Way
from ray_precheck.check.checker import Checker
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.settings import CheckSettings
from ray_precheck.frameworks.base import CallPlan, Execution, Leaf, tensors_of
from ray_precheck.schema.result import OutputCheck
from ray_precheck.schema.values import HostCall, HostTensor
from scripts.bench_verdicts.subject import settings_of

# The field of the options (or of the settings) that chooses a bench.
FIELD = "bench"
EXACT, WEAK = "exact", "weak"
# What the weak bench looks at: every 16th row.
_EVERY = 16


def known_settings(standard: Any, bench: str) -> CheckSettings:
    """Return settings with a bench; "weak" has those of the exact one.

    Raises:
        SystemExit: this version has no choice of benches, and another one than the exact is wanted.
    """
    wanted = EXACT if bench == WEAK else bench
    chosen: dict[str, Any] = {FIELD: wanted}
    if FIELD in {each.name for each in fields(CheckOptions)}:
        return settings_of(standard, options=replace(CheckOptions(), **chosen))
    if FIELD in {each.name for each in fields(CheckSettings)}:
        return settings_of(standard, **chosen)
    if wanted != EXACT:
        raise SystemExit(
            f"this version has no --bench: {bench} cannot be compared, exact and weak can"
        )
    return settings_of(standard)


def checker_of(standard: Any, bench: str) -> Checker:
    """Return a checker of torch's calls on a CPU, whose device is not asked for anything."""
    found = Checker(known_settings(standard, bench), "cpu")
    found.bench.warm_up()
    return found


@contextmanager
def as_bench(name: str) -> Iterator[None]:
    """Judge as a bench does; only the weak one needs it, which sees every 16th row alone."""
    if name != WEAK:
        yield
        return

    def weak(row: str, tested: Any, bench: Any, *rest: Any) -> Any:
        same = isinstance(tested, HostTensor) and isinstance(bench, HostTensor)
        if same and tested.shape == bench.shape and tested.data.ndim > 1:
            seen = np.zeros(tested.data.reshape(-1, tested.shape[-1]).shape, bool)
            seen[::_EVERY] = True
            right = rounded_bench(bench.data, tested.dtype)
            data = np.where(seen.reshape(tested.shape), tested.data, right)
            tested = HostTensor(tested.dtype, data)
        return check_output(row, tested, bench, *rest)

    with mock.patch.object(judge, "check_output", weak):
        yield


class _Remembered:
    """An execution whose gradients are computed once: each call of a subject has the same incoming ones."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._gradients: list[HostTensor | None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._execution, name)

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor | None]:
        """Return the gradients of the first time."""
        if self._gradients is None:
            self._gradients = self._execution.gradients(cotangents)
        return list(self._gradients)


@contextmanager
def remembering(honest: Collection[HostTensor] = ()) -> Iterator[None]:
    """Compute other implementations of one call once; with its `honest` results, also the bench, and what
    is said of them.

    One call must be judged within: what is remembered is not told apart by its inputs.
    """
    runs: dict[tuple[Any, ...], Sequence[Leaf]] = {}
    forward: list[Any] = []
    rows: dict[tuple[str, int], OutputCheck] = {}
    known = {id(each.data) for each in honest}
    run, compute = Implementations._run, Bench.forward

    def run_once(self: Implementations, way: Way, dtype: str) -> Sequence[Leaf]:
        given = [*tensors_of(self.call), *filter(None, self.cotangents)]
        # A sample's calls have other tensors.
        digests = [(each.shape, zlib.crc32(np.ascontiguousarray(each.data))) for each in given]
        key = way, dtype, self.plan.differentiable, *digests
        if key not in runs:
            runs[key] = run(self, way, dtype)
        return runs[key]

    def compute_once(
        self: Bench, function: Callable[..., Any], call: HostCall, plan: CallPlan
    ) -> Any:
        if not forward:
            forward.append(_Remembered(compute(self, function, call, plan)))
        return forward[0]

    def check_once(row: str, tested: Any, *rest: Any) -> OutputCheck:
        key = row, id(getattr(tested, "data", None))
        if key[1] not in known:
            return check_output(row, tested, *rest)
        if key not in rows:
            rows[key] = check_output(row, tested, *rest)
        return rows[key]

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Implementations, "_run", run_once))
        if honest:
            stack.enter_context(mock.patch.object(judge, "check_output", check_once))
            stack.enter_context(mock.patch.object(Bench, "forward", compute_once))
        yield
