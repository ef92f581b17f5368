"""Two honest runs of each program: `compare`, `locate`, `diagnose` and `overflow_check` must find nothing.

    python -m scripts.honest.pairs [--programs NAME ...] [--tasks tensor statistics] [--folder FOLDER]
                                   [--standard auto] [-v]

Each program of `scripts.honest` is captured twice from the same seeds, in processes of their own: on one
thread, and on two without oneDNN, which adds in another order. The real commands compare the captures. What
is printed: the exit code of each command, and with -v the lines that it blames. Exit code 1 where any is
not 0.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from ray_precheck.capture import Capture
from scripts.honest.child import TASKS, make_training
from scripts.honest.models import MODEL_PROGRAMS
from scripts.honest.programs import TORCH_PROGRAMS
from scripts.measuring import ran

COMMANDS = ("compare", "locate", "diagnose", "overflow_check")
_WAYS = ("one", "two")


def capture_one_way(program: str, way: str, folder: Path) -> None:
    """Capture a program in this process; "two": on two threads, and without oneDNN."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(2 if way == "two" else 1)
    for task in TASKS:
        with torch.backends.mkldnn.flags(enabled=way == "one"):
            training = make_training(program)
            with Capture(folder / f"{program}-{task}-{way}", task=task, step_by="manual"):
                training()


def command_line(command: str, folder: Path, program: str, task: str, standard: str) -> list[str]:
    """Return the command for the captures of a program."""
    one, two = (str(folder / f"{program}-{task}-{way}" / "step0") for way in _WAYS)
    out = ["-o", str(folder / f"{program}-{task}-{command}")]
    if command == "overflow_check":
        return [command, two, *out]
    judged = ["--standard", standard] if command in ("compare", "diagnose") else []
    return [command, "-tp", two, "-gp", one, *judged, *out]


def said_of(program: str, folder: Path, tasks: Sequence[str], standard: str) -> dict[str, str]:
    """Return what each command printed for a program, with its exit code before, by task and command."""
    for way in _WAYS:
        ran("scripts.honest.pairs", "--capture", program, way, folder)
    found = {}
    for task in tasks:
        for command in COMMANDS:
            words = command_line(command, folder, program, task, standard)
            ended = ran("ray_precheck", *words, codes=None)
            found[f"{task} {command}"] = f"{ended.code}\n{ended.printed}"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine pairs as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m scripts.honest.pairs")
    names = [*TORCH_PROGRAMS, *MODEL_PROGRAMS]
    parser.add_argument("--programs", nargs="+", default=names, choices=names)
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--standard", default="auto")
    parser.add_argument("--capture", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show what the commands printed"
    )
    options = parser.parse_args(arguments)
    if options.capture:
        program, way, folder = options.capture
        capture_one_way(program, way, Path(folder))
        return 0
    folder = options.folder or Path(tempfile.mkdtemp(prefix="pairs_"))
    titles = [f"{task}, `{command}`" for task in options.tasks for command in COMMANDS]
    print(f"| program | {' | '.join(titles)} |\n|---{'|---' * len(titles)}|")
    worst = 0
    for name in options.programs:
        if name in MODEL_PROGRAMS and find_spec("transformers") is None:
            print(f"| {name} | not run: no transformers |")
            continue
        found = said_of(name, folder, options.tasks, options.standard)
        codes = [text.partition("\n")[0] for text in found.values()]
        worst = max(worst, *map(int, codes))
        print(f"| {name} | {' | '.join(codes)} |", flush=True)
        if options.verbose:
            for what, text in found.items():
                if not text.startswith("0\n"):
                    print(f"{name}, {what}: {text}", flush=True)
    return min(worst, 1)


if __name__ == "__main__":
    sys.exit(main())
