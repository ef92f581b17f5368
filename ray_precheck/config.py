"""What a run is asked to do.

Comes in: options of the command line or arguments of `precheck`. Goes out: a validated `RunConfig`
and its fingerprint, which a resumed run must match. Called by the session. Devices that are named
with their nodes are written as in `DEVICE_GRAMMAR`.
"""

import math
import re
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from ray_precheck.errors import UsageError

FRAMEWORKS = ("mindspore", "pytorch", "mindtorch")
DEVICE_TYPES = ("auto", "npu", "gpu", "cpu")
TESTED = ("auto", "device", "dump")
STANDARDS = (
    "msprobe",
    "auto",
    "published",
    "benchmark",
    "absolute",
    "binary",
    "ulp",
    "thousandth",
)
# The names of files for --standard end so; everything else is a standard's own name.
STANDARD_FILES = (".yaml", ".yml")
RETRY = ("error", "skip", "crash")
RECORDED, UNIFORM = "recorded", "uniform"
DISTRIBUTIONS = (RECORDED, UNIFORM)
# What the settings of a run say where nothing selects among the calls of its dump.
EVERY_CALL = "every call"
LARGEST_DEVICE_ID = 4095
# The share of the machine's memory that all workers together may take for tensors.
MEMORY_SHARE = 0.7
# The value of --devices that takes every device of the cluster.
ALL_DEVICES = "all"
DEVICE_GRAMMAR = "NODE[:IDS],..., where IDS are 0-7 or 0,2,4-6, as in node-a:0-3,6,node-b:0"
_IDS = re.compile(r"([0-9]+)(?:-([0-9]+))?")


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Devices of one node, as an option names them: the node's name, and ids in their order.

    `ids` None means every device of the node.
    """

    name: str
    ids: tuple[int, ...] | None


def parse_node_devices(option: str, text: str) -> tuple[NodeDevices, ...]:
    """Return what the value of --devices or --exclude names, node by node.

    Commas part items. An item that is a number or a range belongs to the last `NODE:` before it,
    every other one begins a node, whose ids stand after its last colon; an IPv6 address is written
    in brackets.

    Raises:
        UsageError: an item is neither, an id is out of range or stands twice; says the grammar.
    """
    names: list[str] = []
    ids: dict[str, list[int] | None] = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            raise _wrong_item(option, text, "a comma has nothing beside it")
        name, numbers = _split_item(item)
        if not name:
            if not names or ids[names[-1]] is None:
                raise _wrong_item(option, item, "no NODE: stands before it")
            name = names[-1]
        elif name in ids:
            raise _wrong_item(option, item, f"{name} is named twice")
        else:
            names.append(name)
            ids[name] = None if numbers is None else []
        there = ids[name]
        if there is not None and numbers is not None:
            there.extend(_parse_ids(option, item, numbers, there))
    return tuple(
        NodeDevices(name, None if (found := ids[name]) is None else tuple(found)) for name in names
    )


def _split_item(item: str) -> tuple[str, str | None]:
    """Return the node's name and the ids of an item; "" for no name, None for no ids."""
    if _IDS.fullmatch(item):
        return "", item
    name, colon, numbers = item.rpartition(":")
    if not colon or item.endswith("]"):
        return item.strip("[]"), None
    return name.strip("[]"), numbers


def _parse_ids(option: str, item: str, numbers: str, before: list[int]) -> list[int]:
    match = _IDS.fullmatch(numbers)
    if match is None:
        raise _wrong_item(option, item, f"{numbers!r} is no id and no range")
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last <= LARGEST_DEVICE_ID:
        raise _wrong_item(option, item, f"ids rise, from 0 to {LARGEST_DEVICE_ID}")
    found = list(range(first, last + 1))
    twice = sorted(set(found) & set(before))
    if twice:
        raise _wrong_item(option, item, f"id {twice[0]} is named twice")
    return found


def _wrong_item(option: str, item: str, why: str) -> UsageError:
    return UsageError(f"{option}: {item!r} is wrong: {why}; expected {DEVICE_GRAMMAR}")


@dataclass(frozen=True, slots=True)
class Number:
    """What an option that is a number may be: from `least` to `most`, finite, whole where `whole`.

    `above` leaves out `least` itself. `why` says what the number means.
    """

    option: str
    field: str
    why: str
    least: float = 0
    most: float = math.inf
    whole: bool = True
    above: bool = False

    def require(self, value: object) -> None:
        """Raise where a value is none of these numbers; None stands for the default.

        Raises:
            UsageError: names the option, the value and what is expected.
        """
        if value is None:
            return
        kind_of_number = Integral if self.whole else Real
        if not isinstance(value, bool) and isinstance(value, kind_of_number) and self._holds(value):
            return
        kind = "a whole number" if self.whole else "a finite number"
        least = f"larger than {self.least:g}" if self.above else f"at least {self.least:g}"
        most = "" if math.isinf(self.most) else f" and at most {self.most:g}"
        shown = repr(value) if len(repr(value)) <= _LONGEST_SHOWN else "a longer number"
        raise UsageError(f"{self.option} {shown} is wrong: {self.why} is {kind} {least}{most}")

    def _holds(self, value: Any) -> bool:
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return (
            bool(value > self.least if self.above else value >= self.least) and value <= self.most
        )


_LONGEST_SHOWN = 40
_LONGEST_S = 1e7
_MOST_PROCESSES = 4096
NUMBERS = (
    Number("--seed", "seed", "the seed of the inputs", most=2**63 - 1),
    Number("--timeout", "timeout_s", "the time of a record in seconds", 0, _LONGEST_S, False, True),
    Number("--max-memory", "max_memory_gib", "the memory of a record in GiB", 0, 1e6, False),
    Number("--spares", "spares", "the count of spare processes", most=_MOST_PROCESSES),
    Number("--bench-workers", "bench_workers", "the count of processes", most=_MOST_PROCESSES),
    Number(
        "--bench-budget",
        "bench_budget_s",
        "the time of a bench in seconds",
        0,
        _LONGEST_S,
        False,
        True,
    ),
)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings of one run.

    `framework` "" means: as the dump says. `devices` are ids of this machine, or the value of
    --devices: all, or as in `DEVICE_GRAMMAR`, in which `exclude` names what is left out. `resume_csv` is the result CSV to go on in, with `force`
    also where it was made with other settings; its rows of the kinds in `retry` are done again.
    `timeout_s` is how long one record may take before its worker is replaced.
    `max_memory_gib` is what the tensors of one record may take, 0 for a share of the machine's.
    `spares` is how many processes each device keeps ready for one that breaks, None for one on the
    CPU and none on an accelerator, whose memory a second process would take.
    `standard` is the name of a rule of the verdicts, or a YAML file with rules.
    `tested`: the device's own results, the captured ones, or auto (captured in real mode).
    `bench_workers` is how many processes compute benches beside the devices' own, None for as many
    as the cluster has spare cores; a bench that takes longer than `bench_budget_s` is a SKIP.
    `shared_fs`: captured tensors have the same paths on every machine. `filter_alike`: of calls
    that are alike in name, shapes, dtypes and scalars one is checked. `bench_modules` are Python files
    with benches of one's own. `distribution`: generated inputs have the recorded mean, norm and
    extremes and suit their API (recorded), or are uniform between the extremes (uniform).
    `keywords` are expressions of `-k`, `white_list` and `black_list` names of APIs as msprobe's
    config.json has them: calls that they do not select are not checked and get no rows.
    `error_data_path` is the folder below which `save_error_data` saves, None for that of the results;
    with `error_data_as_msprobe` it is ut_error_data and the timestamp there, else error_data/ and it.
    """

    dump: Path
    framework: str = ""
    out: Path = Path("./")
    devices: tuple[int, ...] | str = (0,)
    exclude: str = ""
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
    bench_workers: int | None = None
    bench_budget_s: float = 600.0
    shared_fs: bool = False
    filter_alike: bool = False
    bench_modules: tuple[str | Path, ...] = ()
    distribution: str = RECORDED
    debug: bool = False
    keywords: tuple[str, ...] = ()
    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    error_data_path: Path | None = None
    error_data_as_msprobe: bool = False

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
        if self.standard not in STANDARDS and not self.standard.endswith(STANDARD_FILES):
            choices = (*STANDARDS, "a YAML file (NAME.yaml)")
            raise UsageError(_expected("--standard", self.standard, choices))
        if self.distribution not in DISTRIBUTIONS:
            raise UsageError(_expected("--distribution", self.distribution, DISTRIBUTIONS))
        for numbers in NUMBERS:
            numbers.require(getattr(self, numbers.field))
        self._validate_resume()
        self._validate_devices()

    def _validate_resume(self) -> None:
        if self.force and self.resume_csv is None:
            raise UsageError("--force needs -csv_path: the result CSV to go on in nevertheless")
        for kind in self.retry:
            if kind not in RETRY:
                raise UsageError(_expected("--retry", kind, RETRY))
        if self.retry and self.resume_csv is None:
            raise UsageError("--retry needs -csv_path: the result CSV whose rows are done again")

    def _validate_devices(self) -> None:
        if self.exclude:
            parse_node_devices("--exclude", self.exclude)
        if isinstance(self.devices, str):
            if self.devices != ALL_DEVICES:
                parse_node_devices("--devices", self.devices)
            return
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

    def memory_limit_bytes(self, machine_bytes: int, workers: int | None = None) -> int:
        """Return what the tensors of one record may take: as asked for, or a worker's share.

        `workers` share a machine; by default as many as there are ids.
        """
        if self.max_memory_gib:
            return int(self.max_memory_gib * 2**30)
        if workers is None:
            workers = 1 if isinstance(self.devices, str) else len(self.devices)
        return int(MEMORY_SHARE * machine_bytes / workers)

    def fingerprint(
        self,
        dump_digest: str,
        framework: str,
        kind: str,
        standard: str = "",
        selection: str = EVERY_CALL,
    ) -> dict[str, str]:
        """Return what must be the same for two runs to make the same rows.

        `standard` says what the rule of the verdicts is; by default it is its name. `selection`
        says which calls the run is about.
        """
        return {
            "dump": dump_digest,
            "framework": framework,
            "device type": kind,
            "seed": str(self.seed),
            "tested": self.tested,
            "standard": standard or self.standard,
            # Runs from before this setting do not have it: a resume takes them for the same.
            "filter_api": "on" if self.filter_alike else "off",
            # Runs from before this one drew uniformly, which a resume knows (`store.settings`).
            "distribution": self.distribution,
            # Runs from before this one were about every call, which a resume knows, too.
            "selection": selection,
        }


def _expected(option: str, given: str, choices: tuple[str, ...]) -> str:
    return f"{option} {given!r} is unknown; expected one of: {', '.join(choices)}"
