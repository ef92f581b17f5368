"""A dump in which operators crash, hang and raise, against the same dump where they do not.

Comes in: a capture, numbers of calls and a seed. Goes out: a `FaultsRun`, with everything that was not
as it must be. Called by `chaos`, in a process that has no other children. The operators are broken by
`scripts/faulty`; the clean run has the same calls and a torch that is whole.
"""

import csv
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.chaos.command import COMMAND_LIMIT_S, Command, Place, end_all, make_place
from scripts.chaos.kills import arguments, final_files, left_behind, problems_of_end
from scripts.measuring import ROOT

FAULTY = ROOT / "scripts" / "faulty"
CRASH, HANG, RAISE = "crash", "hang", "raise"
TIMEOUT_S = 2.0
# How much longer a run may take for each crash or hang, divided by the number of workers.
ALLOWANCE_S = 10.0
_NO_ANSWER = f"no answer in {TIMEOUT_S:g} s (--timeout)"
# What scripts/faulty does in a function of torch.special, and the Message that must come of it.
REASONS = {
    CRASH: {
        "entr": "killed its worker (SIGSEGV)",
        "erfcx": "killed its worker (SIGABRT: what(): vector::_M_default_append)",
        "i0e": "killed its worker (SIGFPE)",
        "i1": "killed its worker (exit code 3)",
    },
    HANG: dict.fromkeys(("i1e", "log_ndtr", "ndtri"), _NO_ANSWER),
    RAISE: {
        "bessel_j0": "the device raised where the bench is fine: RuntimeError: the kernel returned"
        " error 507015"
    },
}
_INPUT = {
    "type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Max": 1.0, "Min": 0.5,
    "Mean": None, "Norm": None, "requires_grad": False,
}  # fmt: skip


@dataclass(frozen=True)
class BrokenCall:
    """A call that is broken: its name, how, and the Message that it must get."""

    name: str
    fault: str
    reason: str


@dataclass
class FaultsRun:
    """The two runs that are over. `right` counts the rows that are as they must be, by fault."""

    calls: int
    broken: dict[str, int]
    devices: int
    clean_s: float = 0.0
    faulty_s: float = 0.0
    limit_s: float = 0.0
    right: dict[str, int] = field(default_factory=dict)
    others: int = 0
    others_right: int = 0
    problems: list[str] = field(default_factory=list)
    folder: str = ""


def choose_broken(counts: dict[str, int]) -> list[BrokenCall]:
    """Return the calls to break; the ways of each fault take turns."""
    chosen = []
    for fault, count in counts.items():
        ways = list(REASONS[fault].items())
        for number in range(count):
            operator, reason = ways[number % len(ways)]
            chosen.append(BrokenCall(f"Torch.special.{operator}.{number}", fault, reason))
    return chosen


def write_dump(
    capture: Path, calls: int, broken: Sequence[BrokenCall], seed: int, target: Path
) -> None:
    """Write a dump of so many calls: those of a capture, with the broken ones spread among them."""
    header = json.loads(capture.read_text())
    records = header.pop("data")
    names = [key.removesuffix(".forward") for key in records if key.endswith(".forward")]
    entries: list[dict[str, Any]] = [
        {f"{one.name}.forward": {"input_args": [_INPUT], "input_kwargs": {}, "output": [_INPUT]}}
        for one in broken
    ]
    for number in range(calls - len(broken)):
        name = names[number % len(names)]
        new = f"{name.rsplit('.', 1)[0]}.{number}"
        keys = [way for way in ("forward", "backward") if f"{name}.{way}" in records]
        entries.append({f"{new}.{way}": records[f"{name}.{way}"] for way in keys})
    random.Random(seed).shuffle(entries)
    data = {key: record for entry in entries for key, record in entry.items()}
    target.write_text(json.dumps({**header, "data": data}))


def run_faults(
    capture: Path,
    calls: int,
    counts: dict[str, int],
    devices: Sequence[int],
    seed: int,
    package: Path,
    folder: Path,
) -> FaultsRun:
    """Run the dump twice, with whole operators and with broken ones, and compare."""
    over = FaultsRun(calls, counts, len(devices), folder=str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    dump, broken = folder / "dump.json", choose_broken(counts)
    write_dump(capture, calls, broken, seed, dump)
    clean = make_place(package, folder / "clean")
    faulty = make_place(package, folder / "faulty", FAULTY)
    over.clean_s = _run(dump, clean, devices, COMMAND_LIMIT_S, over.problems)
    costly = counts[CRASH] + counts[HANG]
    over.limit_s = over.clean_s + ALLOWANCE_S * costly / len(devices)
    over.faulty_s = _run(dump, faulty, devices, 4 * over.limit_s, over.problems)
    compare(final_files(clean.out), final_files(faulty.out), broken, over)
    (folder / "faults.json").write_text(json.dumps(asdict(over), indent=1))
    return over


def _run(
    dump: Path, place: Place, devices: Sequence[int], limit_s: float, problems: list[str]
) -> float:
    """Run one command to its end; returns its seconds."""
    options = ["--timeout", f"{TIMEOUT_S:g}"]
    command = Command(place, 0, [*arguments(dump, place, devices), *options])
    try:
        if not command.wait(limit_s):
            problems.append(f"hangs: no end in {limit_s:.0f} s")
        elapsed_s = command.elapsed_s
        code = command.code
        if code not in (0, 1):
            problems.append(f"exit code {code}")
        problems += problems_of_end(command, code or 0) + left_behind(place)
    finally:
        end_all()
    return elapsed_s


def compare(
    clean: dict[str, bytes], faulty: dict[str, bytes], broken: Sequence[BrokenCall], over: FaultsRun
) -> None:
    """Count what is right: the rows of the broken calls, and the bytes of all the others."""
    rows = {row["API Name"]: row for row in _rows(faulty["result"])}
    right: Counter[str] = Counter()
    for one in broken:
        row = rows.get(one.name, {})
        found = row.get("Forward Test Success"), row.get("Message")
        if found == ("error", one.reason):
            right[one.fault] += 1
        else:
            over.problems.append(f"{one.name} must be an error ({one.reason}), and is {found}")
    over.right = {fault: right[fault] for fault in over.broken}
    names = {one.name for one in broken}
    kept, wanted = _others(faulty["result"], names), _others(clean["result"], names)
    over.others = len(wanted) - 1  # without the header
    over.others_right = sum(a == b for a, b in zip(kept[1:], wanted[1:], strict=False))
    if kept != wanted or over.others != over.calls - len(broken):
        over.problems.append("result: rows of whole operators differ from the clean run")
    if _others(faulty["details"], names) != _others(clean["details"], names):
        over.problems.append("details: rows of whole operators differ from the clean run")


def _rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(data.decode("utf-8-sig").splitlines(keepends=True)))


def _others(data: bytes, names: set[str]) -> list[bytes]:
    """Return the lines that do not begin with one of these names."""
    heads = tuple(
        f"{name}{end}".encode() for name in names for end in (",", ".forward", ".backward")
    )
    return [line for line in data.splitlines(keepends=True) if not line.startswith(heads)]
