"""All captures of a model in a dtype, with their truth and the baseline.

Comes in: a model, a dtype, a folder and counts. Goes out: judged cases; among them faults outside of
operators (a wrong weight, another mask, swapped samples, another epsilon), with the words that a finding must
have one of. Called by `child`, and by the tests with a model of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch

from scripts.locate_faults.cases import (
    DATA,
    EPSILON,
    FORWARD,
    GRADIENT,
    HIDDEN,
    HONEST,
    MASK,
    SETUPS,
    UPDATE,
    WEIGHT,
    FaultCase,
    Judged,
)
from scripts.locate_faults.looking.replaying import Replay, named_by
from scripts.locate_faults.looking.tables import REPLAY
from scripts.locate_faults.planted import FAULTS, Size, worst_size
from scripts.locate_faults.planting.gradients import GradientFault, GradientWatch
from scripts.locate_faults.planting.models import Batch, TrainedModel
from scripts.locate_faults.planting.plan import Counts, FaultPlan, plan_faults
from scripts.locate_faults.planting.runs import Act, Bench, OtherSums, TrainedStep
from scripts.locate_faults.planting.updates import UPDATE as UPDATES
from scripts.locate_faults.planting.updates import UpdateFault, UpdateWatch
from scripts.locate_faults.planting.watching import (
    CallWatch,
    Hidden,
    Listing,
    PlantedCall,
    honest_differences,
)

_OTHER_RANDOM_STATE = 71
_OTHER_EPSILON = 1e-5


class OtherSetup(NamedTuple):
    """A step with a fault outside of operators; `words` has words of which a finding has one."""

    family: str
    fault: str
    step: TrainedStep
    words: tuple[str, ...]


def setups_of(bench: Bench, honest: TrainedStep, dropped: bool) -> Iterator[OtherSetup]:
    """Yield the faults that a model can have; `dropped` says whether it draws random numbers."""
    name, size = _a_matrix(bench.trained.module)

    def swap_rows(model: torch.nn.Module) -> None:
        weight = model.get_parameter(name)
        weight.data[[0, size // 2]] = weight.data[[size // 2, 0]]

    def swap_samples(batch: Batch) -> Batch:
        return tuple(each.roll(1, dims=0) for each in batch)

    def change_epsilon(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["eps"] = _OTHER_EPSILON

    yield OtherSetup(WEIGHT, "two rows swapped", replace(honest, model=swap_rows), (name,))
    if dropped:
        other = replace(honest, random_state=_OTHER_RANDOM_STATE)
        yield OtherSetup(MASK, "another seed", other, ("mask", "random", "seed"))
    yield OtherSetup(
        DATA, "samples swapped", replace(honest, batch=swap_samples), ("input", "data", "batch")
    )
    if "eps" in bench.optimizer.defaults:
        step = replace(honest, optimizer=change_epsilon)
        yield OtherSetup(EPSILON, "1e-5", step, ("eps", "config", "hyperparameter"))


def _a_matrix(module: torch.nn.Module) -> tuple[str, int]:
    """Return the name and the rows of the matrix in the middle of a model's parameters."""
    found = [(name, len(each)) for name, each in module.named_parameters() if each.dim() > 1]
    return found[len(found) // 2]


PLAIN = "plain"
# Golden runs, and what makes each another one than the target.
GOLDENS: dict[str, TrainedStep] = {
    "other sums": TrainedStep(acts=(OtherSums(),)),
    "no oneDNN": TrainedStep(onednn=False),
    "two threads": TrainedStep(threads=2),
}


@dataclass
class Maker:
    """Makes the captures of a model; `errors` are the honest errors that it has seen, by key."""

    name: str
    dtype: str
    bench: Bench
    folder: Path
    counts: Counts
    replay: Replay = field(default_factory=Replay)
    errors: dict[str, list[Size]] = field(default_factory=dict)
    paths: dict[tuple[int, str], Path] = field(default_factory=dict)

    def cases(self) -> Iterator[Judged]:
        """Yield all cases: honest ones first, which the truth of the others needs."""
        listing = Listing()
        self._capture(TrainedStep(acts=(listing,)), "listing")
        plan = plan_faults(
            f"{self.name} {self.dtype}", listing.victims, listing.differentiated, self.counts
        )
        yield from self._honest_cases(plan)
        for number, (key, fault) in enumerate(plan.forward):
            act = PlantedCall(key, FAULTS[fault])
            yield self._faulty(FORWARD, number, fault, act, f"{key}.forward", f"{key}.forward")
        for number, (key, fault) in enumerate(plan.gradient):
            wrong = GradientFault(key, FAULTS[fault])
            yield self._faulty(GRADIENT, number, fault, wrong, f"{key}.backward", f"{key}.backward")
        for number, fault in enumerate(plan.update):
            kind = type(self.bench.optimizer).__name__
            culprit = f"Optimizer.{kind}.0.forward"
            yield self._faulty(UPDATE, number, fault, UpdateFault(FAULTS[fault]), UPDATES, culprit)
        yield from self._hidden_cases(plan)
        yield from self._setup_cases(bool(listing.random))

    def _capture(self, step: TrainedStep, name: str) -> Path:
        return self.bench.captured(step, self.folder / name.replace(" ", "_"))

    def _judged(self, case: FaultCase) -> Judged:
        if case.family == HONEST and case.golden:
            return Judged(case)  # the target alone is a case of its own
        return Judged(case, {REPLAY: named_by(self.replay, Path(case.target))})

    def _case(self, family: str, fault: str, target: Path, golden: Path | None) -> FaultCase:
        return FaultCase(self.name, self.dtype, family, fault, str(target), str(golden or ""))

    def _golden(self, number: int) -> Path:
        return self.paths[0, [*GOLDENS][number % len(GOLDENS)]]

    def _honest_cases(self, plan: FaultPlan) -> Iterator[Judged]:
        keys = frozenset(key for key, _ in plan.forward)
        gradients = frozenset(key for key, _ in plan.gradient)
        for seed in range(self.counts.seeds):
            for flavour, how in {PLAIN: TrainedStep(), **GOLDENS}.items():
                watch, gradient, update = CallWatch(keys), GradientWatch(gradients), UpdateWatch()
                acts: tuple[Act, ...] = (*how.acts, watch, gradient, update)
                path = self._capture(replace(how, seed=seed, acts=acts), f"{flavour} {seed}")
                self.paths[seed, flavour] = path
                found = {f"{key}.forward": size for key, size in watch.errors.items()}
                found |= {f"{key}.backward": size for key, size in gradient.errors.items()}
                for key, size in (found | update.errors).items():
                    self.errors.setdefault(key, []).append(size)
                yield self._judged(self._case(HONEST, flavour, path, None))
                if flavour != PLAIN:
                    target = self.paths[seed, PLAIN]
                    yield self._judged(self._case(HONEST, f"pair, {flavour}", target, path))

    def _faulty(
        self,
        family: str,
        number: int,
        fault: str,
        act: PlantedCall | GradientFault | UpdateFault,
        key: str,
        culprit: str,
    ) -> Judged:
        path = self._capture(TrainedStep(acts=(act,)), f"{family} {number}")
        case = self._case(family, fault, path, self._golden(number))
        known = self.errors.get(key)
        # Where no reference could be computed nothing can be said of the fault.
        honest = worst_size(known) if known else Size(float("inf"), float("inf"))
        return self._judged(
            replace(case, culprits=(culprit,), moved=act.moved or Size(), honest=honest)
        )

    def _hidden_cases(self, plan: FaultPlan) -> Iterator[Judged]:
        """Yield the cases of calls that no capture sees: all of them are hidden in each run."""
        hidden = frozenset(key for key, _ in plan.hidden)
        if not hidden:
            return
        seen = Hidden()
        target = self._capture(TrainedStep(acts=(seen,), hidden=hidden), "hidden plain")
        differences: dict[str, list[Size]] = {key: [] for key in hidden}
        goldens = []
        for flavour, how in GOLDENS.items():
            other = Hidden()
            step = replace(how, acts=(*how.acts, other), hidden=hidden)
            goldens.append(self._capture(step, f"hidden {flavour}"))
            for key, size in honest_differences(seen.results, other.results).items():
                differences[key].append(size)
            yield self._judged(
                self._case(HONEST, f"pair with hidden calls, {flavour}", target, goldens[-1])
            )
        for number, (key, fault) in enumerate(plan.hidden):
            act = PlantedCall(key, FAULTS[fault], is_hidden=True)
            path = self._capture(TrainedStep(acts=(act,), hidden=hidden), f"hidden {number}")
            case = self._case(HIDDEN, fault, path, goldens[number % len(goldens)])
            yield self._judged(
                replace(
                    case,
                    culprits=tuple(f"{each}.forward" for each in seen.consumers.get(key, ())),
                    producers=tuple(f"{each}.forward" for each in seen.producers.get(key, ())),
                    names=(key,),
                    moved=act.moved or Size(),
                    honest=worst_size(differences[key]),
                )
            )

    def _setup_cases(self, dropped: bool) -> Iterator[Judged]:
        for number, setup in enumerate(setups_of(self.bench, TrainedStep(), dropped)):
            assert setup.family in SETUPS
            path = self._capture(setup.step, f"setup {setup.family}")
            case = self._case(setup.family, setup.fault, path, self._golden(number))
            yield self._judged(replace(case, names=setup.words))


def maker_of(
    name: str, dtype: torch.dtype, trained: TrainedModel, folder: Path, counts: Counts
) -> Maker:
    """Return the maker of a model; pictures are trained by SGD, texts by AdamW."""
    parameters = trained.module.parameters()
    is_text = not any(isinstance(each, torch.nn.Conv2d) for each in trained.module.modules())
    optimizer: torch.optim.Optimizer
    if is_text:
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    else:
        optimizer = torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
    short = str(dtype).removeprefix("torch.")
    return Maker(name, short, Bench(trained, optimizer), folder, counts)
