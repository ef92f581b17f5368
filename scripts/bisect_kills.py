"""Do bisects that are killed at any moment, and go on, come to the same answer, and run what is left alone?

    python -m scripts.bisect_kills [--bisects 20] [--kills 200] [--seed 0] [--address local] [--folder DIR]

Comes in: nothing. Goes out: a table by kinds of kills, and exit code 1 where something is not as it must be:
another answer than the undisturbed bisect's, more trials run again than one for each worker and kill, or a
process that stays behind. Each trial appends a line to a file, by which its runs are counted, and leaves a
process in a session of its own.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

WORKERS = 3
STOPPED = 3
# How a command ends whose guardian was killed, or that was told to end before it began.
_EARLY = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
# A trial takes so long, so that kills meet it; the process that it leaves behind would take longer.
_TRIAL_S, _LEFT_S = 0.1, 120
_LIMIT_S, _END_S = 120.0, 20.0
# Kills come within this share of the time of a whole bisect, since one that goes on has less to do; and so
# long after each other, so that a trial whose command was killed has its second chance.
_SHARE, _PAUSE_S = 0.7, 0.5
# In the environment of all processes of a bisect.
_MARK = "BISECT_KILLS_MARK"
_KEEP, _CHECK = "inside/keep.py", "check_process"


def _driver(guardian: psutil.Process) -> list[psutil.Process]:
    return list(guardian.children()[:1])


def _titled(title: str) -> Callable[[psutil.Process], list[psutil.Process]]:
    def found(guardian: psutil.Process) -> list[psutil.Process]:
        everyone = guardian.children(recursive=True)
        return [each for each in everyone if title in " ".join(_words_of(each))]

    return found


def _trial(guardian: psutil.Process) -> list[psutil.Process]:
    return [child for keeper in _titled(_KEEP)(guardian) for child in keeper.children()[:1]]


def _words_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


@dataclass(frozen=True, slots=True)
class KillKind:
    """Who is killed, by which signal, and whether that ends the whole bisect: then each worker may have had a
    trial that was not finished."""

    victims: Callable[[psutil.Process], list[psutil.Process]]
    number: signal.Signals
    ends_all: bool = False


KINDS = {
    "kill -9 of the command": KillKind(_driver, signal.SIGKILL, True),
    "kill -9 of its guardian": KillKind(lambda guardian: [guardian], signal.SIGKILL, True),
    "kill -9 of a check process": KillKind(_titled(_CHECK), signal.SIGKILL),
    "kill -9 of what runs a trial": KillKind(_titled(_KEEP), signal.SIGKILL),
    "kill -9 of a trial's command": KillKind(_trial, signal.SIGKILL),
    "SIGTERM": KillKind(lambda guardian: [guardian], signal.SIGTERM, True),
    "Ctrl-C": KillKind(lambda guardian: [guardian], signal.SIGINT, True),
}


@dataclass(frozen=True, slots=True)
class Scene:
    """A bisect to kill: its folder, the one for its temporary files, the words of its switches, and the
    options of where it runs."""

    folder: Path
    temporary: Path
    switches: tuple[str, ...]
    place: tuple[str, ...] = ()

    @property
    def out(self) -> Path:
        """The folder of its results."""
        return self.folder / "out"

    @property
    def runs(self) -> int:
        """How often its command was run."""
        ran = self.folder / "runs"
        return ran.read_text().count("\n") if ran.exists() else 0

    @property
    def rows(self) -> int:
        """How many trials its table has."""
        tables = sorted(self.out.glob("bisect_2*.csv"))
        return max(0, tables[-1].read_bytes().count(b"\n") - 1) if tables else 0


@dataclass(slots=True)
class Story:
    """What came of a bisect: its kills by kind, how many were met by a running command, the trials of its
    table, how many were run again, and what is not as it must be."""

    kills: Counter[str] = field(default_factory=Counter)
    trials: int = 0
    again: int = 0
    problems: list[str] = field(default_factory=list)


def make_scene(folder: Path, number: int, place: Sequence[str]) -> Scene:
    """Write a command with 8 to 24 switches, of which one, a pair, or two alternatives make it wrong."""
    choose = random.Random(f"scene {number}")
    names = [f"S{each}" for each in range(choose.randint(8, 24))]
    sizes = choose.choice(((1,), (2,), (1, 1), (1, 2)))
    culprits = choose.sample(names, sum(sizes))
    groups = [[culprits.pop() for _ in range(size)] for size in sizes]
    wrong = "\n".join(
        f'[ "{"".join(f"${name}" for name in group)}" = {"1" * len(group)} ] && exit 1'
        for group in groups
    )
    folder.mkdir(parents=True)
    script = folder / "trial.sh"
    script.write_text(
        f"#!/bin/sh\necho x >> {folder}/runs\nsetsid sleep {_LEFT_S} &\nsleep {_TRIAL_S}\n{wrong}\nexit 0\n"
    )
    script.chmod(0o700)
    # Of a short path: Ray's sockets lie below it.
    temporary = Path(tempfile.mkdtemp(prefix="bk"))
    return Scene(folder, temporary, tuple(f"env:{name}=1|0" for name in names), tuple(place))


def start(scene: Scene) -> "subprocess.Popen[str]":
    """Start a bisect, or go on with it."""
    words = [
        sys.executable,
        "-m",
        "ray_precheck",
        "bisect",
        "run",
        "-o",
        str(scene.out),
        *scene.place,
    ]
    words += ["-d", *map(str, range(WORKERS))]
    if scene.rows or any(scene.out.glob("bisect_2*.csv")):
        words += ["-csv_path", str(scene.out)]
    words += [word for each in scene.switches for word in ("--switch", each)]
    return subprocess.Popen(
        [*words, "--", str(scene.folder / "trial.sh")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            _MARK: str(scene.folder),
            "TMPDIR": str(scene.temporary),
            "TQDM_DISABLE": "1",
        },
    )


def answer_of(printed: str) -> str:
    """Return what a bisect has found, without the numbers of its trials."""
    *lines, _ = printed.strip().splitlines()
    return re.sub(r"trial [\d, ]+", "trial", "\n".join(lines))


def remaining(scene: Scene) -> list[psutil.Process]:
    """Return the processes of a bisect that there are."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == str(scene.folder):
                found.append(process)
    return found


def attempt(
    scene: Scene, choose: random.Random, kills: int, longest_s: float, story: Story
) -> str | None:
    """Run a bisect, or go on with it, and kill processes of it until so many kills were done; return what it
    printed where it came to its end, else None."""
    process = start(scene)
    guardian = psutil.Process(process.pid)
    done: list[str] = []
    while story.kills.total() < kills and process.poll() is None:
        kind = choose.choice([*KINDS])
        victims, number = KINDS[kind].victims, KINDS[kind].number
        _wait(process, _PAUSE_S if done else 0.0)
        _wait(process, choose.uniform(0.0, longest_s))
        with suppress(psutil.Error):
            for victim in victims(guardian)[-1:]:
                victim.send_signal(number)
                story.kills[kind] += 1
                done.append(kind)
        if done and KINDS[done[-1]].ends_all:
            break
    said = ", ".join(done)
    try:
        printed, errors = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        story.problems.append(f"{said}: the command did not end")
        process.kill()
        process.communicate()
        return None
    stays = _gone(scene)
    if stays:
        story.problems.append(f"{said}: {stays[0]} stays")
        for each in stays:
            with suppress(psutil.Error):
                each.kill()
    if process.returncode in (0, 1):
        return printed
    if process.returncode not in (STOPPED, *_EARLY):
        story.problems.append(f"{said}: exit code {process.returncode}: {errors.strip()[-300:]}")
    return None


def _wait(process: "subprocess.Popen[str]", seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _gone(scene: Scene) -> list[psutil.Process]:
    """Wait until no process of a bisect is left; return those that are left after a while."""
    until = time.monotonic() + _END_S
    while (stays := remaining(scene)) and time.monotonic() < until:
        time.sleep(0.05)
    return stays


def tell_story(
    folder: Path, number: int, kills: int, choose: random.Random, place: Sequence[str] = ()
) -> Story:
    """Run a bisect undisturbed, and again with so many kills, going on after each; compare."""
    calm = make_scene(folder / "calm", number, place)
    began = time.monotonic()
    process = start(calm)
    printed, errors = process.communicate(timeout=_LIMIT_S)
    took_s = time.monotonic() - began
    shutil.rmtree(calm.temporary, ignore_errors=True)
    if process.returncode != 1:
        raise SystemExit(f"undisturbed: exit code {process.returncode}: {errors.strip()[-300:]}")
    story = Story()
    killed = make_scene(folder / "killed", number, place)
    found: str | None = None
    while found is None and not story.problems:
        found = attempt(killed, choose, kills, took_s * _SHARE, story)
    shutil.rmtree(killed.temporary, ignore_errors=True)
    story.trials, story.again = killed.rows, killed.runs - killed.rows
    if found is not None and answer_of(found) != answer_of(printed):
        story.problems.append(
            f"another answer:\n{answer_of(found)}\ninstead of\n{answer_of(printed)}"
        )
    most = sum(
        number * (WORKERS if KINDS[kind].ends_all else 1) for kind, number in story.kills.items()
    )
    if story.again > most:
        story.problems.append(f"{story.again} trials were run again, more than {most}")
    if story.again < 0:
        story.problems.append(f"{-story.again} rows are of trials that were not run")
    return story


def main() -> int:
    """Tell stories until there are enough kills; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--bisects", type=int, default=20)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--address", help="local: on a Ray of each bisect's own")
    parser.add_argument(
        "--folder", type=Path, help="for all files, kept (default: a new one, removed)"
    )
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="bisect_kills_"))
    place = ["--address", options.address] if options.address else []
    choose = random.Random(options.seed)
    stories: list[Story] = []
    while len(stories) < options.bisects or _kills(stories).total() < options.kills:
        left = max(1, options.kills - _kills(stories).total())
        share = -(-left // max(1, options.bisects - len(stories)))
        number = len(stories)
        story = tell_story(folder / f"bisect{number}", number, share, choose, place)
        stories.append(story)
        said = "; ".join(story.problems) or "the same answer"
        counts = f"{story.kills.total()} kills, {story.trials} trials, {story.again} run again"
        print(f"bisect {number}: {counts}: {said}", flush=True)
        if not (options.folder or story.problems):
            shutil.rmtree(folder / f"bisect{number}", ignore_errors=True)
    found = _kills(stories)
    for kind in KINDS:
        print(f"{kind}: {found[kind]}")
    wrong = sum(bool(each.problems) for each in stories)
    again = sum(each.again for each in stories)
    print(
        f"{len(stories)} bisects, {found.total()} kills, {sum(each.trials for each in stories)} trials,"
        f" {again} run again ({again / max(1, found.total()):.2f} a kill), {wrong} not as they must be"
    )
    return int(wrong > 0)


def _kills(stories: Sequence[Story]) -> Counter[str]:
    return sum((each.kills for each in stories), Counter())


if __name__ == "__main__":
    sys.exit(main())
