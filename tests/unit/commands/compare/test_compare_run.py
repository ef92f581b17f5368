"""Two captures are compared from the command line to the files, in the command's own process."""

import csv
import faulthandler
import gc
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.cli import main
from ray_precheck.commands.compare import run as comparing
from ray_precheck.commands.compare.options import CAPTURE_STANDARDS
from ray_precheck.commands.compare.run import ComparisonReport, compare_captures
from ray_precheck.dump import mapped
from ray_precheck.errors import PrecheckError, StoppedError
from ray_precheck.running import run
from ray_precheck.trace.difference import measuring
from tests.unit.commands.small_captures import write_capture

pytestmark = pytest.mark.unit
RNG = np.random.default_rng(0)
A, B, C, D = (RNG.standard_normal((4, 8)).astype(np.float32) for _ in range(4))
ADD, MUL = (
    ("Mint.add.0.forward", [A, B], [A + B]),
    ("Mint.mul.0.forward", [A + B, C], [(A + B) * C]),
)
EXP = ("Mint.exp.0.forward", [(A + B) * C], [np.exp((A + B) * C)])
CALLS = [ADD, MUL, EXP]


def one(reports: comparing.ComparisonReports) -> ComparisonReport:
    (report,) = reports.reports
    return report


def rows_of(report: ComparisonReport) -> list[dict[str, str]]:
    with report.files.details.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def results(report: ComparisonReport) -> dict[str, str]:
    with report.files.result.open(encoding="utf-8-sig", newline="") as file:
        return {row["Call"]: row["Result"] for row in csv.DictReader(file)}


def compared(folder: Path, target: Sequence[Any], golden: Sequence[Any], **more: Any) -> Any:
    files = more.pop("files", True)
    one_path = write_capture(folder / "target", target, files=files)
    two_path = write_capture(folder / "golden", golden, files=files)
    return one(compare_captures(one_path, two_path, out=folder / "out", **more))


def ranks_of_two(folder: Path) -> tuple[Path, Path]:
    """The captures of two runs, of two ranks each."""
    for side in "tg":
        for rank in (0, 1):
            write_capture(folder / side / "step0" / f"rank{rank}", CALLS, files=False)
    return folder / "t", folder / "g"


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))


def test_two_equal_captures_pass(tmp_path: Path) -> None:
    report = compared(tmp_path, CALLS, CALLS)
    assert results(report) == {key: "pass" for key, _, _ in CALLS}
    rows = rows_of(report)
    assert [row["NPU Name"] for row in rows][:3] == [
        "Mint.add.0.forward.input.0",
        "Mint.add.0.forward.input.1",
        "Mint.add.0.forward.output.0",
    ]
    assert {row["Cosine"] for row in rows} == {"1.0"}
    assert {row["Match"] for row in rows} == {"exact"}


def test_the_collector_does_not_look_through_the_captures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, bool, int]] = []

    def noted(module: Any, name: str) -> None:
        whole = getattr(module, name)

        def note(*arguments: Any, **named: Any) -> Any:
            found.append((name, gc.isenabled(), gc.get_freeze_count()))
            return whole(*arguments, **named)

        monkeypatch.setattr(module, name, note)

    noted(comparing, "plan_comparison")
    noted(run, "drive_to_end")
    compared(tmp_path, CALLS, CALLS)
    (_, while_planning, _), (_, while_comparing, frozen) = found
    assert not while_planning
    assert while_comparing
    assert frozen > 1000
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_the_first_call_that_differs_is_the_first_that_is_named(tmp_path: Path) -> None:
    wrong = (A + B) * C
    wrong[2:] = 0
    target = [ADD, (MUL[0], MUL[1], [wrong]), (EXP[0], [wrong], [np.exp(wrong)])]
    report = compared(tmp_path, target, CALLS, standard="auto")
    assert results(report)[MUL[0]] == "error"
    assert report.summary.first[0].name == MUL[0]
    assert "output.0" in report.summary.first[0].message


def test_a_row_that_only_the_golden_side_has_is_there(tmp_path: Path) -> None:
    report = compared(tmp_path, [ADD, EXP], CALLS)
    found = results(report)
    assert list(found) == [ADD[0], f"{MUL[0]}@golden", EXP[0]]
    assert found[f"{MUL[0]}@golden"] == "unmatched"
    lone = [row for row in rows_of(report) if row["Call"] == f"{MUL[0]}@golden"]
    assert [row["Bench Name"] for row in lone] == [
        f"{MUL[0]}.input.0",
        f"{MUL[0]}.input.1",
        f"{MUL[0]}.output.0",
    ]
    assert {row["NPU Name"] for row in lone} == {"N/A"}


def test_call_numbers_that_an_inserted_call_has_shifted_do_not_matter(tmp_path: Path) -> None:
    extra = ("Mint.add.0.forward", [D, D], [D + D])
    shifted = ("Mint.add.1.forward", ADD[1], ADD[2])
    report = compared(tmp_path, [extra, shifted, MUL, EXP], CALLS)
    found = {row["Call"]: row for row in rows_of(report) if "output" in row["NPU Name"]}
    assert found["Mint.add.1.forward"]["Bench Name"] == "Mint.add.0.forward.output.0"
    assert found["Mint.add.1.forward"]["Match"] == "shifted"
    assert found["Mint.add.0.forward"]["Result"] == "unmatched"
    strict = compared(tmp_path / "exact", [extra, shifted, MUL, EXP], CALLS, match="exact")
    assert results(strict)["Mint.add.1.forward"] == "unmatched"


def test_a_backward_record_that_one_side_lacks_is_unmatched_with_the_reason(tmp_path: Path) -> None:
    back = ("Mint.add.0.backward", [A], [A, A])
    report = compared(tmp_path, [*CALLS, back], CALLS)
    assert results(report)[back[0]] == "unmatched"
    (row,) = [each for each in report.summary.lone if each.name == back[0]]
    assert row.message == "the golden side has no backward record of this call"


@pytest.mark.parametrize("kind", [np.inf, np.nan])
def test_infinity_and_nan_on_one_side_are_errors(tmp_path: Path, kind: float) -> None:
    wrong = np.exp((A + B) * C)
    wrong[0, 0] = kind
    report = compared(tmp_path, [ADD, MUL, (EXP[0], EXP[1], [wrong])], CALLS)
    assert results(report)[EXP[0]] == "error"


def test_noise_stands_beside_each_row_and_is_allowed_by_auto(tmp_path: Path) -> None:
    def noisy(scale: float) -> list[Any]:
        return [ADD, MUL, (EXP[0], EXP[1], [EXP[2][0] * np.float32(1 + scale)])]

    noise = write_capture(tmp_path / "noise", noisy(1e-3))
    alone = compared(tmp_path / "a", noisy(2e-3), CALLS, standard="auto")
    report = compared(tmp_path / "b", noisy(2e-3), CALLS, standard="auto", noise=noise)
    assert (results(alone)[EXP[0]], results(report)[EXP[0]]) == ("error", "pass")
    (row,) = [row for row in rows_of(report) if row["NPU Name"] == f"{EXP[0]}.output.0"]
    assert float(row["Noise Floor"]) == pytest.approx(1e-3, rel=1e-2)
    assert float(row["Share of Noise"]) == pytest.approx(2, rel=1e-2)


def test_statistics_are_compared_where_one_side_has_no_files(tmp_path: Path) -> None:
    target = write_capture(tmp_path / "t", CALLS)
    golden = write_capture(tmp_path / "g", CALLS, files=False)
    report = one(compare_captures(target, golden, out=tmp_path / "out"))
    assert "Max diff" in rows_of(report)[0]
    assert set(results(report).values()) == {"pass"}


def test_a_missing_file_is_a_row_that_says_so(tmp_path: Path) -> None:
    target, golden = (write_capture(tmp_path / side, CALLS) for side in "tg")
    (tmp_path / "g" / "dump_tensor_data" / f"{MUL[0]}.output.0.npy").unlink()
    report = one(compare_captures(target, golden, out=tmp_path / "out"))
    (row,) = [row for row in rows_of(report) if row["NPU Name"] == f"{MUL[0]}.output.0"]
    assert row["Result"] == "warning"
    assert "no file" in row["Err_message"]


def test_modules_and_source_lines_stand_beside_the_calls(tmp_path: Path) -> None:
    torch_line = "File /x/site-packages/torch/nn/modules/batchnorm.py, line 3, in forward, \n y"
    stack = [torch_line, "File net.py, line 7, in forward, \n mul(x)"]
    target = write_capture(tmp_path / "t", CALLS, stacks={MUL[0]: stack})
    modules = {MUL[0]: "Cell.mlp.MLP.forward.0"}
    (tmp_path / "t" / "construct.json").write_text(json.dumps(modules), encoding="utf-8")
    golden = write_capture(tmp_path / "g", CALLS)
    report = one(compare_captures(target, golden, out=tmp_path / "out"))
    (row,) = [row for row in report.calls.to_dict("records") if row["Call"] == MUL[0]]
    assert (row["Module"], row["Source"]) == (
        "Cell.mlp.MLP.forward.0",
        "net.py:7, in forward: mul(x)",
    )
    assert len(report.results) == 8


class TestRanks:
    def test_ranks_are_paired_by_step_and_number(self, tmp_path: Path) -> None:
        for side, ranks in (("t", (0, 1, 2)), ("g", (0, 2, 3))):
            for rank in ranks:
                write_capture(tmp_path / side / "step0" / f"rank{rank}", CALLS, files=False)
        found = compare_captures(tmp_path / "t", tmp_path / "g", out=tmp_path / "out")
        assert [report.label for report in found.reports] == ["step0/rank0", "step0/rank2"]
        assert found.without == (
            "step0/rank1 of the target",
            "step0/rank3 of the golden side",
        )
        folders = {report.files.result.parent for report in found.reports}
        assert folders == {tmp_path / "out" / "step0" / f"rank{rank}" for rank in (0, 2)}

    def test_single_processes_are_a_pair_whatever_their_numbers(self, tmp_path: Path) -> None:
        write_capture(tmp_path / "t" / "step0" / "proc11", CALLS, files=False)
        write_capture(tmp_path / "g" / "step3" / "proc12", CALLS, files=False)
        report = one(compare_captures(tmp_path / "t", tmp_path / "g", out=tmp_path / "out"))
        assert set(results(report).values()) == {"pass"}

    def test_so_are_single_processes_of_several_steps(self, tmp_path: Path) -> None:
        for side, process in (("t", 11), ("g", 12), ("n", 13)):
            for step in (0, 1):
                place = tmp_path / side / f"step{step}" / f"proc{process}"
                write_capture(place, CALLS, files=False)
        found = compare_captures(
            tmp_path / "t", tmp_path / "g", out=tmp_path / "out", noise=tmp_path / "n"
        )
        assert [report.label for report in found.reports] == ["step0/proc11", "step1/proc11"]
        assert found.without == ()
        assert "0" in {row["Noise Floor"] for row in rows_of(found.reports[1])}


class TestFilesThatAreCutMeanwhile:
    """A mapped file that another program cuts ends the process that reads it: SIGBUS."""

    CUT = f"{MUL[0]}.output.0.npy"

    def reports(self, folder: Path) -> ComparisonReport:
        large = np.resize(A, (64, 64, 8))
        calls = [ADD, (MUL[0], MUL[1], [large]), EXP]
        return compared(folder, calls, calls)  # type: ignore[no-any-return]

    def cut(self, folder: Path) -> None:
        os.truncate(folder / "target" / "dump_tensor_data" / self.CUT, 200)

    def test_a_fork_that_it_ends_costs_no_row(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ray_precheck.commands.compare.run._WORTH_FORKS_S", 0.0)
        monkeypatch.setattr(comparing, "cores_for_forks", lambda devices: 2)
        whole = measuring.element_difference

        def difference(target: Any, *others: Any) -> Any:
            if target.shape == (64, 64, 8):
                faulthandler.disable()  # of pytest, in the fork: the end of it is wanted
                self.cut(tmp_path)
            return whole(target, *others)

        monkeypatch.setattr(measuring, "element_difference", difference)
        report = self.reports(tmp_path)
        assert results(report) == {ADD[0]: "pass", MUL[0]: "warning", EXP[0]: "pass"}
        (row,) = [row for row in rows_of(report) if row["Result"] == "warning"]
        assert "target: " in row["Err_message"]
        assert "statistics are compared instead" in row["Err_message"]

    def test_this_process_does_not_map_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = measuring.element_difference

        def difference(*arguments: Any) -> Any:
            self.cut(tmp_path)
            return whole(*arguments)

        monkeypatch.setattr(measuring, "element_difference", difference)
        (row,) = [row for row in rows_of(self.reports(tmp_path)) if "mul" in row["NPU Name"]][-1:]
        assert row["Cosine"] == "unsupported"
        assert "target: " in row["Err_message"]

    def test_a_file_that_is_cut_while_it_is_read_is_a_row_that_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = mapped.require_file_size

        def require(opened: Any, name: str, spec: Any) -> None:
            whole(opened, name, spec)
            self.cut(tmp_path)

        monkeypatch.setattr(mapped, "require_file_size", require)
        (row,) = [row for row in rows_of(self.reports(tmp_path)) if row["Result"] == "warning"]
        assert (
            f"target: {self.CUT} is not a readable .npy file: the file is cut" in row["Err_message"]
        )


def test_progress_counts_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ray_precheck.runtime.progress.PLAIN_INTERVAL_S", 0.0)
    compared(tmp_path, CALLS, CALLS, show_progress=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"3/3 done, 3 pass, 0 error, 0 skip, [0-9.]+ pairs/s, 0 s left", line)


class TestGoingOn:
    def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = compared(tmp_path / "whole", CALLS, CALLS)
        target, golden = (write_capture(tmp_path / side, CALLS) for side in "tg")
        stopping = comparing.compared_here

        def stops(*arguments: Any) -> Any:
            found = stopping(*arguments)
            yield next(found)
            raise StoppedError("the disk is full")

        monkeypatch.setattr(comparing, "compared_here", stops)
        monkeypatch.setattr("ray_precheck.runtime.driving._BATCH_S", 0.0)
        cut = one(compare_captures(target, golden, out=tmp_path / "out"))
        assert (cut.completed, len(results(cut))) == (False, 1)
        monkeypatch.setattr(comparing, "compared_here", stopping)
        again = one(compare_captures(target, golden, resume_csv=cut.files.details))
        assert again.completed
        for name in ("result", "details"):
            own, other = (getattr(each.files, name).read_bytes() for each in (again, whole))
            assert own == other

    def test_a_dump_that_was_killed_before_its_first_row_keeps_the_stamp_of_all(
        self, tmp_path: Path
    ) -> None:
        folders = ranks_of_two(tmp_path)
        first = compare_captures(*folders, out=tmp_path / "out")
        before = files_below(tmp_path / "out")
        for name in ("result", "details"):
            getattr(first.reports[1].files, name).unlink()
        again = compare_captures(*folders, resume_csv=tmp_path / "out")
        assert again.completed
        assert files_below(tmp_path / "out") == before

    def test_two_of_one_second_have_a_stamp_each_in_all_dumps(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ray_precheck.store.resume.new_stamp", lambda: "20260102030405")
        folders, inner = ranks_of_two(tmp_path), []
        real = comparing._compare_pair

        def begins_another(*arguments: Any) -> ComparisonReport:
            if not inner:
                inner.append(None)
                inner.append(compare_captures(*folders, out=tmp_path / "out"))
            return real(*arguments)

        monkeypatch.setattr(comparing, "_compare_pair", begins_another)
        outer = compare_captures(*folders, out=tmp_path / "out")
        for reports, stamp in ((outer, "20260102030405"), (inner[1], "20260102030405_1")):
            names = {report.files.result.name for report in reports.reports}
            assert names == {f"compare_calls_{stamp}.csv"}

    def test_another_golden_capture_is_not_gone_on_with(self, tmp_path: Path) -> None:
        first = compared(tmp_path, CALLS, CALLS)
        other = write_capture(tmp_path / "other", CALLS[:2])
        with pytest.raises(PrecheckError, match="was made with golden"):
            compare_captures(
                tmp_path / "target" / "dump.json", other, resume_csv=first.files.details
            )


class TestCommand:
    def run(self, *words: object) -> int:
        return main([str(word) for word in ("compare", *words)])

    def test_exit_codes_are_those_of_the_worst_row(self, tmp_path: Path) -> None:
        wrong = [ADD, MUL, (EXP[0], EXP[1], [EXP[2][0] * np.nan])]
        paths = {
            name: write_capture(tmp_path / name, calls)
            for name, calls in (("a", CALLS), ("b", CALLS), ("nan", wrong), ("less", [ADD, EXP]))
        }
        out = ("-o", tmp_path / "out")
        assert self.run("-tp", paths["a"], "-gp", paths["b"], *out) == 0
        assert self.run("-tp", paths["nan"], "-gp", paths["b"], *out) == 1
        assert self.run("-tp", paths["less"], "-gp", paths["b"], *out) == 0
        assert self.run("-tp", paths["less"], "-gp", paths["b"], *out, "--strict") == 1

    @pytest.mark.parametrize("side", ["t", "g"])
    @pytest.mark.parametrize("broken", ["missing", "cut", "pipe", "another shape"])
    @pytest.mark.parametrize("standard", CAPTURE_STANDARDS)
    def test_a_file_that_cannot_be_read_is_a_warning_that_is_counted(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        side: str,
        broken: str,
        standard: str,
    ) -> None:
        for name in "tg":
            write_capture(tmp_path / name, CALLS)
        path = tmp_path / side / "dump_tensor_data" / "Mint.mul.0.forward.output.0.npy"
        content = path.read_bytes()
        path.unlink()
        if broken == "cut":
            path.write_bytes(content[:-4])
        elif broken == "pipe":
            os.mkfifo(path)
        elif broken == "another shape":
            np.save(path, np.zeros(2, np.float32))
        sides = ["-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g")]
        words = ["compare", *sides, "-o", str(tmp_path), "--standard", standard]
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "3 of 3 pairs of records, 8 rows: 2 pass, 1 warning, 0 error, 0 unmatched" in said
        assert (
            "1 pair has tensors whose files cannot be read: their statistics were compared" in said
        )
        assert main([*words, "--strict"]) == 1

    def test_json_has_what_has_no_partner(self, tmp_path: Path) -> None:
        target = write_capture(tmp_path / "t", [ADD, EXP])
        golden = write_capture(tmp_path / "g", CALLS)
        words = ("-tp", target, "-gp", golden, "-o", tmp_path / "o", "--json", tmp_path / "j.json")
        assert self.run(*words) == 0
        (found,) = json.loads((tmp_path / "j.json").read_text(encoding="utf-8"))["views"]
        counts = {each["name"]: each["number"] for each in found["counts"] if each["number"]}
        assert counts == {"pass": 2, "unmatched": 1}
        (alone,) = found["reasons"]
        assert alone["names"] == [f"{MUL[0]}@golden"]
        assert alone["text"].startswith("only the golden run has these records (of the first: ")

    @pytest.mark.parametrize(
        ("target", "golden", "more", "expected"),
        [
            ("nothing", "good", (), "cannot read the dump"),
            ("empty", "good", (), "holds no dump"),
            ("nonsense", "good", (), "is cut off"),
            ("good", "other", (), "no call in common"),
            ("good", "structure", (), "no values (structure)"),
            ("ranks", "steps", (), "no two are of the same step and rank"),
            ("good", "good", ("-am", "nowhere.yaml"), "cannot read -am"),
            ("good", "good", ("-dm", "names.yaml"), "names nothing of the target"),
            ("good", "good", ("-cm", "list.yaml"), "pairs of names"),
            (
                "good",
                "good",
                ("-csv_path", "compare_result_20260101000000.csv"),
                "there is no such file",
            ),
            ("good", "good", ("--standard", "best"), "--standard"),
        ],
    )
    def test_bad_input_is_one_sentence(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        target: str,
        golden: str,
        more: tuple[str, ...],
        expected: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        write_capture(tmp_path / "good", CALLS)
        write_capture(tmp_path / "other", [("Mint.tanh.0.forward", [D[0]], [D[:2, :3]])])
        (tmp_path / "empty").mkdir()
        (tmp_path / "nonsense").mkdir()
        (tmp_path / "nonsense" / "dump.json").write_text("{]")
        record = {"output": [{"type": "mindspore.Tensor", "dtype": "Float32", "shape": [4]}]}
        (tmp_path / "structure").mkdir()
        (tmp_path / "structure" / "dump.json").write_text(
            json.dumps({"task": "structure", "data": {"Mint.add.0.forward": record}})
        )
        for place in ("ranks/rank0", "ranks/rank1", "steps/step0/rank4", "steps/step1/rank4"):
            write_capture(tmp_path / place, CALLS, files=False)
        (tmp_path / "names.yaml").write_text("Torch.x.0.forward.input.0: Torch.y.0.forward.input.0")
        (tmp_path / "list.yaml").write_text("- a\n- b\n")
        assert self.run("-tp", target, "-gp", golden, "-o", "out", *more) == 2
        sentence = capsys.readouterr().err.strip().splitlines()[-1]
        assert sentence.startswith("ray-precheck: error: ")
        assert expected in sentence
        assert not list(tmp_path.rglob("*.run.json"))


class TestOtherOperators:
    def test_a_fusion_is_compared_at_its_border_and_keeps_what_is_inside(
        self, tmp_path: Path
    ) -> None:
        fused = ("Mint.addmul.0.forward", [A, B, C], [(A + B) * C])
        report = compared(tmp_path, [fused, EXP], CALLS)
        rows = [row for row in rows_of(report) if row["Call"] == fused[0]]
        assert {row["Match"] for row in rows} == {"fused"}
        pairs = {row["NPU Name"]: row["Bench Name"] for row in rows if row["Result"] == "pass"}
        assert pairs == {
            "Mint.addmul.0.forward.input.0": "Mint.add.0.forward.input.0",
            "Mint.addmul.0.forward.input.1": "Mint.add.0.forward.input.1",
            "Mint.addmul.0.forward.input.2": "Mint.mul.0.forward.input.1",
            "Mint.addmul.0.forward.output.0": "Mint.mul.0.forward.output.0",
        }
        inside = {row["Bench Name"] for row in rows if row["Result"] == "unmatched"}
        assert inside == {"Mint.add.0.forward.output.0", "Mint.mul.0.forward.input.0"}

    def test_arguments_are_paired_as_the_users_file_says(self, tmp_path: Path) -> None:
        swapped = ("Mint.plus.0.forward", [B, A], [A + B])
        names = "- {ms_api: Mint.plus, pt_api: Mint.add, ms_args: [0, 1], pt_args: [1, 0]}"
        (tmp_path / "names.yaml").write_text(names, encoding="utf-8")
        report = compared(tmp_path, [swapped, MUL, EXP], CALLS, api_mapping=tmp_path / "names.yaml")
        assert set(results(report).values()) == {"pass"}
        pairs = {row["NPU Name"]: row["Bench Name"] for row in rows_of(report)}
        assert pairs["Mint.plus.0.forward.input.0"] == "Mint.add.0.forward.input.1"
