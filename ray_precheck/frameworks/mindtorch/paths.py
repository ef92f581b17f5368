"""Which packages called `torch` lie along Python's path: the native one, and MSAdapter's.

Comes in: a search path. Goes out: the folders of both, told apart by their files; nothing is
imported. Called by the registry before a run, by every check process before it loads torch, and by
the MindTorch backend. MSAdapter is MindSpore under the face of torch, so its package has torch's
name; its users put it in front of the native one with PYTHONPATH.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from ray_precheck.errors import BackendMissingError

# Who stands behind a `torch` that is not the native one; MSAdapter's may only pass on to others.
_ADAPTER = re.compile(r"\b(mindspore|msadapter|mindtorch)\b")
_NATIVE_FILES = ("_C*.so", "_C*.pyd", "lib/libtorch*")
_READ_CHARS = 1 << 16
_LISTED = 8
_HOW_ADAPTER = "put MSAdapter in front: PYTHONPATH=<MSAdapter>/build/lib:$PYTHONPATH"
# Packages of releases that stand for torch only behind a package `torch` that is laid out for them.
_RELEASES = ("msadapter", "mindtorch")
_LAYOUT = "ray_precheck/frameworks/mindtorch/README.md"
_HOW_NATIVE = "keep it installed in this Python: pip install torch"


class TorchKind(Enum):
    """Whose a package called `torch` is."""

    NATIVE = "the native torch"
    ADAPTER = "MSAdapter's torch"
    UNKNOWN = "a torch that is neither"


@dataclass(frozen=True, slots=True)
class TorchPackage:
    """A package called `torch`: the folder that it lies in, and whose it is."""

    folder: Path
    kind: TorchKind


def find_torches(path: Sequence[str] | None = None) -> list[TorchPackage]:
    """Return every package called `torch` along a search path (this process's), the first first."""
    found: dict[Path, TorchPackage] = {}
    for entry in sys.path if path is None else path:
        package = Path(entry or ".") / "torch"
        if (package / "__init__.py").is_file():
            found.setdefault(package.resolve(), TorchPackage(Path(entry or "."), _kind_of(package)))
    return list(found.values())


def _kind_of(package: Path) -> TorchKind:
    if any(next(package.glob(pattern), None) for pattern in _NATIVE_FILES):
        return TorchKind.NATIVE
    if any(_ADAPTER.search(_beginning(file)) for file in sorted(package.glob("*.py"))):
        return TorchKind.ADAPTER
    # A torch without these files, built in another way, names the version of its sources.
    is_built = re.search(r"(?m)^git_version\b", _beginning(package / "version.py"))
    return TorchKind.NATIVE if is_built else TorchKind.UNKNOWN


def _beginning(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_READ_CHARS)
    except OSError:
        return ""


def native_folder(path: Sequence[str] | None = None) -> Path:
    """Return the folder of the native torch that comes first.

    Raises:
        BackendMissingError: there is none; says what there is and where it was looked for.
    """
    return _folder_of(TorchKind.NATIVE, "computes the bench of every dump", _HOW_NATIVE, path)


def adapter_folder(path: Sequence[str] | None = None) -> Path:
    """Return the folder of the `torch` of MSAdapter that comes first.

    Raises:
        BackendMissingError: there is none; says what there is and where it was looked for.
    """
    remedy = _HOW_ADAPTER + "".join(map(_how_laid_out, _bare_releases(path)))
    return _folder_of(TorchKind.ADAPTER, "is what a mindtorch dump tests", remedy, path)


def _bare_releases(path: Sequence[str] | None) -> list[Path]:
    """Return the packages of releases along a search path that have no `torch` beside them."""
    folders = [Path(entry or ".") for entry in (sys.path if path is None else path)]
    found = [folder / name for folder in folders for name in _RELEASES]
    return [package for package in found if (package / "__init__.py").is_file()]


def _how_laid_out(package: Path) -> str:
    return (
        f"; {package} is there, but it is no package called torch: {_LAYOUT} tells how such a release is"
        " laid out"
    )


def require_torches(*, device_runs: bool) -> None:
    """Require that torch is there, and MSAdapter, too, if the device runs.

    Raises:
        BackendMissingError: one is not.
    """
    native_folder()
    if device_runs:
        adapter_folder()


def _folder_of(kind: TorchKind, role: str, remedy: str, path: Sequence[str] | None) -> Path:
    packages = find_torches(path)
    for package in packages:
        if package.kind is kind:
            return package.folder
    there = "; ".join(f"{each.kind.value} in {each.folder}" for each in packages)
    whole = sys.path if path is None else path
    entries = [entry or "." for entry in whole if not entry.endswith((".zip", "lib-dynload"))]
    more = f" and {len(entries) - _LISTED} more" if len(entries) > _LISTED else ""
    raise BackendMissingError(
        f"{kind.value} {role}, and it is not on Python's path (found: {there or 'no torch at all'};"
        f" looked in {', '.join(entries[:_LISTED])}{more}); {remedy}"
    )


def prefer_native() -> None:
    """Let `import torch` load the native torch in this process, though MSAdapter's comes first.

    Does nothing where the first torch is not MSAdapter's.

    Raises:
        BackendMissingError: there is no native torch, or this process has loaded the other one.
    """
    packages = find_torches()
    if not packages or packages[0].kind is not TorchKind.ADAPTER:
        return
    if any(isinstance(finder, _NativeFinder) for finder in sys.meta_path):
        return
    finder = _NativeFinder(
        native_folder(), [each.folder for each in packages if each.kind is TorchKind.ADAPTER]
    )
    loaded = getattr(sys.modules.get("torch"), "__file__", None)
    if loaded and Path(loaded).resolve().parents[1] != finder.folder.resolve():
        raise BackendMissingError(
            f"the bench needs the native torch of {finder.folder}, but this process has loaded"
            f" {loaded} already; leave MSAdapter out of what Python loads at its start"
        )
    sys.meta_path.insert(0, finder)


class _NativeFinder(MetaPathFinder):
    """Finds `torch` in the folder of the native one, and torch_npu and its like beside no MSAdapter."""

    def __init__(self, folder: Path, adapters: Sequence[Path]) -> None:
        self.folder = folder
        self._adapters = {adapter.resolve() for adapter in adapters}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of these names is, None for every other one."""
        if fullname == "torch":
            return PathFinder.find_spec(fullname, [str(self.folder)])
        if "." in fullname or not fullname.startswith("torch"):
            return None
        others = [entry for entry in sys.path if Path(entry or ".").resolve() not in self._adapters]
        return PathFinder.find_spec(fullname, others)
