"""Dumps of older msprobe are read: `tests/data/msprobe_old` was written by mindstudio-probe 1.0.4 and
8.3.0."""

from pathlib import Path

import pytest

from ray_precheck.commands.compare.run import compare_captures
from ray_precheck.dump.parse import open_dump
from ray_precheck.trace.side import open_side
from ray_precheck.trace.sources import source_lines

pytestmark = pytest.mark.unit
OLD = Path(__file__).parents[2] / "data" / "msprobe_old"
CALLS = {"1.0.4": 13, "8.3.0": 13}


@pytest.mark.parametrize("version", CALLS)
def test_its_calls_modules_and_lines_are_known(version: str) -> None:
    path = OLD / version / "dump.json"
    key = "Functional.conv1d.0.forward"
    with open_dump(path) as dump:
        # The header of 1.0 does not name the framework; its tensors do.
        assert dump.framework == "pytorch"
        assert sum(not call.foreign for call in dump.calls) == CALLS[version]
    with open_side(path) as side:
        assert side.modules[key] == "Module.c.Conv1d.forward.0"
        assert any("net.py" in line for line in side.stacks[key])
    assert source_lines(path, [key])[key].startswith("/home/user/net.py:")


def test_two_versions_are_compared(tmp_path: Path) -> None:
    (report,) = compare_captures(OLD / "1.0.4", OLD / "8.3.0", out=tmp_path).reports
    alone = report.calls[report.calls["Result"] == "unmatched"]
    # 8.3 captures casts and powers, 1.0.4 what torch's own modules call.
    names = {name.split(".")[1] for name in alone.iloc[:, 0] if not name.startswith("Module.")}
    assert names == {"half", "float", "__pow__", "view_as"}
