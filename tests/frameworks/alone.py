"""Scripts of `repro`, run as their user has them: without ray_precheck, with right or broken kernels.

A process that imports a framework takes seconds. So most scripts run in the process of the test, where
every module of ray_precheck is hidden from them and what they have broken is put right afterwards.
"""

import contextlib
import io
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

# `{broken}` may use it to have a kernel give other numbers.
_PRELUDE = """
def wrong(owner, name):
    right = getattr(owner, name)
    def kernel(*args, **kwargs):
        out = right(*args, **kwargs)
        return tuple(o * 1.01 for o in out) if isinstance(out, tuple) else out * 1.01
    setattr(owner, name, kernel)
"""


@dataclass(frozen=True)
class Ran:
    """What a script has printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def run_alone(script: str, broken: str = "") -> Ran:
    """Run a script in a process of its own, after lines that break a kernel."""
    code = "import sys\nsys.path.remove('')\nsys.modules['ray_precheck'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}{_PRELUDE}{broken}\nexec(sys.stdin.read())"],
        input=script, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


def run_here(script: str, broken: str = "") -> Ran:
    """Run a script in this process, after lines that break a kernel."""
    hidden = dict.fromkeys(name for name in sys.modules if name.split(".")[0] == "ray_precheck")
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.dict(sys.modules, hidden | {"ray_precheck": None}),
        mock.patch.object(sys, "argv", ["script.py"]),
        _put_right_again(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        warnings.catch_warnings(),
    ):
        warnings.resetwarnings()
        try:
            exec(f"{_PRELUDE}{broken}", given := {"__name__": "__main__"})
            exec(script, given)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Ran(code, out.getvalue(), errors.getvalue())


@contextlib.contextmanager
def _put_right_again() -> Iterator[None]:
    """Put attributes of the frameworks' modules and tensors back as they were."""
    before = {owner: dict(vars(owner)) for owner in _owners()}
    try:
        yield
    finally:
        for owner, attributes in before.items():
            for name, value in dict(vars(owner)).items():
                if name not in attributes:
                    delattr(owner, name)
                elif value is not attributes[name]:
                    setattr(owner, name, attributes[name])


def _owners() -> Iterator[Any]:
    import torch

    yield from (torch, torch.Tensor, torch.nn.functional, torch.sparse)
    if "mindspore" in sys.modules:
        import mindspore as ms
        from mindspore import mint

        yield from (ms.Tensor, ms.ops, mint)
