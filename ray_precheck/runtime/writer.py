"""The actor that owns both CSV files.

Comes in: results. Goes out: an acknowledgement, once they are on the disk.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from ray_precheck.schema.result import TaskResult
from ray_precheck.store.error_data import save_files
from ray_precheck.store.journal import Journal


class Writer:
    """Appends to the journal; errors of the disk come back as `StoppedError`.

    The files are opened at the first use, so that what fails there is an answer and no dead actor.
    `reopen` repairs them first: another writer died while it wrote.
    """

    def __init__(
        self, result_path: Path, details_path: Path, errors: Path, token: str = "", *, reopen: bool
    ) -> None:
        """`token` is that of the run's claim on the files: another run's files are not written.

        `errors` is the folder for the tensors of what fails on other machines.
        """
        self._open = Journal.reopen if reopen else Journal.open
        self._paths = result_path, details_path
        self._errors = errors
        self._token = token
        self._opened: Journal | None = None

    def append(self, results: Sequence[TaskResult]) -> int:
        """Write results; returns their number when they are on the disk."""
        self._journal().append([self._with_evidence(result) for result in results])
        return len(results)

    def _with_evidence(self, result: TaskResult) -> TaskResult:
        """Save the tensors of a failing call that come from another machine."""
        if not result.evidence:
            return result
        try:
            save_files(self._errors, result.evidence)
        except OSError as error:
            note = f"its tensors could not be saved: {error.strerror or error}"
            return replace(result, message="; ".join(filter(None, [result.message, note])))
        return result

    def complete(self, order: Sequence[str]) -> None:
        """Put both files in dump order and close them."""
        self._journal().complete(order)

    def _journal(self) -> Journal:
        if self._opened is None:
            self._opened = self._open(*self._paths, self._token)
        return self._opened


WriterActor: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Writer)
