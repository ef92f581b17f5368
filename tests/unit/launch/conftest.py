"""The folder of the stand-ins: short, because the scripts hold Ray's sockets to 107 characters."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_ins import StandIns, listening_head


@pytest.fixture
def stand_ins() -> Iterator[StandIns]:
    folder = Path(tempfile.mkdtemp(prefix="rps-"))
    with listening_head() as head:
        made = StandIns(folder, head)
        yield made
        for process in made.living():
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)
