"""Captures are diagnosed from the command line to the page, in the command's own process.

The captures have statistics alone, so that own errors are estimates and no framework is needed; the precheck
of the suspects is a stand-in.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.cli import main
from ray_precheck.commands.diagnose.findings import Suspect, SuspectCheck, diagnosis_exit_code
from ray_precheck.commands.diagnose.parts import DiagnosisParts
from ray_precheck.commands.diagnose.run import diagnose_captures
from ray_precheck.commands.overflow.job import OVERFLOW_TABLES
from ray_precheck.commands.precheck.run import PrecheckReport
from ray_precheck.commands.precheck.summary import Direction, Summary
from ray_precheck.dump.folders import FoundDump
from ray_precheck.errors import BackendMissingError
from ray_precheck.schema.environment import Environment
from ray_precheck.schema.result import Verdict
from ray_precheck.store.claim import claimed
from ray_precheck.store.results import ResultRow
from ray_precheck.store.tables import run_files
from tests.unit.commands.small_captures import write_capture

pytestmark = pytest.mark.unit
RNG = np.random.default_rng(0)
A, B, C = (RNG.standard_normal((8, 16)).astype(np.float32) for _ in range(3))
ADD, MUL, TANH = "Mint.add.0.forward", "Mint.mul.0.forward", "Mint.tanh.0.forward"
TITLES = [
    "Were both runs given the same?",
    "Was there a NaN or an infinity?",
    "Where do the runs differ?",
    "Which operator is to blame?",
    "How far did it spread?",
    "What does this machine say of the suspects?",
    "What could not be checked?",
    "What to do next",
    "Files",
]


def calls(wrong: float = 1.0, given: Any = A) -> list[Any]:
    """Three calls, each of what the one before gave; the second gives `wrong` times what is right."""
    total = given + B
    product = total * C * np.float32(wrong)
    return [
        (ADD, [given, B], [total]),
        (MUL, [total, C], [product]),
        (TANH, [product], [np.tanh(product)]),
    ]


class StandIn:
    """A precheck that notes what it was asked for, and says `verdict` of each suspect."""

    def __init__(self, verdict: Verdict = Verdict.PASS, kind: str = "cpu") -> None:
        self.asked: list[tuple[str, Path, list[str]]] = []
        self.verdict, self.kind = verdict, kind

    def __call__(
        self, parts: Any, dump: FoundDump, place: Path, suspects: Sequence[Suspect]
    ) -> SuspectCheck:
        names = [suspect.call for suspect in suspects]
        self.asked.append((dump.label, place, names))
        out = parts.folder / place
        files = run_files(out / f"accuracy_checking_result_{parts.session.stamp}.csv")
        passes = len(names) if self.verdict is Verdict.PASS else 0
        summary = Summary(
            files,
            total=len(names),
            passes=passes,
            errors=len(names) - passes,
            forward=Direction(passes, len(names) - passes),
            environment=Environment("mindspore", self.kind, ("Toy",), 1, 1),
        )
        message = "" if passes else "forward.output.0: RMSE is 1"
        rows = tuple(ResultRow(name, self.verdict, Verdict.NONE, message) for name in names)
        return SuspectCheck(dump, PrecheckReport(summary, True), rows, is_whole=not names)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(DiagnosisParts, "precheck", lambda parts, *rest: stand_in(parts, *rest))
    return stand_in


def pair(folder: Path, wrong: Sequence[Any], right: Sequence[Any] = ()) -> list[str]:
    """Write two captures; returns the words of the command."""
    target = write_capture(folder / "target", wrong, files=False)
    golden = write_capture(folder / "golden", right or calls(), files=False)
    return ["diagnose", "-tp", str(target), "-gp", str(golden), "-o", str(folder / "out")]


def page_of(folder: Path) -> str:
    (page,) = (folder / "out").glob("diagnose_*.txt")
    return page.read_text(encoding="utf-8")


def sections(page: str) -> dict[str, str]:
    """Return the text of each section by its title, each on one line."""
    found, title = {}, ""
    for line in page.splitlines():
        if line and not line.startswith(" "):
            title, found[line] = line, ""
        elif title:
            found[title] = f"{found[title]} {line.strip()}".strip()
    return found


def test_the_page_answers_in_the_order_of_an_engineer_s_questions(
    tmp_path: Path, device: StandIn, capsys: Any
) -> None:
    assert main(pair(tmp_path, calls(1.01))) == 1
    page = page_of(tmp_path)
    assert [
        title for title in sections(page) if not title.startswith(("Diagnosis", "against"))
    ] == TITLES
    assert capsys.readouterr().out.startswith(f"\n{page}")


def test_the_culprit_is_named_and_prechecked(tmp_path: Path, device: StandIn) -> None:
    assert main(pair(tmp_path, calls(1.01))) == 1
    assert device.asked == [("dump.json", Path(), ["Mint.mul.0"])]
    found = sections(page_of(tmp_path))
    assert found[TITLES[0]].startswith("Yes: in 3 records")
    assert found[TITLES[1]].startswith("No: none was born in 3 records of 1 dump")
    assert f"The first error in the order of the run is {MUL}" in found[TITLES[2]]
    assert found[TITLES[3]].startswith(f"{MUL} (own error (estimate)): it differs by more than")
    assert f"What began at {MUL} reached 1 more record of" in found[TITLES[4]]
    assert "- Mint.mul.0 passes. So the operator is right here" in found[TITLES[5]]
    assert "-k Mint.mul.0 --tested device --standard auto" in found[TITLES[7]]
    assert "ray-precheck capture --task tensor" in found[TITLES[7]]


def test_an_honest_pair_is_nothing_to_look_at(tmp_path: Path, device: StandIn) -> None:
    assert main(pair(tmp_path, calls())) == 0
    found = sections(page_of(tmp_path))
    assert found[TITLES[3]].startswith("No operator is to blame: 3 of 3 records were judged")
    assert found[TITLES[5]] == "There is no suspect to run here."
    assert found[TITLES[6]].startswith("Nothing: ")
    assert TITLES[4] not in found
    assert device.asked == []


def test_an_operator_that_errs_here_too_is_taken_to_other_kernels(
    tmp_path: Path, device: StandIn
) -> None:
    device.verdict = Verdict.ERROR
    assert main(pair(tmp_path, calls(1.01))) == 1
    found = sections(page_of(tmp_path))
    assert "- Mint.mul.0 is in error here, too: forward.output.0: RMSE is 1." in found[TITLES[5]]
    assert "Mint.mul.0 errs on this machine, too." in found[TITLES[7]]
    assert "ray-precheck naive" in found[TITLES[7]]


@pytest.mark.parametrize("kind", ["cpu", "npu"])
def test_an_operator_that_could_not_be_checked_does_not_pass(
    tmp_path: Path, device: StandIn, kind: str
) -> None:
    device.verdict, device.kind = Verdict.SKIP, kind
    assert main(pair(tmp_path, calls(1.01))) == 1
    assert "could not be checked" in sections(page_of(tmp_path))[TITLES[5]]
    assert "It passes on" not in page_of(tmp_path)


def test_an_operator_that_passes_alone_on_an_accelerator_is_run_twice(
    tmp_path: Path, device: StandIn
) -> None:
    device.kind = "npu"
    assert main(pair(tmp_path, calls(1.01))) == 1
    assert "It passes on this machine's npu when it runs alone." in page_of(tmp_path)


def test_other_inputs_come_first_and_no_operator_is_to_blame(
    tmp_path: Path, device: StandIn
) -> None:
    assert main(pair(tmp_path, calls(given=A * np.float32(2)))) == 1
    found = sections(page_of(tmp_path))
    assert found[TITLES[0]].startswith(
        "No. No operator is to blame for what follows from this: - the runs"
    )
    assert f"{ADD}.input.0" in found[TITLES[0]]
    assert found[TITLES[3]].startswith("No operator: the runs differ in what they were given")
    assert "Give both runs the same data in the same order" in found[TITLES[7]]
    assert device.asked == []


def test_a_call_that_one_run_lacks_is_said_and_nothing_is_prechecked_for_it(
    tmp_path: Path, device: StandIn, capsys: Any
) -> None:
    add, _, last = calls()
    lacks = [add, (last[0], add[2], [np.exp(add[2][0])])]
    assert main(pair(tmp_path, lacks)) == 1
    found = sections(page_of(tmp_path))
    said = "The runs are not the same program: Mint.mul.0 runs only in the golden run"
    assert found[TITLES[3]].startswith(said)
    assert "Make both scripts do the same there" in found[TITLES[7]]
    assert device.asked == []
    words = [*pair(tmp_path / "located", lacks)]
    assert main(["locate", *words[1:]]) == 1
    assert "the runs are not the same program" in capsys.readouterr().out


def test_the_birth_of_an_infinity_is_told_and_prechecked(tmp_path: Path, device: StandIn) -> None:
    wrong = calls()
    bad = wrong[1][2][0].copy()
    bad[0, 0] = np.inf
    wrong[1] = (MUL, wrong[1][1], [bad])
    wrong[2] = (TANH, [bad], [np.tanh(bad)])
    assert main(pair(tmp_path, wrong)) == 1
    found = sections(page_of(tmp_path))
    assert found[TITLES[1]].startswith(f"Yes: the first was inf in {MUL}.output.0, float32")
    assert device.asked == [("dump.json", Path(), ["Mint.mul.0"])]


def test_one_dump_of_statistics_is_searched_for_births_and_prechecked_whole(
    tmp_path: Path, device: StandIn
) -> None:
    words = pair(tmp_path, calls(1.01))
    assert main([*words[:3], *words[5:]]) == 0
    assert device.asked == [("dump.json", Path(), [])]
    found = sections(page_of(tmp_path))
    assert found[TITLES[0]].startswith("This cannot be said of one run alone")
    assert found[TITLES[3]] == "This could not be said; the reason stands below."
    assert TITLES[2] not in found
    assert "compare could not be done: there is no golden run" in found[TITLES[6]]
    assert "locate could not be done: " in found[TITLES[6]]
    assert "has no files of tensors" in found[TITLES[6]]
    assert "ray-precheck diagnose -tp tensor_dump -o tensor_diagnosis" in found[TITLES[7]]


def test_a_precheck_that_cannot_run_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*arguments: Any) -> SuspectCheck:
        raise BackendMissingError("mindspore is not installed")

    monkeypatch.setattr(DiagnosisParts, "precheck", missing)
    assert main(pair(tmp_path, calls(1.01))) == 1
    found = sections(page_of(tmp_path))
    assert found[TITLES[5]] == "This could not be said; the reason stands below."
    assert "Suspects could not be prechecked: mindspore is not installed." in found[TITLES[6]]


def test_captures_of_other_models_are_one_sentence(
    tmp_path: Path, device: StandIn, capsys: Any
) -> None:
    others = [("Mint.relu.0.forward", [A[:3, :5]], [B[:3, :5]])]
    assert main(pair(tmp_path, calls(), others)) == 2
    assert "have no call in common" in capsys.readouterr().err.splitlines()[-1]
    assert not list((tmp_path / "out").glob("diagnose_*"))


@pytest.mark.parametrize("side", ["-tp", "-gp"])
def test_a_dump_that_is_not_there_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: Any, side: str
) -> None:
    words = pair(tmp_path, calls())
    words[words.index(side) + 1] = str(tmp_path / "nowhere")
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot read the dump" in line
    assert not (tmp_path / "out").exists()


def test_ranks_have_folders_of_their_own_and_their_names_on_the_page(
    tmp_path: Path, device: StandIn
) -> None:
    for side, wrong in (("target", 1.01), ("golden", 1.0)):
        for rank, factor in (("rank0", 1.0), ("rank1", wrong)):
            write_capture(tmp_path / side / "step0" / rank, calls(factor), files=False)
    report = diagnose_captures(tmp_path / "target", tmp_path / "golden", out=tmp_path / "out")
    assert device.asked == [("step0/rank1", Path("step0/rank1"), ["Mint.mul.0"])]
    assert f"{MUL} of step0/rank1" in report.text
    assert len(list((tmp_path / "out").rglob("compare_result_*.csv"))) == 2


def files_of(out: Path) -> dict[str, bytes]:
    """Return all tables and the page of a diagnosis, without its stamp and the name of its folder."""
    (page,) = out.glob("diagnose_*.txt")
    stamp = page.stem.removeprefix("diagnose_")
    return {
        str(path.relative_to(out)).replace(stamp, ""): path.read_bytes()
        .replace(stamp.encode(), b"")
        .replace(str(out).encode(), b"")
        for path in out.rglob("*")
        if path.suffix in (".csv", ".txt")
    }


@pytest.mark.parametrize("part", ["compare", "locate", "check_overflow"])
def test_a_diagnosis_that_was_stopped_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, device: StandIn, capsys: Any, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    words = pair(tmp_path, calls(1.01))
    assert main(words) == 1
    work = getattr(DiagnosisParts, part)

    def stopping(parts: DiagnosisParts) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return work(parts)

    with monkeypatch.context() as patched:
        patched.setattr(DiagnosisParts, part, stopping)
        assert main([*words[:-1], str(tmp_path / "again")]) == 3
    *_, how, command = capsys.readouterr().out.splitlines()
    assert how == "Stopped before the end. To go on:"
    assert command.endswith(f"-csv_path {tmp_path / 'again'}")
    (page,) = (tmp_path / "again").glob("diagnose_*.txt")
    assert page.read_text().startswith("This diagnosis has not come to its end.")
    assert main(command.split()[1:]) == 1
    assert files_of(tmp_path / "again") == files_of(tmp_path / "out")


def test_a_stop_between_two_parts_is_heard_before_the_next_one(
    tmp_path: Path, device: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = DiagnosisParts.check_overflow

    def stopped_at_its_end(parts: DiagnosisParts) -> Any:
        report = work(parts)
        os.kill(os.getpid(), signal.SIGTERM)
        return report

    monkeypatch.setattr(DiagnosisParts, "check_overflow", stopped_at_its_end)
    assert main(pair(tmp_path, calls(1.01))) == 3
    assert device.asked == []


def test_births_are_suspects_where_nothing_else_can_name_any(
    tmp_path: Path, device: StandIn
) -> None:
    bad = calls(np.inf)
    words = pair(tmp_path, bad)
    assert main([*words[:3], *words[5:]]) == 1
    assert device.asked == [("dump.json", Path(), ["Mint.mul.0"])]


def test_errors_of_the_comparison_count_where_nothing_looked_for_their_origin(
    tmp_path: Path, device: StandIn
) -> None:
    assert main(pair(tmp_path, calls(1.01))) == 1
    report = diagnose_captures(
        tmp_path / "target", tmp_path / "golden", resume_csv=tmp_path / "out"
    )
    found = report.findings
    assert found.location is not None
    assert found.comparison is not None
    nobody = replace(found, location=replace(found.location, places=()), checks=())
    assert diagnosis_exit_code(nobody) == 0
    assert diagnosis_exit_code(replace(nobody, location=None)) == 1
    nothing = replace(nobody, location=None, comparison=None, overflow=None)
    assert diagnosis_exit_code(nothing) == 4


def test_a_finished_diagnosis_is_told_once_more_and_changes_no_file(
    tmp_path: Path, device: StandIn
) -> None:
    words = pair(tmp_path, calls(1.01))
    assert main(words) == 1
    out = tmp_path / "out"
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for named in (out, next(out.glob("diagnose_*.txt"))):
        assert main([*words[:-2], "-csv_path", str(named)]) == 1
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_part_that_ended_before_it_had_a_table_begins_anew_under_its_stamp(
    tmp_path: Path, device: StandIn
) -> None:
    words = pair(tmp_path, calls(1.01))
    assert main(words) == 1
    out = tmp_path / "out"
    whole = files_of(out)
    for path in (*out.glob("overflow_*.csv"), *out.glob("diagnose_*.txt")):
        if path.suffix == ".csv":
            path.unlink()
    assert list(out.glob(f"{OVERFLOW_TABLES.stem}_*.run.json"))
    assert main([*words[:-2], "-csv_path", str(out)]) == 1
    assert files_of(out) == whole


@pytest.mark.parametrize("named", ["out", "out/compare_calls_20260101120000.csv"])
def test_a_folder_without_a_diagnosis_cannot_be_gone_on_with(
    tmp_path: Path, capsys: Any, named: str
) -> None:
    words = pair(tmp_path, calls())
    (tmp_path / "out").mkdir()
    assert main([*words[:-2], "-csv_path", str(tmp_path / named)]) == 2
    assert "-csv_path" in capsys.readouterr().err


def test_other_settings_are_not_gone_on_with(tmp_path: Path, device: StandIn, capsys: Any) -> None:
    words = pair(tmp_path, calls(1.01))
    assert main(words) == 1
    more = ["-csv_path", str(tmp_path / "out"), "--standard", "msprobe"]
    assert main([*words[:-2], *more]) == 2
    assert "was made with standard auto, not msprobe" in capsys.readouterr().err


def test_a_part_of_a_rank_that_ended_before_it_had_a_table_begins_anew(
    tmp_path: Path, device: StandIn
) -> None:
    for side, wrong in (("target", 1.01), ("golden", 1.0)):
        for rank, factor in (("rank0", 1.0), ("rank1", wrong)):
            write_capture(tmp_path / side / "step0" / rank, calls(factor), files=False)
    words = ["diagnose", "-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden")]
    out = tmp_path / "out"
    assert main([*words, "-o", str(out)]) == 1
    whole = files_of(out)
    for path in (out / "step0" / "rank1").glob("compare_*.csv"):
        path.unlink()
    assert main([*words, "-csv_path", str(out)]) == 1
    assert files_of(out) == whole


def test_a_diagnosis_that_another_process_has_is_left_alone(
    tmp_path: Path, device: StandIn, capsys: Any
) -> None:
    words = pair(tmp_path, calls(1.01))
    assert main(words) == 1
    (page,) = (tmp_path / "out").glob("diagnose_*.txt")
    with claimed(page.with_suffix(".lock")):
        assert main([*words[:-2], "-csv_path", str(tmp_path / "out")]) == 2
    assert "another run has" in capsys.readouterr().err


def test_two_diagnoses_in_one_folder_have_stamps_of_their_own(
    tmp_path: Path, device: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray_precheck.commands.diagnose.parts.new_stamp", lambda: "20260101120000")
    words = pair(tmp_path, calls(1.01))
    assert main(words) == main(words) == 1
    out = tmp_path / "out"
    assert sorted(path.name for path in out.glob("diagnose_*.txt")) == [
        "diagnose_20260101120000.txt",
        "diagnose_20260101120000_1.txt",
    ]
    assert (out / "compare_calls_20260101120000_1.csv").exists()
    before = (out / "diagnose_20260101120000_1.txt").read_bytes()
    assert main([*words[:-2], "-csv_path", str(out)]) == 1
    assert (out / "diagnose_20260101120000_1.txt").read_bytes() == before


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, capsys: Any) -> None:
    words = pair(tmp_path, calls())
    (tmp_path / "out").write_text("")
    assert main(words) == 2
    assert "is a file; name a folder" in capsys.readouterr().err
