"""What holds for all tests: a run draws the same numbers as the run before, and waits as long as it must.

`--hypothesis-profile default` lets Hypothesis look at examples that no run has tried.
"""

import random
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# A machine that is busy with other tests makes an example slow, which says nothing of the code.
settings.register_profile(
    "the same examples in each run",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("the same examples in each run")


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    for framework in ("torch", "mindspore"):
        for seeding in ("manual_seed", "set_seed"):
            if seed := getattr(sys.modules.get(framework), seeding, None):
                seed(0)


@pytest.fixture(autouse=True, scope="module")
def seeded_before_what_a_module_shares() -> None:
    """Which tests a process has run before depends on how they are spread over processes."""
    _seed()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed each test as well, as the first of a module may have been another one."""
    _seed()
