"""Make dumps of any size out of a real one, and measure how they are opened.

    python -m scripts.scale grow OUT [--calls N] [--capture DUMP]     a dump of N calls
    python -m scripts.scale open DUMP [--filter-api]                  what comes before the first record:
                                                               open, digest and plan it

`open` prints wall and CPU seconds, and the process's peak memory up to the end of each step. No Ray and no
framework is loaded. The grown dump is written as msprobe writes it, forward records first, backward records
in reverse order; the same arguments give the same bytes.
"""

import argparse
import json
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.dump.parse import open_dump
from ray_precheck.replay.plan.planner import plan_tasks
from scripts.measuring import CAPTURES, machine

CAPTURE = CAPTURES / "mindspore_llm" / "dump.json"
# One call in so many gets the bare words that msprobe writes for what is not finite.
NOT_FINITE_EVERY = 1000
NOT_FINITE = {b"Max": b"Infinity", b"Min": b"-Infinity", b"Mean": b"NaN"}
_NORM = re.compile(rb'("Norm": -?\d+\.\d{6})\d*')


def main() -> int:
    """Run one command."""
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


def measure_open(path: Path, filter_api: bool) -> int:
    """Do what comes before the first record."""
    print(f"{machine()}; {path} of {path.stat().st_size >> 20} MiB")
    with step("after the imports"):
        pass
    with step("open, digest and plan together"):
        with step("  open_dump"):
            dump = open_dump(path)
        with step("  digest"):
            dump.digest()
        with step("  plan_tasks"):
            plan = plan_tasks(dump, dump.framework, frozenset(), filter_alike=filter_api)
    print(f"{len(dump.calls)} calls, {len(plan.tasks)} tasks, {len(plan.skipped)} skipped")
    dump.file.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
