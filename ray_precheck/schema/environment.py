"""The place, versions and settings of a run, as far as its closing lines need them besides the CSV
files.

Comes in: the facts that the session has when the run starts, or a dict from the run's settings
file. Goes out: an `Environment`, or such a dict. Called by the session and the report.
"""

import os
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

# The words behind `ray-precheck` of the command that this process runs; () where Python code runs it.
INVOKED: ContextVar[tuple[str, ...]] = ContextVar("INVOKED", default=())


def working_folder() -> str:
    """Return the folder in which this process was started, "" where that is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Environment:
    """The place, versions and settings of a run.

    `kind` is npu, gpu or cpu, `device_names` are the names of the devices that differ ("Ascend
    910B"), `devices` and `nodes` how many there were when the run began. `rule` is the value of
    --standard, `calls` how many calls the dump has, `dump` its absolute path (of two captures that of the
    target, and `golden` that of the golden one), and `tests_dump` says that the captured results were
    tested, not a device. `caveats` are sentences about limits of a
    device's precision (HF32 that stayed on). `versions` are those of the driver's node.
    """

    framework: str = ""
    kind: str = ""
    device_names: tuple[str, ...] = ()
    devices: int = 0
    nodes: int = 0
    rule: str = ""
    calls: int = 0
    dump: str = ""
    golden: str = ""
    tests_dump: bool = False
    caveats: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


# The keys in the settings file. None of them is a key of the fingerprint, because from a torn file
# single pairs are read wherever they stand.
_KEYS = {
    "framework": "framework name",
    "kind": "device kind",
    "device_names": "device names",
    "devices": "device count",
    "nodes": "node count",
    "rule": "standard given",
    "calls": "call count",
    "dump": "dump path",
    "golden": "golden path",
    "tests_dump": "captured results tested",
    "caveats": "device caveats",
    "versions": "versions",
}


def environment_to_dict(environment: Environment) -> dict[str, Any]:
    """Return an environment as JSON holds it."""
    found = {key: getattr(environment, name) for name, key in _KEYS.items()}
    return {
        **found,
        "device names": list(environment.device_names),
        "device caveats": list(environment.caveats),
        "versions": dict(environment.versions),
    }


def environment_from_dict(found: Mapping[str, Any]) -> Environment:
    """Return the environment that JSON holds; fields that are missing or of another type stay
    empty."""
    empty = Environment()
    values: dict[str, Any] = {}
    for name, key in _KEYS.items():
        default, value = getattr(empty, name), found.get(key)
        if name in ("device_names", "caveats") and isinstance(value, list):
            values[name] = tuple(map(str, value))
        elif name == "versions" and isinstance(value, dict):
            values[name] = {str(k): str(v) for k, v in value.items()}
        elif type(value) is type(default):
            values[name] = value
    return Environment(**values)
