"""The options of devices and nodes. A group of a command's configuration."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ray_precheck.errors import UsageError
from ray_precheck.options.declared import OneOf, Option, Takes, option
from ray_precheck.schema.node_devices import DEVICE_GRAMMAR, LARGEST_DEVICE_ID, parse_node_devices

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


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where it runs.

    `devices` are ids of this machine, or the value of --devices: all, or as in `DEVICE_GRAMMAR`.
    """

    section: ClassVar[str] = "where it runs"

    devices: tuple[int, ...] | str = option(
        (0,),
        "-d",
        "--device",
        help="ids of devices of this machine (default 0)",
        more=f"They are unique, from 0 to {LARGEST_DEVICE_ID}."
        " On the CPU they are logical, any number of them",
        takes=Takes.SEVERAL,
        metavar="ID",
        type=int,
        rule=_require_ids,
        also=_CLUSTER,
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
        help="a running Ray cluster (default: start one here)",
        more="`auto`, or `host:port`. A cluster started for the run is stopped at its end",
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


def _require_core_ids(name: str, devices: Any) -> None:
    """Raise where ids were named that are no different ids; none are all cores."""
    if devices:
        _require_ids(name, devices)


@dataclass(frozen=True, kw_only=True)
class CoreOptions(PlaceOptions):
    """Where a command runs that needs processor cores and no device: `devices` is () for every core that the
    process may use."""

    section: ClassVar[str] = "where it runs"

    devices: tuple[int, ...] | str = option(
        (),
        "-d",
        "--device",
        help="ids of logical CPUs, one slot each (default: as many as cores may be used)",
        more=f"They are unique, from 0 to {LARGEST_DEVICE_ID}."
        " What diagnose prechecks runs on the devices of these ids, by default 0",
        takes=Takes.SEVERAL,
        metavar="ID",
        type=int,
        rule=_require_core_ids,
        also=_CLUSTER,
    )
