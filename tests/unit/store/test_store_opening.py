"""A run is held while its block runs, whether its files are new or gone on with."""

from pathlib import Path

import pytest

from ray_precheck.errors import ResumeError
from ray_precheck.options.files import ResumeOptions
from ray_precheck.store.opening import opened_run, results_folder

pytestmark = pytest.mark.unit
STAMP = "20260101120000"
NAMES = {"Torch.add.0", "Torch.mul.0"}
ROW = 'Torch.add.0,pass,,"one of the two"\n'


def test_new_files_are_held_until_the_end_of_the_block(tmp_path: Path) -> None:
    new = tmp_path / "out", STAMP
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
    new = tmp_path, STAMP
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


def test_the_folder_of_results_is_named_by_itself_or_by_a_table(tmp_path: Path) -> None:
    table = tmp_path / f"locate_calls_{STAMP}.csv"
    table.touch()
    assert results_folder(Path("out"), None) == Path("out")
    assert results_folder(Path("out"), tmp_path) == tmp_path
    assert results_folder(Path("out"), table) == tmp_path
