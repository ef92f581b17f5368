"""MSAdapter (MindTorch) under test: MindSpore with the interface of torch, in a process of its own.

Comes in: calls. Goes out: MSAdapter's results, as host arrays. Opened by the checker like every backend.
MSAdapter's package is called `torch` too, so it cannot be in the process in which the native torch
computes the bench: `mindtorch.device` runs it in a child of this process. When the child dies, the
check process must die too, so that the worker that watches it sees the death that the API caused.

NPU: written after MSAdapter's and MindSpore's documentation and not run there; no NPU was at hand.
"""

import contextlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, NoReturn

from ray_precheck.errors import DeviceDied, DeviceError, NotCheckable
from ray_precheck.frameworks.base import CallPlan, Leaf
from ray_precheck.frameworks.mindtorch import messages
from ray_precheck.frameworks.mindtorch.paths import adapter_folder
from ray_precheck.processes import module_command, python_path
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

_END_TIMEOUT_S = 10.0


class MindTorchBackend:
    """MSAdapter on one device; the process sees only this one, so it is number 0."""

    framework = "mindtorch"

    def __init__(self, kind: str) -> None:
        """Start the process.

        Raises:
            BackendMissingError: there is no MSAdapter on Python's path.
            DeviceError: MSAdapter or MindSpore cannot be loaded.
        """
        self._pipe, child_end = Pipe()
        with child_end:
            self._popen = _launch(adapter_folder(), child_end.fileno(), kind)
        try:
            self.caveat: str = self._ask(None)
        except _RemoteError as error:
            raise DeviceError(f"MSAdapter cannot be used: {error}") from None

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return a stand-in for MSAdapter's function, which only `forward` takes.

        Raises:
            NotCheckable: MSAdapter does not have the API, or it may not be called.
        """
        self._ask(messages.Resolve(name))
        return _RemoteApi(name)

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> "_RemoteRun":
        """Run the API in the recorded dtypes on this device."""
        if not isinstance(function, _RemoteApi):
            raise NotCheckable("a function of one's own cannot be run in the process of MSAdapter")
        return _RemoteRun(self._ask, self._ask(messages.Forward(function.name, call, plan)))

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether the CPU has no kernel; on an NPU that is a finding, not a gap."""
        return isinstance(error, _RemoteError) and error.lacks_kernel

    def seed(self, seed: int) -> None:
        """Seed the generators of MindSpore and of MSAdapter."""
        self._ask(messages.Seed(seed))

    def prove(self) -> None:
        """Compute 1 + 1 on the device."""
        self._ask(messages.Prove())

    def _ask(self, request: messages.Request | None) -> Any:
        """Return the reply to a request; without a request, the greeting.

        Raises:
            NotCheckable: the API is missing, or may not be called.
            Exception: the API raised it; a class of the same name.
            DeviceDied: the process has ended.
        """
        try:
            if request is not None:
                messages.send_message(self._pipe, request)
            reply: messages.Returned | messages.Raised = messages.receive_message(self._pipe)
        except (EOFError, OSError):
            raise DeviceDied(self._exit_code()) from None
        if isinstance(reply, messages.Raised):
            _raise(reply)
        return reply.value

    def _exit_code(self) -> int:
        try:
            # The process has closed its pipe and is about to end; a SIGKILL of ours would hide the
            # cause.
            return self._popen.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return 1

    def close(self) -> None:
        """End the process; safe to call twice."""
        self._pipe.close()
        self._popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_END_TIMEOUT_S)

    def __del__(self) -> None:
        if hasattr(self, "_popen"):
            self.close()


def _launch(adapter: Path, handle: int, kind: str) -> "subprocess.Popen[bytes]":
    """Start the process, in which MSAdapter's torch comes before every other one."""
    arguments = module_command("ray_precheck.frameworks.mindtorch.device")
    return subprocess.Popen(
        [*arguments, str(handle), str(os.getpid()), kind],
        env={**os.environ, "PYTHONPATH": python_path(str(adapter))},
        pass_fds=(handle,),
        stdin=subprocess.DEVNULL,
    )


@dataclass(frozen=True, slots=True)
class _RemoteApi:
    """Stands for a function of MSAdapter's torch."""

    name: ApiName

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self.name.type_name} can be called in the process of its device alone")


class _RemoteRun:
    """A call that has run forward in the process of the device, the last one there."""

    def __init__(self, ask: Callable[[messages.Request], Any], ran: messages.Ran) -> None:
        self._ask = ask
        self._number = ran.number
        self.outputs: list[Leaf] = ran.outputs
        self.changed = ran.changed

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor]:
        """Return the gradients of the differentiable inputs; None stands for zero cotangents."""
        grads: list[HostTensor] = self._ask(messages.Gradients(self._number, cotangents))
        return grads


class _RemoteError(Exception):
    """An exception of an API in the process of its device."""

    lacks_kernel = False


def _raise(reply: messages.Raised) -> NoReturn:
    if reply.refused:
        raise NotCheckable(reply.text)
    if reply.type_name == "MemoryError":
        raise MemoryError(reply.text)
    # Messages begin with the name of the type.
    error = type(reply.type_name, (_RemoteError,), {"lacks_kernel": reply.lacks_kernel})
    raise error(reply.text)
