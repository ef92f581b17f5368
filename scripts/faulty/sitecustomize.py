"""A torch with broken operators, to try what becomes of a run: put this folder first in PYTHONPATH.

Python imports a module of this name at its start. In the processes that check APIs it waits for the
import of torch, and then breaks the functions in `FAULTS`: in every dtype but float64, so that the
bench stays right; those in `BENCH_FAULTS` in float64 alone. Nothing else of torch is changed, and no
other process.
"""

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

# A check process, or the server that forks them.
CHECKS = "ray_precheck.runtime.workers."
_poisoned = False


def _segfault() -> None:
    ctypes.string_at(0)


def _abort() -> None:
    os.write(2, b"terminate called after throwing an instance of 'std::length_error'\n")
    os.write(2, b"  what():  vector::_M_default_append\n")
    os.abort()


def _divide_by_zero() -> None:
    signal.raise_signal(signal.SIGFPE)


def _leave() -> None:
    os._exit(3)


def _kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sleep() -> None:
    if "FAULTY_MARKS" in os.environ:
        Path(os.environ["FAULTY_MARKS"], "asleep").touch()
    time.sleep(1e6)


def _linger() -> None:
    """Take long, until the file `go` is there; a mark tells each machine that has run this."""
    marks = Path(os.environ["FAULTY_MARKS"])
    (marks / f"machine{os.stat('/proc/self/ns/net').st_ino}").touch()
    if not (marks / "go").exists():
        time.sleep(0.3)


def _spin() -> None:
    while True:
        pass


def _hang_in_c() -> None:
    ctypes.PyDLL(None).pause()  # PyDLL keeps the GIL


def _raise() -> None:
    raise RuntimeError("the kernel returned error 507015")


def _allocate() -> None:
    bytearray(1 << 42)


def _hoard() -> None:
    hoard = []
    while True:
        hoard.append(b"x" * (64 << 20))


def _poison() -> None:
    global _poisoned
    _poisoned = True
    raise RuntimeError("an illegal memory access was encountered")


# API of the dump (Torch.special.<name>): what it does on the device.
FAULTS: dict[str, Callable[[], None]] = {
    "entr": _segfault,
    "erfcx": _abort,
    "i0e": _divide_by_zero,
    "i1": _leave,
    "bessel_y0": _kill_itself,
    "i1e": _sleep,
    "log_ndtr": _spin,
    "ndtri": _hang_in_c,
    "bessel_j0": _raise,
    "bessel_j1": _allocate,
    "bessel_y1": _hoard,
    "spherical_bessel_j0": _poison,
    "modified_bessel_i1": _linger,
}
# The same for what breaks the bench.
BENCH_FAULTS: dict[str, Callable[[], None]] = {
    "airy_ai": _sleep,
    "modified_bessel_i0": _segfault,
}


def _break_torch(torch: Any) -> None:
    for name, fault in {**FAULTS, **BENCH_FAULTS}.items():
        right = getattr(torch.special, name)
        setattr(torch.special, name, _broken(torch, right, fault, in_bench=name in BENCH_FAULTS))
    for owner, name in ((torch, "ones"), (torch.Tensor, "add")):
        setattr(owner, name, _poisonable(torch, getattr(owner, name)))


def _broken(
    torch: Any, right: Callable[..., Any], fault: Callable[[], None], *, in_bench: bool
) -> Callable[..., Any]:
    def function(value: Any, *args: Any, **kwargs: Any) -> Any:
        if (value.dtype == torch.float64) is in_bench:
            fault()
        return right(value, *args, **kwargs)

    return function


def _poisonable(torch: Any, right: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        is_bench = bool(args) and getattr(args[0], "dtype", None) == torch.float64
        if _poisoned and not is_bench:
            raise RuntimeError("an illegal memory access was encountered")
        return right(*args, **kwargs)

    return function


class _Loader(importlib.abc.Loader):
    def __init__(self, right: importlib.abc.Loader) -> None:
        self._right = right

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._right.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._right.exec_module(module)
        _break_torch(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if any(each.startswith(CHECKS) for each in sys.orig_argv):
    match os.environ.get("FAULTY_START", ""):
        case "segfault":
            _segfault()
        case "import":
            raise SystemExit("libascend_hal.so: cannot open shared object file")
    sys.meta_path.insert(0, _Finder())
