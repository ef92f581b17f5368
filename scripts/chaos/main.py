"""Break runs of ray_precheck at random, and see that nothing is lost and nothing stays behind.

    python -m scripts.chaos                        both: about an hour on two cores
    python -m scripts.chaos kills --runs 4         runs that are killed 1 to 3 times and go on to the end
    python -m scripts.chaos faults --calls 60 --crash 4 --hang 3 --raise 3
                                            operators that crash, hang and raise

Every run is the real command with a Ray cluster of its own. Whatever came of the kills, both files
must have the bytes of an undisturbed run, no process and no temporary file may be left, and nothing
but sentences may be printed. One table comes last; the exit code is 1 where anything was not as it
must be. The package is copied first, so that it may be worked on meanwhile.
"""

import argparse
import compileall
import json
import multiprocessing
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from scripts.chaos.command import DRIVER, become_subreaper
from scripts.chaos.faults import CRASH, HANG, RAISE, FaultsRun, run_faults
from scripts.chaos.kills import KilledRun, KillSetup, run_killed, run_undisturbed
from scripts.chaos.moments import KINDS, PHASES
from scripts.measuring import CAPTURES, ROOT, markdown_table

# Some outputs of the last one are in error, so that there is a file of arrays, too.
DUMPS = ("torch_cnn", "mindspore_llm", "torch_llm", "torch_llm_bf16")
PARTS = ("kills", "faults")


class Row(NamedTuple):
    """A line of the table."""

    what: str
    tried: int
    good: int
    note: str = ""


def main() -> int:
    """Do the parts that are asked for; returns 1 where anything was not as it must be."""
    options = _options()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    package = folder / "package"
    shutil.rmtree(package, ignore_errors=True)
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ray_precheck", package / "ray_precheck", ignore=leave)
    compileall.compile_dir(package, quiet=1)
    rows: list[Row] = []
    findings: dict[str, Any] = {"seed": options.seed}
    for part in options.parts or PARTS:
        do = do_kills if part == "kills" else do_faults
        more, findings[part] = do(options, package, folder)
        rows += more
    print(markdown_table(Row._fields, rows))
    if options.json:
        options.json.write_text(json.dumps(findings, indent=1))
    failed = any(row.good != row.tried for row in rows)
    if failed:
        print(f"what failed is kept in {folder}")
    elif options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # Not `choices`: argparse holds the empty list of no parts against them.
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS), help="default: both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=2, help="number of devices of a run")
    parser.add_argument("--folder", type=Path, help="for everything that is written; stays")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there")
    kills = parser.add_argument_group("kills")
    kills.add_argument("--runs", type=int, default=300)
    kills.add_argument("--first", type=int, default=0, help="number of the first run")
    kills.add_argument("--jobs", type=int, default=2, help="runs at a time")
    kills.add_argument("--dump", type=Path, nargs="+", help="dumps, in turn; default: captures")
    kills.add_argument(
        "--undisturbed", type=Path, metavar="FOLDER", help="keep the undisturbed runs for later"
    )
    known = (*KINDS, DRIVER)
    kills.add_argument(
        "--kinds", nargs="+", default=KINDS, choices=known, help="what is killed, in turn"
    )
    faults = parser.add_argument_group("faults")
    faults.add_argument("--calls", type=int, default=500)
    for fault, count in ((CRASH, 20), (HANG, 10), (RAISE, 10)):
        faults.add_argument(f"--{fault}", type=int, default=count)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"{', '.join(unknown)}: choose among {', '.join(PARTS)}")
    return options


def do_kills(
    options: argparse.Namespace, package: Path, folder: Path
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Kill runs; prints those that fail at once."""
    given = [dump.resolve() for dump in options.dump or []]  # Commands run in another folder.
    dumps = given or [CAPTURES / name / "dump.json" for name in DUMPS]
    devices = tuple(range(options.devices))
    setup = KillSetup(package, folder, devices, options.seed, tuple(options.kinds))
    numbers = range(options.first, options.first + options.runs)
    turns = {number: dumps[number % len(dumps)] for number in numbers}
    runs: list[KilledRun] = []
    with _pool(options.jobs) as pool:
        places = {
            dump: (options.undisturbed or folder / "undisturbed") / dump.parent.name
            for dump in turns.values()
        }
        undisturbed = {
            dump: pool.submit(run_undisturbed, setup, dump, place).result()
            for dump, place in places.items()
        }
        jobs = [
            pool.submit(run_killed, setup, n, dump, undisturbed[dump]) for n, dump in turns.items()
        ]
        for job in as_completed(jobs):
            runs.append(job.result())
            _show(runs[-1], options.seed)
            if len(runs) % 10 == 0:
                print(f"{len(runs)} of {len(jobs)} runs", flush=True)
    runs.sort(key=lambda run: run.number)
    return kill_rows(runs, options.kinds), [asdict(run) for run in runs]


def _pool(jobs: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, context, initializer=become_subreaper)


def _show(run: KilledRun, seed: int) -> None:
    """Print a run that failed, and how to do it again."""
    if not run.problems:
        return
    print(f"FAILED: --seed {seed} --first {run.number} --runs 1 ({run.dump}), {run.folder}")
    for kill in run.kills:
        print(f"    {kill}")
    for problem in run.problems:
        print(f"  - {problem}", flush=True)


def kill_rows(runs: Sequence[KilledRun], kinds: Sequence[str]) -> list[Row]:
    """Return the lines of the kills: all runs, and each kind of kill."""
    good = {run.number for run in runs if not run.problems}
    seconds = [run.seconds for run in runs] or [0.0]
    note = f"{sum(run.commands for run in runs)} commands; {statistics.median(seconds):.0f} s each"
    rows = [Row("runs", len(runs), len(good), note)]
    kills = [(run.number in good, kill) for run in runs for kill in run.kills]
    for kind in kinds:
        mine = [(is_good, kill) for is_good, kill in kills if kill.kind == kind]
        phases = Counter(kill.phase for _, kill in mine)
        note = ", ".join(f"{phase} {phases[phase]}" for phase in PHASES)
        rows.append(Row(f"kills of a {kind}", len(mine), sum(each for each, _ in mine), note))
    return rows


def do_faults(
    options: argparse.Namespace, package: Path, folder: Path
) -> tuple[list[Row], dict[str, Any]]:
    """Run a dump with broken operators."""
    counts = {CRASH: options.crash, HANG: options.hang, RAISE: getattr(options, RAISE)}
    capture, devices = CAPTURES / "torch_cnn" / "dump.json", range(options.devices)
    given = (capture, options.calls, counts, devices, options.seed, package, folder / "faults")
    with _pool(1) as pool:
        over: FaultsRun = pool.submit(run_faults, *given).result()
    for problem in over.problems:
        print(f"FAILED: faults --seed {options.seed}: {problem}")
    return fault_rows(over), asdict(over)


def fault_rows(over: FaultsRun) -> list[Row]:
    """Return the lines of the faults: the time, each kind of fault, and the whole operators."""
    note = f"{over.faulty_s:.1f} s; clean {over.clean_s:.1f} s, limit {over.limit_s:.1f} s"
    others = over.calls - sum(over.broken.values())
    return [
        Row("in time", 1, int(over.faulty_s <= over.limit_s), note),
        Row("nothing strange", 1, int(not over.problems)),
        *(Row(f"calls that {f}", n, over.right.get(f, 0)) for f, n in over.broken.items()),
        Row("other calls", others, over.others_right),
    ]
