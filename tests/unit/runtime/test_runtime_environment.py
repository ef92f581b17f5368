"""The variables of a run: what --debug sets is gone when the run ends."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.private_parts import DEBUG
from ray_precheck.replay.config import RunConfig
from ray_precheck.runtime.places import cluster
from ray_precheck.runtime.places.choice import open_nodes
from ray_precheck.runtime.places.devices import Node

pytestmark = pytest.mark.unit


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The values of the variable while a cluster starts and while it ends."""
    values: list[str | None] = []

    @contextmanager
    def open_none(*_: Any, **__: Any) -> Iterator[list[Node]]:
        values.append(os.environ.get(DEBUG))
        yield []
        values.append(os.environ.get(DEBUG))

    monkeypatch.setattr(cluster, "open_cluster", open_none)
    for name in ("RAY_USAGE_STATS_ENABLED", DEBUG):  # Put back after the test as they were.
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv(DEBUG)
    return values


def open_and_close(*, debug: bool) -> None:
    with ExitStack() as opened:
        open_nodes(
            RunConfig(Path("dump.json"), address="10.0.0.1:1", debug=debug), opened, show=False
        )


def test_debug_is_told_while_a_run_lasts_and_not_to_the_next_one(seen: list[str | None]) -> None:
    open_and_close(debug=True)
    assert DEBUG not in os.environ
    open_and_close(debug=False)
    assert seen == ["1", "1", None, None]


def test_a_variable_of_the_users_own_stays(
    seen: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEBUG, "yes")
    open_and_close(debug=True)
    assert (seen, os.environ[DEBUG]) == (["yes", "yes"], "yes")
