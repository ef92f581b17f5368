"""How many files, functions and rooms of the package a command enters.

    python -m scripts.flows [-v] -- compare -tp TARGET -gp GOLDEN -o OUT
    python -m scripts.flows --record DUMP

Comes in: the words of a command. It runs in this process, watched by `sys.setprofile` (in all threads);
with `--record` only the check of one call is, which a worker does: from its payload to its row. Goes out: the
numbers. A room is a folder of the package, or a module at its root. What an import runs does not count.
"""

import argparse
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import ray_precheck

PACKAGE = Path(ray_precheck.__file__).parent


class Entered:
    """The functions of the package that ran, as pairs of a file below it and a name."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self._own = threading.local()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call; the profile function of all threads."""
        code = frame.f_code
        importing = getattr(self._own, "importing", 0)
        if code.co_name == "<module>" and event in ("call", "return"):
            self._own.importing = importing + (1 if event == "call" else -1)
        elif event == "call" and not importing and code.co_filename.startswith(f"{PACKAGE}/"):
            self.functions.add((code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_qualname))

    def watch(self, action: Any) -> Any:
        """Run an action; returns what it returns."""
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            return action()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def files(self) -> list[str]:
        """The files with a function that ran."""
        return sorted({path for path, _ in self.functions})

    @property
    def rooms(self) -> list[str]:
        """Their rooms."""
        return sorted({path.partition("/")[0] for path in self.files})


def run_command(words: list[str]) -> Entered:
    """Run a command in this process."""
    from ray_precheck.cli import main

    entered = Entered()
    entered.watch(lambda: main(words))
    return entered


def check_record(dump_path: Path) -> Entered:
    """Check the first call of a dump that passes, as a check process does."""
    from ray_precheck.dump.parse import open_dump
    from ray_precheck.replay.config import RunConfig
    from ray_precheck.replay.job import PrecheckJob
    from ray_precheck.replay.planner import plan_tasks
    from ray_precheck.replay.selected import find_selected, read_options
    from ray_precheck.running.run import session_of_one
    from ray_precheck.runtime.scheduling.commands import Stage
    from ray_precheck.store.tables import API_TABLES, run_files

    config = RunConfig(dump_path, device_type="cpu")
    entered = Entered()
    with (
        session_of_one(config, show=False, on_files=lambda path: None) as session,
        open_dump(dump_path) as dump,
    ):
        selected = find_selected(read_options(config), dump, session, is_alone=True)
        job = PrecheckJob(
            dump, selected.check_settings(run_files(Path(API_TABLES.file("result", "1"))))
        )
        tasks = plan_tasks(dump, selected.framework, set()).tasks
        slot = next(iter(selected.places.slots))
        runner = job.opener(is_home=True).open(slot, lambda phase: None)
        entered.watch(lambda: runner.run(job.payload(tasks[0]), Stage.DEVICE))
    return entered


def main() -> int:
    """Print the counts of a command; with -v the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-v", action="store_true", help="name the rooms and the files")
    parser.add_argument("--record", type=Path, metavar="DUMP", help="check one call of a dump")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    entered = check_record(given.record) if given.record else run_command(given.words)
    counts = f"{len(entered.files)} files, {len(entered.functions)} functions, {len(entered.rooms)} rooms"
    print(f"{counts}: {' '.join(given.words) or given.record}")
    if given.v:
        for room in entered.rooms:
            own = [
                path.removeprefix(f"{room}/")
                for path in entered.files
                if path.split("/")[0] == room
            ]
            print(f"  {room}: {', '.join(own)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
