"""The wheels of torch_npu and MindSpore: downloaded from the package index, unpacked as far as is read.

Comes in: a package and a folder. Goes out: an `Unpacked` for the first and for the newest release of each
minor version (a post release where there is one). Called by the command. Of a wheel stay its Python files,
its stubs, the list of its files, and those texts of its libraries that the look-up reads; the wheel goes.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.npu_calls.definitions import Wheel

# The first release of each minor version, and the newest one, whatever it is.
RELEASES = {
    "torch_npu": (
        *("2.4.0", "2.4.*", "2.5.1", "2.5.*", "2.6.0", "2.6.*", "2.7.1", "2.7.*", "2.8.0", "2.8.*"),
        *("2.9.0", "2.9.*", "2.10.0", "2.10.*", "2.11.0", "2.11.*", "2.12.0", "2.12.*"),
        *("2.13.*", "2.14.*"),
    ),
    "mindspore": ("2.7.0", "2.7.*", "2.8.*", "2.9.*", "2.10.*"),
}
_PYTHONS = ("3.11", "3.10", "3.12")
_PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux1", "linux")
_LIBRARIES = re.compile(
    r".*/(libtorch_npu|libmindspore_(ascend(_res_manager)?|hardware_abstract|memory_pool|backend_common"
    r"|ms_backend|common|core|pyboost))\.so[.\d]*"
)
_TEXT = re.compile(rb"[ -~\n]{6,}")
_KEPT = re.compile(r"memory|bad_alloc|ASCEND_|davinci|HF32", re.IGNORECASE)
_LONGEST = 4000
# A line of a library's texts that is a schema.
SCHEMA = re.compile(r"(?:\w+::)?([a-z]\w*)(\.\w+)?\((.*)\) -> .+")
TEXTS = "texts-of-libraries.txt"
FILES = "files.txt"


class NoWheel(Exception):
    """The index has no wheel of a version, or pip could not bring it; has pip's last line."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An unpacked wheel: its version, its Python files, its files' names, and texts of its libraries."""

    package: str
    version: str
    wheel: Wheel
    files: tuple[str, ...]
    texts: tuple[str, ...]


def unpacked(package: str, folder: Path) -> Iterator[Unpacked]:
    """Yield each release of a package, downloaded where the folder lacks it."""
    for release in RELEASES[package]:
        yield read_unpacked(_found(package, release, folder) or _download(package, release, folder))


def read_unpacked(folder: Path) -> Unpacked:
    """Return what stands in the folder of one unpacked wheel, named such as torch_npu-2.4.0."""
    package, _, version = folder.name.partition("-")
    files, texts = (
        tuple(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else ()
        for path in (folder / FILES, folder / TEXTS)
    )
    return Unpacked(package, version, Wheel(folder), files, texts)


def _found(package: str, release: str, folder: Path) -> Path | None:
    first = {f"{package}-{each}" for each in RELEASES[package]}
    for path in folder.glob(f"{package}-{release}"):
        if path.is_dir() and (not release.endswith("*") or path.name not in first):
            return path
    return None


def _download(package: str, release: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        _pip(package, release, Path(place))
        (wheel,) = Path(place).glob("*.whl")
        made = folder / "-".join(wheel.name.split("-")[:2])
        whole = Path(place, "whole")
        _unpack(wheel, whole)
        # At once: a folder that is there is taken for whole. The newest release may be the first one.
        if not made.exists():
            whole.rename(made)
    return made


def _pip(package: str, release: str, place: Path) -> None:
    for python in _PYTHONS:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
        command += ["--abi", f"cp{python.replace('.', '')}", "--dest", str(place)]
        for platform in _PLATFORMS:
            command += ["--platform", f"{platform}_x86_64"]
        done = subprocess.run(
            [*command, f"{package}=={release}"], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return
    last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
    raise NoWheel(f"{package} {release} cannot be downloaded as a wheel: {last}")


def _unpack(wheel: Path, folder: Path) -> None:
    texts: set[str] = set()
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        for name in names:
            if name.endswith((".py", ".pyi")):
                opened.extract(name, folder)
            elif _LIBRARIES.fullmatch(name):
                texts |= set(_texts_in(opened.read(name)))
    (folder / FILES).write_text("\n".join(names), encoding="utf-8")
    (folder / TEXTS).write_text("\n".join(sorted(texts)), encoding="utf-8")


def _texts_in(library: bytes) -> Iterator[str]:
    """Yield the texts of a library that are schemas, or of which our sources rely on some."""
    for match in _TEXT.finditer(library):
        for line in match[0].decode("ascii").splitlines():
            text = line.strip()
            if len(text) <= _LONGEST and (SCHEMA.fullmatch(text) or _KEPT.search(text)):
                yield text
