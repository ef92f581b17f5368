"""Kills captures at random moments with `kill -9`, and sees what they leave.

A small training is captured, always the same. After each kill every step that was begun is read by the dump
reader, and compared with the same step of a capture that nobody disturbed: it must hold the beginning of its
records, byte for byte, and all of them where its dump.json is there. Then the folder is finished, and its
files must be those that the undisturbed step would have had if it had ended there. Used by
`test_capture_kills`.
"""

import json
import multiprocessing
import random
import re
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from ray_precheck.capture.writing.finish import finish_folder
from ray_precheck.capture.writing.log import CONSTRUCT, DUMP, LOG, STACKS
from ray_precheck.dump.parse import open_dump
from ray_precheck.dump.scan import split_key
from ray_precheck.errors import NothingToCheckError

_INTERVAL_S = 0.003
_LIMIT_S = 300.0
STEPS = 4


def train(out: Path, level: str, steps: int = STEPS) -> None:
    """Capture a small training of some steps, the same each time."""
    import torch
    from torch import nn

    from ray_precheck.capture import Capture

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoder(layer, 3), nn.Linear(32, 50))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens = torch.randint(0, 50, (2, 9))
    with Capture(out, level=level, steps=range(steps), model=model, framework="pytorch"):
        for _ in range(steps):
            logits = model(tokens[:, :-1]).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


_DARK = re.compile(rb', "dark": \{[^\n]*?\]\}')
_END = re.compile(rb'\n\}(, "cut_short": "[^\n]*")?\}\n\Z')


@dataclass(frozen=True)
class StepFound:
    """The files of a step that came to its end. Each record of dump.json stands on a line of its own."""

    header: bytes
    records: tuple[bytes, ...]
    stacks: tuple[tuple[list[str], list[str]], ...]
    parents: dict[str, str | None]

    @property
    def keys(self) -> list[str]:
        """The keys of the records."""
        return [json.loads(line[: line.index(b'": {') + 1]) for line in self.records]

    def cut(self, count: int) -> "StepFound":
        """Return what the step would be if it had ended after so many records."""
        keys = self.keys[:count]
        there = set(keys)
        stacks = [([key for key in of if key in there], lines) for of, lines in self.stacks]
        return StepFound(
            self.header,
            self.records[:count],
            tuple(entry for entry in stacks if entry[0]),
            {key: self.parents[key] for key in keys} if self.parents else {},
        )


def read_step(folder: Path) -> StepFound:
    """Return the step that a folder holds as dump.json, stack.json and construct.json."""
    # What is said of the capture as a whole is not known before the step ends.
    content = _DARK.sub(b"", _END.sub(b"", (folder / DUMP).read_bytes()), count=1)
    header, *lines = content.split(b"\n")
    records = tuple(line.removesuffix(b",") for line in lines if line)
    stacks = json.loads((folder / STACKS).read_bytes())
    assert list(stacks) == [str(number) for number in range(len(stacks))]
    parents = json.loads((folder / CONSTRUCT).read_bytes())
    return StepFound(header, records, tuple(map(tuple, stacks.values())), parents)


def steps_of(out: Path) -> dict[str, Path]:
    """Return the folders of the steps below a capture, of one process each, by their steps and ranks.

    A process without a rank has another number each time.
    """
    found = {}
    for folder in sorted(out.glob("step*/*")):
        name = "proc" if folder.name.startswith("proc") else folder.name
        found[f"{folder.parent.name}/{name}"] = folder
    return found


def read_calls(path: Path) -> tuple[list[tuple[str, bytes]], str]:
    """Return the records of API calls as the dump reader finds them, in their order, and its note."""
    found = []
    with open_dump(path) as dump:
        for call in dump.calls:
            for direction, span in (("forward", call.forward), ("backward", call.backward)):
                if span is not None:
                    raw = dump.raw(span) or b""
                    found.append((span.start, f"{call.name}.{direction}", raw))
        return [(key, raw) for _, key, raw in sorted(found)], dump.note


def check_step(folder: Path, whole: StepFound, problems: list[str]) -> str:
    """Read what a kill has left of a step, finish it, and read it again; return its state."""
    is_dump, is_log = ((folder / name).exists() for name in (DUMP, LOG))
    state = " and ".join(name for name, there in ((DUMP, is_dump), (LOG, is_log)) if there)
    if not state:
        return "an empty folder"
    count = len(whole.records)
    if not is_dump:
        lines = (folder / LOG).read_bytes().split(b"\n")
        # Without the header, what comes behind the last line break, and the line that ends a step.
        count = len(lines) - 2 - any(line.startswith(b'{"cut_short": ') for line in lines[-2:-1])
        state = f"{LOG} with {'a torn last line' if lines[-1] else 'whole lines'}"
        if count <= 0:
            state = f"{LOG} without a record"
    expected = whole.cut(max(count, 0))
    problems += check_reading(folder, expected, is_dump=is_dump)
    (done,) = finish_folder(folder) if is_log else [None]
    if count < 0:
        return f"{LOG} without a header"
    if done is not None and (done.problem or done.records != count):
        problems.append(f"{folder}: not finished, {done}")
    elif read_step(folder) != expected:
        problems.append(f"{folder}: the finished step is not the beginning of the undisturbed one")
    if sorted(path.name for path in folder.iterdir()) != [CONSTRUCT, DUMP, STACKS]:
        problems.append(f"{folder}: has {sorted(path.name for path in folder.iterdir())}")
    return state


def check_reading(folder: Path, expected: StepFound, *, is_dump: bool) -> list[str]:
    """Return what is wrong with what the dump reader finds in a folder that was killed."""
    calls = [
        (key, line[line.index(b'": {') + 3 :])
        for key, line in zip(expected.keys, expected.records, strict=True)
        if split_key(key)
    ]
    try:
        found, note = read_calls(folder / DUMP)
    except NothingToCheckError:
        found, note = [], ""
    if found != calls:
        return [
            f"{folder}: {len(found)} records read, the undisturbed step begins with {calls[:1]}"
        ]
    if found and not is_dump and f"after {len(expected.records)} records" not in note:
        return [f"{folder}: {note}"]
    return []


def start_training(level: str, out: Path) -> BaseProcess:
    """Start the training in a process that has loaded torch before it is forked."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(
        ["ray_precheck.capture.session", "ray_precheck.capture.pytorch.probe"]
    )
    process = server.Process(target=train, args=(out, level))
    process.start()
    return process


def capture(level: str, out: Path, kill_after_s: float) -> tuple[float, bool]:
    """Run a capture and kill it so long after its first file is there.

    Returns the seconds from the first file to the end, and whether it was killed.
    """
    process = start_training(level, out)
    until = time.monotonic() + _LIMIT_S
    while not any(out.glob("step*/*/*")) and process.is_alive() and time.monotonic() < until:
        time.sleep(_INTERVAL_S)
    begun = time.monotonic()
    process.join(kill_after_s)
    was_killed = process.is_alive()
    process.kill()
    process.join()
    if not was_killed and process.exitcode:
        raise SystemExit(f"the capture ended with exit code {process.exitcode}")
    return time.monotonic() - begun, was_killed


def kill_captures(
    level: str, kills: int, seed: int, folder: Path
) -> tuple[Counter[str], list[str]]:
    """Kill captures at random moments; return how often each state was found, and the problems."""
    took_s, _ = capture(level, folder / "whole", _LIMIT_S)
    whole = {place: read_step(path) for place, path in steps_of(folder / "whole").items()}
    if not whole:
        raise SystemExit("the capture has captured no step")
    chance, states, problems = random.Random(seed), Counter[str](), list[str]()
    for number in range(kills):
        out = folder / f"killed{number}"
        _, was_killed = capture(level, out, chance.uniform(0.0, took_s))
        found = len(problems)
        states["kills" if was_killed else "ended before its kill"] += 1
        for place, path in steps_of(out).items():
            states[check_step(path, whole[place], problems)] += 1
        if len(problems) == found:
            shutil.rmtree(out, ignore_errors=True)
    return states, problems
