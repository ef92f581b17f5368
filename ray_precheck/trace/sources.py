"""Where in the model a call was made: the `stack.json` that stands beside a dump.

Comes in: the path of a dump and names of calls. Goes out: a line of source for each that is found.
Called by the summary, for the few calls that it names. Both forms of msprobe are read: a dict of
stacks by name, `{"Mint.add.0.forward": ["File a.py, line 3, in forward, \n x + y", ...]}`, and that of
msprobe 26, `{"0": [[names], [frames]], ...}`, where calls with the same stack share it. The innermost
frame is the first one; the model's is the first that is neither Python's, the framework's, a capture's
nor one of a library that runs training (`accelerate`). Where it is a library's of models, the user's own
line stands beside it.

In which module a record was made: the `construct.json` beside a dump. `{key: parent}`, where the parent of
a call is a module, and that of a module the one around it.
"""

import functools
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import orjson

from ray_precheck.descriptors.descriptor import known_frameworks
from ray_precheck.foreign import read_file

STACK_FILE = "stack.json"
# A larger file is left alone: it is read as a whole, for some lines at the end of a run.
_LARGEST_BYTES = 512 << 20
_FRAME = re.compile(
    r"File (?P<path>.+?), line (?P<line>\d+), in (?P<function>[^\n]*?),?\s*(?:\n\s*(?P<code>.*))?$"
)
# Libraries that run a model, whose lines are the same for every call of it.
_RUNNERS = """
    accelerate apex bitsandbytes colossalai composer deepspeed fairscale galore_torch ignite lightning
    lightning_fabric lightning_utilities optimum peft pytorch_lightning schedulefree torch_xla torchopt trl
"""
_FOREIGN = r"""(?:site|dist)-packages/(?:FRAMEWORKS|msprobe|ray_precheck|RUNNERS)(?:/|\.)
    | (?:site|dist)-packages/transformers/(?:trainer|optimization)\w*\.py$
    | (?:^|/)(?:msprobe|ray_precheck/capture)/
    | (?:^|/)lib/python3\.\d+/(?!site-packages|dist-packages) | ^<"""
_LIBRARY = re.compile("(?:site|dist)-packages/")


def source_lines(dump: Path, calls: Collection[str]) -> dict[str, str]:
    """Return the model's line of calls, `model.py:12, in forward: y = x + z`, by `{call}.{direction}`.

    `calls` are names with their direction, as `Mint.add.0.forward`. A backward that has no stack gets
    that of its forward. Calls without a stack, and a file that cannot be read, give nothing.
    """
    if not calls:
        return {}
    wanted = {*calls, *(_forward_of(call) for call in calls)}
    found = {
        name: line
        for name, stack in _stacks(dump.parent / STACK_FILE)
        if name in wanted and (line := model_line(stack))
    }
    lines = {call: found.get(call) or found.get(_forward_of(call), "") for call in calls}
    return {call: line for call, line in lines.items() if line}


def _forward_of(call: str) -> str:
    return f"{call.rpartition('.')[0]}.forward"


def _stacks(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the stack of each call by its name; nothing for a file that is missing or something else."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return
        content = orjson.loads(read_file(path))
    except (OSError, ValueError):
        return
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], list):
            yield from ((name, value[1]) for name in value[0] if isinstance(name, str))
        else:
            yield key, value


def model_line(stack: Any) -> str:
    """Return the model's line of a stack, "" where no frame is the model's.

    After a line of a library stands the innermost one of the user's own code.
    """
    frames = stack if isinstance(stack, list | tuple) else []
    if isinstance(stack, str):
        frames = _split(stack)
    library = ""
    for frame in frames:
        match = _FRAME.match(frame.strip()) if isinstance(frame, str) else None
        path = match["path"].replace("\\", "/") if match else ""
        if match is None or _foreign().search(path) or (library and _LIBRARY.search(path)):
            continue
        code = f": {match['code'].strip()}" if match["code"] else ""
        place = f"{match['line']}, in {match['function'].strip()}{code}"
        in_library = _LIBRARY.search(path)
        if not in_library:
            line = f"{match['path']}:{place}"
            return f"{library}; called by {line}" if library else line
        library = f"{path[in_library.end() :]}:{place}"
    return library


@functools.cache
def _foreign() -> re.Pattern[str]:
    """Return a pattern that finds frames of packages, not of the model, by their paths."""
    packages = {
        name
        for each in known_frameworks()
        for name in (each.package, *each.modules, *each.versioned, *each.frames)
    }
    pattern = _FOREIGN.replace("FRAMEWORKS", "|".join(sorted(packages)))
    return re.compile(pattern.replace("RUNNERS", "|".join(_RUNNERS.split())), re.VERBOSE)


def _split(text: str) -> list[str]:
    """Return the frames of a stack that is one text."""
    return [f"File {part}" for part in re.split(r"(?:^|\n)\s*File ", text) if part.strip()]


CONSTRUCT_FILE = "construct.json"
# A larger file is left alone: it is read as a whole.
_DEEPEST = 1000


class Modules:
    """The modules of a dump; without the file, and without a folder, no record is in one that is not
    learned."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._read: dict[str, object] | None = {} if folder is None else None
        self._marked: set[str] = set()

    def of(self, key: str) -> str:
        """Return the key of the module around a record, "" where there is none or it is not known."""
        if self._read is None:
            self._read = {} if self._folder is None else _construct(self._folder / CONSTRUCT_FILE)
        found = self._read.get(key)
        if isinstance(found, list):
            found = next(iter(found), None)
        return found if isinstance(found, str) else ""

    def learn(self, key: str, module: str | None) -> None:
        """Take note of the module around a record, while a capture goes on."""
        if self._read is not None:
            self._read[key] = module

    def mark(self, key: str) -> None:
        """Take note that a record explains what the modules around it give."""
        for _ in range(_DEEPEST):
            key = self.of(key)
            if not key or key in self._marked:
                return
            self._marked.add(key)

    def holds(self, key: str) -> bool:
        """Return whether a record within this module was marked."""
        return key in self._marked


def _construct(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return {}
        found = orjson.loads(read_file(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
