"""Logs of captures as the tests make them, and the dumps that they become."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ray_precheck.capture.writing.log import StepLog
from ray_precheck.dump.parse import open_dump

FILES = ("construct.json", "dump.json", "stack.json")


class Record(NamedTuple):
    key: str
    fields: str = '"input_args": [], "output": []'
    stack: int | None = None
    parent: str | None = None


RECORDS = (
    Record("Torch.mul.0.forward", '"input_args": [{"Max": NaN, "Min": -Infinity}]', 7),
    Record("Torch.add.0.forward", '"text": "}}\\n{\\"stack\\": 5"', 3, "Module.é.forward.0"),
    Record("Module.é.forward.0", '"output": []', 7),
    Record("Torch.add.0.backward", stack=3, parent="Module.é.backward.0"),
    Record("Torch.none.0.forward", ""),
    Record("Torch.none.0.backward", "", 12),
)


def lines_of(number: int) -> list[str]:
    """The lines of a stack, one of them of a file whose name is no UTF-8."""
    return [f"File a\udcff{number}.py, line 1, in f, \n x = 'ü'", "File b.py, line 2, in g, \n y"]


def header(level: str = "L1") -> dict[str, object]:
    return {"task": "statistics", "level": level, "framework": "pytorch", "dump_data_dir": None}


def begun(folder: Path, records: Sequence[Record] = RECORDS, level: str = "L1") -> StepLog:
    """A log with some records, which is open."""
    log = StepLog(folder, header(level), lines_of)
    for record in records:
        log.record(*record)
    return log


def undisturbed(
    folder: Path, records: Sequence[Record] = RECORDS, level: str = "L1", cut_short: str = ""
) -> Path:
    """The folder of a step that came to its end, or whose process lived to say why it did not."""
    begun(folder, records, level).finish(level != "L1", cut_short)
    return folder


def killed(folder: Path, records: Sequence[Record] = RECORDS, level: str = "L1") -> Path:
    """The folder of a step whose process was killed."""
    begun(folder, records, level).close()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def keys_in_log(folder: Path) -> list[str]:
    """The keys of a log, each line of which must be whole."""
    lines = (folder / "dump.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b""
    return [key for line in lines[1:] for key in json.loads(line)]


def keys_read(path: Path) -> set[str]:
    """The keys of the API calls in a dump, as the dump reader finds them."""
    with open_dump(path) as dump:
        return {
            f"{call.name}.{direction}"
            for call in dump.calls
            for direction in ("forward", "backward")
            if getattr(call, direction) is not None
        }
