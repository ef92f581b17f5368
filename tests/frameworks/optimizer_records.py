"""Records of optimizers' updates: a sink for the capture, a Lion as packages have it, and steps to take."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ray_precheck.capture.pytorch.elements import Elements
from ray_precheck.capture.pytorch.probe import TorchModuleNames
from ray_precheck.capture.pytorch.tensors.text import TensorTexts
from ray_precheck.capture.pytorch.tensors.values import host_summary
from ray_precheck.capture.pytorch.updates import OptimizerSteps
from ray_precheck.capture.writing.elements import statistics_text
from ray_precheck.schema.task import TaskPayload

T = TypeVar("T")


class Lion(torch.optim.Optimizer):
    """Lion as lion-pytorch and timm have it."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, **options}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                grad = -p.grad if group.get("maximize") else p.grad
                p.mul_(1.0 - group["lr"] * group["weight_decay"])
                update = state["exp_avg"].clone().mul_(beta1).add(grad, alpha=1.0 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(grad, alpha=1.0 - beta2)


class Records:
    """A sink that keeps records as JSON by key, and their tensors in a folder if it has one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.texts: dict[str, str] = {}
        self.forgotten = 0
        self.refused: set[str] = set()
        self.stopped = False
        self.parent: str | None = None
        self.scope = self
        self.callers: list[str] = []
        self._folder = folder
        self._key = ""
        self._counts: Counter[str] = Counter()
        self._texts = TensorTexts(lambda tensor: statistics_text(host_summary(tensor)))
        self._fields = self._texts.fields
        self._elements = Elements(self._tensor)

    def _tensor(self, tensor: torch.Tensor, place: str) -> str:
        if self._folder is None:
            return f"{{{self._fields(tensor)}}}"
        name = f"{self._key}.{place}.pt"
        torch.save(tensor.detach().clone(), self._folder / name)
        return f'{{{self._fields(tensor)}, "data_name": "{name}"}}'

    def guarded(self, key: str, action: Callable[[], T]) -> T | None:
        return action()

    def number(self, name: str) -> int:
        self._counts[name] += 1
        return self._counts[name] - 1

    def wants(self, key: str) -> bool:
        return key not in self.refused

    def before(self, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        self._key = key
        return (
            f'"input_args": {self._elements.arguments(args, "input")},'
            f' "input_kwargs": {self._elements.keywords(kwargs, "kwargs")}'
        )

    def after(self, key: str, output: Any) -> str:
        self._key = key
        return f', "output": {self._elements.outputs(output)}'

    def forget_all(self) -> None:
        self.forgotten += 1
        self._texts.forget_all()

    def stack_of(self, frame: FrameType) -> int:
        self.callers.append(frame.f_code.co_name)
        return len(self.callers)

    def write(self, key: str, fields: str, stack: int | None, parent: str | None) -> None:
        self.texts[key] = f"{{{fields}}}"

    def record(self, key: str) -> dict[str, Any]:
        """Return a record as JSON."""
        return json.loads(self.texts[f"{key}.forward"])  # type: ignore[no-any-return]

    def payload(self, key: str) -> TaskPayload:
        """Return the record as a check gets it."""
        return TaskPayload(0, key, self.texts[f"{key}.forward"].encode(), None)


class Mode:
    """A mode that can be paused."""

    paused = False

    def pause(self, paused: bool) -> bool:
        before, self.paused = self.paused, paused
        return before


@contextmanager
def recorded(
    records: Any, mode: Any = None, name_of: Callable[[torch.Tensor], str] = lambda _: ""
) -> Iterator[None]:
    """Record the updates of optimizers, as the hooks of a probe let it be done."""
    steps = OptimizerSteps(records, mode or Mode(), name_of, are_recorded=True)
    handles = [
        register_optimizer_step_pre_hook(steps.before),
        register_optimizer_step_post_hook(steps.after),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        steps.close()


def small_model(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Return a model with matrices and vectors, the same each time."""
    torch.manual_seed(1)
    layers = (torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
    return torch.nn.Sequential(*layers).to(dtype)


def learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    """Train a small model for a step."""
    torch.manual_seed(seed)
    dtype = next(model.parameters()).dtype
    optimizer.zero_grad()
    model(torch.randn(4, 16, dtype=dtype)).square().mean().backward()
    optimizer.step()


def captured(
    kind: Any,
    *,
    steps: int = 3,
    folder: Path | None = None,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Records:
    """Return the records of some steps of an optimizer."""
    model, records = small_model(dtype), Records(folder)
    optimizer = kind(model.parameters(), **options)
    with recorded(records, name_of=TorchModuleNames(model).of_parameter):
        for step in range(steps):
            learn(model, optimizer, step)
    return records
