"""Each key of a config.json of msprobe works, or is accepted with a sentence; others are errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.capture.msprobe_config import DebuggerConfig, read_config
from ray_precheck.capture.settings import TensorSlice
from ray_precheck.errors import UsageError

pytestmark = pytest.mark.unit
# The config.json that msprobe 26.2 brings.
ITS_OWN = {
    "task": "statistics",
    "dump_path": "./dump_path",
    "rank": [],
    "step": [],
    "level": "L1",
    "extra_info": True,
    "async_dump": False,
    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
    "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"},
}


def config_of(tmp_path: Path, found: object, **given: Any) -> DebuggerConfig:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(found))
    return read_config(str(path), **given)


def test_its_own_configuration_is_read_without_a_word(tmp_path: Path) -> None:
    config = config_of(tmp_path, ITS_OWN)
    assert config.notices == ()
    assert config.enabled is None
    settings = config.settings
    assert (settings.task, settings.level, settings.steps, settings.ranks) == (
        "statistics",
        "L1",
        None,
        None,
    )
    assert settings.path == Path("dump_path").absolute()
    assert settings.risk_level == "FOCUS"


def test_every_key_that_works_reaches_the_settings(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        {
            "task": "tensor",
            "dump_path": str(tmp_path / "dump"),
            "rank": [0, "2-3"],
            "step": ["0-2", 5],
            "level": "mix",
            "dump_enable": False,
            "extra_info": False,
            "risk_level": "CORE",
            "custom_op_namespaces": ["mine"],
            "tensor": {
                "scope": ["Torch.relu.0.forward", "Torch.exp.0.forward"],
                "list": ["name-regex(.*relu.*)"],
                "data_mode": ["forward", "output"],
                "summary_mode": "md5",
                "tensor_list": ["relu"],
                "slice": [{"dim": 1, "begin": 2, "end": 4, "size": 8}],
            },
        },
    )
    settings = config.settings
    assert settings.task == "tensor"
    assert (settings.ranks, settings.steps) == ({0, 2, 3}, {0, 1, 2, 5})
    assert (settings.level, settings.risk_level, settings.stacks) == ("mix", "CORE", False)
    assert settings.custom_op_namespaces == ("mine",)
    assert settings.scope == ("Torch.relu.0.forward", "Torch.exp.0.forward")
    assert settings.chosen == ("name-regex(.*relu.*)",)
    assert settings.data_mode == {"forward", "output"}
    assert (settings.summary_mode, settings.tensor_list) == ("md5", ("relu",))
    assert settings.slices == (TensorSlice(dim=1, begin=2, end=4, size=8),)
    assert config.enabled is False
    assert config.notices == ()


def test_arguments_of_the_constructor_come_first(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, ITS_OWN, task="tensor", dump_path=str(tmp_path), level="L0", step=[3]
    )
    settings = config.settings
    assert (settings.task, settings.level, settings.steps) == ("tensor", "L0", {3})
    assert settings.path == tmp_path


@pytest.mark.parametrize(
    ("top", "section", "said"),
    [
        ({"async_dump": True}, {}, "async_dump has no meaning here"),
        ({"precision": "high"}, {}, "precision has no meaning here"),
        ({"load": {"path": "x"}}, {}, "load has no meaning here"),
        ({}, {"request_id": "7"}, "request_id has no meaning here"),
        ({}, {"diff_nums": 3}, "diff_nums has no meaning here"),
        ({}, {"bench_path": "x"}, "bench_path has no meaning here"),
        ({"seed": 1}, {}, "seed is of an earlier msprobe"),
        ({}, {"file_format": "npy"}, "file_format is of an earlier msprobe"),
    ],
)
def test_what_has_no_meaning_is_accepted_with_one_sentence(
    tmp_path: Path, top: dict[str, Any], section: dict[str, Any], said: str
) -> None:
    config = config_of(tmp_path, {**top, "statistics": section})
    (notice,) = config.notices
    assert said in notice


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "expected an object"),
        ({"taks": "tensor"}, "taks, which msprobe has not either; known are acc_check"),
        ({"statistics": {"lists": []}}, "statistics has lists, which msprobe has not either"),
        ({"statistics": []}, "statistics is [[][]]; expected an object"),
        ({"task": "dump"}, "task is 'dump'; expected one of statistics, tensor, structure"),
        ({"task": "acc_check"}, "ray-precheck acc_check"),
        ({"task": "diff_check"}, "compare the dumps afterwards"),
        ({"level": "L2"}, "kernels of an Ascend device"),
        ({"level": "L3"}, "level is 'L3'; expected one of L0, L1, mix, debug"),
        ({"step": "0-2"}, "step is '0-2'; expected a list"),
        ({"step": ["2-0"]}, "steps has '2-0'"),
        ({"rank": [-1]}, "ranks has -1"),
        ({"dump_path": 3}, "dump_path is 3; expected a text"),
        ({"dump_enable": "yes"}, "dump_enable is 'yes'; expected true or false"),
        ({"extra_info": 1}, "extra_info is 1; expected true or false"),
        ({"async_dump": 1}, "async_dump is 1; expected true or false"),
        ({"risk_level": "LOW"}, "risk_level is 'LOW'; expected one of ALL, FOCUS, CORE"),
        ({"custom_op_namespaces": "npu"}, "expected a list of texts"),
        ({"statistics": {"list": "relu"}}, "list is 'relu'; expected a list of texts"),
        ({"statistics": {"list": ["name-regex(()"]}}, "no regular expression"),
        ({"statistics": {"scope": ["a"]}}, "scope has 1 names; expected two"),
        ({"statistics": {"data_mode": ["all", "input"]}}, "all and other words"),
        ({"statistics": {"data_mode": ["inputs"]}}, "data_mode has inputs"),
        ({"statistics": {"summary_mode": "crc"}}, "summary_mode is 'crc'"),
        ({"statistics": {"slice": {}}}, ""),
        ({"statistics": {"slice": [3]}}, "slice is [[]3[]]"),
        ({"statistics": {"slice": [{"dim": -1}]}}, "slice.dim is -1"),
        ({"statistics": {"slice": [{"dims": 1}]}}, "slice has dims"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(tmp_path: Path, found: object, said: str) -> None:
    if not said:
        config_of(tmp_path, found)
        return
    with pytest.raises(UsageError, match=said) as caught:
        config_of(tmp_path, found)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_no_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json cannot be read"):
        read_config(str(tmp_path / "none.json"))
    (tmp_path / "config.json").write_text("{,}")
    with pytest.raises(UsageError, match=r"config\.json is no JSON"):
        read_config(str(tmp_path / "config.json"))


def test_structure_has_modules_and_nan_check_statistics(tmp_path: Path) -> None:
    structure = config_of(tmp_path, {"task": "structure"})
    assert structure.settings.level == "mix"
    nan_check = config_of(tmp_path, {"task": "nan_check"})
    assert nan_check.settings.task == "statistics"
    assert len(structure.notices) == len(nan_check.notices) == 1
    assert config_of(tmp_path, {"level": "debug"}).is_debug
