"""Measure what ray_precheck promises, on the machine that this runs on, and print ratios.

    python -m scripts.bench captures [DUMP ...]      rows, checked share and errors of captures
    python -m scripts.bench identity DUMP            the same bytes on 1, 2, 4 devices and after kill -9
    python -m scripts.bench speed DUMP [--msprobe CMD] [--pairs N]
                                              whole commands in pairs, and one device against a
                                              bare loop without Ray
    python -m scripts.bench memory DUMP [--calls N]  the driver's peak memory for a large dump
    python -m scripts.bench stage DUMP [--pairs N]   the loop with a bench worker on a second core, against
                                              device and bench on one core, and on two fused ones
    python -m scripts.bench capture [--pairs N] [--kinds L1 mix ...]
                                              a captured step of a training against a plain one

Machines are shared and noisy: whole commands are compared in pairs, one right after the other, and
medians of ratios are printed. CMD is a command that checks a dump with msprobe and takes DUMP and
an output folder, for example a script around `msprobe multi_acc_check -api_info $1 -o $2 -d 0 1`.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import os
import platform
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = ROOT / "tests" / "data"
COMMAND = [sys.executable, "-m", "ray_precheck"]
EXIT_CODES = (0, 1)


def main() -> int:
    """Run one benchmark; returns 1 where a promise is not met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    captures = commands.add_parser("captures")
    captures.add_argument("dumps", nargs="*", type=Path)
    identity = commands.add_parser("identity")
    identity.add_argument("dump", type=Path)
    identity.add_argument("--kills", type=int, default=3)
    speed = commands.add_parser("speed")
    speed.add_argument("dump", type=Path)
    speed.add_argument("--msprobe")
    speed.add_argument("--pairs", type=int, default=3)
    memory = commands.add_parser("memory")
    memory.add_argument("dump", type=Path)
    memory.add_argument("--calls", type=int, default=100_000)
    stage = commands.add_parser("stage")
    stage.add_argument("dump", type=Path)
    stage.add_argument("--pairs", type=int, default=3)
    capture = commands.add_parser("capture")
    capture.add_argument("--pairs", type=int, default=15)
    capture.add_argument("--kinds", nargs="+")
    options = parser.parse_args()
    print(machine())
    actions = {
        "captures": lambda: bench_captures(options.dumps or sorted(CAPTURES.glob("*/dump.json"))),
        "identity": lambda: bench_identity(options.dump, options.kills),
        "speed": lambda: bench_speed(options.dump, options.msprobe, options.pairs),
        "memory": lambda: bench_memory(options.dump, options.calls),
        "stage": lambda: bench_stage(options.dump, options.pairs),
        "capture": lambda: bench_capture(options.kinds, options.pairs),
    }
    return 0 if actions[options.command]() else 1


def machine() -> str:
    """Return one line that names the machine."""
    cpu = "unknown CPU"
    if Path("/proc/cpuinfo").exists():
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        cpu = found.group(1) if found else cpu
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"machine: {os.cpu_count()} cores ({cpu}), {gigabytes:.0f} GiB, Python"
        f" {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


def bench_capture(kinds: Sequence[str] | None, pairs: int) -> bool:
    """Print what captures cost; only this one needs PyTorch."""
    from scripts.capture_cost import KINDS, report_costs

    unknown = set(kinds or ()) - set(KINDS)
    if unknown:
        raise SystemExit(
            f"no kind is called {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}"
        )
    return report_costs(kinds or list(KINDS), pairs)


def run_precheck(dump: Path, out: Path, *options: str) -> float:
    """Run the whole command and return its seconds."""
    command = [*COMMAND, "run_ut", "-api_info", str(dump), "-o", str(out), *options]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    elapsed = time.monotonic() - begin
    if done.returncode not in EXIT_CODES:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr[-2000:]}{done.stdout[-2000:]}")
    return elapsed


def read_csv(folder: Path, stem: str) -> list[dict[str, str]]:
    """Return the rows of the one CSV file of a kind in a folder."""
    (path,) = folder.glob(f"accuracy_checking_{stem}_*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def digest(folder: Path) -> str:
    """Return a hash over both CSV files of a folder."""
    state = hashlib.sha256()
    for stem in ("result", "details"):
        (path,) = folder.glob(f"accuracy_checking_{stem}_*.csv")
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def api_calls(dump: Path) -> set[str]:
    """Return the names of the API calls of a dump."""
    keys = json.loads(dump.read_text())["data"]
    return {key.removesuffix(".forward") for key in keys if key.endswith(".forward")}


def bench_captures(dumps: Sequence[Path]) -> bool:
    """Print for each capture: rows, checked share, errors, and errors that rounding leaves open."""
    good = True
    print(
        f"{'capture':24} {'calls':>6} {'rows':>6} {'checked':>8} {'errors':>7} {'unexplained':>12}"
    )
    for dump in dumps:
        with tempfile.TemporaryDirectory() as folder:
            run_precheck(dump, Path(folder), "-d", "0", "1")
            results, details = read_csv(Path(folder), "result"), read_csv(Path(folder), "details")
        calls = api_calls(dump)
        checked = sum(row["Forward Test Success"] != "SKIP" for row in results)
        errors = sum("error" in row.values() for row in results)
        bare = [r for r in details if r["Status"] == "error" and "rounding:" not in r["Message"]]
        good = (
            good and calls <= {row["API Name"] for row in results} and checked >= 0.97 * len(calls)
        )
        print(
            f"{dump.parent.name:24} {len(calls):6} {len(results):6} {checked / len(calls):8.1%}"
            f" {errors:7} {len(bare):12}"
        )
        for row in bare:
            print(f"    {row['API Name']}: {row['Message']}")
    return good


def bench_identity(dump: Path, kills: int) -> bool:
    """Compare the bytes of both files for 1, 2, 4 devices and for runs that were killed."""
    digests = []
    with tempfile.TemporaryDirectory() as folder:
        for devices in ("0", "0 1", "0 1 2 3"):
            out = Path(folder) / devices.replace(" ", "_")
            seconds = run_precheck(dump, out, "-d", *devices.split())
            digests.append(digest(out))
            print(f"-d {devices:8} {digests[-1]}  {seconds:.1f} s")
        for number in range(kills):
            out = Path(folder) / f"killed_{number}"
            done = kill_once(dump, out, random.Random(number))
            (result,) = out.glob("accuracy_checking_result_*.csv")
            run_precheck(dump, out, "-d", "0", "1", "-csv_path", str(result))
            digests.append(digest(out))
            print(f"killed with {done:5} rows, resumed  {digests[-1]}")
    same = len(set(digests)) == 1
    print("all the same" if same else "DIFFERENT")
    return same


def kill_once(dump: Path, out: Path, chance: random.Random) -> int:
    """Start a run, kill -9 its process tree at a random moment; returns the rows that it left."""
    command = [*COMMAND, "run_ut", "-api_info", str(dump), "-o", str(out), "-d", "0", "1"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    target = chance.random() * len(api_calls(dump))
    while process.poll() is None and rows_so_far(out) < target:
        time.sleep(0.02)
    tree = psutil.Process(process.pid)
    for each in (tree, *tree.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    return rows_so_far(out)


def rows_so_far(out: Path) -> int:
    """Return the number of result rows on the disk."""
    return sum(
        path.read_bytes().count(b"\n") for path in out.glob("accuracy_checking_result_*.csv")
    )


def bench_speed(dump: Path, msprobe: str | None, pairs: int) -> bool:
    """Print the whole command against msprobe's, and one device against a bare loop."""
    if msprobe:
        ratios = []
        for _ in range(pairs):
            with tempfile.TemporaryDirectory() as folder:
                ours = run_precheck(dump, Path(folder) / "ours", "-d", "0", "1")
                begin = time.monotonic()
                theirs_out = str(Path(folder) / "theirs")
                subprocess.run([msprobe, str(dump), theirs_out], capture_output=True, check=True)
                theirs = time.monotonic() - begin
            ratios.append(ours / theirs)
            print(
                f"whole command, 2 devices: {ours:.1f} s, msprobe {theirs:.1f} s: {ratios[-1]:.3f}"
            )
        print(f"median ratio to msprobe: {statistics.median(ratios):.3f}")
    efficiencies = []
    for _ in range(pairs):
        bare, driven = run_loop(dump, "bare_loop"), run_loop(dump, "driven_loop")
        efficiencies.append(driven / bare)
        print(f"one device: {driven:.0f} api/s, bare loop {bare:.0f} api/s: {efficiencies[-1]:.3f}")
    print(f"median of one device to the bare loop: {statistics.median(efficiencies):.3f}")
    return statistics.median(efficiencies) >= 0.8


def run_loop(dump: Path, which: str) -> float:
    """Run one of the loops below in a process of its own; returns its records per second."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from scripts import bench; bench.{which}()"
    )
    command = [sys.executable, "-c", code, str(dump)]
    # Ray gives its workers one OpenMP thread; the bare loop must not have more.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.split()[-1])


def bare_loop() -> None:
    """Generate, run, bench and compare every record once, without Ray; print records per second."""
    from ray_precheck.check.checker import Checker
    from ray_precheck.check.settings import CheckSettings
    from ray_precheck.dump.parse import open_dump
    from ray_precheck.plan.planner import plan_tasks

    with open_dump(sys.argv[1]) as dump:
        tests_dump = dump.task == "tensor"
        checker = Checker(
            CheckSettings(dump.framework, dump.task, dump.data_folder, tests_dump=tests_dump), "cpu"
        )
        tasks = plan_tasks(dump, dump.framework, set()).tasks
        clock = _Clock()
        for task in tasks:
            clock.add([checker.check(dump.payload(task))])
        print(clock.rate())


def driven_loop() -> None:
    """Do the same through Ray with one device; print records per second after start-up."""
    from ray_precheck import session
    from ray_precheck.config import RunConfig

    clock = _Clock()

    class ClockedProgress(session.Progress):
        def add(self, results: "Sequence[object]") -> None:  # type: ignore[override]
            clock.add(results)

    session.Progress = ClockedProgress  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(Path(sys.argv[1]), out=Path(folder), bench_workers=0)
        session.run(config, show_progress=False)
    print(clock.rate())


class _Clock:
    """Times results from the first arrival to the last; the first ones count as start-up."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0
        self._count = 0

    def add(self, results: Sequence[object]) -> None:
        """Count results that have just arrived."""
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last
        else:
            self._count += len(results)

    def rate(self) -> float:
        """Return records per second."""
        return self._count / (self._last - (self._first or 0.0))


# How a capture is run on one core and, in two ways, on two.
_WAYS = {
    "one core, fused": ("-d", "0", "--bench-workers", "0"),
    "bench stage on a second core": ("-d", "0", "--bench-workers", "1"),
    "two devices, fused": ("-d", "0", "1", "--bench-workers", "0"),
}


def bench_stage(dump: Path, pairs: int) -> bool:
    """Print how much faster the loop is with a bench worker beside the one device."""
    ratios: dict[str, list[float]] = {way: [] for way in _WAYS}
    for _ in range(pairs):
        spans = {way: loop_s(dump, options) for way, options in _WAYS.items()}
        fused = spans["one core, fused"]
        for way, span in spans.items():
            ratios[way].append(fused / span)
        print(", ".join(f"{way}: {span:.2f} s ({fused / span:.2f})" for way, span in spans.items()))
    medians = {way: statistics.median(found) for way, found in ratios.items()}
    print("medians: " + ", ".join(f"{way}: {median:.2f}" for way, median in medians.items()))
    return medians["bench stage on a second core"] >= 1.6


def loop_s(dump: Path, options: Sequence[str]) -> float:
    """Run a dump; return the seconds from its first record's begin to its last one's end."""
    with tempfile.TemporaryDirectory() as folder:
        run_precheck(dump, Path(folder), *options)
        (timeline,) = Path(folder).glob("*.timeline.json")
        events = [event for event in json.loads(timeline.read_text()) if event["ph"] == "X"]
    begin = min(event["ts"] for event in events)
    return (max(event["ts"] + event["dur"] for event in events) - begin) / 1e6


def bench_memory(dump: Path, calls: int) -> bool:
    """Print the driver's peak memory for a dump of many calls."""
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "dump.json"
        multiply_dump(dump, calls, large)
        size = large.stat().st_size / 2**20
        begin = time.monotonic()
        run_precheck(large, Path(folder) / "out", "-d", "0", "1")
        seconds = time.monotonic() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{calls} calls, {size:.0f} MiB of JSON, {seconds:.0f} s: driver's peak {peak:.0f} MiB")
    return peak < 500


def multiply_dump(dump: Path, calls: int, target: Path) -> None:
    """Write a dump of `calls` API calls, made of those of `dump` under new call numbers."""
    header = json.loads(dump.read_text())
    records = header.pop("data")
    names = sorted({key.rsplit(".", 1)[0] for key in records if key.endswith(".forward")})
    raw = {key: json.dumps(record) for key, record in records.items()}
    with target.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header)[:-1] + ', "data": {')
        separator = ""
        for number in range(calls):
            name = names[number % len(names)]
            new = f"{name.rsplit('.', 1)[0]}.{number}"
            for direction in ("forward", "backward"):
                if f"{name}.{direction}" in raw:
                    file.write(f'{separator}\n "{new}.{direction}": {raw[f"{name}.{direction}"]}')
                    separator = ","
        file.write("}}\n")


if __name__ == "__main__":
    sys.exit(main())
