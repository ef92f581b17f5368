"""The facts of a machine: its device files, visible-devices variables and versions.

Goes out: `Facts`. Called in this process, and on every node of a joined cluster by a task that
carries this module with it, because the package there may be another version or missing: so it
imports the standard library alone, and no name of this module may be looked up in the package.
"""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TypedDict

VISIBLE_DEVICES = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "gpu": "CUDA_VISIBLE_DEVICES"}
DEVICE_FILES = {"npu": "/dev/davinci[0-9]*", "gpu": "/dev/nvidia[0-9]*"}
# The command that lists the NPUs where their device files are hidden (a container).
NPU_TOOL = "npu-smi"
PACKAGE = "ray_precheck"
# The versions that are read from files, not with importlib.metadata.
DRIVERS = {
    "NPU driver": ("/usr/local/Ascend/driver/version.info", r"(?m)^Version=(\S+)"),
    "GPU driver": ("/proc/driver/nvidia/version", r"Kernel Module.*?\s([0-9]+\.[0-9.]+)"),
}


# Where the system names the devices: files, and a pattern of the text around the name.
NAME_FILES = {
    "cpu": ("/proc/cpuinfo", r"(?m)^(?:model name|Model)\s*:\s*(\S.*)$"),
    "gpu": ("/proc/driver/nvidia/gpus/*/information", r"(?m)^Model:\s*(\S.*)$"),
}
# An NPU has no file with its name, so its PCI ids tell: vendor 0x19e5, and these devices.
PCI_DEVICES = "/sys/bus/pci/devices/*"
NPU_VENDOR = "0x19e5"
NPU_NAMES = {
    "0xd100": "Ascend 310",
    "0xd500": "Ascend 310P",
    "0xd801": "Ascend 910",
    "0xd802": "Ascend 910B",
    "0xd803": "Ascend 910_93",
}


class Facts(TypedDict):
    """`files` counts the device files of each kind; `variables` are the visible-devices variables
    that are set, by kind; `versions` are by name, without those that are not installed; `names` are
    those of the devices by kind, the processor's among them, where the machine tells; `plugins` say
    which framework can use which kind of device here, as "pytorch:npu"."""

    files: dict[str, int]
    variables: dict[str, str]
    versions: dict[str, str]
    names: dict[str, str]
    plugins: list[str]


class AskedFacts(TypedDict):
    """The questions to a machine about the frameworks: the versions of these `distributions`, and
    whether these `plugins` are there, each by its name with a package, a pattern of files in its
    folder ("": the package suffices), and a regular expression for the text of one of these files
    ("": a file suffices)."""

    distributions: list[str]
    plugins: dict[str, tuple[str, str, str]]


NOTHING_ASKED: AskedFacts = {"distributions": [], "plugins": {}}


def probe_machine(asked: AskedFacts = NOTHING_ASKED) -> Facts:
    """Return the facts about this machine that this process can see; imports no framework."""
    environment = _environment()
    return {
        "files": _counted_files(),
        "variables": {
            kind: environment[variable]
            for kind, variable in VISIBLE_DEVICES.items()
            if variable in environment
        },
        "versions": _versions(asked["distributions"]),
        "names": _names(),
        "plugins": _plugins(asked["plugins"]),
    }


def _counted_files() -> dict[str, int]:
    """Return how many devices of each kind the machine shows; of NPUs without files npu-smi tells."""
    found = {kind: len(glob.glob(pattern)) for kind, pattern in DEVICE_FILES.items()}
    tool = shutil.which(NPU_TOOL)
    if not found["npu"] and tool is not None:
        try:
            done = subprocess.run(
                [tool, "info", "-l"], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return found
        match = re.search(r"Total Count\s*:\s*([0-9]+)", done.stdout)
        found["npu"] = int(match[1]) if match else 0
    return found


def _plugins(sought: dict[str, tuple[str, str, str]]) -> list[str]:
    """Return the plugins that are installed, by their files; no framework is imported."""
    return [name for name, (package, *inside) in sought.items() if _has(package, *inside)]


def _has(package: str, pattern: str, text: str) -> bool:
    folder = _folder_of(package)
    if folder is None or not pattern:
        return folder is not None
    return any(not text or re.search(text, _text_of(file)) for file in folder.glob(pattern))


def _text_of(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _folder_of(package: str) -> Path | None:
    """Return the folder of a package that can be imported here, None for none."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _environment() -> dict[str, str]:
    """Return the environment that the machine's user has set.

    Ray changes the variables of its workers where RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=1, so in a
    worker those of its raylet count, which is its parent.
    """
    parent = Path("/proc") / str(os.getppid())
    try:
        if (parent / "comm").read_text().strip() == "raylet":
            text = (parent / "environ").read_bytes().decode(errors="replace")
            pairs = (line.partition("=") for line in text.split("\0"))
            return {name: value for name, equals, value in pairs if equals}
    except OSError:
        pass
    return dict(os.environ)


def _versions(distributions: list[str]) -> dict[str, str]:
    found = {PACKAGE: _package_version(), "python": platform.python_version()}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for name, (path, pattern) in DRIVERS.items():
        try:
            text = Path(path).read_text(errors="replace")
        except OSError:
            continue
        match = re.search(pattern, text)
        found[name] = match[1] if match else "unknown"
    return {name: version for name, version in found.items() if version}


def _names() -> dict[str, str]:
    """Return the names of the devices by kind; several that differ are parted by commas."""
    found = {kind: _named_in(*where) for kind, where in NAME_FILES.items()}
    found["cpu"] = found["cpu"] or platform.machine()
    found["npu"] = ", ".join(
        sorted({_npu_name(Path(path)) for path in glob.glob(PCI_DEVICES)} - {""})
    )
    return {kind: name for kind, name in found.items() if name}


def _named_in(pattern: str, name: str) -> str:
    matches = (re.search(name, _text_of(Path(path))) for path in glob.glob(pattern))
    return ", ".join(sorted({match[1].strip() for match in matches if match}))


def _npu_name(device: Path) -> str:
    vendor, model = (_text_of(device / file).strip() for file in ("vendor", "device"))
    return NPU_NAMES.get(model, "") if vendor == NPU_VENDOR else ""


def _package_version() -> str:
    """Return the `__version__` of the package that workers would import here, "" if there is none.

    It is read from the file, because a checkout has no metadata, and an import would run the file.
    """
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    try:
        match = re.search(r'(?m)^__version__ = "(.+)"', Path(spec.origin or "").read_text())
    except OSError:
        return "unknown"
    return match[1] if match else "unknown"
