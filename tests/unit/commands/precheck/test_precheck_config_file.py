"""msprobe's config.json: where the lists stand, and what is wrong with a file in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.commands.precheck.command import CheckerConfig, read_checker_config
from ray_precheck.errors import UsageError

pytestmark = pytest.mark.unit

LISTS = {"white_list": ["conv2d"], "black_list": ["relu", "linalg.inv"]}
READ = CheckerConfig(("conv2d",), ("relu", "linalg.inv"))


def written(tmp_path: Path, content: Any) -> Path:
    """A config.json with this content."""
    path = tmp_path / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    "content",
    [
        LISTS,
        {"acc_check": LISTS},
        {"task": "run_ut", "run_ut": LISTS},
        {"task": "statistics", "statistics": {"list": ["add"]}, "acc_check": LISTS},
        {"white_list": ["add"], "run_ut": {"white_list": ["mul"]}, "acc_check": LISTS},
    ],
)
def test_the_lists_stand_in_a_section_or_at_the_top(tmp_path: Path, content: Any) -> None:
    assert read_checker_config(written(tmp_path, content)) == READ


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    assert read_checker_config(written(tmp_path, "\ufeff" + json.dumps(LISTS))) == READ


def test_the_config_that_msprobe_ships_leaves_nothing_out(tmp_path: Path) -> None:
    shipped = {
        "task": "statistics",
        "dump_path": "./dump_path",
        "rank": [],
        "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"},
    }
    assert read_checker_config(written(tmp_path, shipped)) == CheckerConfig(
        error_data_path=Path("./")
    )


def test_words_that_change_nothing_are_warned_of(tmp_path: Path) -> None:
    (warning,) = read_checker_config(written(tmp_path, {"run_ut": {"whitelist": []}})).warnings
    assert "'whitelist' in 'run_ut' is unknown" in warning
    (warning,) = read_checker_config(written(tmp_path, {"task": "tensor"})).warnings
    assert "has no section 'acc_check' or 'run_ut'" in warning


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "the whole file: [] where an object"),
        ({"run_ut": []}, "section 'run_ut': [] where an object"),
        ({"white_list": "conv2d"}, 'white_list: "conv2d" where a list of names'),
        ({"black_list": [1]}, "black_list: [1] where a list of names"),
        ({"acc_check": {"white_list": [""]}}, 'white_list: [""] where'),
        ({"error_data_path": "/no/such/folder"}, "where a folder that exists is expected"),
        ({"error_data_path": 3}, "error_data_path: 3 where a folder"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, content: Any, part: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UsageError) as wrong:
        read_checker_config(path)
    text = str(wrong.value)
    assert text.startswith("-config: ")
    assert str(path) in text
    assert part in text
    assert len(text) < 300 + len(str(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(UsageError, match=f"-config: cannot read {path}"):
            read_checker_config(path)
