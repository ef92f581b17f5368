"""Captures of MindSpore made in the process of the test."""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.capture import Capture
from ray_precheck.check.checker import Checker

with warnings.catch_warnings():
    # MindSpore's import may warn of what the machine lacks (CANN); that is none of ours.
    warnings.simplefilter("ignore")
    pytest.importorskip("mindspore")

Records = dict[str, Any]


@pytest.fixture(scope="session", autouse=True)
def device_before_captures(mindspore_checker: Checker) -> None:
    """Open the checker of this session: it sets the device, which works before the first kernel alone."""


@pytest.fixture(autouse=True)
def pynative_mode() -> Iterator[None]:
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture
def captured(tmp_path: Path) -> Callable[..., Records]:
    """Run an action under a capture and return the records of step 0."""

    def run(action: Callable[[], object], **options: Any) -> Records:
        with Capture(tmp_path / "dump", step_by="manual", framework="mindspore", **options):
            action()
        dump = tmp_path / "dump" / "step0" / f"proc{os.getpid()}" / "dump.json"
        return dict(json.loads(dump.read_text())["data"])

    return run
