"""Feed mutated captures to ray_precheck and see that nothing but rows and refusals comes out.

    python -m scripts.fuzz --count 2000                  what the tests run
    python -m scripts.fuzz --count 100000 --seed 7       the long run
    python -m scripts.fuzz --only 7:1234                 one case again, with its traceback
    python -m scripts.fuzz --special                     pipes, devices, sockets and folders as files

A case is a seed and a number. Each is examined in a child process under a limit of memory and of
time: a traceback, a hang, a death, foreign code, or a file that is none of its business is a
finding, printed with its case and saved as small as it can be made. What an API does to its worker
(a crash, a hang) is none: workers are there for that.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from scripts.fuzz import mutations

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = sorted((ROOT / "tests" / "data").glob("*/dump.json"))
SHARED_MEMORY = "/dev/shm"
# Seconds that a dump may take in the driver, in a worker around the API, and in the API itself.
LIMITS_S = {0: 180.0, 1: 10.0, 2: 10.0, 3: 15.0}
STAGES = {0: "the fuzzer", 1: "the driver", 2: "the worker", 3: "the API"}
RUNS_APIS_EVERY = 6
OUTCOMES = ("", "finding", "refused", "rows", "worker killed", "worker hung")
FINDING, KILLED, HUNG = 1, 4, 5
SHRINK_S = 20.0
_CASE = np.dtype([("outcome", "u1"), ("seconds", "f4"), ("mib", "f4")])
_STATE = np.dtype([("number", "i8"), ("stage", "u1"), ("since", "f8")])


@dataclass(frozen=True)
class Job:
    """What a child process needs: its share of the cases and the files to report in."""

    seed: int
    count: int
    jobs: int
    place: int
    captures: tuple[Path, ...]
    folder: Path

    def cases(self) -> Any:
        """Return the table of all cases, shared by all processes."""
        return np.memmap(self.folder / "cases", _CASE, "r+")

    def state(self) -> Any:
        """Return what this child is at, shared with its parent."""
        return np.memmap(self.folder / "state", _STATE, "r+")[self.place]


def main() -> int:
    """Run the fuzzer; returns 1 where there is a finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--from", dest="captures", nargs="+", type=Path, default=CAPTURES)
    parser.add_argument("--save", type=Path, default=Path("fuzz_findings"))
    parser.add_argument("--only", metavar="SEED:NUMBER", help="examine one case in this process")
    parser.add_argument("--special", action="store_true", help="files that are no regular ones")
    options = parser.parse_args()
    if options.special:
        from scripts.fuzz.special import examine_special

        return 1 if examine_special() else 0
    captures = tuple(path.resolve() for path in options.captures)
    # In memory where that can be: the files of a case are synced to the disk.
    place = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=place) as name:
        if options.only:
            return examine_one(options.only, captures, Path(name))
        run = FuzzRun(options.seed, options.count, max(1, options.jobs), captures, Path(name))
        run.run()
        run.shrink(options.save)
        print(run.table())
    return 1 if run.findings else 0


def case_of(seed: int, number: int, captures: Sequence[mutations.Capture]) -> tuple[str, bytes]:
    """Return the kind and the bytes of a case; the same for the same captures, on any machine."""
    random = Random(f"{seed}:{number}")
    kind = random.choice(list(mutations.KINDS))
    return kind, mutations.mutated_dump(captures, random, kind)


def examine_one(case: str, captures: Sequence[Path], folder: Path) -> int:
    """Examine one case in this process, so that its traceback is seen."""
    from scripts.fuzz import target as fuzz_target

    seed, number = map(int, case.split(":"))
    fuzz_target.make_folder(folder, _tensor_folders(captures))
    target = fuzz_target.Target(folder, lambda stage: None)
    kind, raw = case_of(seed, number, [mutations.read_capture(path) for path in captures])
    print(f"{kind}: {raw[:2000]!r}")
    print(target.examine(raw, number % RUNS_APIS_EVERY == 0))
    return 0


def _tensor_folders(captures: Sequence[Path]) -> list[Path]:
    folders = [path.parent / mutations.FOLDER for path in captures]
    return [folder for folder in folders if folder.is_dir()]


def child(job: Job, first: int) -> None:
    """Examine this child's cases from `first` on."""
    with _target(job) as target:
        captures = [mutations.read_capture(path) for path in job.captures]
        cases, state = job.cases(), job.state()
        for number in range(first, job.count, job.jobs):
            state["number"] = number
            target.mark(0)
            _, raw = case_of(job.seed, number, captures)
            begin = time.perf_counter()
            outcome, text = _examined(target, raw, number)
            if text:
                _report(job, number, text)
            cases[number] = (outcome, time.perf_counter() - begin, _peak_mib())
        state["number"] = job.count


@contextlib.contextmanager
def _target(job: Job) -> Iterator[Any]:
    from scripts.fuzz import target as fuzz_target

    state = job.state()

    def mark(stage: int) -> None:
        state["since"] = time.monotonic()
        state["stage"] = stage

    with tempfile.TemporaryDirectory(dir=job.folder) as name:
        folder = Path(name).resolve()
        fuzz_target.make_folder(folder, _tensor_folders(job.captures))
        (folder / "empty").mkdir()
        os.chdir(folder / "empty")
        target = fuzz_target.Target(folder, mark)
        # What is imported on the way is imported now, before anything is watched.
        with contextlib.suppress(Exception):
            target.examine((ROOT / "tests" / "data" / "torch_llm" / "dump.json").read_bytes(), True)
        yield target
        mark(0)


def _examined(target: Any, raw: bytes, number: int) -> tuple[int, str]:
    """Return the outcome of a dump, and what is found."""
    from scripts.fuzz import target as fuzz_target

    try:
        outcome = target.examine(raw, number % RUNS_APIS_EVERY == 0)
    except fuzz_target.Finding as finding:
        return FINDING, str(finding)
    if os.listdir():
        return FINDING, f"files in the current folder: {os.listdir()[:3]}"
    return OUTCOMES.index(outcome.split(" ")[0]), ""


def _report(job: Job, number: int, text: str) -> None:
    with (job.folder / "findings").open("a") as file:
        file.write(json.dumps([number, text]) + "\n")


def _peak_mib() -> float:
    """Return the peak of this process's memory since the last call."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak / 1024


@dataclass
class FuzzRun:
    """One run of the fuzzer: its children, and what they found."""

    seed: int
    count: int
    jobs: int
    captures: tuple[Path, ...]
    folder: Path
    findings: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        np.zeros(max(1, self.count), _CASE).tofile(self.folder / "cases")
        np.zeros(self.jobs, _STATE).tofile(self.folder / "state")
        (self.folder / "findings").touch()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch", "fuzz_target"])

    def run(self) -> None:
        """Examine all cases; a child that hangs or dies is replaced, and goes on behind the case."""
        begin = time.monotonic()
        jobs = [
            Job(self.seed, self.count, self.jobs, place, self.captures, self.folder)
            for place in range(self.jobs)
        ]
        children = {job.place: self._start(job, job.place) for job in jobs}
        while children:
            time.sleep(0.1)
            for job in jobs:
                if job.place in children:
                    self._look_after(job, children)
        for line in (self.folder / "findings").read_text().splitlines():
            number, text = json.loads(line)
            self.findings[number] = text
        self.seconds = time.monotonic() - begin

    def _start(self, job: Job, first: int) -> Any:
        state = job.state()
        state["number"], state["stage"], state["since"] = first, 0, time.monotonic()
        process = self._context.Process(target=child, args=(job, first), daemon=True)
        process.start()
        return process

    def _look_after(self, job: Job, children: dict[int, Any]) -> None:
        """See whether a child has ended or takes too long."""
        process, state = children[job.place], job.state()
        stage, number = int(state["stage"]), int(state["number"])
        late = time.monotonic() - float(state["since"]) > LIMITS_S[stage]
        if process.is_alive() and not late:
            return
        if late:
            process.kill()
        process.join()
        del children[job.place]
        if number >= job.count:
            return
        text = f"no end in {LIMITS_S[stage]:g} s" if late else f"exit code {process.exitcode}"
        cases = job.cases()
        if stage == 3:
            cases[number]["outcome"] = HUNG if late else KILLED
        elif cases[number]["outcome"] == 0:
            cases[number]["outcome"] = FINDING
            _report(job, number, f"{STAGES[stage]}: {text}")
        if number + job.jobs < job.count:
            children[job.place] = self._start(job, number + job.jobs)

    def shrink(self, folder: Path) -> None:
        """Save the smallest dump for each kind of finding."""
        captures = [mutations.read_capture(path) for path in self.captures]
        seen: set[str] = set()
        for number, text in sorted(self.findings.items()):
            kind, raw = case_of(self.seed, number, captures)
            print(f"finding {self.seed}:{number} ({kind}): {text}")
            if _signature(text) in seen:
                continue
            seen.add(_signature(text))
            small = _smaller(self, number, raw, text)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{self.seed}-{number}.json"
            path.write_bytes(small)
            print(f"  {len(raw)} bytes made {len(small)}: {path}")

    def table(self) -> str:
        """Return what was done and what became of it, by kind of mutation."""
        captures = [mutations.read_capture(path) for path in self.captures]
        cases = np.fromfile(self.folder / "cases", _CASE)[: self.count]
        counts: dict[str, Counter[str]] = {kind: Counter() for kind in mutations.KINDS}
        for number, outcome in enumerate(cases["outcome"]):
            kind = Random(f"{self.seed}:{number}").choice(list(mutations.KINDS))
            counts[kind][OUTCOMES[outcome]] += 1
        columns = [*OUTCOMES[2:], OUTCOMES[1]]
        lines = [f"{'mutation':18}" + "".join(f"{name:>15}" for name in ["cases", *columns])]
        for kind, found in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
            numbers = [found.total(), *(found[name] for name in columns)]
            lines.append(f"{kind:18}" + "".join(f"{number:15}" for number in numbers))
        slowest = int(np.argmax(cases["seconds"])) if self.count else 0
        kind = case_of(self.seed, slowest, captures)[0]
        lines.append(
            f"{self.count / max(self.seconds, 1e-9):.0f} cases/s with {self.jobs} jobs;"
            f" peak memory {cases['mib'].max(initial=0):.0f} MiB (the smallest"
            f" {cases['mib'][cases['mib'] > 0].min(initial=1e9):.0f}); slowest"
            f" {cases['seconds'].max(initial=0):.2f} s ({self.seed}:{slowest}, {kind})"
        )
        return "\n".join(lines)


def _signature(text: str) -> str:
    """Return a finding without what differs between two dumps of the same fault."""
    return re.split(r"[^A-Za-z_ :.;(]", text, maxsplit=1)[0][:90]


def _smaller(run: FuzzRun, number: int, raw: bytes, text: str) -> bytes:
    """Return a smaller dump with the same finding: pieces are left out while it stays."""
    until = time.monotonic() + SHRINK_S
    piece = len(raw) // 2
    while piece >= 1 and time.monotonic() < until and len(raw) < 5_000_000:
        at = 0
        while at < len(raw) and time.monotonic() < until:
            fewer = raw[:at] + raw[at + piece :]
            if _signature(_found(run, number, fewer)) == _signature(text):
                raw = fewer
            else:
                at += piece
        piece //= 2
    return raw


class _Prober:
    """A child that examines the dumps it is sent, replaced when one ends it."""

    def __init__(self, run: FuzzRun) -> None:
        self._run = run
        self._job = Job(run.seed, 0, 1, 0, run.captures, run.folder)
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = self._run._context
        self._process = context.Process(target=probe, args=(self._job, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def examine(self, number: int, raw: bytes) -> str:
        """Return what is found in a dump, "" for nothing."""
        self._pipe.send((number, raw))
        with contextlib.suppress(EOFError):
            if self._pipe.poll(LIMITS_S[1] + 1):
                return str(self._pipe.recv())
        late = self._process.is_alive()
        self._process.kill()
        self._process.join()
        stage = int(self._job.state()["stage"])
        code = self._process.exitcode
        self._start()
        text = f"no end in {LIMITS_S[stage]:g} s" if late else f"exit code {code}"
        return "" if stage == 3 else f"{STAGES[stage]}: {text}"


def probe(job: Job, pipe: Any) -> None:
    """Examine dumps that come through a pipe."""
    with _target(job) as target:
        pipe.send("")
        while True:
            number, raw = pipe.recv()
            pipe.send(_examined(target, raw, number)[1])


_PROBERS: list[_Prober] = []


def _found(run: FuzzRun, number: int, raw: bytes) -> str:
    if not _PROBERS:
        _PROBERS.append(_Prober(run))
    return _PROBERS[0].examine(number, raw)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
