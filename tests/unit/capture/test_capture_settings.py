"""The arguments of `Capture` are checked before a step runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.capture import Capture
from ray_precheck.capture.settings import capture_settings
from ray_precheck.errors import UsageError


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        ({"scope": "Torch.sin.0, Torch.cos.0"}, "scope", ("Torch.sin.0", "Torch.cos.0")),
        ({"chosen": "linear"}, "chosen", ("linear",)),
        ({"tensor_list": "linear"}, "tensor_list", ("linear",)),
        ({"chosen": None}, "chosen", ()),
    ],
    ids=str,
)
def test_a_single_text_is_one_value(given: dict[str, Any], name: str, expected: Any) -> None:
    assert getattr(capture_settings(path="dump", **given), name) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_bytes": "5"}, "max_bytes '5' is wrong"),
        ({"max_bytes": -1}, "max_bytes -1 is wrong"),
        ({"path": None}, "None is no path"),
        ({"scope": ["Torch.sin.0"]}, "scope has 1 names"),
        ({"chosen": ["name-regex(()"]}, "is no regular expression"),
        ({"model": 5}, "model is a int; expected a torch.nn.Module"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_an_error_at_once(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Capture(**{"path": tmp_path / "dump", "framework": "pytorch", **given})


def test_an_unknown_argument_names_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="levle: no option of a capture") as raised:
        capture_settings(path=tmp_path, levle="L1")
    assert "section" not in str(raised.value)
