"""The names of torch_npu.hooks are there, and importing them is quick."""

import subprocess
import sys

import pytest

from ray_precheck import hooks

pytestmark = pytest.mark.unit
NAMES = (
    "set_dump_path seed_all register_hook wrap_acc_cmp_hook wrap_checkoverflow_hook"
    " wrap_async_datadump_hook schedule step_schedule"
)


def test_the_names_of_the_old_tool_are_there() -> None:
    assert set(NAMES.split()) <= set(hooks.__all__)


def test_the_package_and_its_steps_load_no_torch() -> None:
    source = (
        "import sys; from ray_precheck.hooks import schedule, step_schedule, set_dump_path;"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


def test_an_unknown_name_is_no_name_of_the_package() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'register_hooks'"):
        _ = hooks.register_hooks
