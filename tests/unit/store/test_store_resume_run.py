"""Going on with an interrupted run: other settings, --force, --retry, msprobe's files, kills."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from store_results import RESULT_HEADER, contents, encoded, files_in, names_in, open_journal, passed

from ray_precheck.commands.precheck.closing import format_summary
from ray_precheck.commands.precheck.summary import summarise
from ray_precheck.errors import PrecheckError, ResumeError, StoppedError
from ray_precheck.options.shared import RETRY
from ray_precheck.runtime.driver import LOST
from ray_precheck.schema.result import MACHINE_REASONS, Outcome, TaskResult, failed, skipped
from ray_precheck.store import journal
from ray_precheck.store.results import RETRY_KINDS
from ray_precheck.store.resume import resume_run
from ray_precheck.store.settings import RunSettings, load_settings, save_settings
from ray_precheck.store.tables import BOM, RunFiles, replace_file

pytestmark = pytest.mark.unit

SETTINGS = {"dump": "d1", "framework": "mindspore", "seed": "0", "tested": "auto"}
HEAD = RESULT_HEADER


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return files_in(tmp_path)


def completed(files: RunFiles, *results: TaskResult) -> set[str]:
    """Write the files of a completed run; returns its names."""
    save_settings(files.settings, RunSettings(SETTINGS))
    opened = open_journal(files)
    opened.append(encoded(results))
    opened.complete([result.name for result in results])
    return {result.name for result in results}


def everything(files: RunFiles) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files.result.parent.iterdir()}


class TestOtherSettings:
    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"seed": "7"}, "was made with seed 0, not 7;"),
            ({"framework": "pytorch"}, "was made with framework mindspore, not pytorch;"),
            ({"dump": "d2"}, "is of another dump;"),
            (
                {"dump": "d2", "seed": "7", "tested": "dump"},
                "is of another dump, and was made with seed 0, not 7 and tested auto, not dump;",
            ),
        ],
    )
    def test_they_are_refused_with_everything_that_differs(
        self, files: RunFiles, change: dict[str, str], sentence: str
    ) -> None:
        names = completed(files, passed(0, "Mint.a.0"))
        before = everything(files)
        with pytest.raises(ResumeError) as refused:
            resume_run(files, names, {**SETTINGS, **change})
        assert f"{files.result.name} {sentence} resume with the same" in str(refused.value)
        assert "--force" in str(refused.value)
        assert everything(files) == before

    def test_a_row_that_the_dump_has_not_is_named(self, files: RunFiles) -> None:
        completed(files, passed(0, "Mint.a.0"), passed(1, "Mint.z.9"))
        with pytest.raises(
            ResumeError, match=r"of another dump: it has a row for Mint\.z\.9, which .*--force"
        ):
            resume_run(files, {"Mint.a.0"}, {**SETTINGS, "dump": "d2"})

    def test_force_takes_them_and_the_next_resume_needs_it_no_more(self, files: RunFiles) -> None:
        completed(files, passed(0, "Mint.a.0"), passed(1, "Mint.z.9"))
        other = {**SETTINGS, "dump": "d2", "seed": "7"}
        names = {"Mint.a.0", "Mint.b.0"}
        assert resume_run(files, names, other, force=True) == {"Mint.a.0", "Mint.z.9"}
        settings = load_settings(files.settings)
        assert settings is not None
        assert settings.fingerprint == other
        assert "Mint.z.9" in resume_run(files, names, other)
        with pytest.raises(ResumeError, match=r"seed 7, not 0"):
            resume_run(files, names, SETTINGS)

    def test_rows_that_the_dump_has_not_stay_and_come_last(self, files: RunFiles) -> None:
        # Without details, to retry, and last of the details: whatever it is, it cannot be made again.
        results = [passed(0, "Mint.z.9", outputs=0), skipped(1, "Mint.y.9", "why", False)]
        completed(files, *results, passed(2, "Mint.a.0"), passed(3, "Mint.x.9"))
        os.truncate(files.details, files.details.stat().st_size - 2)
        other = {**SETTINGS, "dump": "d2"}
        done = resume_run(files, {"Mint.a.0"}, other, force=True, retry=("skip",))
        journal = open_journal(files)
        journal.append(encoded([passed(0, "Mint.a.0")] if "Mint.a.0" not in done else []))
        journal.complete(["Mint.a.0"])
        assert names_in(files.result.read_bytes()) == [
            "Mint.a.0", "Mint.z.9", "Mint.y.9", "Mint.x.9",
        ]  # fmt: skip

    def test_a_setting_that_an_older_version_did_not_know_may_be_anything(
        self, files: RunFiles
    ) -> None:
        names = completed(files, passed(0, "Mint.a.0"))
        files.settings.write_text('{"seed": "0"}')
        resume_run(files, names, {"seed": "0", "new": "x"})
        with pytest.raises(ResumeError, match="seed"):
            resume_run(files, names, {"seed": "1", "new": "x"})

    def test_inputs_of_a_run_from_before_there_was_a_distribution_are_uniform(
        self, files: RunFiles
    ) -> None:
        names = completed(files, passed(0, "Mint.a.0"))
        before = everything(files)
        with pytest.raises(ResumeError, match="was made with distribution uniform, not recorded;"):
            resume_run(files, names, {**SETTINGS, "distribution": "recorded"})
        assert everything(files) == before
        assert resume_run(files, names, {**SETTINGS, "distribution": "uniform"}) == names

    def test_force_goes_on_with_other_inputs_and_the_next_resume_needs_it_no_more(
        self, files: RunFiles
    ) -> None:
        names = completed(files, passed(0, "Mint.a.0"))
        now = {**SETTINGS, "distribution": "recorded"}
        resume_run(files, names, now, force=True)
        resume_run(files, names, now)
        assert json.loads(files.settings.read_bytes()) == now

    def test_of_torn_settings_the_distribution_may_be_anything(self, files: RunFiles) -> None:
        names = completed(files, passed(0, "Mint.a.0"))
        whole = files.settings.read_bytes()
        files.settings.write_bytes(whole[: whole.index(b'"tested"')])
        now = {**SETTINGS, "distribution": "recorded"}
        # It is not refused; what may have had another verdict is checked again.
        assert resume_run(files, names, now) == set()
        assert json.loads(files.settings.read_bytes()) == now

    def test_what_msprobe_wrote_may_have_had_any_inputs(self, files: RunFiles) -> None:
        names = completed(files, passed(0, "Mint.a.0"))
        files.settings.unlink()
        assert resume_run(files, names, {**SETTINGS, "distribution": "recorded"}) == names

    @pytest.mark.parametrize(
        "data", [b"", b"{", b"\xff\xfe{}", b"[1, 2]", BOM + b'{"completed": 3']
    )
    def test_settings_that_nobody_can_read_are_not_the_same(
        self, files: RunFiles, data: bytes
    ) -> None:
        names = completed(files, passed(0, "Mint.a.0"), skipped(1, "Mint.b.0", "why", False))
        files.settings.write_bytes(data)
        before = everything(files)
        with pytest.raises(
            ResumeError,
            match=r"run\.json is torn and lacks the settings .* \(dump, framework, seed,",
        ):
            resume_run(files, names, {**SETTINGS, "seed": "7"})
        assert everything(files) == before
        assert resume_run(files, names, {**SETTINGS, "seed": "7"}, force=True) == {"Mint.b.0"}
        assert json.loads(files.settings.read_bytes()) == {**SETTINGS, "seed": "7"}

    def test_of_torn_settings_what_is_whole_counts(self, files: RunFiles) -> None:
        names = completed(files, passed(0, "Mint.a.0"))
        whole = files.settings.read_bytes()
        files.settings.write_bytes(whole[: whole.index(b'"tested": "au') + 12])
        with pytest.raises(ResumeError, match="seed 0, not 7;"):
            resume_run(files, names, {**SETTINGS, "seed": "7", "tested": "dump"})
        resume_run(files, names, {**SETTINGS, "tested": "dump"})

    @pytest.mark.parametrize("sign", ["float64", "added columns", "timeline"])
    def test_a_run_of_ours_without_its_settings_is_not_one_of_msprobe(
        self, files: RunFiles, sign: str
    ) -> None:
        rows = b"Mint.a.0.forward.output.0,torch.float32,mindspore.float32,(2;),1.0,0,0,pass,\r\n"
        rows += rows.replace(b".a.", b".b.")
        head = b"API Name,Bench Dtype,Tested Dtype,Shape,Cosine,MaxAbsErr,MaxRelativeErr,Status,Message"
        if sign == "float64":
            rows = rows.replace(b"torch.float32", b"torch.float64")
        if sign == "timeline":
            files.timeline.write_bytes(b"[\n")
        files.result.write_bytes(HEAD + b"Mint.a.0,pass,,\r\nMint.b.0,pass,,\r\n")
        names = {"Mint.a.0", "Mint.b.0"}
        more = b",RMSE" if sign == "added columns" else b""
        files.details.write_bytes(BOM + head + more + b"\r\n" + rows)
        with pytest.raises(ResumeError, match=r"run\.json is missing, and with it the settings"):
            resume_run(files, names, SETTINGS)
        if sign == "timeline":
            files.timeline.unlink()
            assert resume_run(files, names, SETTINGS) == names

    def test_a_row_that_the_same_dump_has_not_is_named_and_never_counted(
        self, files: RunFiles
    ) -> None:
        completed(files, passed(0, "Mint.a.0"), passed(1, "Mint.z.9"))
        with pytest.raises(ResumeError, match=r"it has a row for Mint\.z\.9, which this dump does"):
            resume_run(files, {"Mint.a.0"}, SETTINGS)
        resume_run(files, {"Mint.a.0"}, SETTINGS, force=True)
        summary = summarise(files)
        assert (summary.total, summary.passes, summary.foreign) == (1, 1, ["Mint.z.9"])
        assert "1 row is of calls that the dump does not have (Mint.z.9)" in format_summary(summary)

    def test_settings_that_cannot_be_read_are_named(self, files: RunFiles) -> None:
        completed(files, passed(0, "Mint.a.0"))
        files.settings.unlink()
        files.settings.mkdir()
        with pytest.raises(ResumeError, match=r"cannot read .*run\.json, .*: Is a directory"):
            resume_run(files, {"Mint.a.0"}, SETTINGS)


def results_to_retry() -> list[TaskResult]:
    """One result of each kind that --retry tells apart."""
    from dataclasses import replace

    from ray_precheck.schema.result import Verdict

    wrong = replace(
        passed(1, "Mint.wrong.0"), forward=Verdict.ERROR, message="forward.output.0: too large"
    )
    half = replace(passed(3, "Mint.half.0"), backward=Verdict.SKIP, message="backward: no kernel")
    back = replace(passed(4, "Mint.back.0"), backward=Verdict.ERROR, message="backward: it raised")
    return [
        passed(0, "Mint.fine.0"),
        wrong,
        skipped(2, "Mint.none.0", "no kernel", True),
        half,
        back,
        failed(5, "Mint.crash.0", Outcome.CRASHED, "killed its worker (SIGSEGV)", True),
        failed(6, "Mint.hang.0", Outcome.TIMED_OUT, "no answer in 300 s (--timeout)", False),
        skipped(7, "Mint.big.0", "ran out of patience; killed its worker", False),
    ]


class TestRetry:
    @pytest.mark.parametrize(
        ("kinds", "again"),
        [
            (("skip",), {"none", "half", "big"}),
            (("error",), {"wrong", "back", "crash", "hang"}),
            (("crash",), {"crash", "hang"}),
            (("crash", "skip"), {"none", "half", "big", "crash", "hang"}),
        ],
    )
    def test_rows_of_these_kinds_are_done_again_with_their_details(
        self, files: RunFiles, kinds: tuple[str, ...], again: set[str]
    ) -> None:
        names = completed(files, *results_to_retry())
        done = resume_run(files, names, SETTINGS, retry=kinds)
        assert names - done == {f"Mint.{name}.0" for name in again}
        rows, details = contents(files)
        assert set(names_in(rows)) == done
        assert {name.rsplit(".", 3)[0] for name in names_in(details)} <= done

    def test_the_new_rows_take_the_place_of_the_old_ones(self, files: RunFiles) -> None:
        results = results_to_retry()
        names = completed(files, *results)
        resume_run(files, names, SETTINGS, retry=("crash",))
        journal = open_journal(files)
        journal.append(encoded([passed(6, "Mint.hang.0", outputs=2), passed(5, "Mint.crash.0")]))
        journal.complete([result.name for result in results])
        rows, details = contents(files)
        assert names_in(rows) == [result.name for result in results]
        assert b"killed its worker (SIG" not in rows
        assert names_in(details)[-3:] == [
            "Mint.crash.0.forward.output.0",
            "Mint.hang.0.forward.output.0",
            "Mint.hang.0.forward.output.1",
        ]
        assert resume_run(files, names, SETTINGS) == names

    @pytest.mark.parametrize("reason", MACHINE_REASONS)
    def test_every_reason_of_the_machine_is_a_crash(self, files: RunFiles, reason: str) -> None:
        result = failed(0, "Mint.a.0", Outcome.CRASHED, f"{reason} and more", False)
        names = completed(files, result, skipped(1, "Mint.b.0", reason, False))
        assert resume_run(files, names, SETTINGS, retry=("crash",)) == {"Mint.b.0"}

    def test_lost_workers_are_found_in_the_words_of_this_version_and_of_earlier_ones(
        self, files: RunFiles
    ) -> None:
        reasons = [
            f"{LOST} (its node died)",
            "the worker process died on each of 3 attempts (ActorDiedError)",
            "its worker was lost with it every time (no answer)",
        ]
        results = [
            failed(i, f"Mint.{i}.0", Outcome.CRASHED, reason, True)
            for i, reason in enumerate(reasons)
        ]
        names = completed(files, *results, passed(9, "Mint.fine.0"))
        found = resume_run(files, names, SETTINGS, retry=("crash",))
        assert found == {"Mint.fine.0"}

    def test_where_nothing_is_to_be_retried_nothing_is_lost(self, files: RunFiles) -> None:
        names = completed(files, passed(0, "Mint.a.0"), passed(1, "Mint.b.0"))
        before = contents(files)
        assert resume_run(files, names, SETTINGS, retry=("crash",)) == names
        assert contents(files) == before

    def test_of_rows_that_are_there_twice_the_first_counts(self, files: RunFiles) -> None:
        files.result.write_bytes(HEAD + b"Mint.a.0,SKIP,,\r\nMint.a.0,pass,,\r\n")
        assert resume_run(files, {"Mint.a.0"}, SETTINGS, retry=("skip",)) == set()
        assert files.result.read_bytes() == HEAD

    def test_rows_of_msprobe_can_be_done_again(self, files: RunFiles) -> None:
        rows = [
            b"Torch.a.0,pass, , \r\n",
            b"Torch.b.0,error,SKIP, \r\n",
            b"Torch.c.0,skip, ,no\r\n",
        ]
        files.result.write_bytes(HEAD + b"".join(rows))
        names = {"Torch.a.0", "Torch.b.0", "Torch.c.0"}
        assert resume_run(files, names, SETTINGS, retry=("skip",)) == {"Torch.a.0", "Torch.b.0"}
        assert files.result.read_bytes() == HEAD + rows[0] + rows[1]
        assert resume_run(files, names, SETTINGS, retry=("error",)) == {"Torch.a.0"}

    def test_every_kind_that_the_command_line_knows_is_known_here(self) -> None:
        assert tuple(RETRY_KINDS) == RETRY


def killed_at(number: int) -> Callable[..., None]:
    """A `replace_file` that is killed the so-manieth time that it is called, before it does it."""
    calls = 0

    def replace(path: Path, lines: object) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            path.with_name(f".{path.name}.tmp").write_bytes(b"half of")
            raise KeyboardInterrupt
        replace_file(path, lines)  # type: ignore[arg-type]

    return replace


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_repair_that_is_killed_between_the_files_is_made_good(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    results = results_to_retry()
    names = completed(files, *results)
    undisturbed = contents(files)
    killer = killed_at(number)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "replace_file", killer)
        patch.setattr("ray_precheck.store.settings.replace_file", killer)
        with pytest.raises(KeyboardInterrupt):
            resume_run(files, names, SETTINGS, retry=("error",))
    done = resume_run(files, names, SETTINGS)
    # Before the first file was replaced nothing was dropped; afterwards it is what was asked for.
    kept = {f"Mint.{name}.0" for name in ("fine", "none", "half", "big")}
    assert done == names if number == 1 else done <= kept
    opened = open_journal(files)
    opened.append(encoded([result for result in results if result.name not in done]))
    opened.complete([result.name for result in results])
    assert contents(files) == undisturbed
    assert len(everything(files)) == 3


class TestFilesOfMsprobe:
    ROWS = b"Torch.a.0,pass, , \r\nTorch.b.0,pass,error,x\r\n"
    NAMES = frozenset({"Torch.a.0", "Torch.b.0", "Torch.c.0"})

    def test_names_are_what_counts_and_details_may_be_missing(self, files: RunFiles) -> None:
        files.result.write_bytes(HEAD + self.ROWS)
        for _ in range(3):  # also once there is a settings file of ours
            assert resume_run(files, self.NAMES, SETTINGS) == {"Torch.a.0", "Torch.b.0"}
        assert files.result.read_bytes() == HEAD + self.ROWS

    def test_a_row_of_another_dump_is_refused_without_force(self, files: RunFiles) -> None:
        files.result.write_bytes(HEAD + self.ROWS)
        with pytest.raises(ResumeError, match=r"another dump: it has a row for Torch\.b\.0"):
            resume_run(files, {"Torch.a.0"}, SETTINGS)
        assert not files.settings.exists()
        done = resume_run(files, {"Torch.a.0"}, SETTINGS, force=True)
        assert done == {"Torch.a.0", "Torch.b.0"}
        assert resume_run(files, {"Torch.a.0"}, SETTINGS) == done

    def test_details_with_other_columns_are_set_aside(self, files: RunFiles) -> None:
        files.result.write_bytes(HEAD + self.ROWS)
        theirs = b"API Name,Bench Dtype,DEVICE Dtype\r\nTorch.a.0.forward.output.0,a,b\r\n"
        files.details.write_bytes(theirs)
        resume_run(files, self.NAMES, SETTINGS)
        open_journal(files).append(encoded([passed(2, "Torch.c.0")]))
        assert files.details.with_suffix(".msprobe.csv").read_bytes() == theirs
        assert names_in(files.details.read_bytes()) == ["Torch.c.0.forward.output.0"]

    def test_nothing_is_written_over_to_set_them_aside(self, files: RunFiles) -> None:
        files.result.write_bytes(HEAD + self.ROWS)
        files.details.write_bytes(b"other columns\r\n")
        files.details.with_suffix(".msprobe.csv").write_bytes(b"of before")
        before = everything(files)
        with pytest.raises(ResumeError, match="its first line must be API Name, Bench Dtype"):
            resume_run(files, self.NAMES, SETTINGS)
        assert everything(files) == before

    def test_an_empty_result_csv_is_ours(self, files: RunFiles) -> None:
        files.result.write_bytes(b"")  # killed before the settings file was there
        assert resume_run(files, self.NAMES, SETTINGS) == set()
        assert load_settings(files.settings) == RunSettings(SETTINGS)


class TestFilesThatCannotBeWritten:
    def test_a_full_disk_is_exit_code_3_and_loses_nothing(
        self, files: RunFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = completed(files, *results_to_retry())
        before = everything(files)

        def fail(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(StoppedError, match="No space left"):
            resume_run(files, names, SETTINGS, retry=("skip",))
        assert everything(files) == before

    @pytest.mark.parametrize("which", ["result", "details"])
    def test_a_folder_in_the_place_of_a_file_is_one_sentence(
        self, files: RunFiles, which: str
    ) -> None:
        completed(files, passed(0, "Mint.a.0"))
        getattr(files, which).unlink()
        getattr(files, which).mkdir()
        with pytest.raises(PrecheckError, match="Is a directory") as refused:
            resume_run(files, {"Mint.a.0"}, SETTINGS)
        assert refused.value.exit_code == 2


def test_leftovers_of_a_killed_run_are_removed(files: RunFiles) -> None:
    names = completed(files, passed(0, "Mint.a.0"), passed(1, "Mint.b.0"))
    os.truncate(files.result, len(HEAD) + 5)
    for path in (files.result, files.details, files.settings):
        path.with_name(f".{path.name}.tmp").write_bytes(b"half of")
    resume_run(files, names, SETTINGS)
    assert len(everything(files)) == 3
