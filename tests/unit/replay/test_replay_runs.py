"""What a precheck checks: the settings that its workers get, and the fingerprint of its run."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.check.options import CheckOptions
from ray_precheck.dump.parse import open_dump
from ray_precheck.errors import UsageError
from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.selected import SelectedCalls, find_selected, read_options
from ray_precheck.running.run import session_of_one
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.settings import RunSettings, save_settings
from ray_precheck.store.tables import added_setting, run_files

pytestmark = pytest.mark.unit

NAMES = ["Distributed.all_reduce.0", "Distributed.broadcast.0"]
Find = Callable[..., SelectedCalls]


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Find]:
    """Return what finds the selected of a run over two collectives on the CPU."""
    call: dict[str, Any] = {"input_args": [], "input_kwargs": {}, "output": []}
    path = tmp_path / "dump.json"
    data = {f"{name}.forward": call for name in NAMES}
    path.write_text(json.dumps({"task": "statistics", "framework": "pytorch", "data": data}))

    with ExitStack() as opened:

        def find(*, is_alone: bool = True, **options: Any) -> SelectedCalls:
            config = RunConfig(path, device_type="cpu", **options)
            asked, dump = read_options(config), opened.enter_context(open_dump(path))
            one = session_of_one(config, show=False, on_files=lambda path: None)
            return find_selected(asked, dump, opened.enter_context(one), is_alone=is_alone)

        yield find


def test_workers_get_the_options_that_the_user_gave(found: Find) -> None:
    options = {"seed": 7, "tested": "device", "standard": "ulp", "distribution": "uniform"}
    selected = found(**options)
    settings = selected.check_settings(run_files(Path("accuracy_checking_result_1.csv")))
    assert settings.options == CheckOptions(**options)  # type: ignore[arg-type]
    assert settings.standard.name == "ulp"
    assert (settings.device_type, settings.tests_dump) == ("cpu", False)


def test_workers_make_the_columns_that_the_run_has_begun_with(found: Find, tmp_path: Path) -> None:
    selected = found(standard="auto")
    files = run_files(tmp_path / "accuracy_checking_result_1.csv")
    assert "HonestBy" in selected.check_settings(files).added
    save_settings(files.settings, RunSettings(added_setting(["Standard", "HonestRMSE"])))
    assert selected.check_settings(files).added == ("Standard", "HonestRMSE")


@pytest.mark.parametrize("saves", [True, False])
def test_tensors_of_failing_outputs_are_saved_on_request(found: Find, saves: bool) -> None:
    files = run_files(Path("accuracy_checking_result_1.csv"))
    folder = found(save_error_data=saves).check_settings(files).error_folder
    assert folder == (files.errors.absolute() if saves else None)


def test_a_plan_has_rows_of_what_needs_no_run_and_leaves_out_what_is_done(found: Find) -> None:
    selected = found()
    planned = selected.plan({NAMES[0]}, Progress(2, 1, show=False))
    assert (planned.tasks, [done.name for done in planned.settled]) == ((), [NAMES[1]])


def test_the_fingerprint_tells_standards_and_selections_apart(found: Find) -> None:
    plain = found().fingerprint()
    assert plain["device type"] == "cpu"
    assert {
        key for key, value in found(standard="ulp").fingerprint().items() if value != plain.get(key)
    } >= {"standard"}
    assert found(keywords=("reduce",)).fingerprint() == {**plain, "selection": "-k 'reduce'"}


def test_a_name_that_is_in_another_dump_is_no_error(found: Find) -> None:
    options = {"keywords": ("broadcast", "all_gather")}
    with pytest.raises(UsageError, match="-k 'all_gather' fits no call"):
        found(**options)
    selected = found(is_alone=False, **options)
    assert [call.name for call in selected.dump.calls] == NAMES[1:]
