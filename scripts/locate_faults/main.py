"""The command: captures, looks in each way, and prints the tables.

Comes in: the command line. Goes out: the tables; with `--captures` all cases with what each way says stay in
the `cases.json` of each folder; what is there is not made again, and searched again only with `--again`.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, fields
from functools import partial
from pathlib import Path

from scripts.locate_faults.cases import CASES_FILE, HONEST, Judged, read_cases, write_cases
from scripts.locate_faults.looking.locating import located, ways_of
from scripts.locate_faults.looking.replaying import Replay, forget, named_by
from scripts.locate_faults.looking.tables import (
    REPLAY,
    misses,
    table_of_faults,
    table_of_honest,
    table_of_replay,
)
from scripts.locate_faults.planting.collective import collective_cases
from scripts.locate_faults.planting.plan import Counts
from scripts.measuring import ran

MODEL_NAMES = ("qwen3", "mixtral", "swin", "gpt2", "t5", "resnet", "densenet", "vit", "bert")
DTYPES = ("float32", "bfloat16")


def capture_model(model: str, dtype: str, folder: Path, counts: Counts) -> list[Judged]:
    """Capture a model in a process of its own, unless the folder has it already; return its cases."""
    if not (folder / CASES_FILE).exists():
        words = (model, dtype, folder, *astuple(counts))
        ran("scripts.locate_faults.child", *words, TRANSFORMERS_VERBOSITY="error")
    return read_cases(folder)


def _captures(
    options: argparse.Namespace, folder: Path, counts: Counts
) -> Iterator[tuple[Path, Callable[[], list[Judged]]]]:
    """Yield folders with the functions that make the captures in them, or read what is there."""
    for model in options.models:
        for dtype in options.dtypes:
            own = folder / f"{model}-{dtype}"
            yield own, partial(capture_model, model, dtype, own, counts)
    for dtype in options.dtypes:
        own = folder / f"ranks-{dtype}"
        yield own, partial(read_cases if (own / CASES_FILE).exists() else _ranks(dtype), own)


def _ranks(dtype: str) -> Callable[[Path], list[Judged]]:
    return partial(collective_cases, dtype=dtype)


def locate_cases(judged: Sequence[Judged], scratch: Path, save: Callable[[], None]) -> None:
    """Let `locate` look at cases in each way, faults first, unless it has."""
    forget()
    for each in sorted(judged, key=lambda each: each.case.family == HONEST):
        left = [way for way in ways_of(each.case) if way not in each.ways]
        if left:
            each.ways |= located(each.case, left, scratch)
            save()


def report_cases(judged: Sequence[Judged]) -> None:
    """Print the tables, and on stderr each miss and each honest run that is accused."""
    for made in (table_of_faults, table_of_replay, table_of_honest):
        print(made(judged), end="\n\n")
    print("\n".join(misses(judged)), file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the yardstick as the command line says."""
    parser = argparse.ArgumentParser(description="one fault in one call: is it named?")
    parser.add_argument("--models", nargs="+", default=MODEL_NAMES, choices=MODEL_NAMES)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    for each in fields(Counts):
        parser.add_argument(f"--{each.name}", type=int, default=each.default)
    parser.add_argument(
        "--captures", type=Path, help="keep the captures here, and use what is there"
    )
    parser.add_argument("--again", action="store_true", help="look again at what was looked at")
    options = parser.parse_args(arguments)
    folder = options.captures or Path(tempfile.mkdtemp(prefix="locate_faults_"))
    counts = Counts(**{each.name: getattr(options, each.name) for each in fields(Counts)})
    judged: list[Judged] = []
    for own, capture in _captures(options, folder, counts):
        found = capture()
        if options.again:  # the package has changed since
            replay = Replay()
            for each in found:
                known = {REPLAY: named_by(replay, Path(each.case.target))}
                each.ways = known if REPLAY in each.ways else {}
        locate_cases(found, folder / f"twins-{own.name}", partial(write_cases, own, found))
        write_cases(own, found)
        judged += found
        print(f"{own.name}: {len(found)} cases", file=sys.stderr, flush=True)
        if options.captures is None:
            shutil.rmtree(own)
        shutil.rmtree(folder / f"twins-{own.name}", ignore_errors=True)
    report_cases(judged)
    return 0
