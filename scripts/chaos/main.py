"""Break runs of ray_precheck at random, and see that nothing is lost and nothing stays behind.

    python -m scripts.chaos                        everything: about an hour on two cores
    python -m scripts.chaos kills --runs 4         runs that are killed 1 to 3 times and go on to the end
    python -m scripts.chaos faults --calls 60 --crash 4 --hang 3 --raise 3
                                            operators that crash, hang and raise
    python -m scripts.chaos histories              simulated histories of the scheduler

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
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.chaos.command import DRIVER, become_subreaper
from scripts.chaos.faults import CRASH, HANG, RAISE, FaultsRun, run_faults
from scripts.chaos.kills import KilledRun, KillSetup, run_killed, run_undisturbed
from scripts.chaos.moments import KINDS, PHASES, Undisturbed

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "data"
DUMPS = ("torch_cnn", "mindspore_llm", "torch_llm")
PARTS = ("kills", "faults", "histories")


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    part: str
    what: str
    tried: int
    good: int
    median_s: float = 0.0
    longest_s: float = 0.0
    note: str = ""


def main() -> int:
    """Do the parts that are asked for; returns 1 where anything was not as it must be."""
    options = _options()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    package = _copy_package(folder)
    actions = {"kills": do_kills, "faults": do_faults, "histories": do_histories}
    rows: list[Row] = []
    findings: dict[str, Any] = {}
    for part in options.parts or PARTS:
        more, findings[part] = actions[part](options, package, folder)
        rows += more
    print_table(rows)
    if options.json:
        report = {"seed": options.seed, "rows": [asdict(row) for row in rows], **findings}
        options.json.write_text(json.dumps(report, indent=1))
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
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS), help="default: all")
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
    kills.add_argument(
        "--kinds",
        nargs="+",
        default=KINDS,
        choices=(*KINDS, DRIVER),
        help="what is killed, in turn",
    )
    faults = parser.add_argument_group("faults")
    faults.add_argument("--calls", type=int, default=500)
    for fault, count in ((CRASH, 20), (HANG, 10), (RAISE, 10)):
        faults.add_argument(f"--{fault}", type=int, default=count)
    histories = parser.add_argument_group("histories")
    histories.add_argument("--count", type=int, default=1_000_000)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"{', '.join(unknown)}: choose among {', '.join(PARTS)}")
    return options


def _copy_package(folder: Path) -> Path:
    target = folder / "package"
    shutil.rmtree(target, ignore_errors=True)
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ray_precheck", target / "ray_precheck", ignore=leave)
    compileall.compile_dir(target, quiet=1)
    return target


def do_kills(
    options: argparse.Namespace, package: Path, folder: Path
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Kill runs; prints those that fail at once."""
    given = [dump.resolve() for dump in options.dump or []]  # Commands run in another folder.
    dumps = given or [CAPTURES / name / "dump.json" for name in DUMPS]
    setup = KillSetup(
        package, folder, tuple(range(options.devices)), options.seed, tuple(options.kinds)
    )
    numbers = range(options.first, options.first + options.runs)
    turns = {number: dumps[number % len(dumps)] for number in numbers}
    undisturbed: dict[Path, Undisturbed] = {}
    with _pool(options.jobs) as pool:
        for dump in dict.fromkeys(turns.values()):
            place = (options.undisturbed or folder / "undisturbed") / dump.parent.name
            undisturbed[dump] = pool.submit(run_undisturbed, setup, dump, place).result()
            print(f"{dump.parent.name}: {undisturbed[dump].whole_s:.1f} s undisturbed", flush=True)
        jobs = [
            pool.submit(run_killed, setup, number, dump, undisturbed[dump])
            for number, dump in turns.items()
        ]
        runs = _watch(jobs, options.seed)
    return kill_rows(runs, options.kinds), [asdict(run) for run in runs]


def _pool(jobs: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, context, initializer=become_subreaper)


def _watch(jobs: Sequence[Any], seed: int) -> list[KilledRun]:
    runs: list[KilledRun] = []
    begin = time.monotonic()
    for job in as_completed(jobs):
        run: KilledRun = job.result()
        runs.append(run)
        if run.problems:
            print(f"FAILED: --seed {seed} --first {run.number} --runs 1 ({run.dump}), {run.folder}")
            for kill in run.kills:
                print(
                    f"    {kill.kind} ({kill.victim}), {kill.phase}: {kill.at_s:.2f} s after the"
                    f" start of command {kill.command}, {kill.rows} rows, stage {kill.stage}"
                )
            for problem in run.problems:
                print(f"  - {problem}")
        if run.problems or len(runs) % 10 == 0:
            bad = sum(bool(one.problems) for one in runs)
            minutes = (time.monotonic() - begin) / 60
            print(f"{len(runs)}/{len(jobs)} runs, {bad} failed, {minutes:.1f} min", flush=True)
    return sorted(runs, key=lambda run: run.number)


def kill_rows(runs: Sequence[KilledRun], kinds: Sequence[str]) -> list[Row]:
    """Return the lines of the kills: all runs, each kind of kill, each phase."""
    good = {run.number for run in runs if not run.problems}
    seconds = [run.seconds for run in runs] or [0.0]
    times = Counter(len(run.kills) for run in runs)
    commands = sum(run.commands for run in runs)
    note = f"{commands} commands; killed " + ", ".join(
        f"{count} times: {times[count]}" for count in sorted(times)
    )
    rows = [
        Row("kills", "runs", len(runs), len(good), statistics.median(seconds), max(seconds), note)
    ]
    kills = [(run.number, kill) for run in runs for kill in run.kills]
    for kind in kinds:
        mine = [(number, kill) for number, kill in kills if kill.kind == kind]
        ends = [kill.end_s for _, kill in mine] or [0.0]
        phases = Counter(kill.phase for _, kill in mine)
        note = ", ".join(f"{phase} {phases[phase]}" for phase in PHASES)
        count = sum(number in good for number, _ in mine)
        rows.append(
            Row(
                "kills",
                f"kills of a {kind}",
                len(mine),
                count,
                statistics.median(ends),
                max(ends),
                note,
            )
        )
    return rows


def do_faults(
    options: argparse.Namespace, package: Path, folder: Path
) -> tuple[list[Row], dict[str, Any]]:
    """Run a dump with broken operators."""
    counts = {CRASH: options.crash, HANG: options.hang, RAISE: getattr(options, RAISE)}
    with _pool(1) as pool:
        over: FaultsRun = pool.submit(
            run_faults,
            CAPTURES / "torch_cnn" / "dump.json",
            options.calls,
            counts,
            range(options.devices),
            options.seed,
            package,
            folder / "faults",
        ).result()
    for problem in over.problems:
        print(f"FAILED: faults --seed {options.seed}: {problem}")
    return fault_rows(over), asdict(over)


def fault_rows(over: FaultsRun) -> list[Row]:
    """Return the lines of the faults: the time, each kind of fault, and the whole operators."""
    in_time = over.faulty_s <= over.limit_s
    note = f"clean {over.clean_s:.1f} s, limit {over.limit_s:.1f} s"
    rows = [
        Row("faults", "in time", 1, int(in_time), longest_s=over.faulty_s, note=note),
        Row("faults", "nothing strange", 1, int(not over.problems)),
    ]
    for fault, count in over.broken.items():
        rows.append(Row("faults", f"calls that {fault}", count, over.right.get(fault, 0)))
    others = over.calls - sum(over.broken.values())
    return [*rows, Row("faults", "other calls", others, over.others_right)]


def do_histories(
    options: argparse.Namespace, package: Path, folder: Path
) -> tuple[list[Row], dict[str, Any]]:
    """Simulate histories of runs; `histories` prints what breaks a rule, with its seed."""
    sys.path.insert(0, str(package))
    from scripts.histories import search as histories

    begin = time.monotonic()
    seed, jobs = str(options.seed), str(options.jobs)
    code = histories.main(["--count", str(options.count), "--seed", seed, "--jobs", jobs])
    seconds = time.monotonic() - begin
    good = 0 if code else options.count
    return [Row("histories", "histories", options.count, good, longest_s=seconds)], {"code": code}


def print_table(rows: Sequence[Row]) -> None:
    """Print the one table."""
    line = "{:10} {:18} {:>9} {:>9} {:>7} {:>9} {:>9}  {}"
    print(line.format("part", "what", "tried", "good", "failed", "median s", "longest s", ""))
    for row in rows:
        seconds = [f"{s:.1f}" if s else "" for s in (row.median_s, row.longest_s)]
        print(
            line.format(
                row.part, row.what, row.tried, row.good, row.tried - row.good, *seconds, row.note
            ).rstrip()
        )


if __name__ == "__main__":
    sys.exit(main())
