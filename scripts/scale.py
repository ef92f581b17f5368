"""Make dumps of any size out of a real one, and measure what is done with a whole dump at once.

    python -m scripts.scale grow OUT [--calls N] [--capture DUMP]     a dump of N calls
    python -m scripts.scale open DUMP [--filter-api]                  what comes before the first record:
                                                               open, digest and plan it
    python -m scripts.scale resume DUMP FOLDER [--left N]             repair, complete and summarise the
                                                               files of a run that N calls are left of
    python -m scripts.scale writer FOLDER [--results N]               rows a second, batches of 64, fsync

Every command but `grow` prints a table of wall and CPU seconds, and the process's peak memory up
to the end of each step. No Ray and no framework is loaded. The grown dump is written as msprobe
writes it, forward records first, backward records in reverse order; the same arguments give the
same bytes.
"""

import argparse
import json
import os
import platform
import random
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.jobs.precheck.job import done_of
from ray_precheck.plan.planner import Plan, plan_tasks
from ray_precheck.report.summary import summarise
from ray_precheck.schema.result import (
    Metrics,
    Outcome,
    OutputCheck,
    TaskResult,
    Verdict,
)
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import resume_run, start_run

ROOT = Path(__file__).resolve().parent.parent

CAPTURE = ROOT / "tests" / "data" / "mindspore_llm" / "dump.json"
BATCH = 64
STAMP = "20260101120000"
# One call in so many gets the bare words that msprobe writes for what is not finite.
NOT_FINITE_EVERY = 1000
NOT_FINITE = {b"Max": b"Infinity", b"Min": b"-Infinity", b"Mean": b"NaN"}
_NORM = re.compile(rb'("Norm": -?\d+\.\d{6})\d*')


def main() -> int:
    """Run one command; returns 1 where a check of it fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("grow")
    command.add_argument("out", type=Path)
    command.add_argument("--calls", type=int, default=1_000_000)
    command.add_argument("--capture", type=Path, default=CAPTURE)
    command.set_defaults(action=lambda given: grow(given.capture, given.out, given.calls))
    command = commands.add_parser("open")
    command.add_argument("dump", type=Path)
    command.add_argument("--filter-api", action="store_true")
    command.set_defaults(action=lambda given: measure_open(given.dump, given.filter_api))
    command = commands.add_parser("resume")
    command.add_argument("dump", type=Path)
    command.add_argument("folder", type=Path)
    command.add_argument("--left", type=int, default=1000)
    command.set_defaults(action=lambda given: measure_resume(given.dump, given.folder, given.left))
    command = commands.add_parser("writer")
    command.add_argument("folder", type=Path)
    command.add_argument("--results", type=int, default=100_000)
    command.set_defaults(action=lambda given: measure_writer(given.folder, given.results))
    given = parser.parse_args()
    return int(given.action(given))


def grow(capture: Path, out: Path, calls: int) -> int:
    """Write a dump of `calls` calls: the capture's, again and again, numbered on.

    Every copy has norms of its own, so that no two records have the same bytes.
    """
    templates = _templates(capture)
    per_kind = Counter(template.kind for template in templates)

    def record(index: int, direction: str) -> bytes:
        copy, place = divmod(index, len(templates))
        template = templates[place]
        body = template.forward if direction == "forward" else template.backward
        if body is None:
            return b""
        number = copy * per_kind[template.kind] + template.ordinal
        text = body.replace(b"\x00", b"%06d" % (index % 10**6))
        if index % NOT_FINITE_EVERY == NOT_FINITE_EVERY - 1:
            for key, word in NOT_FINITE.items():
                text = re.sub(rb'"%s": -?[\d.e+-]+' % key, b'"%s": %s' % (key, word), text, count=1)
        return b'  "%s.%d.%s": %s' % (template.kind.encode(), number, direction.encode(), text)

    with open_dump(capture) as dump:
        header = {"task": "statistics", "level": "L1", "framework": dump.framework}
    with out.open("wb") as file:
        file.write(json.dumps(header | {"dump_data_dir": None}, indent=1)[:-2].encode())
        separator = b',\n "data": {\n'
        for direction, order in (("forward", range(calls)), ("backward", range(calls)[::-1])):
            for index in order:
                if text := record(index, direction):
                    file.write(separator + text)
                    separator = b",\n"
        file.write(b"\n }\n}")
    print(f"{out}: {calls} calls, {out.stat().st_size} bytes")
    return 0


@dataclass(frozen=True)
class Template:
    """The records of a call, with a null byte where the digits of a copy come.

    `ordinal` counts the calls of a kind (`Mint.add`) in the capture.
    """

    kind: str
    ordinal: int
    forward: bytes
    backward: bytes | None


def _templates(capture: Path) -> list[Template]:
    seen: Counter[str] = Counter()
    templates = []
    with open_dump(capture) as dump:
        for call in dump.calls:
            forward, backward = dump.raw(call.forward), dump.raw(call.backward)
            if forward is None:
                continue
            kind = call.name.rpartition(".")[0]
            behind = None if backward is None else _body(backward)
            templates.append(Template(kind, seen[kind], _body(forward), behind))
            seen[kind] += 1
    return templates


def _body(raw: bytes) -> bytes:
    """Return a record as msprobe indents it below `data`; bare NaN and Infinity stay."""
    text = json.dumps(json.loads(raw), indent=1).replace("\n", "\n  ")
    return _NORM.sub(rb"\1\0", text.encode())


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print wall and CPU seconds of a step, and the peak memory of the process after it."""
    wall, cpu = time.monotonic(), time.process_time()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    print(f"{name:36} {wall:8.1f} s wall {cpu:8.1f} s CPU {peak:8} MiB peak", flush=True)


def _print_machine(dump: Path | None = None) -> None:
    size = f", {dump} of {dump.stat().st_size >> 20} MiB" if dump else ""
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}{size}")


def measure_open(path: Path, filter_api: bool) -> int:
    """Do what comes before the first record; then read the bare words that `grow` has put in."""
    _print_machine(path)
    with step("after the imports"):
        pass
    with step("open, digest and plan together"):
        with step("  open_dump"):
            dump = open_dump(path)
        with step("  digest"):
            dump.digest()
        with step("  plan_tasks"):
            plan = _plan(dump, filter_api)
    print(f"{len(dump.calls)} calls, {len(plan.tasks)} tasks, {len(plan.skipped)} skipped")
    words: Counter[bytes] = Counter()
    for call in dump.calls[NOT_FINITE_EVERY - 1 :: NOT_FINITE_EVERY]:
        words.update(
            word for word in NOT_FINITE.values() if word in (dump.raw(call.forward) or b"")
        )
    print("records with", ", ".join(f"{word.decode()}: {n}" for word, n in words.items()) or "none")
    dump.file.close()
    return 0


def _plan(dump: Dump, filter_api: bool) -> Plan:
    return plan_tasks(dump, dump.framework, frozenset(), filter_alike=filter_api)


def measure_resume(path: Path, folder: Path, left: int) -> int:
    """Make the files of a run that was killed, in random order, and go on with them."""
    _print_machine(path)
    with step("open_dump"):
        dump = open_dump(path)
    names = [call.name for call in dump.calls]
    fingerprint = {"dump": "a digest", "seed": "0"}
    files = start_run(folder, STAMP, fingerprint)
    order = list(range(len(names)))
    random.Random(0).shuffle(order)
    with step(f"Journal.append of {len(order) - left} results"):
        _write(Journal.open(files.result, files.details), names, order[left:])
    for file in (files.result, files.details):
        os.truncate(file, file.stat().st_size - 10)
    sizes = files.result.stat().st_size >> 20, files.details.stat().st_size >> 20
    print(f"result CSV {sizes[0]} MiB, details {sizes[1]} MiB, both torn")
    with step("resume_run"):
        done = resume_run(files, set(names), fingerprint)
    print(f"{len(done)} of {len(names)} done")
    journal = Journal.open(files.result, files.details)
    _write(journal, names, [index for index in order if names[index] not in done])
    del done, order
    with step("Journal.complete"):
        journal.complete(names)
    with step("resume_run of the completed files"):
        resume_run(files, set(names), fingerprint)
    with step("summarise"):
        summary = summarise(files)
    print(f"{summary.total} rows, {summary.errors} errors")
    dump.file.close()
    return 0 if summary.total == len(names) else 1


def measure_writer(folder: Path, results: int) -> int:
    """Append results in batches, each on the disk before the next one."""
    _print_machine()
    files = start_run(folder, STAMP, {})
    names = [f"Mint.matmul.{number}" for number in range(results)]
    with step(f"{results} results in batches of {BATCH}"):
        begin = time.monotonic()
        _write(Journal.open(files.result, files.details), names, list(range(results)))
        wall = time.monotonic() - begin
    print(f"{results / wall:.0f} result rows/s")
    return 0


def _write(journal: Journal, names: list[str], order: list[int]) -> None:
    """Append the results of these calls in batches, each on the disk before the next one."""
    for first in range(0, len(order), BATCH):
        batch = order[first : first + BATCH]
        journal.append([done_of(_result(index, names[index])) for index in batch])
    journal.close()


def _result(index: int, name: str) -> TaskResult:
    """Return a result as checks make them, with two or three detail rows; one in 50 is an error."""
    verdict = Verdict.ERROR if index % 50 == 0 else Verdict.PASS
    random_metrics = random.Random(index)
    outputs = ["forward.output.0", "backward.output.0", "backward.output.1"][: 2 + index % 2]
    message = (
        "forward.output.0: MaxAbsErr 0.00012207 at index [4] is not below 0.0001; rounding: one unit"
        " in the last place of float32 at 1628.64 is 0.000122, already larger than the limit"
    )
    checks = tuple(
        OutputCheck(
            f"{name}.{output}",
            "Float64",
            "Float32",
            "(2, 16, 512)",
            Metrics(random_metrics.random(), random_metrics.random() * 1e-6, 1.5e-7),
            verdict,
            message if verdict is Verdict.ERROR else "",
        )
        for output in outputs
    )
    text = message if verdict is Verdict.ERROR else ""
    return TaskResult(index, name, Outcome.COMPLETED, verdict, Verdict.PASS, text, checks, 1e-3)


if __name__ == "__main__":
    sys.exit(main())
