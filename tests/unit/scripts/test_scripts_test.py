"""Which tests are run: exhaustive and lonely ones only where that is asked for; which are tried again."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
TESTS = Path(__file__).resolve().parents[2]
SUITE = """
import pytest

def test_plain(): pass

@pytest.mark.exhaustive
def test_exhaustive(): pass

@pytest.mark.alone
def test_alone(): pass
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three tests, and what holds for the tests of this project."""
    folder = tmp_path_factory.mktemp("suite")
    shutil.copy(TESTS / "conftest.py", folder)
    (folder / "test_some.py").write_text(SUITE)
    return folder


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (["."], {"plain", "alone"}),
        (["--all", "."], {"plain", "exhaustive", "alone"}),
        (["--all", "-n", "1", "."], {"plain", "exhaustive"}),
        (["--alone", "."], {"alone"}),
        (["test_some.py::test_exhaustive"], {"exhaustive"}),
    ],
)
def test_what_is_run_is_what_was_asked_for(suite: Path, words: list[str], passed: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *words],
        cwd=suite,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"PASSED \S+::test_(\w+)", done.stdout)) == passed


def test_every_test_that_is_tried_again_is_there_and_has_its_reason() -> None:
    lines = (TESTS / "retried.txt").read_text("utf-8").splitlines()
    for line in lines:
        if not line.startswith("#"):
            test, _, reason = line.partition("  # ")
            path, _, name = test.partition("::")
            assert f"\ndef {name}(" in (TESTS.parent / path).read_text("utf-8"), test
            assert reason, test
