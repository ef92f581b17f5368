"""The options of every command that runs a job.

Comes in: options of the command line or arguments of a function. Goes out: groups of a command's
configuration. Each option is declared once, as a field (`options.declared` says how); a command whose
configuration has a group takes its options. Read by `running` and `runtime`.

Also here: devices of a cluster, as a user names them with their nodes: `DEVICE_GRAMMAR`; the options that
name captures and how their calls are paired, as several commands have them.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ray_precheck.errors import UsageError
from ray_precheck.options.declared import (
    REQUIRED,
    Number,
    OneOf,
    Option,
    Prerequisite,
    Rule,
    Takes,
    option,
    require_valid,
)

LARGEST_DEVICE_ID = 4095
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
    """Return the nodes that a value of --devices or --exclude names, each with its ids.

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


DEVICE_TYPES = ("auto", "npu", "gpu", "cpu")
# The value of --devices that takes every device of the cluster.
ALL_DEVICES = "all"


def _require_ids(name: str, devices: Any) -> None:
    """Raise where the value of -d is no list of different ids; the text of --devices is left alone."""
    if isinstance(devices, str):
        return
    if not devices:
        raise UsageError(f"{name} needs at least one device id")
    for device in devices:
        if not 0 <= device <= LARGEST_DEVICE_ID:
            raise UsageError(
                f"{name} {device} is no device id; they go from 0 to {LARGEST_DEVICE_ID}"
            )
    twice = sorted({device for device in devices if devices.count(device) > 1})
    if twice:
        raise UsageError(f"{name} names device {twice[0]} more than once")


def _require_named(name: str, devices: Any) -> None:
    """Raise where the value of --devices names no devices of a cluster; ids are left alone."""
    if isinstance(devices, str) and devices != ALL_DEVICES:
        parse_node_devices(name, devices)


def _require_excluded(name: str, devices: str) -> None:
    """Raise where a text that is not empty names no nodes or devices."""
    if devices:
        parse_node_devices(name, devices)


_CLUSTER = Option(
    ("--devices",),
    "instead of -d, devices of the whole cluster: all (on the CPU one worker for each node),"
    f" or {DEVICE_GRAMMAR}. NODE is a host name, an address, or a label or its value; without"
    " IDS every device of the node",
    more="[How](../runtime/README.md#choosing-devices)",
    metavar="WHICH",
    rule=_require_named,
    excludes="-d takes ids of this machine, --devices names devices of the cluster",
)


def _device_ids(default: tuple[int, ...], rule: Rule, help_line: str, more: str) -> Any:
    """Return the default of the field of `-d` and `--devices`."""
    return option(
        default,
        "-d",
        "--device",
        help=help_line,
        more=f"They are unique, from 0 to {LARGEST_DEVICE_ID}. {more}",
        takes=Takes.SEVERAL,
        metavar="ID",
        type=int,
        rule=rule,
        also=_CLUSTER,
    )


# The address by which Ray is started on this machine, as for `ray.init`.
LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where it runs.

    `devices` are ids of this machine, or the value of --devices: all, or as in `DEVICE_GRAMMAR`.
    """

    section: ClassVar[str] = "where it runs"

    devices: tuple[int, ...] | str = _device_ids(
        (0,),
        _require_ids,
        "ids of devices of this machine (default 0)",
        "On the CPU they are logical, any number of them",
    )
    exclude: str = option(
        "",
        "--exclude",
        help="nodes and devices to leave out, written as for --devices",
        more="For instance `node-c,node-a:1`",
        metavar="WHICH",
        rule=_require_excluded,
    )
    address: str = option(
        "",
        "--address",
        help="a running Ray cluster (default: Ray is started here where the run is long enough)",
        more="`auto`, or `host:port`; `local` starts Ray here also for a short run. A Ray that was started"
        " for the run is stopped at its end",
    )
    device_type: str = option(
        "auto",
        "--device-type",
        help="{choices} (default: {default})",
        more="`auto` is an NPU where there is one, else for torch a GPU, else the CPU",
        rule=OneOf(DEVICE_TYPES),
    )
    shared_fs: bool = option(
        False,
        "--shared-fs",
        help="captured tensors have the same paths on every machine: workers read them themselves",
        takes=Takes.NOTHING,
    )

    @property
    def joins(self) -> bool:
        """Whether a cluster is asked for that runs already."""
        return self.address not in ("", LOCAL)


def _require_core_ids(name: str, devices: Any) -> None:
    """Raise where ids were named that are no different ids; none are all cores."""
    if devices:
        _require_ids(name, devices)


@dataclass(frozen=True, kw_only=True)
class CoreOptions(PlaceOptions):
    """Where a command runs that needs processor cores and no device: `devices` is () for every core that the
    process may use."""

    section: ClassVar[str] = "where it runs"

    devices: tuple[int, ...] | str = _device_ids(
        (),
        _require_core_ids,
        "ids of logical CPUs, one slot each (default: as many as cores may be used)",
        "What diagnose prechecks runs on the devices of these ids, by default 0",
    )


RETRY = ("error", "skip", "crash", "all")
# The fields of options that mean nothing where a job runs on processor cores.
WITHOUT_DEVICE = frozenset(("device_type", "bench_workers", "bench_budget_s", "max_memory_gib"))


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the results go.

    `error_data_path` is the folder below which `save_error_data` saves, None for that of the results;
    with `error_data_as_msprobe` it is ut_error_data and the timestamp there, else error_data/ and it.
    """

    section: ClassVar[str] = "where the results go"

    out: Path = option(
        Path("./"),
        "-o",
        "--out_path",
        help="folder of the results, made if missing (default ./)",
        metavar="FOLDER",
        becomes=Path,
    )
    save_error_data: bool = option(
        False,
        "-save_error_data",
        help="save inputs and outputs of failing APIs under FOLDER/error_data",
        more="Each run has a folder `{timestamp}` there (`multi_run_ut` without `-o`:"
        " `./ut_error_data{timestamp}`, as msprobe has it). `ray-precheck repro {that folder}/{API}.json`"
        " prints a Python script of one screen that shows the failure with the framework and NumPy alone"
        " ([saved errors](../store/README.md#saved-errors))",
        takes=Takes.NOTHING,
    )
    error_data_path: Path | None = None
    error_data_as_msprobe: bool = False


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """Resuming a run."""

    section: ClassVar[str] = "going on with a run"

    resume_csv: Path | None = option(
        None,
        "-csv_path",
        "--result_csv_path",
        help="go on in this result CSV; for a folder of ranks, in the folder of their results",
        more="And in its details file. A CSV that msprobe wrote will do. Of several ranks those that"
        " are finished are left, the others go on or begin",
        takes=Takes.ONCE,
        metavar="CSV",
        becomes=Path,
    )
    force: bool = option(
        False,
        "--force",
        help="with -csv_path: go on though the dump, its files or a setting differ",
        more="Rows that are there stay, those that the dump does not have come last",
        takes=Takes.NOTHING,
        needs=Prerequisite("resume_csv", "the result CSV to go on in nevertheless"),
    )
    retry: tuple[str, ...] = option(
        (),
        "--retry",
        help="with -csv_path: do these rows again, {choices}",
        more="`crash`: errors that the machine caused: a crash, a time-out, memory, a lost node; `all`: every"
        " call of the dump, whose files of tensors may have changed",
        takes=Takes.SEVERAL,
        metavar="KIND",
        rule=OneOf(RETRY),
        needs=Prerequisite("resume_csv", "the result CSV whose rows are done again"),
    )


@dataclass(frozen=True, kw_only=True)
class OutFolderOptions:
    """Where the results go; `--output_path` is msprobe's name."""

    section: ClassVar[str] = "where the results go"

    out: Path = option(
        Path("./"),
        "-o",
        "--out_path",
        "--output_path",
        help="folder of the results, made if missing (default ./)",
        takes=Takes.ONCE,
        metavar="FOLDER",
        becomes=Path,
    )


@dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    """How the ranks of the runs are laid out, where it is not to be told by their records."""

    section: ClassVar[str] = "how ranks are laid out"

    layout: str = option(
        "",
        "--layout",
        help="the layout of the target's ranks, the slowest axis first: dp=2,tp=2",
        more="Without it groups of collectives, DTensors and parameters tell. Runs of other layouts are"
        " compared by whole tensors ([other layouts](../trace/README.md#other-layouts))",
        takes=Takes.ONCE,
        metavar="AXES",
        rows="layout",
    )
    golden_layout: str = option(
        "",
        "--golden-layout",
        help="the layout of the golden run's ranks",
        takes=Takes.ONCE,
        metavar="AXES",
        rows="golden layout",
    )


_LONGEST_S = 1e7
_PROCESSES = Number("the count of processes", most=4096)


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """The limits of a record, and the numbers of processes.

    `max_memory_gib` 0 is a share of the machine's memory. `bench_workers` None is the default that its help
    names.
    """

    section: ClassVar[str] = "time, memory, processes"

    timeout_s: float = option(
        300.0,
        "--timeout",
        help="seconds for a record (default {default})",
        more="A record without an answer by then is an error; costly records have more time. The time"
        " that its threads wait for a processor on a busy machine is not counted",
        type=float,
        metavar="S",
        rule=Number("the time of a record in seconds", 0, _LONGEST_S, whole=False, above=True),
    )
    max_memory_gib: float = option(
        0.0,
        "--max-memory",
        help="memory for the tensors of one record (default: a worker's share of 70 % of the machine's)",
        more="A record whose estimate is larger is SKIP before it allocates; a record that turns out"
        " larger is an error",
        type=float,
        metavar="GIB",
        rule=Number("the memory of a record in GiB", 0, 1e6, whole=False),
    )
    bench_workers: int | None = option(
        None,
        "--bench-workers",
        help="processes that compute benches beside the devices' own (default: one for each spare"
        " core of the cluster; 0: none)",
        type=int,
        metavar="N",
        rule=_PROCESSES,
    )
    bench_budget_s: float = option(
        600.0,
        "--bench-budget",
        help="seconds that the bench of a record may take, else it is SKIP (default {default})",
        type=float,
        metavar="S",
        rule=Number("the time of a bench in seconds", 0, _LONGEST_S, whole=False, above=True),
    )


@dataclass(frozen=True, kw_only=True)
class DebugOptions:
    """How errors are shown."""

    section: ClassVar[str] = "help"

    debug: bool = option(
        False, "--debug", help="show tracebacks and what Ray prints", takes=Takes.NOTHING
    )


@dataclass(frozen=True, kw_only=True)
class JobOptions(PlaceOptions, LimitOptions, ResumeOptions, DebugOptions):
    """The options of a command that runs a job on devices; `running` reads no others."""

    def validate(self) -> None:
        """Check the values that can be checked without the dumps or the machine.

        Raises:
            UsageError: names the option, its value and the value that is expected.
        """
        require_valid(self)


@dataclass(frozen=True, kw_only=True)
class CoreJobOptions(CoreOptions, JobOptions):
    """The options of a command that runs a job on processor cores."""


EXACT, ALIGNED = "exact", "align"
# The standard of comparisons that `largest_error` is the limit of.
MEGENGINE = "megengine"
# MegEngine's default of --max-err. Between two runs of one implementation its documentation has -e 1e-7.
MAX_ERR = 1e-3


def largest_error() -> Any:
    """Return the default of the field of `--max-err`."""
    return option(
        None,
        "--max-err",
        help="with --standard megengine: the largest error of a variable (default 0.001)",
        more="The error is the largest |t - g| / max(|t|, |g|, 1), as in MegEngine's"
        " compare_binary_iodump, whose `-e` it is",
        type=float,
        metavar="E",
        rule=Number("the largest error", whole=False),
        rows="max err",
    )


def require_megengine(max_err: float | None, standard: str) -> None:
    """Raise where a limit was given that the standard has not.

    Raises:
        UsageError: says which standard has it.
    """
    if max_err is not None and standard != MEGENGINE:
        raise UsageError(
            f"--max-err {max_err:g} is the limit of --standard megengine; the standard is {standard}"
        )


def target_capture(what: str) -> Any:
    """Return the default of the field of `-tp`."""
    help_line = f"{what}: a dump.json, or a folder: of a rank, of a step, or of all steps"
    return _capture(REQUIRED, "-tp", "--target_path", help=help_line)


def golden_capture(default: Any, what: str, more: str) -> Any:
    """Return the default of the field of `-gp`: `REQUIRED`, or None."""
    return _capture(default, "-gp", "--golden_path", help=what, more=more)


def noise_capture(where: str = "", more: str = "") -> Any:
    """Return the default of the field of `--noise`."""
    help_line = f"another capture of the golden run: what differs between these two is noise{where}"
    return _capture(None, "--noise", help=help_line, more=more)


def _capture(default: Any, *names: str, help: str, more: str = "") -> Any:
    return option(
        default, *names, help=help, more=more, takes=Takes.ONCE, metavar="DUMP", becomes=Path
    )


def pairing(where: str = "", more: str = "", rows: str = "") -> Any:
    """Return the default of the field of `--match`; `rows` is its key in the settings of a run."""
    help_line = f"{{choices}} (default: {{default}}): how calls are paired{where}"
    rule = OneOf((ALIGNED, EXACT))
    return option(ALIGNED, "--match", help=help_line, more=more, rule=rule, rows=rows)


_LOOKING = "for scripts, and to look at"
# Every command that makes files of results has it; `running/view_data.py` says what is in the file.
JSON_FILE = Option(
    ("--json",),
    "the verdict, counts, first findings, files and next commands as JSON; - writes to the screen",
    metavar="FILE",
    section=_LOOKING,
)
PLOT = Option(
    ("--plot",),
    "draw the errors, and the flow around the first suspect, on the screen (needs rich)",
    takes=Takes.NOTHING,
    default=False,
    section=_LOOKING,
)
