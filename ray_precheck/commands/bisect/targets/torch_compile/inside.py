"""Trials of torch.compile, in the interpreter that has torch: what `bisect/inside/serve.py` loads by path.

Comes in: settings (`open_target`), and requests: {"kind": "check"}, {"kind": "look"} or {"kind": "run"}.
Goes out: answers of plain values; outputs travel as .npz files. The modules beside this file are loaded as a
package of their own, since that interpreter may lack this one: they use the standard library, numpy and torch
alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "bisect_torch_compile"


def open_target(settings: Mapping[str, Any]) -> Any:
    """Return what answers requests.

    `settings`: program, args (words for a script), backward, cache (a folder), floors (what honest results
    may differ by, by dtype, relative to the largest element).
    """
    # Torch reads these when it is imported. Caches would hand a trial what another one compiled; one process
    # compiles, since a pool of them would be started anew for each trial process.
    caches = ("FX_GRAPH_CACHE", "AUTOGRAD_CACHE", "FX_GRAPH_REMOTE_CACHE", "AUTOGRAD_REMOTE_CACHE")
    os.environ.update({f"TORCHINDUCTOR_{name}": "0" for name in caches})
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = settings["cache"]
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    importlib.import_module("torch")  # Where it is missing, that is what is said.
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules[_PACKAGE] = package
    return importlib.import_module(f"{_PACKAGE}.trials").TrialBench(settings)
