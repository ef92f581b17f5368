"""Feed mutated captures to ray_precheck and see that nothing but rows and refusals comes out.

    python -m scripts.fuzz --count 2000                  what the tests run
    python -m scripts.fuzz --count 100000 --seed 7       the long run
    python -m scripts.fuzz --only 7:1234                 one case again, with its traceback

A case is a seed and a number. Each is examined in a child process under a limit of memory and of
time: a traceback, a hang, a death, foreign code, or a file that is none of its business is a
finding, printed with its case and saved as small as it can be made. What an API does to its worker
(a crash, a hang) is none: workers are there for that.
"""

import argparse
import contextlib
import multiprocessing
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from scripts import measuring
from scripts.fuzz import mutations

CAPTURES = sorted(measuring.CAPTURES.glob("*/dump.json"))
SHARED_MEMORY = "/dev/shm"
# Seconds that a dump may take in the driver, in a worker around the API, and in the API itself.
LIMITS_S = {0: 180.0, 1: 10.0, 2: 10.0, 3: 15.0}
STAGES = {0: "the fuzzer", 1: "the driver", 2: "the worker", 3: "the API"}
RUNS_APIS_EVERY = 6
OUTCOMES = ("refused", "rows", "worker killed", "worker hung", "finding")
SHRINK_S = 20.0
CONTEXT = multiprocessing.get_context("forkserver")


class Examined(NamedTuple):
    """What became of a case; `text` says what was found, "" for nothing."""

    outcome: str
    text: str = ""
    seconds: float = 0.0
    mib: float = 0.0


def case_of(seed: int, number: int, captures: Sequence[mutations.Capture]) -> tuple[str, bytes]:
    """Return the kind and the bytes of a case; the same for the same captures, on any machine."""
    random = Random(f"{seed}:{number}")
    kind = random.choice(list(mutations.KINDS))
    return kind, mutations.mutated_dump(captures, random, kind)


def _target(folder: Path, captures: Sequence[Path], mark: Any) -> Any:
    from scripts.fuzz import target as fuzz_target

    tensors = [path.parent / mutations.FOLDER for path in captures]
    fuzz_target.make_folder(folder, [each for each in tensors if each.is_dir()])
    return fuzz_target.Target(folder, mark)


def child(pipe: Any, state: Any, seed: int, captures: Sequence[Path], place: Path) -> None:
    """Examine the cases whose numbers come through a pipe, or the bytes that come with them.

    `state` has the stage, and since when.
    """
    from scripts.fuzz import target as fuzz_target

    def mark(stage: int) -> None:
        state[0], state[1] = stage, time.monotonic()

    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name).resolve()
        target = _target(folder, captures, mark)
        (folder / "empty").mkdir()
        os.chdir(folder / "empty")
        # What is imported on the way is imported now, before anything is watched.
        with contextlib.suppress(Exception):
            target.examine((measuring.CAPTURES / "torch_llm" / "dump.json").read_bytes(), True)
        read = [mutations.read_capture(path) for path in captures]
        mark(0)
        pipe.send(None)
        while True:
            number, raw = pipe.recv()
            raw = case_of(seed, number, read)[1] if raw is None else raw
            begin, outcome, text = time.perf_counter(), "finding", ""
            try:
                outcome = target.examine(raw, number % RUNS_APIS_EVERY == 0).split(" ")[0]
            except fuzz_target.Finding as finding:
                text = str(finding)
            if not text and os.listdir():
                outcome, text = "finding", f"files in the current folder: {os.listdir()[:3]}"
            pipe.send(Examined(outcome, text, time.perf_counter() - begin, peak_mib()))
            mark(0)


def peak_mib() -> float:
    """Return the peak of this process's memory since the last call."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak / 1024


class Examiner:
    """A child that examines dumps, and is replaced when one of them ends it or takes too long."""

    def __init__(self, work: Callable[..., None], *given: Any) -> None:
        self._work, self._given = work, given
        self._state = CONTEXT.Array("d", 2, lock=False)
        self._start()

    def _start(self) -> None:
        self._state[0], self._state[1] = 0, time.monotonic()
        self._pipe, theirs = multiprocessing.Pipe()
        arguments = (theirs, self._state, *self._given)
        self._process = CONTEXT.Process(target=self._work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def examine(self, number: int, raw: bytes | None = None) -> Examined:
        """Return what becomes of a case, or of other bytes in its place."""
        self._state[1] = time.monotonic()
        self._pipe.send((number, raw))
        with contextlib.suppress(EOFError):
            while time.monotonic() - self._state[1] < LIMITS_S[int(self._state[0])]:
                if self._pipe.poll(0.1):
                    found: Examined = self._pipe.recv()
                    return found
        self._process.join(0.5)
        late, stage = self._process.is_alive(), int(self._state[0])
        self.end()
        text = f"no end in {LIMITS_S[stage]:g} s" if late else f"exit code {self._process.exitcode}"
        self._start()
        if stage == 3:
            return Examined("worker hung" if late else "worker killed")
        return Examined("finding", f"{STAGES[stage]}: {text}")

    def end(self) -> None:
        """End the child."""
        self._process.kill()
        self._process.join()


def examine_share(options: argparse.Namespace, place: Path, first: int) -> dict[int, Examined]:
    """Examine every so manyth case, in a child of its own."""
    examiner = Examiner(child, options.seed, options.captures, place)
    numbers = range(first, options.count, options.jobs)
    found = {number: examiner.examine(number) for number in numbers}
    examiner.end()
    return found


def save_findings(
    options: argparse.Namespace, cases: dict[int, Examined], place: Path, read: Sequence[Any]
) -> None:
    """Print findings, and save the smallest dump for each kind of them."""
    findings = {number: each.text for number, each in sorted(cases.items()) if each.text}
    examiner = Examiner(child, options.seed, options.captures, place) if findings else None
    seen: set[str] = set()
    for number, text in findings.items():
        kind, raw = case_of(options.seed, number, read)
        print(f"finding {options.seed}:{number} ({kind}): {text}")
        if examiner is None or _signature(text) in seen:
            continue
        seen.add(_signature(text))
        small = _smaller(examiner, number, raw, text)
        options.save.mkdir(parents=True, exist_ok=True)
        path = options.save / f"{options.seed}-{number}.json"
        path.write_bytes(small)
        print(f"  {len(raw)} bytes made {len(small)}: {path}")


def _signature(text: str) -> str:
    """Return a finding without what differs between two dumps of the same fault."""
    return re.split(r"[^A-Za-z_ :.;(]", text, maxsplit=1)[0][:90]


def _smaller(examiner: Examiner, number: int, raw: bytes, text: str) -> bytes:
    """Return a smaller dump with the same finding: pieces are left out while it stays."""
    until = time.monotonic() + SHRINK_S
    piece = len(raw) // 2
    while piece >= 1 and time.monotonic() < until and len(raw) < 5_000_000:
        at = 0
        while at < len(raw) and time.monotonic() < until:
            fewer = raw[:at] + raw[at + piece :]
            if _signature(examiner.examine(number, fewer).text) == _signature(text):
                raw = fewer
            else:
                at += piece
        piece //= 2
    return raw


def table_of(seed: int, cases: dict[int, Examined], took_s: float) -> str:
    """Return what was done and what became of it, by kind of mutation."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in mutations.KINDS}
    for number, each in cases.items():
        kind = Random(f"{seed}:{number}").choice(list(mutations.KINDS))
        counts[kind][each.outcome] += 1
    lines = [f"{'mutation':18}" + "".join(f"{name:>15}" for name in ["cases", *OUTCOMES])]
    for kind, found in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        numbers = [found.total(), *(found[name] for name in OUTCOMES)]
        lines.append(f"{kind:18}" + "".join(f"{number:15}" for number in numbers))
    slowest = max(cases, key=lambda number: cases[number].seconds, default=0)
    peaks = [each.mib for each in cases.values() if each.mib]
    lines.append(
        f"{len(cases) / max(took_s, 1e-9):.0f} cases/s; peak memory {max(peaks, default=0):.0f} MiB (the"
        f" smallest {min(peaks, default=0):.0f}); slowest {cases[slowest].seconds:.2f} s ({seed}:{slowest})"
    )
    return "\n".join(lines)


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
    options = parser.parse_args()
    options.captures = tuple(path.resolve() for path in options.captures)
    read = [mutations.read_capture(path) for path in options.captures]
    # In memory where that can be: the files of a case are synced to the disk.
    place = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=place) as name:
        if options.only:
            seed, number = map(int, options.only.split(":"))
            kind, raw = case_of(seed, number, read)
            print(f"{kind}: {raw[:2000]!r}")
            target = _target(Path(name), options.captures, lambda stage: None)
            print(target.examine(raw, number % RUNS_APIS_EVERY == 0))
            return 0
        CONTEXT.set_forkserver_preload(["torch", "scripts.fuzz.target"])
        begin = time.monotonic()
        with ThreadPoolExecutor(options.jobs) as pool:
            shares = pool.map(partial(examine_share, options, Path(name)), range(options.jobs))
            cases = {number: each for share in shares for number, each in share.items()}
        took_s = time.monotonic() - begin
        save_findings(options, cases, Path(name), read)
    print(table_of(options.seed, cases, took_s))
    return 1 if any(each.text for each in cases.values()) else 0
