"""What each standard of `compare` says of planted faults, and of pairs of honest runs.

    python -m scripts.locate_faults.compare_verdicts [--places 2] [--seed 0] [--statistics] [--misses]

Three small networks are captured in float32 and bfloat16. The golden run is on one thread; its noise is
measured (`compare --noise`) by a second one with the sums of products in another order. The target is a third
one: on two threads, without oneDNN, sums in yet another order. Faults of each kind are planted in the target
at some random places; the culprit is the first record whose output differs from that of the target without
the fault.

A fault that moves no output of its record by more than 4 times what the honest runs are apart there, or by
more than 4 units of roundoff, cannot be told from rounding: it is left out, and counted as hidden. Of the
others the table says how often the culprit is the first error; below it stands how often another record is,
how often none is and the culprit has a warning. `honest` counts the honest targets with an error.
`--statistics` compares the same captures without their tensors; `--misses` prints each fault whose culprit
`auto` does not name.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from ray_precheck.capture import Capture
from ray_precheck.commands.compare.job import ComparisonJob, tasks_of
from ray_precheck.commands.compare.options import ComparisonConfig
from ray_precheck.commands.compare.plan import plan_comparison
from ray_precheck.commands.compare.rows import rows_of_piece
from ray_precheck.trace.difference.standards.registry import STANDARDS
from ray_precheck.trace.side import CaptureSide, RecordEntry, open_side
from scripts.locate_faults.planted import FAULTS as VALUE_FAULTS
from scripts.locate_faults.planted import Change
from scripts.locate_faults.twins import SKETCHES, twin_of
from scripts.measuring import markdown_table
from scripts.torch_ways import onednn, threads

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
    below = _Below(way.order, fault)
    settings: dict[str, Any] = {"task": "tensor", "step_by": "manual", "framework": "pytorch"}
    with threads(way.threads), onednn(way.onednn), Capture(folder, **settings) as capture, below:
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


DTYPES = (torch.float32, torch.bfloat16)
AUTO, AUTO_NOISE = "auto", "auto, --noise"
WAYS = (*(name for name in STANDARDS if name != AUTO), AUTO, AUTO_NOISE)
TIMES = 4.0
FIRST, OTHER, WARNED, NONE = "first", "another", "warned", "none"


@dataclass(slots=True)
class StandardVerdicts:
    """What each way says: of faults by kind, of honest pairs, and how many faults were hidden."""

    faults: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    visible: Counter[str] = field(default_factory=Counter)
    hidden: Counter[str] = field(default_factory=Counter)
    honest_errors: Counter[str] = field(default_factory=Counter)
    honest_warnings: Counter[str] = field(default_factory=Counter)
    honest_pairs: int = 0
    honest_records: int = 0
    misses: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--places", type=int, default=2, help="of each fault in each network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--statistics", action="store_true")
    parser.add_argument("--misses", action="store_true")
    given = parser.parse_args(arguments)
    found = StandardVerdicts()
    for network in NETWORKS:
        for dtype in DTYPES:
            with tempfile.TemporaryDirectory(prefix="compare_verdicts_") as folder:
                _judge_network(network, dtype, Path(folder), given, found)
            print(f"{network.__name__} {dtype}", file=sys.stderr, flush=True)
    print(verdict_table(found))
    if given.misses:
        print("\n".join(found.misses))
    return 0


def verdict_table(found: StandardVerdicts) -> str:
    """Return the table: a row for each way, a column for each kind of fault."""
    kinds = [kind for kind in FAULTS if found.visible[kind]]
    said = (OTHER, WARNED, NONE)
    rows = [["hidden", *(found.hidden[kind] for kind in kinds), found.hidden.total(), *[""] * 5]]
    for way in WAYS:
        counts = {
            each: sum(found.faults[way, kind, each] for kind in kinds) for each in (FIRST, *said)
        }
        cells = [f"{found.faults[way, kind, FIRST]} of {found.visible[kind]}" for kind in kinds]
        cells.append(f"{counts[FIRST]} of {found.visible.total()}")
        honest = f"{found.honest_errors[way]} of {found.honest_pairs}"
        warned = f"{found.honest_warnings[way]} of {found.honest_records}"
        rows.append([way, *cells, *(counts[each] for each in said), honest, warned])
    return markdown_table(["", *kinds, "all", *said, "honest errors", "honest warnings"], rows)


def _judge_network(
    network: type[nn.Module], dtype: torch.dtype, folder: Path, given: Any, found: StandardVerdicts
) -> None:
    rng = random.Random(f"{given.seed} {network.__name__} {dtype}")
    golden = captured_network(network, dtype, PLAIN, folder / "golden").dump
    noise = captured_network(network, dtype, OTHER_SUMS, folder / "noise").dump
    honest = captured_network(network, dtype, TARGET, folder / "honest")
    apart = _distances(honest.dump, golden)
    unit = torch.finfo(dtype).eps / 2
    for name, change in FAULTS.items():
        for number, place in enumerate(rng.sample(range(honest.places), given.places)):
            target = captured_network(
                network, dtype, TARGET, folder / f"{name} {number}", WrongOperator(place, change)
            )
            culprit, moved = first_moved_record(target.dump, honest.dump)
            if moved <= TIMES * max(apart.get(culprit, 0.0), unit):
                found.hidden[name] += 1
                continue
            found.visible[name] += 1
            for way, results in _judged(target.dump, golden, noise, given.statistics).items():
                said = _said(results, culprit)
                found.faults[way, name, said] += 1
                if said != FIRST and way in (AUTO, AUTO_NOISE):
                    wrong = next((key for key, each in results.items() if each == "error"), "-")
                    case = f"{network.__name__} {dtype} {name} {culprit} moved {moved:.3g}"
                    found.misses.append(f"{case}: {way}: {said} {wrong}")
    found.honest_pairs += 1
    found.honest_records += len(apart)
    for way, results in _judged(honest.dump, golden, noise, given.statistics).items():
        errors = [key for key, each in results.items() if each == "error"]
        found.honest_errors[way] += bool(errors)
        found.honest_warnings[way] += sum(each == "warning" for each in results.values())
        if errors and way in (AUTO, AUTO_NOISE):
            found.misses.append(f"{network.__name__} {dtype} honest: {way}: {', '.join(errors)}")


def _said(results: dict[str, str], culprit: str) -> str:
    first = next((key for key, each in results.items() if each == "error"), None)
    if first is not None:
        return FIRST if first == culprit else OTHER
    return WARNED if results.get(culprit) == "warning" else NONE


def _distances(target: Path, golden: Path) -> dict[str, float]:
    with open_side(target) as one, open_side(golden) as other:
        return {
            ours.key: output_distance(one, ours, other, theirs)
            for ours, theirs in zip(one.entries, other.entries, strict=True)
        }


def _judged(target: Path, golden: Path, noise: Path, statistics: bool) -> dict[str, dict[str, str]]:
    """Return the result of each record by each way, in the order of the records."""
    paths = [target, golden, noise]
    if statistics:  # the same dumps without the names of their files
        paths = [twin_of(each, SKETCHES, each.with_name("statistics")) for each in paths]
    found: dict[str, dict[str, str]] = {way: {} for way in WAYS}
    config = ComparisonConfig(target=paths[0], golden=paths[1])
    with ExitStack() as opened:
        one, other, second = (opened.enter_context(open_side(path)) for path in paths)
        for noise_side, ways in ((None, WAYS[:-1]), (second, (AUTO_NOISE,))):
            plan = plan_comparison(one, other, noise_side, config)
            job = ComparisonJob(
                one, other, plan.pieces, plan.settings, noise=noise_side, noise_of=plan.noise_of
            )
            for task in tasks_of(job, set(), plan.costs_s):
                payload = job.payload(task)
                for way in ways:
                    standard = STANDARDS[AUTO if way == AUTO_NOISE else way]
                    rows = rows_of_piece(payload, standard, plan.settings, plan.reading)
                    found[way][task.name] = rows.result
    return found


if __name__ == "__main__":
    sys.exit(main())
