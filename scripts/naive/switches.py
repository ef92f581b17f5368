"""Breaks the kernel behind one switch after the other, and looks whether `naive` names the switch.

    python -m scripts.naive.switches            # the switches that a CPU has, by the whole command
    python -m scripts.naive.switches --all      # also pretended GPUs and NPUs, by the runner of a worker

Comes in: `scripts.naive.faults`. Goes out: a table. The faults of a CPU run through the command `ray-precheck
naive`, Ray and a check process; a pretended device through the opener and the runner that a check process
uses, in a process of its own. Each run has healthy calls beside the broken one, which must pass.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.measuring import markdown_table, ran, rows_of_table
from scripts.naive.faults import FAULTS, SwitchFault, module_text, write_fault_dump


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
    print(switch_table(found))
    print(f"\n{sum(not each.problem for each in found)} of {len(found)} named")
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
        words = ("naive", dump, "--bench-module", module, "-o", out)
        done = ran("ray_precheck", *words, codes=None)
    else:
        done = ran("scripts.naive.runner", dump, module, out, fault.kind, codes=None)
    rows = rows_of_table(out, "naive_[0-9]*.csv")
    if not rows:
        raise RuntimeError(f"{key}: no rows: {done.printed[-2000:]}")
    return rows


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


def switch_table(found: Sequence[Named]) -> str:
    """Return the table."""
    rows = []
    for _, fault, _, default, naive, problem in found:
        kind = fault.kind if fault.kind == "cpu" else f"a pretended {fault.kind}"
        errors, named = f"{default}, {naive}", problem or "yes"
        rows.append([", ".join(fault.switches), fault.behind, kind, fault.call, errors, named])
    titles = ("broken", "in the place of", "device", "call", "errors, default and plain", "named")
    return markdown_table(titles, rows)


if __name__ == "__main__":
    sys.exit(main())
