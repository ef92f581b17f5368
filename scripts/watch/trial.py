"""Try rules of `capture --watch`: whether they fire in honest steps, and which planted jumps they find.

    python -m scripts.watch.trial [--steps N] [--seeds N] [--rule RULE ...]

Comes in: the trainings of `scripts.watch.trainings`. Goes out: how often each rule fired in `--steps` honest
steps of each training, for each seed; and of how many trainings a rule found a jump, in its step or one of
the three behind it.
"""

import argparse
import csv
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from ray_precheck.capture import Capture
from scripts.watch.trainings import JUMPS, TRAININGS

# The first is the one that people write first; the others are those that the docs recommend.
FIRST = "grad_norm > 10 * median"
RULES = (
    "grad_norm > 5 * max(grad_norm, 200)",
    "nan > 0 or inf > 0",
    "max(loss, 500) > 0 and loss > 10 * max(loss, 500)",
    "step > 100 and (param_norm > 1.1 * last or param_norm < 0.9 * last)",
)
# At which step a jump happens, after which a training ends, and within how many steps a rule finds it.
_AT, _COUNT, _WITHIN = 400, 410, 4


def watched(
    name: str, steps: int, rules: Sequence[str], jump: str = "", seed: int = 0
) -> list[set[str]]:
    """Return the rules that fired in each step of a training."""
    torch.manual_seed(seed)
    training = TRAININGS[name]()
    with tempfile.TemporaryDirectory(prefix="watch_trial_") as folder:
        path = Path(folder)
        with Capture(path, model=training.model, watch=True, triggers=rules, trigger_most=0):
            for _ in training.steps(steps, jump, _AT if jump else -1):
                pass
        with (path / "watch_0.csv").open(encoding="utf-8-sig", newline="") as file:
            return [{*row["Trigger"].split("; ")} - {""} for row in csv.DictReader(file)]


def found_jump(name: str, jump: str, rules: Sequence[str]) -> set[str]:
    """Return the rules that find a jump in a training."""
    return set[str]().union(*watched(name, _COUNT, rules, jump)[_AT : _AT + _WITHIN])


def main() -> int:
    """Try rules on all trainings, and print what they did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rule", nargs="+", default=[FIRST, *RULES])
    given = parser.parse_args()
    torch.set_num_threads(1)
    rules: list[str] = given.rule
    print("| training | honest steps |", " | ".join(f"`{rule}`" for rule in rules), "|")
    for name in TRAININGS:
        honest = [
            fired
            for seed in range(given.seeds)
            for fired in watched(name, given.steps, rules, seed=seed)
        ]
        alarms = [sum(rule in fired for fired in honest) for rule in rules]
        print("|", name, "|", f"{len(honest):,}", "|", *(f"{n} |" for n in alarms), flush=True)
    print("| jump | any |", " | ".join(f"`{rule}`" for rule in rules), "|")
    for jump in JUMPS:
        names = [name for name, make in TRAININGS.items() if make().knows(jump)]
        found = {name: found_jump(name, jump, rules) for name in names}
        of_rules = [sum(rule in each for each in found.values()) for rule in rules]
        missed = [name for name in names if not found[name]]
        print(
            f"| {jump} | {len(names) - len(missed)} of {len(names)} |",
            *(f"{n} |" for n in of_rules),
            "; ".join(missed),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
