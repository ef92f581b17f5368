"""The actor that owns both CSV files.

Comes in: results. Goes out: an acknowledgement, once they are on the disk.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from ray_precheck.schema.result import TaskResult
from ray_precheck.store.journal import Journal


class Writer:
    """Appends to the journal; errors of the disk come back as `StoppedError`."""

    def __init__(self, result_path: Path, details_path: Path) -> None:
        self._journal = Journal.open(result_path, details_path)

    def append(self, results: Sequence[TaskResult]) -> int:
        """Write results; returns their number when they are on the disk."""
        self._journal.append(results)
        return len(results)

    def complete(self, order: Sequence[str]) -> None:
        """Put both files in dump order and close them."""
        self._journal.complete(order)


WriterActor: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Writer)
