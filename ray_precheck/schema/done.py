"""The result of one piece of a job: its rows, encoded in the worker, and the seconds that it took.

Made by a job's runner in a check process, and by the job itself for a piece that no worker answers
for. The scheduler, the recorder and the journal handle these and nothing else of a job.
"""

from dataclasses import dataclass

from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.result import Verdict


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Done:
    """One piece that is finished.

    `row` is its line of the result table and `details` are its lines of the details table, encoded
    and with their line ends. `began_s` is the time of its beginning, in seconds since the epoch; the
    other seconds are the durations of the inputs, the device and the bench, each in its own process.
    `evidence` are files by name that the worker could not write into the folder of the results itself.
    """

    index: int
    name: str
    verdict: Verdict
    row: bytes
    details: bytes = b""
    began_s: float = 0.0
    inputs_s: float = 0.0
    device_s: float = 0.0
    bench_s: float = 0.0
    evidence: tuple[tuple[str, bytes], ...] = ()

    @property
    def elapsed_s(self) -> float:
        """How long it took, all parts together."""
        return self.inputs_s + self.device_s + self.bench_s
