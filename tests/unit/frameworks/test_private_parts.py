"""The private parts of Ray and of frameworks: what is done on a version that lacks one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ray_precheck import private_parts
from ray_precheck.private_parts import ALL, DEBUG, PrivatePart, find

pytestmark = pytest.mark.unit
PACKAGE = Path(private_parts.__file__).parent
GONE = PrivatePart(
    ("json:no_such_name", "no_such_module.at_all:name"), "does a thing", "it is left"
)


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_parts, "_told", set())
    monkeypatch.delenv(DEBUG, raising=False)


def test_the_first_place_that_exists_is_taken() -> None:
    part = PrivatePart(("json:no_such_name", "os:path.join", "json:dumps"), "", "")
    assert find(part) is os.path.join


def test_a_missing_part_is_told_once_and_with_debug_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find(GONE) is None
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(DEBUG, "1")
    assert [find(GONE), find(GONE)] == [None, None]
    assert capsys.readouterr().err == (
        "ray-precheck: json (of unknown version) has no json.no_such_name or"
        " no_such_module.at_all.name, which does a thing; instead: it is left\n"
    )


def test_the_message_names_the_installed_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DEBUG, "1")
    assert find(PrivatePart(("numpy:no_such_name",), "x", "y")) is None
    version = private_parts.importlib.metadata.version("numpy")
    assert f"numpy {version} has no numpy.no_such_name" in capsys.readouterr().err


@pytest.mark.parametrize("part", ALL, ids=lambda part: part.places[0])
def test_every_part_of_the_list_is_used_and_says_what_happens_without(part: PrivatePart) -> None:
    (name,) = [name for name, value in vars(private_parts).items() if value is part]
    asked = re.compile(rf"private_parts\.{name}\b")
    users = [path for path in PACKAGE.rglob("*.py") if asked.search(path.read_text())]
    assert users, f"nobody asks for {name}"
    assert part.use
    assert part.otherwise


# The names that `torch.save` writes into its files are read there, and nothing is imported under them
# (tests/unit/dump/test_dump_torch_archives.py looks for torch among the imported modules).
NAMES_OF_A_FORMAT = (
    '("torch._utils", "_rebuild_tensor_v2"): ',
    '("torch._utils", "_rebuild_parameter"): ',
)


def test_no_other_module_uses_a_private_part_by_itself() -> None:
    # Tests of single names: a part with an underscore behind the name of Ray or of a framework.
    whose = r"(ray|torch|torch_npu|mindspore|ms)(\.[a-z_]+)*"
    search = rf"(^|[^\w.]){whose}\._[a-z]|^from {whose} import (.*[ ,])?_[a-z]"
    found = subprocess.run(
        ["grep", "-rnE", search, "--include=*.py", str(PACKAGE)], capture_output=True, text=True, check=False
    ).stdout.splitlines()  # fmt: skip
    # What bisects a compiler is about its private parts, of the interpreter that has it.
    apart = "private_parts.py", "commands/bisect/targets/torch_compile/"
    elsewhere = [line for line in found if not any(a in line.split(":", 1)[0] for a in apart)]
    assert [
        line
        for line in elsewhere
        if "dump/mapped.py" not in line or not any(name in line for name in NAMES_OF_A_FORMAT)
    ] == []


def test_without_the_dispatch_mode_there_is_no_composed_peer() -> None:
    pytest.importorskip("torch")
    source = """
from ray_precheck import private_parts
from ray_precheck.errors import NotCheckable
private_parts.find = lambda part: None
from ray_precheck.bench.rounded import rounded_arithmetic
try:
    with rounded_arithmetic("float32"):
        print("entered")
except NotCheckable as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("torch ")
    assert "lets nobody see the steps of a call" in done.stdout
