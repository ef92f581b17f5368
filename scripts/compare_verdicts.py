"""What each standard of `compare` says of planted faults, and of pairs of honest runs.

    python -m scripts.compare_verdicts [--places 2] [--seed 0] [--statistics] [--misses]

The networks of `scripts.compare_faults` are captured in float32 and bfloat16. The golden run is on one
thread; its noise is measured (`compare --noise`) by a second one with the sums of products in another
order. The target is a third one: on two threads, without oneDNN, sums in yet another order. Faults of each
kind are planted in the target at some random places; the culprit is the first record whose output differs
from that of the target without the fault.

A fault that moves no output of its record by more than 4 times what the honest runs are apart there, or by
more than 4 units of roundoff, cannot be told from rounding: it is left out, and counted as hidden. Of the
others the table says how often the culprit is the first error; below it stands how often another record is,
how often none is and the culprit has a warning. `honest` counts the honest targets with an error.
`--statistics` compares the same captures without their tensors; `--misses` prints each fault whose culprit
`auto` does not name.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ray_precheck.comparing import ComparisonConfig
from ray_precheck.jobs.comparison.job import ComparisonJob, tasks_of
from ray_precheck.jobs.comparison.plan import plan_comparison
from ray_precheck.jobs.comparison.rows import rows_of_piece
from ray_precheck.trace.difference.standards.registry import STANDARDS
from ray_precheck.trace.side import open_side
from scripts.compare_faults import (
    FAULTS,
    NETWORKS,
    OTHER_SUMS,
    PLAIN,
    TARGET,
    WrongOperator,
    captured_network,
    first_moved_record,
    output_distance,
)
from scripts.locate_faults.planting.twins import SKETCHES, twin_of
from scripts.measuring import markdown_table

DTYPES = (torch.float32, torch.bfloat16)
AUTO, AUTO_NOISE = "auto", "auto, --noise"
WAYS = (*(name for name in STANDARDS if name != AUTO), AUTO, AUTO_NOISE)
TIMES = 4.0
FIRST, OTHER, WARNED, NONE = "first", "another", "warned", "none"


@dataclass(slots=True)
class StandardVerdicts:
    """What each way says: of faults by kind, of honest pairs, and how many faults were hidden."""

    faults: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    visible: Counter[str] = field(default_factory=Counter)
    hidden: Counter[str] = field(default_factory=Counter)
    honest_errors: Counter[str] = field(default_factory=Counter)
    honest_warnings: Counter[str] = field(default_factory=Counter)
    honest_pairs: int = 0
    honest_records: int = 0
    misses: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--places", type=int, default=2, help="of each fault in each network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--statistics", action="store_true")
    parser.add_argument("--misses", action="store_true")
    given = parser.parse_args(arguments)
    found = StandardVerdicts()
    for network in NETWORKS:
        for dtype in DTYPES:
            with tempfile.TemporaryDirectory(prefix="compare_verdicts_") as folder:
                _judge_network(network, dtype, Path(folder), given, found)
            print(f"{network.__name__} {dtype}", file=sys.stderr, flush=True)
    print(verdict_table(found))
    if given.misses:
        print("\n".join(found.misses))
    return 0


def verdict_table(found: StandardVerdicts) -> str:
    """Return the table: a row for each way, a column for each kind of fault."""
    kinds = [kind for kind in FAULTS if found.visible[kind]]
    said = (OTHER, WARNED, NONE)
    rows = [["hidden", *(found.hidden[kind] for kind in kinds), found.hidden.total(), *[""] * 5]]
    for way in WAYS:
        counts = {
            each: sum(found.faults[way, kind, each] for kind in kinds) for each in (FIRST, *said)
        }
        cells = [f"{found.faults[way, kind, FIRST]} of {found.visible[kind]}" for kind in kinds]
        cells.append(f"{counts[FIRST]} of {found.visible.total()}")
        honest = f"{found.honest_errors[way]} of {found.honest_pairs}"
        warned = f"{found.honest_warnings[way]} of {found.honest_records}"
        rows.append([way, *cells, *(counts[each] for each in said), honest, warned])
    return markdown_table(["", *kinds, "all", *said, "honest errors", "honest warnings"], rows)


def _judge_network(
    network: type[nn.Module], dtype: torch.dtype, folder: Path, given: Any, found: StandardVerdicts
) -> None:
    rng = random.Random(f"{given.seed} {network.__name__} {dtype}")
    golden = captured_network(network, dtype, PLAIN, folder / "golden").dump
    noise = captured_network(network, dtype, OTHER_SUMS, folder / "noise").dump
    honest = captured_network(network, dtype, TARGET, folder / "honest")
    apart = _distances(honest.dump, golden)
    unit = torch.finfo(dtype).eps / 2
    for name, change in FAULTS.items():
        for number, place in enumerate(rng.sample(range(honest.places), given.places)):
            target = captured_network(
                network, dtype, TARGET, folder / f"{name} {number}", WrongOperator(place, change)
            )
            culprit, moved = first_moved_record(target.dump, honest.dump)
            if moved <= TIMES * max(apart.get(culprit, 0.0), unit):
                found.hidden[name] += 1
                continue
            found.visible[name] += 1
            for way, results in _judged(target.dump, golden, noise, given.statistics).items():
                said = _said(results, culprit)
                found.faults[way, name, said] += 1
                if said != FIRST and way in (AUTO, AUTO_NOISE):
                    wrong = next((key for key, each in results.items() if each == "error"), "-")
                    case = f"{network.__name__} {dtype} {name} {culprit} moved {moved:.3g}"
                    found.misses.append(f"{case}: {way}: {said} {wrong}")
    found.honest_pairs += 1
    found.honest_records += len(apart)
    for way, results in _judged(honest.dump, golden, noise, given.statistics).items():
        errors = [key for key, each in results.items() if each == "error"]
        found.honest_errors[way] += bool(errors)
        found.honest_warnings[way] += sum(each == "warning" for each in results.values())
        if errors and way in (AUTO, AUTO_NOISE):
            found.misses.append(f"{network.__name__} {dtype} honest: {way}: {', '.join(errors)}")


def _said(results: dict[str, str], culprit: str) -> str:
    first = next((key for key, each in results.items() if each == "error"), None)
    if first is not None:
        return FIRST if first == culprit else OTHER
    return WARNED if results.get(culprit) == "warning" else NONE


def _distances(target: Path, golden: Path) -> dict[str, float]:
    with open_side(target) as one, open_side(golden) as other:
        return {
            ours.key: output_distance(one, ours, other, theirs)
            for ours, theirs in zip(one.entries, other.entries, strict=True)
        }


def _judged(target: Path, golden: Path, noise: Path, statistics: bool) -> dict[str, dict[str, str]]:
    """Return the result of each record by each way, in the order of the records."""
    paths = [target, golden, noise]
    if statistics:  # the same dumps without the names of their files
        paths = [twin_of(each, SKETCHES, each.with_name("statistics")) for each in paths]
    found: dict[str, dict[str, str]] = {way: {} for way in WAYS}
    config = ComparisonConfig(target=paths[0], golden=paths[1])
    with ExitStack() as opened:
        one, other, second = (opened.enter_context(open_side(path)) for path in paths)
        for noise_side, ways in ((None, WAYS[:-1]), (second, (AUTO_NOISE,))):
            plan = plan_comparison(one, other, noise_side, config)
            job = ComparisonJob(
                one, other, plan.pieces, plan.settings, noise=noise_side, noise_of=plan.noise_of
            )
            for task in tasks_of(job, set(), plan.costs_s):
                payload = job.payload(task)
                for way in ways:
                    standard = STANDARDS[AUTO if way == AUTO_NOISE else way]()
                    rows = rows_of_piece(payload, standard, plan.settings, plan.reading)
                    found[way][task.name] = rows.result
    return found


if __name__ == "__main__":
    sys.exit(main())
