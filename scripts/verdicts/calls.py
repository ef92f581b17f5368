"""The calls that `verdicts.py` judges: the generated ones, and those of captures.

Comes in: what to judge. Goes out: calls, each with the payload that a run would send to a worker.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.descriptors.descriptor import framework_dtype
from ray_precheck.dump.parse import open_dump
from ray_precheck.replay.planner import AlikeCalls
from ray_precheck.schema.task import Task, TaskPayload
from scripts.verdicts.cases import Case, cases
from scripts.verdicts.subject import Run, Shared


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `mint` is its name in MindSpore, "" for none; `data` the folder of its captured
    tensors, None where inputs are generated."""

    label: str
    framework: str
    payload: TaskPayload
    mint: str
    seed: int
    data: Path | None = None

    def run(self, shared: Shared) -> Run:
        """Return the call with its inputs; raises `NotCheckable` where it cannot be built."""
        return Run(self.payload, self.mint, shared, self.seed, self.data)


def generated_calls(
    dtypes: Sequence[str], apis: Sequence[str], seeds: Sequence[int], *, as_mindspore: bool = False
) -> Iterator[Call]:
    """Yield the calls of `verdicts_cases.py` whose names have one of the parts `apis`, all for ().

    `as_mindspore`: their namesakes, as a dump of MindSpore has them.
    """
    for seed in seeds:
        for dtype in dtypes:
            for case in cases(dtype):
                if apis and not any(part in case.name for part in apis):
                    continue
                label = f"{case.name} {case.label}".rstrip()
                payload = case.payload(dtype)
                if not as_mindspore:
                    yield Call(label, "pytorch", payload, case.mint_name, seed)
                elif case.mint_name:
                    payload = _as_mindspore(case, payload)
                    yield Call(label, "mindspore", payload, case.mint_name, seed)


def _as_mindspore(case: Case, payload: TaskPayload) -> TaskPayload:
    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(item) for item in value]
        if not isinstance(value, dict):
            return value
        found = {key: renamed(item) for key, item in value.items()}
        if found.get("type") == "torch.Tensor":
            dtype = found["dtype"].removeprefix("torch.")
            return {
                **found,
                "type": "mindspore.Tensor",
                "dtype": framework_dtype(dtype, "mindspore"),
            }
        return found

    forward = json.dumps(renamed(json.loads(payload.forward))).encode()
    behind = payload.backward and json.dumps(renamed(json.loads(payload.backward))).encode()
    return TaskPayload(0, f"{case.mint_name}.0", forward, behind)


def captured_calls(path: Path, apis: Sequence[str], seed: int) -> Iterator[Call]:
    """Yield the calls of a dump, with the captured tensors where it holds some.

    Of calls that are alike in name, shapes, dtypes and scalars only the first.
    """
    seen = AlikeCalls()
    with open_dump(path) as dump:
        data = dump.data_folder if dump.task == "tensor" else None
        for index, call in enumerate(dump.calls):
            if apis and not any(part in call.name for part in apis):
                continue
            payload = dump.payload(Task(index, call.name, 0.0))
            if seen.reason(call.name, payload.forward, payload.backward):
                continue
            # A torch call's namesake in MindSpore may take its arguments for something else.
            mint = call.name.rpartition(".")[0] if dump.framework == "mindspore" else ""
            label = f"{path.parent.name} {call.name}"
            yield Call(label, dump.framework, payload, mint, seed, data)
