"""The costs of records, for simulations and pretend devices, drawn from the estimates of a capture.

Comes in: the estimated costs of a real dump, a seed. Goes out: estimates and actual times in
seconds. Called by python -m scripts.simulate and scripts/speed/efficiency.py.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.dump.parse import open_dump
from ray_precheck.replay.planner import plan_tasks
from ray_precheck.schema.task import Task
from scripts.measuring import CAPTURES

CAPTURE = CAPTURES / "mindspore_llm" / "dump.json"
# The estimate of a call with tiny tensors and no backward record, the least there is.
TINY_S = 1.2e-3
LARGE_S = 20e-3
# A pair of dumps of `scripts.speed.locate_scale`, 10,000 calls each, and how many pairs a run of `locate`
# has.
PAIR_S = 0.15
COUNTS = {"locate": 1000}
# One record in this many is costly, and the costly ones take this share of the whole time.
COSTLY_EVERY = 100
COSTLY_SHARE = 0.5
# Actual times scatter around the estimates like this (standard deviation of the logarithm), the
# costly ones among each other too.
ERROR_SIGMA = 0.3
COSTLY_SIGMA = 0.5


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks in the order to run them, and the actual seconds of each by its index."""

    name: str
    tasks: list[Task]
    actual_s: list[float]

    @property
    def total_s(self) -> float:
        """The seconds that all records take together on one device."""
        return sum(self.actual_s)

    @property
    def longest_s(self) -> float:
        """The seconds that the longest record takes."""
        return max(self.actual_s, default=0.0)


def estimates_of(capture: Path = CAPTURE) -> list[float]:
    """Return the planner's estimates for every call of a capture, in seconds."""
    with open_dump(capture) as dump:
        return [task.cost_s for task in plan_tasks(dump, dump.framework, set()).tasks]


def draw_heavy(
    estimates: Sequence[float], count: int, rng: random.Random, mean_s: float = 0.0
) -> list[float]:
    """Draw estimates of which 1 % take half of the whole time; with `mean_s` scaled to that mean."""
    costs = rng.choices(estimates, k=count)
    costly = rng.sample(range(count), max(1, round(count / COSTLY_EVERY)))
    for index in costly:
        costs[index] *= rng.lognormvariate(0.0, COSTLY_SIGMA)
    theirs = sum(costs[index] for index in costly)
    factor = COSTLY_SHARE / (1 - COSTLY_SHARE) * (sum(costs) - theirs) / theirs
    for index in costly:
        costs[index] *= factor
    scale = mean_s * count / sum(costs) if mean_s else 1.0
    return [cost * scale for cost in costs]


def _draw(name: str, count: int, rng: random.Random) -> list[float]:
    estimates = estimates_of()
    draws: dict[str, Callable[[], list[float]]] = {
        "tiny": lambda: [TINY_S] * count,
        "typical": lambda: rng.choices(estimates, k=count),
        "20ms": lambda: [LARGE_S] * count,
        "heavy": lambda: draw_heavy(estimates, count, rng),
        "heavy20ms": lambda: draw_heavy(estimates, count, rng, LARGE_S),
        "locate": lambda: [PAIR_S] * count,
    }
    return draws[name]()


WORKLOADS = ("tiny", "typical", "20ms", "heavy", "heavy20ms", "locate")


def draw_workload(name: str, count: int, seed: int) -> Workload:
    """Draw `count` tasks; the same arguments give the same workload."""
    rng = random.Random(f"{name} {count} {seed}")
    costs = _draw(name, count, rng)
    # The logarithm's mean is such that the mean of the factor is 1.
    middle = -(ERROR_SIGMA**2) / 2
    actual_s = [cost * math.exp(rng.gauss(middle, ERROR_SIGMA)) for cost in costs]
    tasks = [Task(index, f"Mint.a{index % 100}.{index}", cost) for index, cost in enumerate(costs)]
    tasks.sort(key=lambda task: (-task.cost_s, task.index))
    return Workload(name, tasks, actual_s)
