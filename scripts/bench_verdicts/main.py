"""Does a cheaper bench come to the verdicts of the exact one?

    python -m scripts.bench_verdicts [--bench auto|sampled|weak|exact] [--standards msprobe auto]
                [--minutes 40] [--quick] [--seed N] [--names linear ...] [--dtypes bfloat16 ...] [-v]

Comes in: the name of a bench (`weak` sees every 16th row alone, and must be caught). Goes out: for each
standard the faults that the exact bench finds and how many of these the other finds, by operator, dtype and
fault; the honest results that each calls an error; and the seconds of both for honest calls. Faults are
planted in what a device hands over (`Checker.check(measured=...)`), and both benches get the same bytes. A
fault counts where the exact bench calls its result an error and the honest result none. Ends with 1 where
fewer than 99.5 % are found, or where the other bench accuses an honest result that the exact one does not.
"""

import argparse
import itertools
import math
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Outcome, TaskResult, Verdict
from scripts.bench_verdicts.benches import EXACT, as_bench, checker_of, known_settings, remembering
from scripts.bench_verdicts.faults import EDITS, Fault, edited, wrong_runs
from scripts.bench_verdicts.records import EVERY, HARD, QUICK, Known
from scripts.bench_verdicts.subject import Place, Subject, Tensors
from scripts.measuring import machine, markdown_table

DTYPES = ("float32", "bfloat16", "float16")
# The share of the exact bench's errors that the other one must find.
SHARE = 0.995
# So many edits of each subject, and wrong runs; the next subject gets the next ones.
_EDITS, _WRONG_RUNS = 10, 8
# After each subject with faults so many without: with these a run has as many honest results as faults.
_HONEST = 6
# Calls with more multiply-adds have fewer faults, and torch's own half kernels are not a second device.
_LARGE, _SLOW = 1.5e8, 3e7


@dataclass
class VerdictCounts:
    """What both benches said by one standard; `planted` and `found` by ("operator" ..., name).

    `calls` are honest calls, and `honest` their results; `alarms` those that each bench calls an error
    (`accused` names those of the exact one), `more` those that the other alone does. `unseen` are faults that
    the exact bench does not find. `seconds` are pairs of both benches' times of one honest call.
    """

    planted: Counter[tuple[str, str]] = field(default_factory=Counter)
    found: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: int = 0
    hits: int = 0
    calls: int = 0
    honest: int = 0
    unseen: int = 0
    alarms: Counter[str] = field(default_factory=Counter)
    accused: list[str] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    seconds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def add_fault(self, subject: Subject, name: str, at: Place, found: bool) -> None:
        """Count a fault that the exact bench finds."""
        self.faults += 1
        self.hits += found
        direction = "gradient" if at[0] == "backward" else "output"
        for key in (
            ("operator", subject.known.case.name.partition(".")[2]), ("dtype", subject.dtype),
            ("inputs", subject.hard), ("fault", name), ("result", direction),
            ("size", _size(subject.known)),
        ):  # fmt: skip
            self.planted[key] += 1
            self.found[key] += found
        if not found:
            self.missed.append(f"{subject.label}: {name} in {at[0]} {at[1]}")


class Yardstick:
    """Judges subjects with both benches by one standard."""

    def __init__(self, standard: str, other: str) -> None:
        self._other = other
        self._checkers: dict[str, Checker] = {
            name: checker_of(STANDARDS[standard](), name) for name in dict.fromkeys((EXACT, other))
        }
        self.counts = VerdictCounts()

    def judge(self, subject: Subject, faults: Sequence[Fault], others: Sequence[Tensors]) -> None:
        """Judge the honest results of a subject, then its faults."""
        right = self._honest(subject, subject.honest)
        if right is None:
            return
        for results in others:
            self._honest(subject, results)
        with remembering(subject.honest.values()):
            exact = [self._errors(self._run(EXACT, subject, each[2])) for each in faults]
        with remembering():
            for (name, at, results), errors in zip(faults, exact, strict=True):
                if at in right:
                    continue
                if at not in errors:
                    self.counts.unseen += 1
                    continue
                found = at in self._errors(self._run(self._other, subject, results))
                self.counts.add_fault(subject, name, at, found)

    def _honest(self, subject: Subject, results: Tensors) -> set[Place] | None:
        """Count what both benches say of honest results; return those that the exact one calls errors."""
        ran = [self._run(name, subject, results) for name in (EXACT, self._other)]
        for result in ran:
            if result.outcome is not Outcome.COMPLETED or Verdict.SKIP in (
                result.forward,
                result.backward,
            ):
                self.counts.skipped.append(f"{subject.label}: {result.message}")
                return None
        exact, other = map(self._errors, ran)
        counts = self.counts
        counts.calls += 1
        counts.honest += len(results)
        counts.alarms[EXACT] += len(exact)
        counts.alarms["other"] += len(other)
        counts.more += [
            f"{subject.label}: {at[0]} {at[1]}: {ran[1].message}" for at in other - exact
        ]
        counts.accused += [f"{subject.label}: {ran[0].message}"] if exact else []
        pair = ran[0].bench_s, ran[1].bench_s
        counts.seconds.setdefault(_size(subject.known), []).append(pair)
        return exact

    def _run(self, bench: str, subject: Subject, results: Tensors) -> TaskResult:
        with as_bench(bench):
            return self._checkers[bench].check(subject.payload, measured=subject.measured(results))

    def _errors(self, result: TaskResult) -> set[Place]:
        """Return the places of the results in error, by the names of their rows."""
        found = set()
        for check in result.checks:
            if check.verdict is Verdict.ERROR:
                direction, _, position = check.name.split(".")[-3:]
                found.add((direction, int(position)))
        return found


def subjects(given: argparse.Namespace) -> Iterator[Subject]:
    """Yield calls without an end: each record in each dtype, with other inputs in each round."""
    known = [each for each in (QUICK if given.quick else EVERY) if _is_wanted(each, given.names)]
    settings = known_settings(STANDARDS["msprobe"](), EXACT)
    checker = checker_of(STANDARDS["msprobe"](), EXACT)
    kinds = list(HARD)
    pairs = list(itertools.product(known, given.dtypes))
    for turn in itertools.count():
        # In another order each time: a run that ends early has seen some of all.
        order = np.random.default_rng([given.seed, turn]).permutation(len(pairs))
        for place in order:
            each, dtype = pairs[place]
            hard = kinds[(turn + 3 * int(place)) % len(kinds)]
            yield Subject(each, dtype, hard, given.seed + turn, checker, settings)


def _is_wanted(known: Known, names: Sequence[str]) -> bool:
    return not names or any(name in known.label for name in names)


def faults_of(subject: Subject, number: int) -> list[Fault]:
    """Return the faults of a subject: the next ones of all edits, at its results in turn, and wrong runs."""
    rng = np.random.default_rng([subject.seed, number])
    places, names = sorted(subject.honest), list(EDITS)
    fewer = 1 if subject.known.macs < _LARGE else 3
    found: list[Fault | None] = []
    for count in range(_EDITS // fewer):
        place = places[-1 - (number + count) % len(places)]
        found.append(edited(subject, place, names[(number * _EDITS + count) % len(names)], rng))
    edits = [each for each in found if each is not None]
    return [*edits, *wrong_runs(subject, _WRONG_RUNS // fewer, rng)]


def honest_others(subject: Subject) -> list[Tensors]:
    """Return results of another honest device: torch's own kernel in the dtype, where it is fast enough."""
    if subject.dtype == "float32" or subject.known.macs > _SLOW:
        return []
    return [subject.computed(wide=False)]


def main() -> int:
    """Compare; returns 1 where the other bench misses too much or accuses an honest result."""
    given = _arguments()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sticks = {name: Yardstick(name, given.bench) for name in given.standards}
    end = time.monotonic() + 60 * (given.minutes or (2 if given.quick else 40))
    for number, subject in enumerate(subjects(given)):
        if time.monotonic() > end:
            break
        # Drawn before the results: the incoming gradients are among what the benches take.
        assert subject.cotangents is not None
        plants = number % (_HONEST + 1) == 0
        faults = faults_of(subject, number // (_HONEST + 1)) if plants else []
        others = honest_others(subject)
        for stick in sticks.values():
            stick.judge(subject, faults, others)
    print(f"{machine()}; bench `{given.bench}` beside `exact`, seed {given.seed}")
    for name, stick in sticks.items():
        print(report(name, stick.counts, given.verbose))
    return 0 if all(map(is_good, (each.counts for each in sticks.values()))) else 1


def is_good(counts: VerdictCounts) -> bool:
    """Return whether enough faults are found, of at least one, and no more honest results accused."""
    return bool(counts.faults) and counts.hits >= SHARE * counts.faults and not counts.more


def report(standard: str, counts: VerdictCounts, verbose: bool) -> str:
    """Return the tables of a standard in Markdown."""
    share = counts.hits / counts.faults if counts.faults else math.nan
    parts = [
        f"## `{standard}`: {counts.hits} of {counts.faults} faults that exact finds ({share:.2%});"
        f" exact does not see {counts.unseen} more",
        f"{counts.honest} honest results of {counts.calls} calls: {counts.alarms[EXACT]} in error by exact,"
        f" {counts.alarms['other']} by the other, {len(counts.more)} by the other alone;"
        f" {len(counts.skipped)} calls could not be judged",
    ]
    for kind in ("operator", "size", "dtype", "inputs", "result", "fault"):
        keys = [key for key in counts.planted if key[0] == kind]
        rows = [[key[1], str(counts.planted[key]), str(counts.found[key])] for key in sorted(keys)]
        parts.append(markdown_table((kind, "found by exact", "by the other"), rows))
    rows = []
    for size, pairs in sorted(counts.seconds.items()):
        medians = [statistics.median(each) for each in zip(*pairs, strict=True)]
        ratio = statistics.median(other / max(exact, 1e-9) for exact, other in pairs)
        rows.append([size, str(len(pairs)), *(f"{each:.4f}" for each in medians), f"{ratio:.2f}"])
    parts.append(
        markdown_table(("multiply-adds", "honest calls", "exact s", "other s", "ratio"), rows)
    )
    shown = slice(None if verbose else 20)
    parts.append("\n".join(f"exact accuses: {each}" for each in counts.accused[shown]))
    named = [f"more: {each}" for each in counts.more] + [
        f"missed: {each}" for each in counts.missed
    ]
    parts.append("\n".join(named[shown]))
    parts.append("\n".join(f"skipped: {each}" for each in dict.fromkeys(counts.skipped)))
    return "\n\n".join(filter(None, parts))


def _size(known: Known) -> str:
    """Return the kind of a call for the table of times."""
    kind = (
        "attention" if "attention" in known.tags else "conv" if "conv" in known.tags else "product"
    )
    return f"{kind}, 10^{round(math.log10(known.macs))}" if known.macs > 1e6 else "others"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bench", default="auto", help="the bench beside the exact one")
    parser.add_argument(
        "--standards", nargs="+", default=["msprobe", "auto"], choices=list(STANDARDS)
    )
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--names", nargs="+", default=[], help="parts of the names of operators")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0, help="when to end (default 40)")
    parser.add_argument("--quick", action="store_true", help="six records, two minutes")
    parser.add_argument("-v", "--verbose", action="store_true", help="name all misses")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
