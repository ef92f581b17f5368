"""The first birth of NaN or infinity in a captured step, while it runs.

Comes in: the records of a step, as they are written. Goes out: the step's log, with a line in
`overflow.jsonl` and on stderr about the first birth, and with `--overflow raise` an error for the script.
Made by the probes. What is a birth is judged as `overflow_check` judges it, record by record.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from ray_precheck.capture.settings import RAISE, CaptureSettings
from ray_precheck.capture.writing.log import TENSORS, StepLog
from ray_precheck.dump.scan import ByteRange
from ray_precheck.errors import OverflowBornError
from ray_precheck.trace.overflow.births import SUSPICIOUS, Walk
from ray_precheck.trace.overflow.rows import Birth, OverflowFinding
from ray_precheck.trace.side import BACKWARD, entry_of, record_from_json
from ray_precheck.trace.sources import Modules, model_line

OVERFLOW_LOG = "overflow.jsonl"
_BORN = (Birth.BORN, Birth.CAST)
Lines = Callable[[int], list[str]]


def step_log(settings: CaptureSettings, folder: Path, framework: str, lines_of: Lines) -> StepLog:
    """Return the log of a step, which watches for births where the settings ask for it."""
    header: dict[str, object] = {
        "task": settings.task,
        "level": settings.level,
        "framework": framework,
        "dump_data_dir": str((folder / TENSORS).absolute()) if settings.saves_tensors else None,
        "layouts": True,  # a tensor without strides was contiguous
    }
    if not settings.overflow:
        return StepLog(folder, header, lines_of)
    return WatchedLog(settings, folder, header, lines_of)


class WatchedLog(StepLog):
    """A log that notes the first birth in its records, and raises it where it is to stop the script."""

    def __init__(
        self, settings: CaptureSettings, folder: Path, header: dict[str, object], lines_of: Lines
    ) -> None:
        super().__init__(folder, header, lines_of)
        self._raises = settings.overflow == RAISE
        self._modules = Modules()
        framework = str(header.get("framework", ""))
        self._walk = Walk(framework, self._modules, has_calls=settings.calls)
        self._is_found = False
        self._error: OverflowBornError | None = None

    def record(self, key: str, fields: str, stack: int | None, parent: str | None) -> None:
        """Write the record of a call, and look whether it has borne NaN or infinity.

        Raises:
            OSError: it cannot be written.
        """
        super().record(key, fields, stack, parent)
        if self._is_found:
            return
        raw = f"{{{fields}}}".encode()
        entry = entry_of(key, ByteRange(0, 0))
        self._modules.learn(key, parent)
        if not SUSPICIOUS.search(raw):
            self._walk.saw_backward |= entry.direction == BACKWARD
            return
        before = len(self._walk.followed.findings)
        self._walk.see(entry, record_from_json(raw))
        new = self._walk.followed.findings[before:]
        found = next((each for each in new if each.birth in _BORN), None)
        if found is not None:
            self._is_found = True
            self._note(found, model_line(self._lines_of(stack)) if stack is not None else "")

    def raise_born(self) -> None:
        """Raise the birth that was found, once.

        Raises:
            OverflowBornError: an operator has made NaN or infinity of finite values.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _note(self, found: OverflowFinding, source: str) -> None:
        module = self._modules.of(found.key)
        note = {
            "api": found.key,
            "tensor": found.tensor,
            "kind": found.found.words,
            "birth": found.birth.value,
            "dtype": found.dtype,
            "module": module,
            "source": source,
            "message": found.message,
        }
        with (self.folder / OVERFLOW_LOG).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(note)}\n")
        where = "; ".join(filter(None, [module and f"in {module}", source]))
        said = f"{found.found.words} in {found.place} ({found.dtype}): {found.message}"
        said += f"; {where}" if where else ""
        print(f"ray-precheck capture: {self.folder}: {said}", file=sys.stderr, flush=True)
        if self._raises:
            self._error = OverflowBornError(f"{said}; the dump up to here is in {self.folder}")
