"""The operator to blame where a program is wrong without torch.compile, too.

Comes in: a program whose eager outputs differ from the golden ones. Goes out: sentences. Called by the target
at its end. The program is captured with tensors, and `locate` computes each call in float64 from the very
inputs that it got.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ray_precheck.commands.bisect.trial_command import run_command
from ray_precheck.options.commands import IN_ERROR, PASSED
from ray_precheck.processes import module_command

_CALL = """\
import importlib, importlib.util, os, sys
sys.path.insert(0, os.getcwd())
name, function = sys.argv[1].rsplit(":", 1)
if name.endswith(".py"):
    spec = importlib.util.spec_from_file_location("program", name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
else:
    module = importlib.import_module(name)
model, inputs = getattr(module, function)()
model(**inputs) if isinstance(inputs, dict) else model(*inputs)
"""
# The lines of `locate` that name a culprit begin with its place.
_MOST_NAMED = 3


def eager_operators(
    program: str, args: Sequence[str], python: str, timeout_s: float, out: Path, scratch: Path
) -> Iterator[str]:
    """Yield which operators are wrong by themselves without torch.compile, or why that is not known.

    The capture stays in `out`/bisect_eager, what `locate` wrote in `out`/bisect_eager_located.
    """
    dump, located = out / "bisect_eager", out / "bisect_eager_located"
    interpreter = python or sys.executable
    words = [interpreter, program, *args]
    if ":" in program:
        script = scratch / "call.py"
        script.write_text(_CALL, encoding="utf-8")
        words = [interpreter, str(script), program]
    ours = module_command("ray_precheck")
    capture = [*ours, "capture", "-o", str(dump), "--task", "tensor", "--steps", "0", "--", *words]
    # Dynamo's own switch: torch.compile gives back what it is given.
    env = {**os.environ, "TORCHDYNAMO_DISABLE": "1"}
    end = run_command(capture, env, Path.cwd(), timeout_s, scratch / "capture.log")
    if end.code != 0:
        yield f"its operators are not known: capturing it without torch.compile ended: {end.said}"
        return
    log = scratch / "locate.log"
    look = [*ours, "locate", "-tp", str(dump), "-o", str(located)]
    end = run_command(look, os.environ, Path.cwd(), timeout_s, log)
    if end.code == PASSED:
        yield (
            "each operator is right by itself on the inputs that it got: the program is not the one that"
            f" --golden is of, or its inputs and weights are others; compare it with that: {dump}"
        )
    elif end.code == IN_ERROR:
        yield "wrong by themselves, without torch.compile:"
        lines = log.read_text("utf-8", errors="replace").splitlines()
        named = [line for line in lines if line[:1].isdigit() and ". " in line[:4]]
        yield from (f"  {line}" for line in named[:_MOST_NAMED])
        yield f"  rows: {located}"
    else:
        yield f"its operators are not known: locate ended with: {end.said}; the capture is {dump}"
