"""The process in which MSAdapter is `torch`: it answers the requests that come through its pipe.

Comes in: requests. Goes out: first a greeting, then a reply to each request. Started by
`mindtorch.backend`, which sees it when an API crashes this process.
"""

import contextlib
import importlib
import platform
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from ray_precheck.errors import DeviceError, NotCheckable
from ray_precheck.foreign import caught
from ray_precheck.frameworks.mindtorch import messages
from ray_precheck.frameworks.mindtorch.paths import adapter_folder
from ray_precheck.operators.refused import require_allowed
from ray_precheck.processes import end_with_parent
from ray_precheck.schema.dtypes import Float32
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall

# MindTorch's own words, of mindnlp 0.5.1; all others are MindSpore's.
_NO_KERNEL = "No implementation for function:"
# A list of whole numbers indexes, a tuple of them does as well, and differently.
_INDEXED = ("__getitem__", "__setitem__")
_LONGEST_TEXT = 300
_DEVICES = {"cpu": "cpu", "npu": "npu:0"}
# torch._VF holds the same functions as torch itself (lstm, gru, ...).
_ROOTS = {"Torch": "torch", "VF": "torch", "Functional": "torch.nn.functional"}


def main() -> None:
    """Serve the pipe whose file descriptor is the first argument, until it is closed."""
    handle, parent, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    end_with_parent(parent)
    # Ctrl-C on a terminal is for the driver, which lets running batches finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = Connection(handle)
    device = _answer(pipe, partial(_open, kind), lambda error: False)
    if device is None:
        return
    with contextlib.suppress(EOFError, OSError):
        while True:
            request: messages.Request = messages.receive_message(pipe)
            _answer(pipe, partial(device.do, request), device.lacks_kernel)


def _open(kind: str) -> "MindTorchDevice":
    """Load MSAdapter; the limit of memory that is inherited counts from then on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    device = MindTorchDevice(kind)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return device


def _answer(
    pipe: Connection, action: Callable[[], Any], lacks_kernel: Callable[[Exception], bool]
) -> Any:
    """Send the result of an action, or its exception; return the result."""
    found, error = caught(action)
    reply: messages.Returned | messages.Raised
    if error is None:
        reply = messages.Returned(found.caveat if isinstance(found, MindTorchDevice) else found)
    elif isinstance(error, NotCheckable):
        reply = messages.Raised("NotCheckable", str(error), refused=True)
    else:
        name = "MemoryError" if isinstance(error, MemoryError) else type(error).__name__
        reply = messages.Raised(name, str(error), lacks_kernel=lacks_kernel(error))
    messages.send_message(pipe, reply)
    return found


class MindTorchDevice:
    """MSAdapter on one device; holds the call that ran last, for its gradients."""

    def __init__(self, kind: str) -> None:
        self._torch: Any = _imported("torch")
        # Imported here: they load MindSpore, and MSAdapter's torch.
        from ray_precheck.frameworks.mindspore.backend import MindSporeBackend
        from ray_precheck.frameworks.mindspore.run import MindSporeExecution
        from ray_precheck.frameworks.mindtorch.run import mindtorch_face, with_tuples

        self._with_tuples = with_tuples
        self._kind = kind
        self._mindspore = MindSporeBackend(kind)
        self._mindspore.compute_in(Float32())
        self._run = partial(MindSporeExecution, face=mindtorch_face(_DEVICES[kind]))
        self._last: MindSporeExecution | None = None
        self._number = 0
        _require_adapter(self._torch)
        self._roots = {name: _imported(path) for name, path in _ROOTS.items()}

    @property
    def caveat(self) -> str:
        """A sentence about a limit of float32's precision on the device, "" for none."""
        return self._mindspore.caveat

    def do(self, request: messages.Request) -> Any:
        """Carry out a request; the exceptions of an API are not caught."""
        match request:
            case messages.Resolve(name):
                self._resolve(name)
                return None
            case messages.Forward(name, call, plan):
                self._last = None  # Its tensors go before the next ones come.
                self._last = self._run(self._resolve(name), self._arguments(name, call), plan)
                self._number += 1
                return messages.Ran(self._number, self._last.outputs, self._last.changed)
            case messages.Gradients(number, cotangents):
                if self._last is None or number != self._number:
                    raise RuntimeError("another call has run since")
                return self._last.gradients(cotangents)
            case messages.Seed(seed):
                self._mindspore.seed(seed)
                self._torch.manual_seed(seed)
                return None
            case messages.Prove():
                return self._mindspore.prove()

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether the CPU has no kernel; on an NPU that is a finding, not a gap."""
        missing = self._kind == "cpu" and _NO_KERNEL in str(error)
        return missing or self._mindspore.lacks_kernel(error)

    def _arguments(self, name: ApiName, call: HostCall) -> HostCall:
        if name.api in _INDEXED:
            return call
        return HostCall(self._with_tuples(call.args), self._with_tuples(call.kwargs))

    def _resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return MSAdapter's function. The bench has found the name in torch's own list before.

        Raises:
            NotCheckable: it may not be called, or MSAdapter does not have it.
        """
        require_allowed(name, "mindtorch")
        found: Any = self._torch.Tensor if name.prefix == "Tensor" else self._roots.get(name.prefix)
        for part in name.api.split("."):
            try:
                found = getattr(found, part, None)
            except ImportError:  # MSAdapter imports submodules when they are asked for.
                found = None
        if not callable(found):
            version = getattr(self._torch, "__version__", "of unknown version")
            raise NotCheckable(f"MSAdapter's torch {version} has no {name.type_name}")
        return found  # type: ignore[no-any-return]


def _imported(name: str) -> Any:
    """Import a module of MSAdapter's torch.

    Raises:
        DeviceError: it cannot be imported; says with which MindSpore, where, and what to do.
    """
    import mindspore

    module, error = caught(partial(importlib.import_module, name))
    if error is None:
        return module
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:_LONGEST_TEXT]
    raise DeviceError(
        f"{name} of {adapter_folder()} cannot be imported with MindSpore {mindspore.__version__} on Python"
        f" {platform.python_version()} ({type(error).__name__}: {text}, at {place.filename}:{place.lineno});"
        " a release of MSAdapter runs with the MindSpore that it was written for, so install that one, or a"
        " release for this one: those that were tried are listed in ray_precheck/frameworks/mindtorch/"
        f"README.md. Try by hand: PYTHONPATH={adapter_folder()} python -c 'import {name}'"
    )


def _require_adapter(torch: Any) -> None:
    """Require that the tensors of this torch are MindSpore's.

    Raises:
        DeviceError: they are not.
    """
    import mindspore

    if not isinstance(torch.tensor(0.0), mindspore.Tensor):
        raise DeviceError(f"the tensors of {torch.__file__} are not those of MindSpore")


if __name__ == "__main__":
    main()
