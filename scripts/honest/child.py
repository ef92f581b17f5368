"""One honest program, in a process of its own.

    python -m scripts.honest.child PROGRAM FOLDER

Comes in: a program's name and a folder. Goes out: two captures in the folder, and one line of JSON: whether
losses and parameters are those of a run without capture, which tensors of the dumps are not what the
independent recorder saw, and what the precheck accuses.
"""

import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.capture import Capture
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import open_dump
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Task
from scripts.honest.comparison import compare_dump
from scripts.honest.programs import TORCH_PROGRAMS, Results, Training
from scripts.honest.ranked import RANKED_PROGRAMS, own_rank
from scripts.honest.recorder import IndependentRecorder

TASKS = ("tensor", "statistics")
# An alias would take the place of what they return or change.
_ON_TENSORS = {"__setitem__", "__getitem__", "detach", "view", "requires_grad_"}


def make_training(name: str) -> Training:
    """Make a program with numbers that are the same each time."""
    torch.manual_seed(3)
    if name in TORCH_PROGRAMS:
        training = TORCH_PROGRAMS[name]()
    elif name in RANKED_PROGRAMS:
        training = RANKED_PROGRAMS[name]()
    else:
        from scripts.honest.models import MODEL_PROGRAMS

        training = MODEL_PROGRAMS[name]()
    torch.manual_seed(4)
    return training


def same_results(one: Results, two: Results) -> bool:
    """Return whether all tensors have the same bits."""
    return len(one) == len(two) and all(
        torch.equal(a.nan_to_num(7), b.nan_to_num(7))
        if a.is_floating_point()
        else torch.equal(a, b)
        for a, b in zip(one, two, strict=True)
    )


def examine_program(name: str, folder: Path, standard: str = "auto") -> dict[str, Any]:
    """Run a program plain, captured with tensors and with statistics, and under the recorder."""
    plain = make_training(name)()
    found: dict[str, Any] = {"program": name, "repeats": same_results(plain, make_training(name)())}
    dumps: dict[str, Path] = {}
    for task in TASKS:
        training, out = make_training(name), folder / f"{name}-{task}"
        with Capture(out, task=task, step_by="manual", stacks=False, framework="pytorch"):
            results = training()
        for path in out.glob("step0/*/dump.json"):
            if path.parent.name in (f"rank{own_rank()}", f"proc{os.getpid()}"):
                dumps[task] = path
        found[f"{task}: same bits"] = same_results(plain, results)
    derived = _derived(dumps["tensor"]) if "tensor" in dumps else ()
    # Aliases change in which order gradients are added; where that changes a bit, there are none.
    for names in (derived, ()):
        recorder, training = IndependentRecorder(names), make_training(name)
        with recorder:
            results = training()
        if same_results(plain, results):
            break
    found["recorder: same bits"] = same_results(plain, results)
    for task in TASKS:
        if task not in dumps:
            found[task] = {"wrong": ["the capture ended before its end"], "accused": []}
            continue
        path = dumps[task]
        compared = compare_dump(path, recorder.calls, recorder.updates)
        found[task] = {
            "records": compared.records,
            "tensors": compared.tensors,
            "gradients": compared.gradients,
            "unseen": compared.unseen,
            "wrong": compared.wrong,
            **checked_dump(path, standard),
        }
    return found


def checked_dump(path: Path, standard: str) -> dict[str, Any]:
    """Check every call of a dump as `run_ut` does; return what is in error, and what is skipped."""
    with open_dump(path) as dump:
        settings = CheckSettings(
            dump.framework,
            dump.task,
            dump.data_folder,
            tests_dump=dump.task == "tensor",
            standard=STANDARDS[standard](),
        )
        payloads = [dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)]
    checker = Checker(settings, "cpu")
    accused, skipped = [], []
    for payload in payloads:
        result = checker.check(payload)
        verdicts = (result.forward, result.backward)
        if Verdict.ERROR in verdicts:
            accused.append(f"{payload.name}: {result.message}")
        elif Verdict.SKIP in verdicts:
            skipped.append(f"{payload.name}: {result.message}")
    return {"calls": len(payloads), "accused": accused, "skipped": skipped}


def _derived(path: Path) -> set[str]:
    """Return the names of calls of which a dump has gradients, but those that give views or work in place."""
    data = json.loads(path.read_bytes())["data"]
    names = {key.split(".")[-3] for key in data if key.endswith(".backward")}
    return {name for name in names if not name.endswith("_") or name.startswith("__")} - _ON_TENSORS


def main(words: Sequence[str] | None = None) -> int:
    """Examine the program that the command line names."""
    name, folder = words or sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("RESULT " + json.dumps(examine_program(name, Path(folder))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
