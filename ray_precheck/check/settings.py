"""What every worker of a run must know; pickled once for each worker, without frameworks."""

from dataclasses import dataclass
from pathlib import Path

from ray_precheck.bench.declared import BenchModule
from ray_precheck.compare.outputs import Judge
from ray_precheck.compare.standards.base import Standard
from ray_precheck.compare.standards.msprobe import MSPROBE
from ray_precheck.frameworks.known import find_framework
from ray_precheck.options.checks import RECORDED
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.task import BENCH


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """What a worker must know besides its device; the same for every worker of a run.

    `tests_dump`: captured results are tested where the dump has them (real mode).
    `may_run_device`: where it has none, the device stands in. `error_folder`: where the tensors of
    failing outputs go, None to save nothing; with `sends_evidence` they are sent with the result, as
    that folder is on another machine. `memory_limit_bytes`: what the tensors of one record
    may take, 0 for no limit. `distribution` is that of generated inputs. `standard` makes the verdicts, with its limits.
    `bench_modules` are users' own benches, files as text. `device_type` is the kind of the devices,
    for processes that have none.
    """

    framework: str
    task: str
    data_folder: Path
    seed: int = 0
    tests_dump: bool = False
    may_run_device: bool = True
    error_folder: Path | None = None
    sends_evidence: bool = False
    memory_limit_bytes: int = 0
    standard: Standard = MSPROBE
    bench_modules: tuple[BenchModule, ...] = ()
    distribution: str = RECORDED
    device_type: str = ""

    def tests_own_kernel(self, kind: str) -> bool:
        """Return whether results of torch's CPU kernels are tested, which are the bench's own kernels
        in another dtype. `kind` is that of the process's device.

        Of captured results nobody knows which kernels made them.
        """
        own = self.device_type if kind == BENCH else kind
        return find_framework(self.framework).is_bench and own == "cpu" and not self.tests_dump

    def terms(self, kind: str) -> "Terms":
        """Return what a process whose device is of this kind judges by."""
        own_kernel = self.tests_own_kernel(kind)
        return Terms(self.framework, self.standard, self.seed, self.tests_dump, own_kernel)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a process judges by, the same for every call.

    `seed` is that of the run. `tests_own_kernel`: what is tested was computed by torch on the CPU, as
    the bench is.
    """

    framework: str
    standard: Standard
    seed: int = 0
    tests_dump: bool = False
    tests_own_kernel: bool = False

    def judge(self, name: ApiName, direction: str) -> Judge:
        """Return how the outputs (forward) or the gradients (backward) of a call are judged."""
        return Judge(self.framework, self.standard, name.type_name, direction)
