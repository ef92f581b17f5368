"""Which runs a folder has results of, and the `View` of each.

Comes in: the path that a user names. Goes out: views, each made by the `report.py` of its command. Called by
the command and by `follow`. The results of several ranks and steps of one run, which stand in folders of
their own, make one view.
"""

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ray_precheck.errors import ResumeError, UsageError
from ray_precheck.running.views import FoundRun
from ray_precheck.schema.view import View

_STAMP = r"(?P<stamp>\d{14}(?:_\d+)?)"


@dataclass(frozen=True, slots=True)
class Viewer:
    """How the results of a command are found: by the `name` of one of its tables, with `*` for the time, or,
    where that is written last, by those that are `begun` before; the module `room` has the function
    `view`."""

    name: str
    room: str
    begun: tuple[str, ...] = ()

    def stamp(self, file: str) -> str:
        """Return the time in the name of a file, "" where it is no table of this command."""
        return self._stamp(file, self.name)

    def begun_stamp(self, file: str) -> str:
        """Return the time in the name of a file that is begun before the table, "" for another."""
        return next(filter(None, (self._stamp(file, name) for name in self.begun)), "")

    def _stamp(self, file: str, name: str) -> str:
        begin, end = map(re.escape, name.split("*"))
        found = re.fullmatch(f"{begin}{_STAMP}{end}", file)
        return found["stamp"] if found else ""


# The diagnosis first, whose parts the others are.
VIEWERS = (
    Viewer("diagnose_*.txt", "diagnose"),
    Viewer("locate_*.csv", "locate", ("locate_calls_*.csv", "locate_dumps_*.csv")),
    Viewer("bisect_*.csv", "bisect"),
    Viewer("compare_calls_*.csv", "compare"),
    Viewer("accuracy_checking_result_*.csv", "precheck"),
    Viewer("overflow_check_*.csv", "overflow"),
    Viewer("run_overflow_check_result_*.csv", "overflow"),
    Viewer("naive_*.csv", "naive"),
    Viewer("ranks_*.csv", "ranks", ("ranks_dumps_*.csv",)),
    Viewer("compare_results_*.csv", "compare_results"),
)
_PLACE = re.compile(r"(?:step\d+)?/?(?:(?:rank|proc)\d*)?")
# A step, a rank, and the parts of a diagnosis.
_DEEPEST = 4
_MOST_FOLDERS = 20_000
_NO_RESULTS = frozenset({"error_data", "dump_tensor_data"})


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The runs of one command that share a folder and a stamp: `place` is that folder, below the one that
    was named."""

    viewer: Viewer
    place: str
    runs: tuple[FoundRun, ...]

    def view(self) -> View:
        """Return the view of the runs."""
        room = import_module(f"ray_precheck.commands.{self.viewer.room}.{_MODULE}")
        try:
            found: View = room.view(self.runs)
        except ResumeError as error:  # a table of another version, or no table
            said = str(error).removeprefix("cannot resume ")
            raise UsageError(f"report: cannot read {said}") from None
        return found


_MODULE = "report"


def find_groups(out: Path, only: Collection[str] = ()) -> tuple[RunGroup, ...]:
    """Return the runs that a path has results of: a folder, or one of the tables. `only` are the stamps of
    the runs that are meant, () for all.

    Raises:
        UsageError: there are none, or those of two runs of a command; says what was looked for.
    """
    if out.is_file():
        return (_of_file(out),)
    if not out.is_dir():
        raise UsageError(
            f"report: there is no folder {out}; name that of the results (-o of a run)"
        )
    found: dict[tuple[int, str], dict[str, list[FoundRun]]] = defaultdict(lambda: defaultdict(list))
    begun: dict[tuple[int, str, str], Path] = {}
    for folder, names in _folders(out):
        below = "" if folder == out else folder.relative_to(out).as_posix()
        root, label = _split(below)
        for name in names:
            for index, viewer in enumerate(VIEWERS):
                stamp = viewer.stamp(name)
                if only and (stamp or viewer.begun_stamp(name)) not in only:
                    continue
                if stamp:
                    found[index, root][stamp].append(FoundRun(folder / name, stamp, label))
                elif stamp := viewer.begun_stamp(name):
                    begun[index, root, stamp] = out / root / viewer.name.replace("*", stamp)
    for (index, root, stamp), main in begun.items():
        if not found[index, root][stamp]:
            found[index, root][stamp].append(FoundRun(main, stamp))
    groups = []
    for (index, root), by_stamp in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        if len(by_stamp) > 1:
            newest = max(by_stamp)
            raise UsageError(
                f"report: {out / root} has the results of {len(by_stamp)} runs"
                f" ({', '.join(VIEWERS[index].name.replace('*', stamp) for stamp in sorted(by_stamp)[-3:])});"
                f" name one of them: ray-precheck report {by_stamp[newest][0].main}"
            )
        ((_, runs),) = by_stamp.items()
        groups.append(RunGroup(VIEWERS[index], root, tuple(sorted(runs, key=_order))))
    if not groups:
        looked = ", ".join(viewer.name for viewer in VIEWERS)
        raise UsageError(
            f"report: {out} has no result files; looked for {looked} in it and in its folders of steps and"
            " ranks"
        )
    return tuple(groups)


def _of_file(path: Path) -> RunGroup:
    for viewer in VIEWERS:
        stamp = viewer.stamp(path.name)
        if stamp:
            return RunGroup(viewer, "", (FoundRun(path, stamp),))
    looked = ", ".join(viewer.name for viewer in VIEWERS)
    raise UsageError(f"report: {path} is no result file; expected one of {looked}, or their folder")


def _folders(out: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield folders that may have results, and the names of their files."""
    waiting = [(out, 0)]
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            return
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                ordered = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if folder == out:
                raise UsageError(f"report: cannot read {out}: {error.strerror}") from None
            continue
        yield folder, [entry.name for entry in ordered if entry.is_file()]
        if depth < _DEEPEST:
            waiting += [
                (Path(entry.path), depth + 1)
                for entry in reversed(ordered)
                if entry.is_dir(follow_symlinks=False)
                and entry.name not in _NO_RESULTS
                and not entry.name.startswith(".")
            ]


def _split(below: str) -> tuple[str, str]:
    """Return the folder of a run, and the step and rank in it."""
    parts = below.split("/") if below else []
    count = 0
    while count < min(2, len(parts)) and _PLACE.fullmatch(
        "/".join(parts[len(parts) - count - 1 :])
    ):
        count += 1
    return "/".join(parts[: len(parts) - count]), "/".join(parts[len(parts) - count :])


def _order(run: FoundRun) -> tuple[tuple[int, str], ...]:
    """Order ranks by their numbers: rank2 before rank10."""
    parts = re.findall(r"\d+|\D+", run.label)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)
