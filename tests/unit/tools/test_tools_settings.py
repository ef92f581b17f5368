"""precision_tool's config.py is read as literals, and never run."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.errors import UsageError
from ray_precheck.tools.precision_tool.settings import ToolSettings, read_settings

pytestmark = pytest.mark.unit

# As the guide prints it.
_GUIDE = """
# Dump config '0|5|10'
TF_DUMP_STEP = '0|5|10'
FUSION_SWITCH_FILE = './precision_tool/fusion_switch.cfg'
CMD_ROOT_PATH = '/opt/Ascend'
ASCEND_LOG_PATH = '/root/ascend/log/plog/'
# TOOL CONFIG
LOG_LEVEL = "NOTSET"
DATA_ROOT_DIR = './my_data'
"""
# As in v0.1.11: the folders are expressions.
_NEWER = """
import os
TF_DUMP_STEP = '0'
ROOT_DIR = '/data'
DATA_ROOT_DIR = os.path.join(ROOT_DIR, 'precision_data')
FUSION_SWITCH_FILE = os.path.join(DATA_ROOT_DIR, 'fusion_switch.cfg')
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "config.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_defaults_are_those_of_the_guide(tmp_path: Path) -> None:
    found = read_settings(tmp_path / "nothing.py")
    assert found == ToolSettings(
        "0", "./precision_tool/fusion_switch.cfg", "/usr/local/", "/root/ascend/log/plog/", "NOTSET",
        "./precision_data",
    )  # fmt: skip
    assert found.steps == (0,)


def test_what_is_assigned_as_a_literal_counts(tmp_path: Path) -> None:
    found = read_settings(written(tmp_path, _GUIDE))
    assert found.steps == (0, 5, 10)
    assert (found.cmd_root_path, found.data_root_dir) == ("/opt/Ascend", "./my_data")
    newer = read_settings(written(tmp_path, _NEWER))
    assert newer.data_root_dir == "/data/precision_data"
    assert newer.fusion_switch_file == ToolSettings().fusion_switch_file
    assert read_settings(written(tmp_path, "TF_DUMP_STEP = None")).steps == ()


def test_nothing_of_it_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    path = written(
        tmp_path, f"open({str(ran)!r}, 'w')\nLOG_LEVEL = __import__('os').system('touch {ran}')\n"
    )
    assert read_settings(path) == ToolSettings()
    assert not ran.exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("TF_DUMP_STEP = '0|x'", "is no list of steps"),
        ("TF_DUMP_STEP = ['0']", "a text in quotes is expected"),
        ("LOG_LEVEL = 'LOUD'", "expected one of: NOTSET"),
        ("TF_DUMP_STEP = ", "is no Python"),
        ("\0", "is no Python"),
        ("x" * (1 << 21), "settings are short"),
        ("(" * 100_000, "is no Python"),
    ],
)
def test_what_is_wrong_is_a_sentence(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_settings(written(tmp_path, text))


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_settings_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], folder: str
) -> None:
    text = f"TF_DUMP_STEP = {'|'.join(map(str, steps))!r}\nDATA_ROOT_DIR = {folder!r}\n"
    found = read_settings(written(tmp_path_factory.mktemp("tool"), text))
    assert found.steps == tuple(steps)
    assert found.data_root_dir == folder
