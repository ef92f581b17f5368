"""One model in one dtype, in a process of its own.

    python -m scripts.locate_faults.child MODEL DTYPE FOLDER SEEDS FORWARD GRADIENT UPDATE HIDDEN

Comes in: names, a folder, and how many of each. Goes out: captures in the folder, and `cases.json`. Started
by the main module.
"""

import sys
import warnings
from pathlib import Path

import torch

from scripts.locate_faults.cases import write_cases
from scripts.locate_faults.planting.making import maker_of
from scripts.locate_faults.planting.models import make_victim
from scripts.locate_faults.planting.plan import Counts


def main() -> None:
    """Capture as the command line says."""
    name, dtype, folder, *counts = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind = getattr(torch, dtype)
    out = Path(folder)
    maker = maker_of(name, kind, make_victim(name, kind), out, Counts(*map(int, counts)))
    write_cases(out, list(maker.cases()))


if __name__ == "__main__":
    main()
