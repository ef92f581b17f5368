"""The settings of a check, pickled once for each worker; no framework is imported."""

from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.accuracy.outputs import Judge
from ray_precheck.accuracy.standards.base import Standard, added_headings
from ray_precheck.accuracy.standards.msprobe import MSPROBE
from ray_precheck.bench.declared import BenchModule
from ray_precheck.check.options import CheckOptions
from ray_precheck.descriptors.descriptor import find_framework
from ray_precheck.schema.dtypes import FULL_FLOAT32, Float32
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.task import BENCH


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """What a worker must know besides its device; the same for every worker of a run.

    `options` holds the options as the user gave them. `standard` and `bench_modules` hold what those
    options name: the standard with its limits, and the text of the users' files with benches, which
    other machines may not have. `tests_dump` is True where the results that the dump captured are
    tested (real mode). `error_folder` is the folder for the tensors of failing outputs, None to save
    nothing; with `sends_evidence` that folder is on another machine, and the tensors are sent with
    the result. `memory_limit_bytes` is the limit for the tensors of one record, 0 for no limit.
    `device_type` is the kind of the run's devices, which a bench worker cannot see itself.
    `knows_layouts`: a tensor of the dump without strides was contiguous. `float32` are the formats of
    the operands of the program's float32 products. `columns` are those that the details of the run have for
    its standard, None for all that the standard adds.
    """

    framework: str
    task: str
    data_folder: Path
    options: CheckOptions = field(default_factory=CheckOptions)
    tests_dump: bool = False
    error_folder: Path | None = None
    sends_evidence: bool = False
    memory_limit_bytes: int = 0
    standard: Standard = MSPROBE
    bench_modules: tuple[BenchModule, ...] = ()
    device_type: str = ""
    knows_layouts: bool = False
    float32: Float32 = FULL_FLOAT32
    columns: tuple[str, ...] | None = None

    @property
    def added(self) -> tuple[str, ...]:
        """The headings of the columns behind the default ones."""
        return added_headings(self.standard) if self.columns is None else self.columns

    def tests_own_kernel(self, kind: str) -> bool:
        """Return whether the tested results come from torch's CPU kernels, which the bench uses too, in
        another dtype. `kind` is the kind of the process's device.

        False for captured results: the dump does not say which kernels made them.
        """
        own = self.device_type if kind == BENCH else kind
        return find_framework(self.framework).is_bench and own == "cpu" and not self.tests_dump

    def terms(self, kind: str) -> "Terms":
        """Return the terms of judgement for a process whose device is of this kind."""
        own_kernel = self.tests_own_kernel(kind)
        return Terms(
            self.framework,
            self.standard,
            self.options.seed,
            self.tests_dump,
            own_kernel,
            self.float32,
            self.device_type if kind == BENCH else kind,
        )


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms by which a process judges every call.

    `seed` is the seed of the run. `tests_own_kernel`: the tested results were computed by torch on the
    CPU, as the bench's are. `float32` are the formats in which captured results were computed. `device` is
    the kind of the run's devices.
    """

    framework: str
    standard: Standard
    seed: int = 0
    tests_dump: bool = False
    tests_own_kernel: bool = False
    float32: Float32 = FULL_FLOAT32
    device: str = "cpu"

    def judge(self, name: ApiName, direction: str) -> Judge:
        """Return the judge of the outputs (forward) or the gradients (backward) of a call."""
        return Judge(self.framework, self.standard, name.type_name, direction)
