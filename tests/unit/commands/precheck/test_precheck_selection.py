"""A run about some calls only: its rows, and going on with it. No device is needed: every call is
one of a collective, which is skipped by its name."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.commands.precheck.run import PrecheckReport, run
from ray_precheck.errors import ResumeError, UsageError
from ray_precheck.replay.config import RunConfig
from ray_precheck.store.results import read_results

pytestmark = pytest.mark.unit

KINDS = ("all_reduce", "all_gather", "broadcast")


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump of two calls of each of three collectives."""
    data = {
        f"Distributed.{kind}.{n}.forward": {"input_args": [], "input_kwargs": {}, "output": []}
        for kind in KINDS
        for n in range(2)
    }
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"task": "statistics", "framework": "pytorch", "data": data}))
    return path


def ran(dump: Path, **settings: Any) -> PrecheckReport:
    """The report of a run on the CPU."""
    config = RunConfig(dump, out=dump.parent / "out", device_type="cpu", **settings)
    return run(config, show_progress=False)


def rows(report: PrecheckReport) -> list[str]:
    """The names that have rows."""
    return [row.name for row in read_results(report.files.result)]


def test_calls_that_are_not_selected_get_no_rows(dump: Path) -> None:
    assert rows(ran(dump, keywords=("reduce",))) == [f"Distributed.all_reduce.{n}" for n in (0, 1)]
    assert rows(ran(dump, white_list=("broadcast",), keywords=(".1",))) == [
        "Distributed.broadcast.1"
    ]
    assert rows(ran(dump, black_list=("broadcast", "all_gather"))) == [
        f"Distributed.all_reduce.{n}" for n in (0, 1)
    ]


def test_a_run_goes_on_with_the_same_selection_only(dump: Path) -> None:
    done = ran(dump, keywords=("reduce",)).files.result
    assert len(rows(ran(dump, keywords=("reduce",), resume_csv=done))) == 2
    for other in ({}, {"keywords": ("gather",)}, {"white_list": ("all_reduce",)}):
        with pytest.raises(ResumeError, match="was made with selection -k 'reduce', not"):
            ran(dump, resume_csv=done, **other)  # type: ignore[arg-type]
    assert len(rows(ran(dump, resume_csv=done, force=True))) == 6


def test_a_run_from_before_there_were_selections_was_about_every_call(dump: Path) -> None:
    files = ran(dump).files
    settings = json.loads(files.settings.read_text())
    del settings["selection"]
    files.settings.write_text(json.dumps(settings))
    assert len(rows(ran(dump, resume_csv=files.result))) == 6
    with pytest.raises(ResumeError, match="was made with selection every call, not -k 'reduce'"):
        ran(dump, resume_csv=files.result, keywords=("reduce",))


def test_a_selection_of_nothing_is_an_error_and_leaves_no_file(dump: Path) -> None:
    with pytest.raises(UsageError, match="is left to check: -k 'reduce'; black_list all_reduce"):
        ran(dump, keywords=("reduce",), black_list=("all_reduce",))
    with pytest.raises(UsageError, match=r"-k 'redduce' fits no call of .* Distributed.all_reduce"):
        ran(dump, keywords=("redduce",))
    assert not (dump.parent / "out").exists()


def test_a_rule_of_a_file_that_names_no_call_is_an_error(dump: Path) -> None:
    rules = dump.parent / "rules.yaml"
    rules.write_text("rules:\n  - {api: all_redduce, standard: ulp}\n")
    with pytest.raises(UsageError, match="the rule for api all_redduce fits no API of"):
        ran(dump, standard=str(rules))
    rules.write_text("rules:\n  - {api: 'all_*', standard: ulp}\n")
    assert len(rows(ran(dump, standard=str(rules)))) == 6
