"""The framework that a dump is tested with, and whose results are tested."""

import io
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.dump.parse import Dump
from ray_precheck.errors import DumpError, UsageError
from ray_precheck.replay import selected
from ray_precheck.replay.config import RunConfig

pytestmark = pytest.mark.unit

PATH = Path("dump.json")


def config(**options: Any) -> RunConfig:
    return RunConfig(PATH, **options)


def dump(framework: str = "", task: str = "statistics") -> Dump:
    return Dump(PATH, task, framework, Path("tensors"), io.BytesIO())


@pytest.mark.parametrize(
    ("asked", "named", "framework"),
    [
        (None, "pytorch", "pytorch"),
        ("pytorch", "", "pytorch"),
        ("pytorch", "pytorch", "pytorch"),
        ("mindspore", "mindtorch", "mindtorch"),  # as msprobe takes dumps of mindtorch
        ("mindtorch", "mindtorch", "mindtorch"),
    ],
)
def test_the_framework_is_that_of_the_dump_or_else_the_one_asked_for(
    asked: str | None, named: str, framework: str
) -> None:
    assert selected.framework_of(config(framework=asked), dump(named)) == framework


@pytest.mark.parametrize(("asked", "named"), [("pytorch", "mindspore"), ("mindtorch", "mindspore")])
def test_a_dump_of_another_framework_is_refused(asked: str, named: str) -> None:
    with pytest.raises(DumpError, match=rf"is a dump of {named}, but -f {asked} was given"):
        selected.framework_of(config(framework=asked), dump(named))


def test_a_dump_without_a_framework_needs_one() -> None:
    with pytest.raises(DumpError, match="does not name its framework"):
        selected.framework_of(config(framework=None), dump())


@pytest.mark.parametrize(
    ("tested", "task", "captured"),
    [
        (None, "tensor", True),
        (None, "statistics", False),
        ("device", "tensor", False),
        ("device", "statistics", False),
        ("dump", "tensor", True),
    ],
)
def test_captured_results_are_tested_unless_the_device_is_asked_for(
    tested: str | None, task: str, captured: bool
) -> None:
    given = {} if tested is None else {"tested": tested}
    assert selected.tests_captured(config(**given), dump(task=task)) is captured


def test_captured_results_must_be_there() -> None:
    with pytest.raises(UsageError, match=r"the task of dump\.json is statistics"):
        selected.tests_captured(config(tested="dump"), dump())
