"""One captured step, in a process of its own.

    python -m scripts.capture_parity.child TOOL MODEL LEVEL GRADIENTS OUT

Comes in: `ours` or `msprobe`, a model's name, L1 or mix, border or node (ours alone), and a folder. Goes out:
a capture of one step, forward and backward, in the folder. Started by the main module, which puts msprobe and
what it needs on the Python path.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from scripts.capture_parity.models import TrainedModel, make_model


def capture_with_ours(trained: TrainedModel, level: str, gradients: str, out: Path) -> None:
    """Capture a step with this package."""
    from ray_precheck.capture import Capture

    with Capture(out, level=level, model=trained.module, gradients=gradients):
        trained.loss().backward()  # type: ignore[no-untyped-call]


def capture_with_msprobe(trained: TrainedModel, level: str, _: str, out: Path) -> None:
    """Capture a step with msprobe."""
    from msprobe.pytorch import PrecisionDebugger

    part: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["all"]}
    settings = {
        "task": "statistics",
        "dump_path": str(out),
        "rank": [],
        "step": [],
        "level": level,
        "risk_level": "ALL",
        "extra_info": True,
        "async_dump": False,
        "statistics": {**part, "summary_mode": "statistics"},
        "tensor": part,
    }
    path = out.with_suffix(".json")
    path.write_text(json.dumps(settings), encoding="utf-8")
    debugger = PrecisionDebugger(config_path=str(path))
    debugger.start(model=trained.module)
    trained.loss().backward()  # type: ignore[no-untyped-call]
    debugger.stop()
    debugger.step()


TOOLS: dict[str, Callable[[TrainedModel, str, str, Path], None]] = {
    "ours": capture_with_ours,
    "msprobe": capture_with_msprobe,
}


def main() -> None:
    """Capture as the command line says."""
    tool, model, level, gradients, out = sys.argv[1:]
    torch.set_num_threads(1)
    trained = make_model(model)
    TOOLS[tool](trained, level, gradients, Path(out))


if __name__ == "__main__":
    main()
