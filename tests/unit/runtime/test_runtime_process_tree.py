"""Which processes descend from another one."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ray_precheck.processes import descendants

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
# A process that starts another one, says its id, and waits.
PARENT = (
    "import subprocess, sys; child = subprocess.Popen(['sleep', '60']);"
    "print(child.pid, flush=True); sys.stdin.read(); child.kill(); child.wait()"
)


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """Return the ids of a child of this process and of its child."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    yield parent.pid, int(parent.stdout.readline())
    parent.communicate()


def test_children_and_their_children_are_found(family: tuple[int, int]) -> None:
    child, grandchild = family
    assert {child, grandchild} <= set(descendants(os.getpid()))
    assert descendants(child) == [grandchild]


def test_a_process_without_children_has_none(family: tuple[int, int]) -> None:
    assert descendants(family[1]) == []


def test_a_process_that_is_gone_has_none() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    time.sleep(0.01)
    assert descendants(gone.pid) == []
