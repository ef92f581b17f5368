"""What holds for all tests: which are run, the same numbers in each run, and waits as long as they must.

`--all` runs exhaustive repetition too. `--hypothesis-profile default` lets Hypothesis look at examples that
no run has tried.
"""

import random
import sys
from collections.abc import Iterator

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="exhaustive repetition too")
    parser.addoption("--alone", action="store_true", help="tests that need the machine, no others")


def pytest_configure(config: pytest.Config) -> None:
    for mark in (
        "exhaustive: asks once more, of other members of a family, what a shorter test asks: with --all",
        "alone: needs the machine for itself: never beside others, which is where xdist runs",
    ):
        config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for; a test that is named (`FILE::TEST`) is run in any case."""
    if any("::" in argument for argument in config.args):
        return
    kept, left_out = [], []
    for item in items:
        is_exhaustive, is_alone = (
            item.get_closest_marker(mark) is not None for mark in ("exhaustive", "alone")
        )
        beside_others = hasattr(config, "workerinput")
        is_out = (
            (is_exhaustive and not config.option.all)
            or (is_alone and beside_others)
            or (config.option.alone and not is_alone)
        )
        (left_out if is_out else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


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


@pytest.fixture(scope="session", autouse=True)
def _servers() -> Iterator[None]:
    """Let all tests of this process that run commands share what has imported the frameworks."""
    from ray_precheck.runtime.workers.fork_server import kept_servers

    with kept_servers():
        yield
