"""Small networks of PyTorch, captured honestly in several ways, or with one wrong operator.

Comes in: a network, a dtype, a `RunSetup` to run it, perhaps a `WrongOperator`. Goes out: the dump of a
forward and a backward pass with all tensors, and which record of it the fault made wrong. Used by
`scripts.compare_verdicts`. Other orders of sums and faults are put below the capture, into the operators of
ATen, so that wrong values flow on.
"""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from ray_precheck.capture import Capture
from ray_precheck.trace.side import CaptureSide, RecordEntry, open_side
from scripts.locate_faults.planting.planted import FAULTS as VALUE_FAULTS
from scripts.locate_faults.planting.planted import Change

# Operators of ATen that compute and that a capture's own statistics do not need.
COMPUTING = frozenset(
    "mm addmm bmm convolution gelu relu native_layer_norm native_batch_norm _softmax _log_softmax"
    " gelu_backward threshold_backward native_layer_norm_backward _softmax_backward_data"
    " convolution_backward".split()
)
_WIDTH = 32


class MlpBlocks(nn.Module):
    """Blocks of layer norm, linear, GELU and linear, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(_WIDTH),
                nn.Linear(_WIDTH, 4 * _WIDTH),
                nn.GELU(),
                nn.Linear(4 * _WIDTH, _WIDTH),
            )
            for _ in range(4)
        )

    def forward(self, given: Tensor) -> Tensor:
        """Return the mean square of the last values."""
        for block in self.blocks:
            given = given + block(given)
        return given.square().mean()


class AttentionBlocks(nn.Module):
    """Two blocks of attention over 12 tokens, and a loss over 40 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(_WIDTH, 3 * _WIDTH) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(2))
        self.head = nn.Linear(_WIDTH, 40)

    def forward(self, given: Tensor) -> Tensor:
        """Return the cross entropy of what the head says."""
        for norm, projection, out in zip(self.norms, self.projections, self.outs, strict=True):
            query, key, value = projection(norm(given)).chunk(3, dim=-1)
            scores = torch.matmul(query, key.transpose(-1, -2)) / _WIDTH**0.5
            given = given + out(torch.matmul(F.softmax(scores, dim=-1), value))
        classes = torch.arange(12).repeat(given.shape[0])
        return F.cross_entropy(self.head(given).reshape(-1, 40).float(), classes)


class ConvolutionBlocks(nn.Module):
    """Two convolutions with batch norm and ReLU, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(_WIDTH, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(32, 10)

    def forward(self, given: Tensor) -> Tensor:
        """Return the mean square of the head's values."""
        pictures = given.transpose(1, 2).reshape(-1, _WIDTH, 4, 3)
        return self.head(self.layers(pictures).mean(dim=(2, 3))).square().mean()


NETWORKS: tuple[type[nn.Module], ...] = (MlpBlocks, AttentionBlocks, ConvolutionBlocks)


class RunSetup(NamedTuple):
    """How a network is run: threads, with oneDNN or without, and a seed for the order of the terms in the
    sums of products, 0 for the kernel's own."""

    threads: int = 1
    onednn: bool = True
    order: int = 0


PLAIN, OTHER_SUMS, TARGET = (
    RunSetup(),
    RunSetup(order=1),
    RunSetup(threads=2, onednn=False, order=2),
)


FAULTS: dict[str, Change] = {
    "1 + 1e-4": VALUE_FAULTS["scale 1 + 1e-4"],
    "1 + 1e-3": VALUE_FAULTS["scale 1 + 1e-3"],
    "1 + 1e-2": VALUE_FAULTS["scale 1 + 1e-2"],
    "1.1": VALUE_FAULTS["scale 1.1"],
    "coarse": VALUE_FAULTS["bf16 rounding"],
    "zeroed tail": VALUE_FAULTS["last 1/16 zeroed"],
    "one element": VALUE_FAULTS["one element"],
    "shifted rows": VALUE_FAULTS["rows shifted"],
    "NaN": VALUE_FAULTS["NaN"],
}


class WrongOperator(NamedTuple):
    """What is done to the result of one operator, the one of that number among those that compute."""

    place: int
    change: Change


class _Below(TorchDispatchMode):
    """Computes products in another order, and plants a fault. `places` counts the operators that compute."""

    def __init__(self, order: int, fault: WrongOperator | None) -> None:
        super().__init__()
        self.places = 0
        self._order, self._fault = order, fault

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, named = function.overloadpacket.__name__, kwargs or {}
        if self._order and name in ("mm", "bmm", "addmm"):
            *bias, one, other = args
            terms = torch.randperm(
                one.shape[-1], generator=torch.Generator().manual_seed(self._order)
            )
            args = (*bias, one[..., terms], other[..., terms, :])
        result = function(*args, **named)
        first = result[0] if isinstance(result, tuple) else result
        if name in COMPUTING and isinstance(first, Tensor) and first.numel() >= _WIDTH:
            if self._fault is not None and self.places == self._fault.place:
                first.copy_(self._fault.change(first.detach().clone()))
            self.places += 1
        return result


@dataclass(frozen=True, slots=True)
class CapturedNetwork:
    """A dump, and how many operators computed while it was made."""

    dump: Path
    places: int


def captured_network(
    network: type[nn.Module],
    dtype: torch.dtype,
    way: RunSetup,
    folder: Path,
    fault: WrongOperator | None = None,
) -> CapturedNetwork:
    """Capture a forward and a backward pass."""
    torch.manual_seed(0)
    model = network().to(dtype)
    given = torch.randn(4, 12, _WIDTH, dtype=dtype)
    threads, below = torch.get_num_threads(), _Below(way.order, fault)
    settings: dict[str, Any] = {"task": "tensor", "step_by": "manual", "framework": "pytorch"}
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(way.threads)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # torch's of TF32, wherever oneDNN is switched off
        stack.enter_context(torch.backends.mkldnn.flags(enabled=way.onednn))
        capture = stack.enter_context(Capture(folder, **settings))
        stack.enter_context(below)
        model(given).backward()
        capture.step()
    return CapturedNetwork(next(folder.glob("step0/*/dump.json")), below.places)


def first_moved_record(clean: Path, faulty: Path) -> tuple[str, float]:
    """Return the first record whose outputs a fault has moved, and the largest relative L2 distance of these;
    "" and 0 for none."""
    with open_side(clean) as one, open_side(faulty) as other:
        for ours, theirs in zip(one.entries, other.entries, strict=True):
            moved = output_distance(one, ours, other, theirs)
            if moved:
                return ours.key, moved
    return "", 0.0


def output_distance(
    one: CaptureSide, ours: RecordEntry, other: CaptureSide, theirs: RecordEntry
) -> float:
    """Return the largest relative L2 distance of the outputs of a record in two captures."""
    pairs = zip(_outputs(one, ours), _outputs(other, theirs), strict=True)
    return max((_apart(first, second) for first, second in pairs), default=0.0)


def _outputs(side: CaptureSide, entry: RecordEntry) -> Iterator[Tensor]:
    for item in side.items(entry):
        if item.part == "output" and item.file:
            yield torch.load(side.data_folder / item.file, weights_only=True).detach().double()


def _apart(one: Tensor, other: Tensor) -> float:
    if torch.equal(one, other):
        return 0.0
    found = ((one - other).norm() / other.norm()).item()
    return float("inf") if found != found else found
