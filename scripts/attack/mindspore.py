"""The same for MindSpore: functions that are wrong only under a condition, on the tested side alone.

    python -m scripts.attack.mindspore [-v]

MindSpore's kernels stand below no dispatcher that Python reaches, so the function that a check calls is
wrong: its result is half as large again where the condition of its arguments is met. The calls come from a
capture of the program below, in float32 and float16, with statistics and with tensors. The functions are
those that have kernels on the CPU. Exit code as `scripts.attack`.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import mint, ops

from ray_precheck.capture import Capture
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.compare.standards.registry import STANDARDS
from ray_precheck.dump.parse import open_dump
from ray_precheck.frameworks.base import CallPlan, Execution
from ray_precheck.frameworks.mindspore.backend import MindSporeBackend
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Task, TaskPayload
from ray_precheck.schema.values import HostCall

functional = mint.nn.functional
DTYPES = ("float32", "float16")
TASKS = ("statistics", "tensor")
When = Callable[[Sequence[ms.Tensor]], bool]


@dataclass(frozen=True)
class WrongFunction:
    """A function that is wrong where its tensors meet a condition; `changes`: the argument that it leaves
    wrong, in place of its result."""

    group: str
    api: str
    when: When
    changes: int | None = None


def _any(holds: Callable[[ms.Tensor], bool]) -> When:
    return lambda tensors: any(holds(one) for one in tensors)


def _is_expanded(one: ms.Tensor) -> bool:
    return any(s == 0 and size > 1 for s, size in zip(one.stride(), one.shape, strict=True))


_STRIDED = _any(lambda one: not one.is_contiguous() and not _is_expanded(one))
_EXPANDED = _any(_is_expanded)
_OFFSET = _any(lambda one: one.storage_offset() > 0)


def _repeats(tensors: Sequence[ms.Tensor]) -> bool:
    whole = [one.asnumpy() for one in tensors if "Int" in str(one.dtype)]
    return any(len(np.unique(one)) < one.size for one in whole)


def _masked(tensors: Sequence[ms.Tensor]) -> bool:
    rows = tensors[0].astype(ms.float32).asnumpy()
    return bool((rows < -1e4).all(-1).any())


FUNCTIONS = (
    *(
        WrongFunction("transposed", api, _STRIDED)
        for api in (
            "MintFunctional.relu",
            "MintFunctional.silu",
            "Mint.exp",
            "Mint.sigmoid",
            "Mint.sum",
            "Mint.flip",
            "Mint.cat",
            "Tensor.contiguous",
            "Mint.reshape",
            "Mint.matmul",
        )
    ),
    WrongFunction("expanded", "Mint.mul", _EXPANDED),
    WrongFunction("offset", "Mint.tanh", _OFFSET),
    WrongFunction("offset", "Mint.sub", _OFFSET),
    WrongFunction("repeated indices", "Mint.index_add", _repeats),
    WrongFunction("repeated indices", "Functional.tensor_scatter_add", _repeats),
    WrongFunction("masked rows", "MintFunctional.softmax", _masked),
    WrongFunction("changed argument", "Functional.batch_norm", lambda _: True, changes=1),
    WrongFunction("changed argument", "Functional.batch_norm", lambda _: True, changes=2),
)


def make_mindspore_step(dtype: str) -> Callable[[], None]:
    """Return a program that meets every condition."""
    draw = np.random.default_rng(3)

    def tensor(*shape: int) -> ms.Tensor:
        return ms.Tensor(draw.standard_normal(shape).astype(dtype))

    x, rows, column = tensor(2, 6, 8), tensor(7, 8), tensor(1, 8)
    index = ms.Tensor(np.array([0, 2, 2, 1, 0, 0, 2]), ms.int32)
    table, pictures = tensor(3, 8), tensor(2, 4, 5, 5)
    mean, var = ms.Tensor(np.zeros(4, dtype)), ms.Tensor(np.ones(4, dtype))
    scale, shift = ms.Tensor(np.ones(4, dtype)), tensor(4)
    masks = draw.random((6, 8)) < 0.4
    masks[2] = True
    lowest = ms.Tensor(np.where(masks, np.finfo(dtype).min, 0).astype(dtype))

    def step() -> None:
        turned = mint.transpose(x, 1, 2)
        functional.relu(turned)
        functional.silu(turned)
        mint.exp(turned)
        mint.sigmoid(turned)
        mint.sum(turned, 1)
        mint.flip(turned, (1,))
        mint.cat((turned, turned), 1)
        turned.contiguous()
        mint.reshape(turned, (2, 48))
        mint.matmul(x, turned)
        mint.mul(rows, mint.broadcast_to(column, (7, 8)))
        mint.tanh(mint.chunk(x, 2, -1)[1])
        mint.sub(rows[1:], rows[:-1])
        mint.index_add(table, 0, index, rows)
        ops.tensor_scatter_add(table, index.reshape(7, 1), rows)
        functional.softmax(lowest, dim=-1)
        ops.batch_norm(pictures, mean, var, scale, shift, True)

    return step


@contextmanager
def with_wrong_function(kind: WrongFunction, hits: list[str]) -> Iterator[None]:
    """Let every function that the tested side calls be wrong under the condition of a kind."""
    honest = MindSporeBackend.forward

    def forward(
        self: MindSporeBackend, function: Callable[..., Any], call: HostCall, plan: CallPlan
    ) -> Execution:
        def called(*args: Any, **kwargs: Any) -> Any:
            tensors = _tensors_of([*args, *kwargs.values()])
            if not kind.when(tensors):
                return function(*args, **kwargs)
            hits.append(kind.api)
            result = function(*args, **kwargs)
            if kind.changes is None:
                return _larger(result)
            tensors[kind.changes].assign_value(tensors[kind.changes] * 3)
            return result

        return honest(self, called, call, plan)

    MindSporeBackend.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        MindSporeBackend.forward = honest  # type: ignore[method-assign]


def _tensors_of(values: Sequence[Any]) -> list[ms.Tensor]:
    found = []
    for value in values:
        if isinstance(value, ms.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors_of(value)
    return found


def _larger(result: Any) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(map(_larger, result))
    return result * 1.5 if isinstance(result, ms.Tensor) else result


def attack_mindspore(dtype: str, task: str) -> Iterator[tuple[WrongFunction, int, bool, str]]:
    """Yield each kind with its hits, whether it was found, and what the checks said."""
    step = make_mindspore_step(dtype)
    with TemporaryDirectory() as folder:
        with Capture(folder, task=task, stacks=False, step_by="manual", framework="mindspore"):
            step()
        (path,) = Path(folder).glob("step0/*/dump.json")
        with open_dump(path) as dump:
            settings = CheckSettings(
                "mindspore", task, dump.data_folder, standard=STANDARDS["auto"]()
            )
            payloads = [dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)]
        checker = Checker(settings, "cpu")
        for kind in FUNCTIONS:
            yield _attacked(kind, checker, payloads)


def _attacked(
    kind: WrongFunction, checker: Checker, payloads: Sequence[TaskPayload]
) -> tuple[WrongFunction, int, bool, str]:
    total, found, said = 0, False, ""
    for payload in payloads:
        if payload.name.rpartition(".")[0] != kind.api:
            continue
        hits: list[str] = []
        with with_wrong_function(kind, hits):
            result = checker.check(payload)
        total += len(hits)
        found |= bool(hits) and Verdict.ERROR in (result.forward, result.backward)
        said = said or result.message or result.forward.value
    return kind, total, found, said


def main() -> int:
    """Attack as the command line says."""
    warnings.simplefilter("ignore")
    ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    cases = hit = found = 0
    for dtype, task in product(DTYPES, TASKS):
        for kind, hits, is_found, said in attack_mindspore(dtype, task):
            cases, hit, found = cases + 1, hit + (hits > 0), found + is_found
            if "-v" in sys.argv and not is_found:
                what = "hit, not found" if hits else "not hit"
                print(f"{what}: {kind.group}: {kind.api}, {dtype}, {task}: {said[:200]}")
    print(
        f"MindSpore {ms.__version__}: {len(FUNCTIONS)} kinds, {cases} cases: {hit} hit, {found} found"
    )
    return 0 if hit == cases and found >= 0.95 * cases else 1


if __name__ == "__main__":
    sys.exit(main())
