"""One random output, judged by its tests: the detail row.

Comes in: an output or gradient and its `StatisticalTest`s. Goes out: an `OutputCheck` without metrics, whose
Message has each statistic with its value and its limits. Called by `check.random.judge`.
"""

from collections.abc import Sequence
from typing import Any

from ray_precheck.accuracy.outputs import nothing_compared
from ray_precheck.accuracy.random.bounds import FALSE_ALARM_RATE
from ray_precheck.accuracy.random.pooled import Drawn
from ray_precheck.accuracy.random.statistics import Observation, StatisticalTest, SummedTest
from ray_precheck.descriptors.descriptor import framework_dtype
from ray_precheck.schema.result import OutputCheck, Verdict
from ray_precheck.schema.values import HostTensor, TensorSpec

RANDOM = "random:"


def check_random_output(
    name: str,
    tested: Any,
    tests: Sequence[StatisticalTest],
    framework: str,
    *,
    chance: float = FALSE_ALARM_RATE,
    recorded: object = None,
    repeatable: bool = True,
) -> OutputCheck:
    """Judge an output. `chance` is its share of the call's false-alarm rate, and `recorded` its spec in
    the dump. An output without an element, or without a known property, is SKIP, and its Message
    says so. If its draws are not `repeatable`, the numbers of a pass are left out of the Message, so
    that two runs write the same files."""
    findings = [*_as_recorded(tested, recorded)]
    findings += [test(chance / max(len(tests), 1)) for test in tests]
    wrong = [finding for finding in findings if not finding.passed]
    told = [finding.text for finding in wrong or findings]
    if not wrong and not repeatable:
        told = [
            "every fact and statistic is within its limits; the operator cannot be seeded, so the"
            " values differ from run to run and are left out, and its calls are not judged together"
        ]
    if wrong:
        told.append(f"an honest generator does so with a chance of at most {FALSE_ALARM_RATE:g}")
    is_tensor = isinstance(tested, HostTensor)
    reason = ""
    if not wrong:
        reason = nothing_compared(tested) if is_tensor else ""
        reason = reason or (
            "" if findings else "no property of this output is known that could be judged"
        )
    verdict = Verdict.SKIP if reason else Verdict.PASS
    return OutputCheck(
        name=name,
        bench_dtype="",
        tested_dtype=framework_dtype(tested.dtype, framework)
        if is_tensor
        else type(tested).__name__,
        shape=str(tested.shape) if is_tensor else "",
        metrics=None,
        verdict=Verdict.ERROR if wrong else verdict,
        message=reason or f"{RANDOM} {'; '.join(told)}",
    )


def drawn_of(tests: Sequence[StatisticalTest], is_captured: bool) -> Drawn:
    """Return what the statistics over all calls of an operator need of the draws of one."""
    gathered = [test for test in tests if isinstance(test, SummedTest)]
    pattern = next((test.pattern for test in gathered if test.pattern), "")
    return Drawn(tuple(each for test in gathered for each in test.sums), pattern, is_captured)


def _as_recorded(tested: Any, recorded: object) -> list[Observation]:
    """Compare dtype and shape with those of the captured output, where the dump has one."""
    if not isinstance(recorded, TensorSpec):
        return []
    if not isinstance(tested, HostTensor):
        return [Observation("it is no tensor, which it was when it was captured", False)]
    found = []
    if tested.dtype != recorded.dtype:
        found.append(
            Observation(f"dtype {tested.dtype} where the dump has {recorded.dtype}", False)
        )
    if tested.shape != recorded.shape:
        text = f"shape {list(tested.shape)} where the dump has {list(recorded.shape)}"
        found.append(Observation(text, False))
    return found
