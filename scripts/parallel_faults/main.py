"""Capture faults between ranks, and judge what the commands say of them.

    python -m scripts.parallel_faults -o FOLDER [--layouts ddp ...] [--faults other_rate ...] [--told tensor]

Each layout's processes (gloo, this machine) run an honest training, a second one that rounds otherwise, and
one for each fault. Exit code 1 where a fault changes nothing.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.measuring import markdown_table
from scripts.parallel_faults.evaluate import WAYS, honest_of, judged, table_of_cells
from scripts.parallel_faults.table import ALONE_VARIANTS, LAYOUTS, cells, variants_of


def capture_layout(
    layout: str, faults: Sequence[str], folder: Path, told: str, start: str = "random"
) -> None:
    """Capture the cases of a layout: one launch of its ranks, and one of a single process."""
    chosen = [fault for _, fault in cells((layout,)) if not faults or fault.name in faults]
    honest = [
        {"variant": each, "start": start}
        for each in variants_of(layout)
        if each == "plain" or each in {fault.variant for fault in chosen}
    ]
    cases: list[dict[str, Any]] = [*honest, *({**each, "again": True} for each in honest)]
    cases += [{"fault": fault.name, "variant": fault.variant, "start": start} for fault in chosen]
    alone = [
        each for each in honest if LAYOUTS[layout].comparable and each["variant"] in ALONE_VARIANTS
    ]
    what = {"layout": layout, "cases": cases, "alone": alone, "folder": str(folder), "told": told}
    (folder / layout).mkdir(parents=True, exist_ok=True)
    _launch(json.dumps(what), LAYOUTS[layout].ranks, folder / layout)


def _launch(what: str, ranks: int, folder: Path) -> None:
    """Run the ranks of a layout to their end; their output stands in log-{rank}.txt."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = []
    for rank in range(ranks):
        where = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        words = [sys.executable, "-m", "scripts.parallel_faults.launch", what]
        with (folder / f"log-{rank}.txt").open("w") as log:
            running.append(subprocess.Popen(words, env=where, stdout=log, stderr=log))
    codes = [process.wait(900) for process in running]
    if any(codes):
        wrong = codes.index(max(codes, key=abs))
        text = (folder / f"log-{wrong}.txt").read_text()
        raise SystemExit(f"{folder.name}: the processes ended with {codes}:\n{text[-3000:]}")


def without_effect(layout: str, folder: Path) -> list[str]:
    """Return the faults of a captured layout that changed no parameter and no loss on any rank."""
    known = [
        json.loads((folder / layout / f"results-{rank}.json").read_text())
        for rank in range(LAYOUTS[layout].ranks)
    ]
    idle = []
    for _, fault in cells((layout,)):
        honest = "honest" + ("" if fault.variant == "plain" else f"-{fault.variant}")
        pairs = [(each[fault.name], each[honest]) for each in known if fault.name in each]
        if pairs and all(
            (one["digest"], one["losses"]) == (other["digest"], other["losses"])
            for one, other in pairs
        ):
            idle.append(fault.name)
    return idle


def main(arguments: Sequence[str] | None = None) -> int:
    """Capture, and judge, as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m scripts.parallel_faults")
    parser.add_argument("-o", "--folder", type=Path, required=True)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--faults", nargs="+", default=[])
    parser.add_argument("--told", default="sketch", choices=("sketch", "statistics", "tensor"))
    parser.add_argument("--start", default="random", choices=("random", "default"))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--captured", action="store_true", help="judge what was captured before")
    options = parser.parse_args(arguments)
    captures = options.folder / "captures"
    worst = 0
    for layout in () if options.captured else options.layouts:
        capture_layout(layout, options.faults, captures, options.told, options.start)
        idle = without_effect(layout, captures)
        worst = max(worst, bool(idle))
        print(f"{layout}: captured{'; without effect: ' + ', '.join(idle) if idle else ''}")
    if options.ways:
        print(table_of_cells(judged(options.folder, options.layouts, options.faults, options.ways)))
        worst = max(worst, _print_honest(options.folder, options.layouts, options.ways))
    return worst


def _print_honest(folder: Path, layouts: Sequence[str], ways: Sequence[str]) -> int:
    """Print who is accused in right runs, and the pairs between layouts; return 1 where anyone is."""
    every = list(honest_of(folder, layouts, ways))
    accused = [each for each in every if each.accused]
    print(f"\nright runs: {len(every)} answers, {len(accused)} with an accusation or a refusal")
    for each in accused:
        print(f"{each.name}, exit code {each.said.code}:\n{each.said.text[:1500]}")
    founds = [each for each in every if each.found is not None]
    rows = [
        [
            each.name.removesuffix(".compare"),
            found.right,
            found.wrong,
            found.missed,
            f"{found.f1:.3f}",
        ]
        for each in founds
        if (found := each.found)
    ]
    print(markdown_table(["pairs between layouts", "right", "wrong", "missed", "F1"], rows))
    return int(bool(accused))
