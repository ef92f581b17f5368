"""A training step of a model, captured, with what is done around its calls.

Comes in: a model, and a `TrainedStep` that says how it is run. Goes out: the folder of the capture. Called by
the child of a model. What is done around calls are `Act`s: they see a call before and after it is made, and
before the capture sees its result.
"""

import copy
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import Sink
from ray_precheck.capture.pytorch.probe import TorchProbe
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.recording.recorder import CallName, SeenCall
from ray_precheck.capture.session import Session
from ray_precheck.capture.settings import capture_settings
from scripts.locate_faults.planting.models import Batch, TrainedModel
from scripts.torch_ways import onednn, threads

Call = Callable[..., Any]


def _order(size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(size))


def _linear(run: Call, given: Tensor, weight: Tensor, *more: Any, **named: Any) -> Tensor:
    order = _order(weight.shape[-1])
    return run(given[..., order], weight[..., order], *more, **named)


def _product(run: Call, one: Tensor, other: Tensor) -> Tensor:
    order = _order(one.shape[-1])
    return run(one[..., order], other[..., order, :] if other.dim() > 1 else other[order])


def _sum_of_product(run: Call, bias: Tensor, one: Tensor, other: Tensor, **named: Any) -> Tensor:
    order = _order(one.shape[-1])
    return run(bias, one[..., order], other[..., order, :], **named)


def _convolution(run: Call, given: Tensor, weight: Tensor, *more: Any, **named: Any) -> Tensor:
    order = _order(weight.shape[1])
    return run(given[:, order], weight[:, order], *more, **named)


_BY_FUNCTION: dict[Any, Call] = {
    functional.linear: _linear,
    torch.matmul: _product,
    torch.Tensor.matmul: _product,
    torch.bmm: _product,
    torch.Tensor.bmm: _product,
    torch.mm: _product,
    torch.addmm: _sum_of_product,
    torch.baddbmm: _sum_of_product,
    torch.conv2d: _convolution,
    functional.conv2d: _convolution,
}


def summed_otherwise(function: Call, args: Any, kwargs: Any) -> Tensor | None:
    """Return the result of a product with the terms of each sum in another order."""
    by = _BY_FUNCTION.get(function)
    is_grouped = by is _convolution and args[0].shape[1] != args[1].shape[1]
    if by is None or is_grouped or not isinstance(args[0], Tensor):
        return None
    found: Tensor = by(function, *args, **kwargs)
    return found


_RANDOM_STATE = 17


class MadeStep(NamedTuple):
    """A call that is made: its key in the dump, its name, the function and what it gets.

    `is_recorded` is False where the capture does not see the call; its key counts such calls, too.
    """

    key: str
    name: CallName
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_recorded: bool


class Act:
    """Something that is done around calls."""

    def before(self, call: MadeStep) -> None:
        """See a call before it is made."""

    def after(self, call: MadeStep, result: Any) -> None:
        """See what it gives, and change that in place."""

    @contextmanager
    def around_update(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Stand around the optimizer's arithmetic, inside of what the capture sees."""
        yield

    def finish(self) -> None:
        """Do what is left when the capture has ended."""


class OtherSums(Act):
    """Computes products with their sums in another order, in the forward pass."""

    def after(self, call: MadeStep, result: Any) -> None:
        found = summed_otherwise(call.function, call.args, call.kwargs)
        if found is not None:
            result.data.copy_(found)


class _Watched(functools.partial):  # type: ignore[type-arg]
    """A call with its acts; the recorder reads the function and its arguments."""

    around: Callable[[Callable[[], Any]], Any]

    def __call__(self) -> Any:
        return self.around(super().__call__)


class _ActingSink:
    """Hands calls to the recorder, with acts around them; those of `hidden` keys it does not hand on."""

    def __init__(self, sink: Sink, acts: Sequence[Act], hidden: Container[str]) -> None:
        self._sink, self._acts, self._hidden = sink, acts, hidden
        self._all: dict[str, Iterator[int]] = defaultdict(itertools.count)
        self._recorded: dict[str, Iterator[int]] = defaultdict(itertools.count)

    def __call__(self, call: SeenCall) -> Any:
        name, run = call.name, call.run
        key = f"{name.key}.{next(self._all[name.key])}"
        is_hidden = key in self._hidden
        if not is_hidden:
            key = f"{name.key}.{next(self._recorded[name.key])}"
        if not isinstance(run, functools.partial):
            return self._sink(call)
        made = MadeStep(key, name, run.func, run.args, run.keywords, not is_hidden)
        watched = _Watched(run.func, *run.args, **run.keywords)
        watched.around = functools.partial(self._made, made)
        if is_hidden:
            return watched()
        return self._sink(call._replace(run=watched))

    def _made(self, call: MadeStep, run: Callable[[], Any]) -> Any:
        with torch.no_grad():
            for act in self._acts:
                act.before(call)
        result = run()
        with torch.no_grad():
            for act in self._acts:
                act.after(call, result)
        return result


class _ActingProbe(TorchProbe):
    def __init__(self, acts: Sequence[Act], hidden: Container[str]) -> None:
        super().__init__()
        self._acts, self._hidden = acts, hidden

    def sink_around(self, recorder: TorchRecorder) -> Sink:
        return _ActingSink(recorder.call, self._acts, self._hidden)


@dataclass(frozen=True)
class TrainedStep:
    """How a step is run: the seed of its batch, and how its operators compute.

    `hidden` are keys of calls that the capture does not see. `batch` and `model` change what the step
    gets.
    """

    seed: int = 0
    acts: Sequence[Act] = ()
    hidden: frozenset[str] = frozenset()
    threads: int = 1
    onednn: bool = True
    random_state: int = _RANDOM_STATE
    batch: Callable[[Batch], Batch] = lambda batch: batch
    model: Callable[[torch.nn.Module], None] = lambda model: None
    optimizer: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None


class Bench:
    """A model and its optimizer, whose states are the same before each step."""

    def __init__(self, trained: TrainedModel, optimizer: torch.optim.Optimizer) -> None:
        self.trained, self.optimizer = trained, optimizer
        torch.manual_seed(_RANDOM_STATE)
        self._train(trained.batch(_RANDOM_STATE))  # so that the optimizer has states
        self._states = copy.deepcopy((trained.module.state_dict(), optimizer.state_dict()))

    def _train(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        self.trained.loss_of(batch).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def captured(self, step: TrainedStep, folder: Path) -> Path:
        """Capture a step with tensors and sketches; return its dump.json."""
        module, optimizer = self.trained.module, self.optimizer
        states = copy.deepcopy(self._states)
        module.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        step.model(module)
        step.optimizer(optimizer)
        batch = step.batch(self.trained.batch(step.seed))
        torch.manual_seed(step.random_state)
        settings = capture_settings(path=folder, task="tensor", sketch=True, step_by="manual")
        session = Session(settings, _ActingProbe(step.acts, step.hidden), models=module)
        with ExitStack() as around:
            around.enter_context(threads(step.threads))
            around.enter_context(onednn(step.onednn))
            for act in step.acts:
                around.enter_context(act.around_update(optimizer))
            session.start()
            self._train(batch)
            session.stop()
        for act in step.acts:
            act.finish()
        if session.account.failure:
            raise SystemExit(f"{folder}: {session.account.failure}")
        return session.captured[-1] / "dump.json"


def unseen() -> Any:
    """Return a context in which no mode sees calls, for hooks of a backward pass."""
    return (private_parts.find(private_parts.NO_FUNCTION_MODE) or nullcontext)()


def only_tensor(result: Any) -> Tensor | None:
    """Return the result of a call that is one tensor of floats, or the first of several; None else."""
    if isinstance(result, tuple | list) and result:
        result = result[0]
    if isinstance(result, Tensor) and result.is_floating_point() and result.layout == torch.strided:
        return result
    return None
