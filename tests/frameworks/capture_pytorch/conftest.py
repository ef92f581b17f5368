"""Captures made in the process of the test."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.capture import Capture

Records = dict[str, Any]


@pytest.fixture
def captured(tmp_path: Path) -> Callable[..., Records]:
    """Run an action under a capture and return the records of step 0."""

    def run(action: Callable[[], object], **options: Any) -> Records:
        folder = tmp_path / f"dump{len(list(tmp_path.iterdir()))}"
        with Capture(folder, step_by="manual", framework="pytorch", **options):
            action()
        (dump,) = folder.glob("step0/*/dump.json")
        return dict(json.loads(dump.read_text())["data"])

    return run
