"""Each test of the hooks begins without any, in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _without_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("torch")
    from ray_precheck.hooks import step_schedule, unregister_hook

    monkeypatch.chdir(tmp_path)
    step_schedule.reset_step()
    yield
    unregister_hook()
