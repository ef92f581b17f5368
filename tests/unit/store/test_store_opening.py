"""A run is held while its block runs, whether its files are new or gone on with."""

from dataclasses import replace
from pathlib import Path

import pytest

from ray_precheck.errors import ResumeError
from ray_precheck.options.shared import ResumeOptions
from ray_precheck.store.resume import NewFiles, opened_run
from ray_precheck.store.tables import API_TABLES, run_files

pytestmark = pytest.mark.unit
STAMP = "20260101120000"
NAMES = {"Torch.add.0", "Torch.mul.0"}
ROW = 'Torch.add.0,pass,,"one of the two"\n'


def test_new_files_are_held_until_the_end_of_the_block(tmp_path: Path) -> None:
    new = NewFiles(tmp_path / "out", STAMP)
    with opened_run(None, new, NAMES, {"seed": "7"}, ResumeOptions()) as opened:
        assert (opened.is_new, opened.done) == (True, set())
        result = opened.files.result
        result.write_text("API Name,Forward Test Success,Backward Test Success,Message\n" + ROW)
        with (
            pytest.raises(ResumeError, match="another run has"),
            opened_run(result, new, NAMES, {"seed": "7"}, ResumeOptions()),
        ):
            pytest.fail("two runs have the same files")
    with opened_run(result, new, NAMES, {"seed": "7"}, ResumeOptions()) as opened:
        assert not opened.is_new
        assert opened.files.result == result


def test_other_settings_are_gone_on_with_by_force_alone(tmp_path: Path) -> None:
    new = NewFiles(tmp_path, STAMP)
    with opened_run(None, new, NAMES, {"seed": "7"}, ResumeOptions()) as opened:
        result = opened.files.result
    result.write_text("API Name,Forward Test Success,Backward Test Success,Message\n")
    with (
        pytest.raises(ResumeError, match="seed 7, not 8"),
        opened_run(result, new, NAMES, {"seed": "8"}, ResumeOptions()),
    ):
        pytest.fail("it is another run")
    forced = ResumeOptions(resume_csv=result, force=True)
    with opened_run(result, new, NAMES, {"seed": "8"}, forced) as opened:
        assert not opened.is_new


@pytest.mark.parametrize("with_details", [False, True])
def test_what_was_killed_before_its_first_row_does_not_keep_the_stamp(
    tmp_path: Path, with_details: bool
) -> None:
    with opened_run(None, NewFiles(tmp_path, STAMP), NAMES, {"seed": "7"}, ResumeOptions()) as gone:
        pass
    if with_details:
        gone.files.details.write_text("API Name\nTorch.add.0.forward.output.0\n")
    with opened_run(None, NewFiles(tmp_path, STAMP), NAMES, {"seed": "7"}, ResumeOptions()) as new:
        assert new.files.result.stem.endswith(f"{STAMP}_1"), "another run has taken its stamp"
    again = NewFiles(tmp_path, STAMP, goes_on=True)
    with opened_run(None, again, NAMES, {"seed": "7"}, ResumeOptions()) as opened:
        assert opened.is_new
        assert opened.files.result == gone.files.result
        assert not opened.files.details.exists()
        assert opened.files.settings.exists()
        with pytest.raises(ResumeError, match="another run has"):
            opened_run(None, again, NAMES, {}, ResumeOptions()).__enter__()


def test_a_run_that_has_rows_keeps_its_stamp_from_one_that_goes_on(tmp_path: Path) -> None:
    files = run_files(tmp_path / f"accuracy_checking_result_{STAMP}.csv")
    files.result.write_text("API Name,Forward Test Success,Backward Test Success,Message\n" + ROW)
    files.settings.write_text("{}")
    again = NewFiles(tmp_path, STAMP, goes_on=True)
    with opened_run(None, again, NAMES, {"seed": "7"}, ResumeOptions()) as opened:
        assert opened.files.result.stem.endswith(f"{STAMP}_1")
    assert files.settings.read_text() == "{}"


def test_settings_that_another_table_of_the_stem_has_are_left(tmp_path: Path) -> None:
    tables = replace(API_TABLES, words=("dumps", "roots"))
    files = run_files(tmp_path / tables.file("result", STAMP), tables)
    files.settings.write_text("{}")
    (tmp_path / f"accuracy_checking_result_{STAMP}.csv").write_text(ROW)
    again = NewFiles(tmp_path, STAMP, goes_on=True)
    with opened_run(None, again, NAMES, {"seed": "7"}, ResumeOptions(), tables) as opened:
        assert opened.files.settings != files.settings
    assert files.settings.read_text() == "{}"
