"""Measure how faults in torch's compiler are found, beside torch's CompilerBisector.

    python -m scripts.bisect_compile [--only WORD] [--honest]

Each fault is searched by `ray-precheck bisect torch-compile` with one worker, and by CompilerBisector, one
after the other, each in processes of its own. Prints a table: trials, seconds of wall clock, whether what was
found names the fault. With --honest the programs are run without faults: nothing may be found.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.bisect_compile.faults import CASES, FAULTS, HONEST, PlantedCase

_LONGEST_S = 600


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", default="", metavar="WORD", help="faults whose name has this word"
    )
    parser.add_argument("--honest", action="store_true", help="the programs without faults")
    options = parser.parse_args()
    if options.honest:
        for case in HONEST:
            ours = _ours(case)
            print(f"| {case.program} | {ours[0]} | {ours[1]:.0f} | {ours[2]} |", flush=True)
        return
    print(
        "| fault | trials | s | found | torch's trials | s | found |\n|---|---|---|---|---|---|---|"
    )
    found, trials, of_torch = 0, 0, 0
    for case in CASES:
        if options.only not in case.fault:
            continue
        named = FAULTS[case.fault].named
        ours, theirs = _ours(case), _torchs(case)
        is_found = all(word in ours[2] for word in named)
        is_theirs = any(
            word.rpartition(" ")[2].removeprefix("aten.") in theirs[2] for word in named
        )
        found, trials, of_torch = found + is_found, trials + ours[0], of_torch + theirs[0]
        cells = [case.fault, ours[0], f"{ours[1]:.0f}", "yes" if is_found else f"no: {ours[2]}"]
        cells += [theirs[0], f"{theirs[1]:.0f}", "yes" if is_theirs else f"no: {theirs[2]}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(f"{found} found; {trials} trials, {of_torch} of torch's")


def _ours(case: PlantedCase) -> tuple[int, float, str]:
    """Return trials, seconds, and what was printed of findings."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*case.words, *(["--args", f"'{case.args}'"] if case.args else [])]
        command = ["bisect", "torch-compile", case.program, *words, "-o", folder, "-d", "0"]
        begin = time.monotonic()
        ended = _run([sys.executable, "-m", "ray_precheck", *command])
        seconds = time.monotonic() - begin
        tables = list(Path(folder).glob("bisect_2*.csv"))
        rows = list(csv.reader(tables[0].open(encoding="utf-8-sig"))) if tables else [[]]
    lines = [line.strip() for line in ended.stdout.splitlines()]
    kept = [
        each
        for each in lines
        if "makes the result wrong" in each or each.startswith(("together", "each"))
    ]
    right = [each for each in lines if each.endswith(": right")]
    return (
        len(rows) - 1,
        seconds,
        "; ".join(kept or right) or f"{ended.stdout[-300:]}{ended.stderr[-300:]}",
    )


def _torchs(case: PlantedCase) -> tuple[int, float, str]:
    words = [*case.words, *([case.args] if case.args else [])]
    begin = time.monotonic()
    ended = _run([sys.executable, "-m", "scripts.bisect_compile.torchs_own", case.program, *words])
    seconds = time.monotonic() - begin
    if ended.returncode:
        return 0, seconds, ended.stderr.strip().splitlines()[-1]
    said = json.loads(ended.stdout.strip().splitlines()[-1])
    return said["trials"], seconds, said["found"]


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)


if __name__ == "__main__":
    main()
