"""Lines of text with numbers, compared with those that stand in `tests/data/expected`.

With `RECORD_EXPECTED=1` in the environment the file is written anew. Numbers may differ by a
ten-thousandth, as other processors round sums otherwise.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "data" / "expected"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


def assert_expected(found: Sequence[str], file: str, *, tolerance: float) -> None:
    """The lines are those of a file; a number may also be off by `tolerance`."""
    path = _FOLDER / file
    if os.environ.get("RECORD_EXPECTED"):
        path.write_text("\n".join([*found, ""]))
    expected = path.read_text().splitlines()
    words = [_NUMBER.sub("#", line) for line in expected]
    assert [_NUMBER.sub("#", line) for line in found] == words
    for line, other in zip(found, expected, strict=True):
        numbers = [float(number) for number in _NUMBER.findall(other)]
        assert list(map(float, _NUMBER.findall(line))) == pytest.approx(
            numbers, rel=1e-4, abs=tolerance
        ), other
