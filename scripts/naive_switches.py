"""Breaks the kernel behind one switch after the other, and looks whether `naive` names the switch.

    python -m scripts.naive_switches            # the switches that a CPU has, by the whole command
    python -m scripts.naive_switches --all      # also pretended GPUs and NPUs, by the runner of a worker

Comes in: `scripts.naive_faults`. Goes out: a table. The faults of a CPU run through the command `ray-precheck
naive`, Ray and a check process; a pretended device through the opener and the runner that a check process
uses, in a process of its own. Each run has healthy calls beside the broken one, which must pass.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.naive_faults import FAULTS, ROOT, SwitchFault, module_text, write_fault_dump

_LONGEST_S = 600


class Named(NamedTuple):
    """What a run said: the switches by call in error, and the errors of the broken call; `problem` is ""
    where the broken call alone is in error and its switches are named."""

    key: str
    fault: SwitchFault
    found: dict[str, str]
    default: str
    naive: str
    problem: str


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="also pretended GPUs and NPUs")
    parser.add_argument(
        "-k", default="", metavar="WORD", help="only faults whose name has this word"
    )
    options = parser.parse_args(argv)
    chosen = {
        key: fault
        for key, fault in FAULTS.items()
        if options.k in key and (options.all or fault.kind == "cpu")
    }
    found = list(trials(chosen))
    print("\n".join(switch_table(found)))
    return int(any(each.problem for each in found))


def trials(chosen: dict[str, SwitchFault]) -> Iterator[Named]:
    """Yield what `naive` says of each fault, and first of no fault at all."""
    with tempfile.TemporaryDirectory(prefix="naive-") as name:
        folder = Path(name)
        for key, fault in chosen.items():
            yield _judged(key, fault, _rows_of(key, fault, folder))


def _rows_of(key: str, fault: SwitchFault, folder: Path) -> list[dict[str, str]]:
    """Run the command, or the runner, in a process of its own; return the rows."""
    dump = write_fault_dump(folder, fault)
    module = folder / f"{key}.py"
    module.write_text(module_text(key))
    out = folder / key
    if fault.kind == "cpu":
        own = [
            "-m",
            "ray_precheck",
            "naive",
            str(dump),
            "--bench-module",
            str(module),
            "-o",
            str(out),
        ]
    else:
        own = ["-m", "scripts.naive_runner", str(dump), str(module), str(out), fault.kind]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *own],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    paths = [path for path in out.glob("naive_*.csv") if "outputs" not in path.name]
    if not paths:
        raise RuntimeError(f"{key}: no rows: {done.stderr[-2000:]}")
    with paths[0].open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _judged(key: str, fault: SwitchFault, rows: list[dict[str, str]]) -> Named:
    found = {row["API Name"]: row["Switch"] for row in rows if row["Verdict"] != "pass"}
    broken = f"{fault.call}.0"
    problem = ""
    if set(found) != {broken}:
        problem = f"in error: {', '.join(found) or 'nothing'}"
    elif set(found[broken].split(", ")) != set(fault.switches):
        problem = f"named: {found[broken] or 'nothing'}"
    row = next(row for row in rows if row["API Name"] == broken)
    return Named(key, fault, found, row["Default Error"], row["Naive Error"], problem)


def switch_table(found: Sequence[Named]) -> Iterator[str]:
    """Yield the table in Markdown, and how many were named."""
    yield "| broken | in the place of | device | call | errors, default and plain | named |"
    yield "|---|---|---|---|---|---|"
    for each in found:
        kind = each.fault.kind if each.fault.kind == "cpu" else f"a pretended {each.fault.kind}"
        said = each.problem or "yes"
        yield (
            f"| {', '.join(each.fault.switches)} | {each.fault.behind} | {kind} | {each.fault.call} |"
            f" {each.default}, {each.naive} | {said} |"
        )
    yield ""
    yield f"{sum(not each.problem for each in found)} of {len(found)} named"


if __name__ == "__main__":
    sys.exit(main())
