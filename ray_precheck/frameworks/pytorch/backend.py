"""PyTorch under test, on the CPU, a GPU (CUDA) or an Ascend NPU (through torch_npu).

NPU: written after torch_npu's documentation and not run there; no NPU was at hand. ../ASCEND.md says which
of its releases have what is used here.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ray_precheck.errors import BackendMissingError, DeviceError, NotCheckable
from ray_precheck.frameworks.base import CallPlan, Execution, require_answer
from ray_precheck.frameworks.pytorch.names import resolve_torch
from ray_precheck.frameworks.pytorch.optimizers import resolve_optimizer
from ray_precheck.frameworks.pytorch.run import TorchExecution, TorchPlace
from ray_precheck.frameworks.pytorch.storages import resolve_quantized
from ray_precheck.frameworks.pytorch.switches import compute_in, formats_of
from ray_precheck.operators.refused import require_allowed
from ray_precheck.schema.dtypes import Float32
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall

_NO_KERNEL = (
    "not implemented for",
    "Could not run 'aten::",
    "Could not run 'npu::",
    "is not currently implemented for",
)


class TorchBackend:
    """torch on one device; the process sees only this one, so it is number 0."""

    framework = "pytorch"

    def __init__(self, kind: str) -> None:
        # One thread, so that the bits do not depend on how many workers share the machine.
        torch.set_num_threads(1)
        self._device = _open_device(kind)
        self._place = TorchPlace(self._device)
        self._kind = kind
        # The caveat is a sentence about a limit of float32's precision on the device, "" for none.
        # Full float32: TensorFloat-32 would be blamed on an operator whose program did without.
        self._float32, self.caveat = compute_in(kind, Float32())
        self._set = Float32(), formats_of(kind)

    def compute_in(self, wanted: Float32) -> Float32:
        """Let float32 products round their operands as those of the program did; return how they do."""
        if self._set != (wanted, formats_of(self._kind)):
            self._float32, self.caveat = compute_in(self._kind, wanted)
            self._set = wanted, formats_of(self._kind)
        return self._float32

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return torch's function for an API of the dump."""
        if name.prefix == "Optimizer":
            return resolve_optimizer(name)
        if name.prefix == "quantized":
            return resolve_quantized(name)
        return _resolve_npu(name) if name.prefix == "NPU" else resolve_torch(name)

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> Execution:
        """Run the API in the recorded dtypes on this device."""
        return TorchExecution(function, call, plan, self._place)

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether the CPU has no kernel; on an accelerator that is a finding, not a gap."""
        return self._kind == "cpu" and any(text in str(error) for text in _NO_KERNEL)

    def seed(self, seed: int) -> None:
        """Seed the generators of the CPU and of the device."""
        torch.manual_seed(seed)

    def prove(self) -> None:
        """Compute 1 + 1 on the device; reading the sum waits for it."""
        one = torch.ones(8, device=self._device, dtype=torch.float32)
        require_answer((one + one).cpu().numpy(), self._device)


def _resolve_npu(name: ApiName) -> Callable[..., Any]:
    """Return an operator of torch_npu; only names that have a bench are ever asked for."""
    require_allowed(name, "pytorch")
    try:
        torch_npu = _import_torch_npu()
    except ImportError as error:
        raise NotCheckable(
            f"{name.type_name} is an operator of torch_npu, which cannot be imported here: {error}"
        ) from None
    found: Callable[..., Any] | None = vars(torch_npu).get(name.api)
    if not callable(found) or isinstance(found, type | ModuleType):
        version = getattr(torch_npu, "__version__", "here")
        raise NotCheckable(f"{name.type_name} is not an operator of torch_npu {version}")
    return found


def _import_torch_npu() -> ModuleType:
    """Return torch_npu.

    Raises:
        ImportError: it is not there, or refuses this torch: a torch that is built with CUDA makes it
            raise RuntimeError, whose first line tells (those below have the time and the process).
    """
    try:
        import torch_npu
    except RuntimeError as error:
        raise ImportError(str(error).partition("\n")[0]) from None
    found: ModuleType = torch_npu
    return found


def _open_device(kind: str) -> str:
    if kind == "cpu":
        return "cpu"
    if kind == "npu":
        try:
            torch_npu = _import_torch_npu()
        except ImportError as error:
            # It may be there, and lack CANN's libraries: then its own words tell.
            raise BackendMissingError(
                f"torch_npu cannot be imported ({error}); PyTorch needs it for an NPU: pip install"
                f" 'torch_npu=={torch.__version__.partition('+')[0]}.*', and source CANN's set_env.sh"
                " before the run"
            ) from None
        torch_npu.npu.set_device(0)
        return "npu:0"
    if not torch.cuda.is_available():
        raise DeviceError(f"torch {torch.__version__} sees no GPU; use --device-type cpu")
    torch.cuda.set_device(0)
    return "cuda:0"
