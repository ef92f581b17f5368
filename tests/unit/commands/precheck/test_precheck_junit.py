"""What CI reads: JUnit XML, read back by a JUnit parser."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase
from report_runs import summary_of, wrong

from ray_precheck.commands.precheck.closing import (
    RankSummary,
    RunPhase,
    RunState,
    closing_lines,
    combined,
)
from ray_precheck.commands.precheck.junit import WHOLE_RUN, call_seconds, junit_lines
from ray_precheck.commands.precheck.report import view
from ray_precheck.commands.precheck.summary import Summary, summarise
from ray_precheck.errors import UsageError
from ray_precheck.running.views import found_run
from ray_precheck.schema.environment import Environment, environment_to_dict
from ray_precheck.schema.result import Outcome, TaskResult, Verdict, failed, skipped
from ray_precheck.schema.view import Fact
from ray_precheck.store.output_file import write_report
from ray_precheck.store.resume import start_run
from ray_precheck.store.settings import RunSettings, note_caveat, note_environment
from ray_precheck.store.tables import run_files

pytestmark = pytest.mark.unit

FINISHED = RunState(RunPhase.FINISHED)
STOPPED = RunState(RunPhase.STOPPED, 4, 9, "the disk is full")
ODD = 'Torch.\x00\x1b[2J<&">\ud800\ufffe]]>\U0001f600.0'


RESULTS = (
    TaskResult(0, "Mint.a.0", Outcome.COMPLETED, Verdict.PASS, Verdict.PASS),
    wrong("Mint.a.1"),
    skipped(2, "Torch.linalg.inv.0", "not supported", True),
    failed(3, "Mint.c.0", Outcome.CRASHED, "killed its worker (SIGSEGV)", True),
)


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    """The summary of a run of `RESULTS`."""
    files = start_run(
        tmp_path / "run", "20260101120000", RunSettings({"seed": "7", "standard": "auto"})
    )
    there = Environment(kind="npu", device_names=("Ascend 910B",), versions={"torch": "2.6"})
    note_environment(files.settings, environment_to_dict(there))
    files.timeline.write_text(
        '[\n{"name":"process_name","ph":"M","pid":1},\n'
        '{"name":"Mint.a.0","cat":"device","ph":"X","ts":1,"dur":250000,"pid":1,"tid":2},\n'
        '{"name":"Mint.a.0","cat":"bench","ph":"X","ts":1,"dur":500000,"pid":1,"tid":3},\n{"name":"M'
    )
    return summary_of(files, *RESULTS)


def cases_of(path: Path) -> dict[str, TestCase]:
    """The test cases of a file by name, as a JUnit parser reads them."""
    return {str(case.name): case for suite in JUnitXml.fromfile(str(path)) for case in suite}


def test_a_junit_parser_reads_a_case_for_each_call(summary: Summary, tmp_path: Path) -> None:
    path = tmp_path / "j.xml"
    write_report("--junit", path, junit_lines(summary, FINISHED))
    (suite,) = JUnitXml.fromfile(str(path))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 1, 1, 1)
    properties = {each.name: each.value for each in suite.properties()}
    assert properties["device_names"] == "Ascend 910B"
    assert properties["torch version"] == "2.6"
    assert properties["seed"] == "7"
    assert properties["standard"] == "auto"
    assert properties["state"] == "finished"
    cases = cases_of(path)
    assert {name: case.classname for name, case in cases.items()} == {
        "Mint.a.0": "Mint.a",
        "Mint.a.1": "Mint.a",
        "Torch.linalg.inv.0": "Torch.linalg.inv",
        "Mint.c.0": "Mint.c",
    }
    kinds = {name: [type(found) for found in case.result] for name, case in cases.items()}
    assert kinds == {
        "Mint.a.0": [],
        "Mint.a.1": [Failure],
        "Torch.linalg.inv.0": [Skipped],
        "Mint.c.0": [Error],
    }
    assert cases["Mint.a.1"].result[0].message == "forward.output.0: far off"
    assert "forward: SKIP, backward: SKIP" in cases["Torch.linalg.inv.0"].result[0].text
    assert cases["Mint.a.0"].time == 0.75
    assert cases["Mint.a.1"].time is None


def test_a_run_that_stopped_has_a_case_in_error_that_says_so(
    summary: Summary, tmp_path: Path
) -> None:
    path = tmp_path / "j.xml"
    write_report("--junit", path, junit_lines(summary, STOPPED))
    (suite,) = JUnitXml.fromfile(str(path))
    assert (suite.tests, suite.errors) == (5, 2)
    message = cases_of(path)[WHOLE_RUN].result[0].message
    assert message == "stopped before the end, 4 of 9 calls done: the disk is full"


@given(name=st.text(min_size=1, max_size=40), message=st.text(max_size=60))
@example(name=ODD, message=ODD)
@settings(max_examples=60, deadline=None)
def test_whatever_names_and_messages_hold_it_is_xml(name: str, message: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = run_files(Path(folder) / "accuracy_checking_result_1.csv")
        found = summary_of(files, wrong(f"Torch.{name}.0", message))
        text = b"".join(junit_lines(found, FINISHED))
        (suite,) = JUnitXml.fromstring(text)
        (case,) = suite
    assert (suite.tests, suite.failures) == (1, 1)
    assert isinstance(case.result[0], Failure)


def test_what_limits_the_precision_of_a_device_is_said_at_the_end(
    summary: Summary, tmp_path: Path
) -> None:
    for _ in range(2):  # of two devices alike
        note_caveat(summary.files.settings, "HF32 stays on")
        note_caveat(summary.files.settings, "")
    found = summarise(summary.files)
    assert found.settings is not None
    assert found.settings.fingerprint == {"seed": "7", "standard": "auto"}
    assert found.environment.device_names == ("Ascend 910B",)
    assert "Note:     HF32 stays on" in closing_lines(found)
    seen = view([found_run(summary.files.result)])
    assert Fact("Limits of the device", "HF32 stays on") in seen.facts
    whole = combined([RankSummary("rank0", summary), RankSummary("rank1", found)], tmp_path)
    assert whole.environment.caveats == ("HF32 stays on",)


def test_a_run_without_rows_is_still_a_whole_file(tmp_path: Path) -> None:
    found = summary_of(run_files(tmp_path / "accuracy_checking_result_1.csv"))
    write_report("--junit", tmp_path / "j.xml", junit_lines(found, FINISHED))
    (suite,) = JUnitXml.fromfile(str(tmp_path / "j.xml"))
    assert suite.tests == 0


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_report("--json", pipe, [b"a", b"b"])
    assert os.read(reader, 10) == b"ab"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--json: cannot write .*none/x: No such file"):
        write_report("--json", tmp_path / "none" / "x", [b""])


def test_without_a_timeline_no_time_is_known(tmp_path: Path) -> None:
    assert call_seconds(tmp_path / "none") == {}
