"""What scripts share that run commands: the machine, a process and what it used, its tables.

Comes in: the words of a command. Goes out: a `RanCommand`, with what all processes below it used; the rows
of the tables that it wrote; a table in Markdown.
"""

import contextlib
import csv
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = ROOT / "tests" / "data"


def machine() -> str:
    """Return the machine in words."""
    cpu = "unknown CPU"
    if Path("/proc/cpuinfo").exists():
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        cpu = found[1] if found else cpu
    gigabytes = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} cores ({cpu}), {gigabytes:.0f} GiB, Python"
        f" {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


@dataclass(slots=True)
class RanCommand:
    """A command that has ended: its exit code, what it printed, and what it used with all below it: wall
    and CPU seconds, the resident MiB of the largest process and of all at once."""

    code: int = 0
    printed: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    largest_mib: float = 0.0
    together_mib: float = 0.0


def ran(
    module: str,
    *words: object,
    codes: Sequence[int] | None = (0,),
    path: Sequence[object] = (),
    limit_s: float = 3600.0,
    **environment: str,
) -> RanCommand:
    """Run a module of Python to its end, with this checkout and more folders on its path.

    What it uses is looked at twice a second. `codes` are the exit codes that it may end with, None for any.

    Raises:
        SystemExit: it ended with another exit code, or not in time.
    """
    used, spent = RanCommand(), dict[int, float]()
    paths = os.pathsep.join(map(str, (*path, ROOT)))
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, words)],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
        )
        whole = psutil.Process(process.pid)
        while process.poll() is None and time.monotonic() - began < limit_s:
            sizes = [0.0]
            with contextlib.suppress(psutil.NoSuchProcess):
                for each in (whole, *whole.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        spent[each.pid] = sum(each.cpu_times()[:2])
                        sizes.append(each.memory_info().rss / 2**20)
            used.largest_mib = max(used.largest_mib, *sizes)
            used.together_mib = max(used.together_mib, sum(sizes))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        process.kill()
        used.code = process.wait()
        told.seek(0)
        used.printed = told.read()
    used.wall_s, used.cpu_s = time.monotonic() - began, sum(spent.values())
    if codes is not None and used.code not in codes:
        raise SystemExit(
            f"{module} {' '.join(map(str, words))}: {used.code}\n{used.printed[-3000:]}"
        )
    return used


def rows_of_table(folder: Path, pattern: str) -> list[dict[str, str]]:
    """Return the rows of the newest CSV file of a name in a folder, [] where there is none."""
    tables = sorted(folder.glob(pattern))
    if not tables:
        return []
    with tables[-1].open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def markdown_table(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def sections_in(path: Path) -> dict[str, str]:
    """Return the texts of a page that a script writes, by the names in the lines `== NAME` before them."""
    found = re.findall(r"(?ms)^== (\w+)\n(.*?)(?=^== |\Z)", path.read_text(encoding="utf-8"))
    return {name: text.strip() for name, text in found}
