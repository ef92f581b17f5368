"""Honest programs: is what a capture holds what really happened, and is anything accused?

    python -m scripts.honest [--programs NAME ...] [--folder FOLDER] [-v]

Each program is a training, a generation or the like, in form as the examples of PyTorch and transformers
have them, small and with random weights. It runs plain, under a capture with tensors, under one with
statistics, and under a recorder of `recorder.py` that shares nothing with the package. Losses and
parameters must have the same bits; every tensor of a dump must be what the recorder saw; and the
precheck (`--standard auto`) must accuse nothing. Models need transformers and peft beside the package.
Exit code 1 where one of it does not hold.
"""

import argparse
import json
import socket
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripts.honest.child import TASKS
from scripts.honest.models import MODEL_PROGRAMS
from scripts.honest.programs import TORCH_PROGRAMS
from scripts.honest.ranked import RANKED_PROGRAMS, RANKS
from scripts.measuring import RanCommand, ran


def run_program(name: str, folder: Path) -> list[dict[str, Any]]:
    """Examine a program in a process of its own, or in those of its ranks."""
    ranks: list[dict[str, str]] = [{}]
    if name in RANKED_PROGRAMS:
        where = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(RANKS),
        }
        ranks = [{**where, "RANK": str(rank)} for rank in range(RANKS)]

    def child(rank: dict[str, str]) -> RanCommand:
        quiet = {"PYTHONWARNINGS": "ignore"}
        return ran("scripts.honest.child", name, folder, codes=None, **quiet, **rank)

    with ThreadPoolExecutor(len(ranks)) as pool:
        children = list(pool.map(child, ranks))
    found = []
    for rank, ended in enumerate(children):
        lines = [line for line in ended.printed.splitlines() if line.startswith("RESULT ")]
        one: dict[str, Any] = {"program": name, "failed": ended.printed[-1500:]}
        if lines:
            one = json.loads(lines[-1].removeprefix("RESULT "))
        if len(children) > 1:
            one["program"] += f", rank {rank}"
        found.append(one)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def row_of_program(found: dict[str, Any]) -> str:
    """Return the row of the table."""
    if "failed" in found:
        return f"| {found['program']} | failed |"
    same = all(value for key, value in found.items() if key.endswith("same bits"))
    cells = []
    for task in TASKS:
        part = found[task]
        cells.append(
            f"{len(part['wrong'])} of {part.get('tensors', 0)} + {part.get('gradients', 0)}"
            f" | {len(part['accused'])} of {part.get('calls', 0)}"
        )
    return f"| {found['program']} | {'yes' if same else 'NO'} | {' | '.join(cells)} |"


def holds(found: dict[str, Any]) -> bool:
    """Return whether everything holds for a program."""
    if "failed" in found or not all(v for k, v in found.items() if k.endswith("same bits")):
        return False
    return not any(found[task]["wrong"] or found[task]["accused"] for task in TASKS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine programs as the command line says."""
    options = _options(arguments)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="honest_"))
    print(
        "| program | same bits | tensors: other values than seen | accused"
        " | statistics: other values | accused |\n|---|---|---|---|---|---|"
    )
    everything = []
    for name in options.programs:
        if name in MODEL_PROGRAMS and find_spec("transformers") is None:
            print(f"| {name} | not run: no transformers |")
            continue
        for found in run_program(name, folder):
            everything.append(found)
            print(row_of_program(found), flush=True)
            if options.verbose:
                _name_all(found)
    return 0 if all(map(holds, everything)) else 1


def _name_all(found: dict[str, Any]) -> None:
    if "failed" in found:
        print(f"{found['program']}: {found['failed']}")
        return
    for task in TASKS:
        for what in ("wrong", "unseen", "accused", "skipped"):
            for line in found[task].get(what, []):
                print(f"{found['program']}, {task}, {what}: {line[:300]}", flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.honest", description=__doc__.split("\n")[0]
    )
    names = [*TORCH_PROGRAMS, *RANKED_PROGRAMS, *MODEL_PROGRAMS]
    parser.add_argument("--programs", nargs="+", default=names, choices=names)
    parser.add_argument("--folder", type=Path, help="keep the captures here")
    parser.add_argument("-v", "--verbose", action="store_true", help="name every tensor and call")
    return parser.parse_args(arguments)
