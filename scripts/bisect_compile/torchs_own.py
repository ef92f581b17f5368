"""Bisect one program with torch's own CompilerBisector.

    python -m scripts.bisect_compile.torchs_own PROGRAM [WORDS]

It runs in this process, judged as `ray-precheck bisect` judges; prints JSON: trials, seconds, found.
Its own command is not called: that one deletes the user's cache folder.
"""

import contextlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ.update(TORCHINDUCTOR_FX_GRAPH_CACHE="0", TORCHINDUCTOR_AUTOGRAD_CACHE="0")


def main() -> None:
    """Bisect the program that is named."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        with contextlib.redirect_stdout(sys.stderr):
            trials, found = _bisected(sys.argv[1], sys.argv[2:])
    seconds = round(time.monotonic() - begin, 1)
    print(json.dumps({"trials": trials, "seconds": seconds, "found": found}))


def _bisected(name: str, words: list[str]) -> tuple[int, str]:
    import torch
    import torch._inductor.config
    from torch._inductor.compiler_bisector import CompilerBisector

    from ray_precheck.commands.bisect.measure import OutputMeasure
    from ray_precheck.commands.bisect.targets.torch_compile.programs import (
        arrays_of,
        open_program,
        taken_over,
    )
    from ray_precheck.searching.bisection import TrialAnswer

    backward, words = "--backward" in words, [each for each in words if each != "--backward"]
    program = open_program({"program": name, "args": words, "backward": backward})

    def outputs(rung: str) -> dict[str, Any]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        with torch._inductor.config.patch(fallback_random=True), taken_over(rung) as calls:
            return arrays_of(program.run(calls))[0]

    golden, count = outputs("off"), [0]
    measure = OutputMeasure(Path("unused"))

    def is_right() -> bool:
        count[0] += 1
        return measure.compare(outputs("inductor"), golden).answer is TrialAnswer.PASS

    found = CompilerBisector.do_bisect(is_right)
    if found is None:
        return count[0], "nothing"
    return count[0], " ".join(
        str(each) for each in (found.backend, found.subsystem, found.debug_info)
    )


if __name__ == "__main__":
    main()
