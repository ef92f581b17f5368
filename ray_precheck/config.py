"""What a run is asked to do.

Comes in: options of the command line or arguments of `precheck`. Goes out: a validated `RunConfig`
and its fingerprint, which a resumed run must match. Called by the session.
"""

from dataclasses import dataclass
from pathlib import Path

from ray_precheck.errors import UsageError

FRAMEWORKS = ("mindspore", "pytorch")
DEVICE_TYPES = ("auto", "npu", "gpu", "cpu")
TESTED = ("auto", "device", "dump")
STANDARDS = ("msprobe",)
RETRY = ("error", "skip", "crash")
LARGEST_DEVICE_ID = 4095
# The share of the machine's memory that all workers together may take for tensors.
MEMORY_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings of one run.

    `framework` "" means: as the dump says. `resume_csv` is the result CSV to go on in, with `force`
    also where it was made with other settings; its rows of the kinds in `retry` are done again.
    `timeout_s` is how long one record may take before its worker is replaced.
    `max_memory_gib` is what the tensors of one record may take, 0 for a share of the machine's.
    `spares` is how many processes each device keeps ready for one that breaks, None for one on the
    CPU and none on an accelerator, whose memory a second process would take.
    `tested`: the device's own results, the captured ones, or auto (captured in real mode).
    """

    dump: Path
    framework: str = ""
    out: Path = Path("./")
    devices: tuple[int, ...] = (0,)
    resume_csv: Path | None = None
    save_error_data: bool = False
    address: str = ""
    device_type: str = "auto"
    seed: int = 0
    timeout_s: float = 300.0
    tested: str = "auto"
    standard: str = "msprobe"
    max_memory_gib: float = 0.0
    force: bool = False
    retry: tuple[str, ...] = ()
    spares: int | None = None
    debug: bool = False

    def validate(self) -> None:
        """Check what can be checked without looking at the dump or the machine.

        Raises:
            UsageError: names the option, what was given and what is expected.
        """
        if self.framework not in ("", *FRAMEWORKS):
            raise UsageError(_expected("-f", self.framework, FRAMEWORKS))
        if self.device_type not in DEVICE_TYPES:
            raise UsageError(_expected("--device-type", self.device_type, DEVICE_TYPES))
        if self.tested not in TESTED:
            raise UsageError(_expected("--tested", self.tested, TESTED))
        if self.standard not in STANDARDS:
            raise UsageError(_expected("--standard", self.standard, STANDARDS))
        if not self.timeout_s > 0:
            raise UsageError(f"--timeout {self.timeout_s:g} must be larger than 0 seconds")
        if not self.max_memory_gib >= 0:
            raise UsageError(f"--max-memory {self.max_memory_gib:g} must not be negative")
        if self.spares is not None and self.spares < 0:
            raise UsageError(f"--spares {self.spares} must not be negative")
        if self.seed < 0:
            raise UsageError(f"--seed {self.seed} must not be negative")
        self._validate_retry()
        self._validate_devices()

    def _validate_retry(self) -> None:
        for kind in self.retry:
            if kind not in RETRY:
                raise UsageError(_expected("--retry", kind, RETRY))
        if self.retry and self.resume_csv is None:
            raise UsageError("--retry needs -csv_path: the result CSV whose rows are done again")

    def _validate_devices(self) -> None:
        if not self.devices:
            raise UsageError("-d needs at least one device id")
        for device in self.devices:
            if not 0 <= device <= LARGEST_DEVICE_ID:
                raise UsageError(
                    f"-d {device} is no device id; they go from 0 to {LARGEST_DEVICE_ID}"
                )
        twice = sorted({d for d in self.devices if self.devices.count(d) > 1})
        if twice:
            raise UsageError(f"-d names device {twice[0]} more than once")

    def memory_limit_bytes(self, machine_bytes: int) -> int:
        """Return what the tensors of one record may take: as asked for, or a worker's share."""
        if self.max_memory_gib:
            return int(self.max_memory_gib * 2**30)
        return int(MEMORY_SHARE * machine_bytes / len(self.devices))

    def fingerprint(self, dump_digest: str, framework: str, kind: str) -> dict[str, str]:
        """Return what must be the same for two runs to make the same rows."""
        return {
            "dump": dump_digest,
            "framework": framework,
            "device type": kind,
            "seed": str(self.seed),
            "tested": self.tested,
            "standard": self.standard,
        }


def _expected(option: str, given: str, choices: tuple[str, ...]) -> str:
    return f"{option} {given!r} is unknown; expected one of: {', '.join(choices)}"
