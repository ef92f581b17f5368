"""Every setting that can be wrong without a look at the dump or the machine."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.accuracy.standards import STANDARD_NAMES
from ray_precheck.errors import ResumeError, UsageError
from ray_precheck.options.shared import NodeDevices, parse_node_devices
from ray_precheck.replay.config import RunConfig
from ray_precheck.store.resume import resume_run, start_run
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import RESULT_COLUMNS

pytestmark = pytest.mark.unit


def config(**settings: Any) -> RunConfig:
    """A run that is right but for these settings."""
    return RunConfig(dump=Path("dump.json"), **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"framework": "mindspore"},
        {"framework": "pytorch", "device_type": "gpu", "tested": "dump"},
        {"devices": (0, 4095), "seed": 2**40, "timeout_s": 0.5},
        {"devices": "all", "exclude": "node-a,node-b:0-3"},
        {"devices": "node-a:0-3,6,node-b:0"},
        {"bench_workers": 0, "bench_budget_s": 0.5, "shared_fs": True, "filter_alike": True},
        {"resume_csv": Path("r.csv"), "retry": ("error", "skip", "crash"), "force": True},
    ],
)
def test_what_is_right_passes(settings: dict[str, Any]) -> None:
    made = config(**settings)
    made.validate()
    assert made == config(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"framework": "jax"},
            "-f 'jax' is unknown; expected one of: mindspore, pytorch, mindtorch",
        ),
        (
            {"framework": "MindSpore"},
            "-f 'MindSpore' is unknown; expected one of: mindspore, pytorch, mindtorch",
        ),
        (
            {"device_type": "tpu"},
            "--device-type 'tpu' is unknown; expected one of: auto, npu, gpu, cpu",
        ),
        ({"tested": ""}, "--tested '' is unknown; expected one of: auto, device, dump"),
        (
            {"standard": "loose"},
            f"--standard 'loose' is unknown; expected one of: {', '.join(STANDARD_NAMES)}, a YAML file"
            " (NAME.yaml)",
        ),
        (
            {"devices": "0-3"},
            "--devices: '0-3' is wrong: no NODE: stands before it; expected NODE[:IDS],..., where"
            " IDS are 0-7 or 0,2,4-6, as in node-a:0-3,6,node-b:0",
        ),
        (
            {"devices": "all", "exclude": "a:3-1"},
            "--exclude: 'a:3-1' is wrong: ids rise, from 0 to 4095; expected NODE[:IDS],..., where"
            " IDS are 0-7 or 0,2,4-6, as in node-a:0-3,6,node-b:0",
        ),
        ({"devices": ()}, "-d needs at least one device id"),
        ({"devices": (0, -1)}, "-d -1 is no device id; they go from 0 to 4095"),
        ({"devices": (4096,)}, "-d 4096 is no device id; they go from 0 to 4095"),
        ({"devices": (3, 1, 3)}, "-d names device 3 more than once"),
        (
            {"resume_csv": Path("r.csv"), "retry": ("skip", "SKIP")},
            "--retry 'SKIP' is unknown; expected one of: error, skip, crash, all",
        ),
        (
            {"retry": ("skip",)},
            "--retry needs -csv_path: the result CSV whose rows are done again",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_is_expected(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as wrong:
        config(**settings).validate()
    assert str(wrong.value) == message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("node-a:0-3,6,node-b:0", [("node-a", (0, 1, 2, 3, 6)), ("node-b", (0,))]),
        ("node-a:7,0-1", [("node-a", (7, 0, 1))]),
        (" node-a:0 , 2 , node-b ", [("node-a", (0, 2)), ("node-b", None)]),
        ("10.0.0.1:0-1,[fe80::1]:0,[fe80::2]", [
            ("10.0.0.1", (0, 1)), ("fe80::1", (0,)), ("fe80::2", None),
        ]),
        ("rack=r7:0,3:1", [("rack=r7", (0,)), ("3", (1,))]),
        ("a:4095", [("a", (4095,))]),
    ],
)  # fmt: skip
def test_devices_are_named_node_by_node(
    text: str, named: list[tuple[str, tuple[int, ...] | None]]
) -> None:
    assert parse_node_devices("--devices", text) == tuple(NodeDevices(*each) for each in named)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a comma has nothing beside it"),
        ("a:0,", "a comma has nothing beside it"),
        ("a,,b", "a comma has nothing beside it"),
        ("3,a:0", "'3' is wrong: no NODE: stands before it"),
        ("a,3", "'3' is wrong: no NODE: stands before it"),
        (":3", "':3' is wrong: no NODE: stands before it"),
        ("a:", "'a:' is wrong: '' is no id and no range"),
        ("a:x", "'x' is no id and no range"),
        ("a:-1", "'-1' is no id and no range"),
        ("a:0-", "'0-' is no id and no range"),
        ("a:0-4096", "ids rise, from 0 to 4095"),
        ("a:0-99999999999999", "ids rise, from 0 to 4095"),
        ("a:0-3,2", "'2' is wrong: id 2 is named twice"),
        ("a:0,b:0,a:1", "'a:1' is wrong: a is named twice"),
        ("a:\u0663", "is no id and no range"),
    ],
)
def test_what_names_no_devices_is_refused_with_the_grammar(text: str, why: str) -> None:
    with pytest.raises(UsageError) as wrong:
        parse_node_devices("--exclude", text)
    assert why in str(wrong.value)
    assert str(wrong.value).endswith("as in node-a:0-3,6,node-b:0")


def test_workers_of_a_machine_share_its_memory() -> None:
    assert config(devices=(0, 1)).memory_limit_bytes(1000) == 350
    assert config(devices="all").memory_limit_bytes(1000, 7) == 100
    assert config(max_memory_gib=1, devices="all").memory_limit_bytes(1000, 7) == 2**30


def test_a_run_from_before_a_setting_can_be_gone_on_with(tmp_path: Path) -> None:
    before = config().fingerprint("digest", "pytorch", "cpu")
    del before["filter_api"]
    files = start_run(tmp_path, "20260101120000", RunSettings(before))
    files.result.write_text(",".join(RESULT_COLUMNS) + "\n")
    for alike in (False, True):
        now = config(filter_alike=alike).fingerprint("digest", "pytorch", "cpu")
        assert resume_run(files, {"Torch.add.0"}, now, force=alike) == set()
    now = config(filter_alike=False).fingerprint("digest", "pytorch", "cpu")
    with pytest.raises(ResumeError, match="was made with filter_api on, not off"):
        resume_run(files, {"Torch.add.0"}, now)


NUMBERS = [
    ("seed", "--seed"),
    ("timeout_s", "--timeout"),
    ("max_memory_gib", "--max-memory"),
    ("bench_workers", "--bench-workers"),
    ("bench_budget_s", "--bench-budget"),
]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, 10**400, "3", True])
@pytest.mark.parametrize(("field", "option"), NUMBERS)
def test_a_number_that_no_option_can_mean_is_one_sentence(
    field: str, option: str, value: Any
) -> None:
    with pytest.raises(UsageError) as wrong:
        config(**{field: value}).validate()
    text = str(wrong.value)
    assert text.startswith(f"{option} ")
    assert " number " in text
    assert len(text) < 200


@pytest.mark.parametrize(("field", "option"), [NUMBERS[1], NUMBERS[4]])
def test_no_time_at_all_is_refused(field: str, option: str) -> None:
    with pytest.raises(UsageError, match=rf"^{option} 0 is wrong: .* larger than 0 and at most"):
        config(**{field: 0}).validate()


@pytest.mark.parametrize(("field", "option"), [NUMBERS[0], NUMBERS[3]])
def test_a_count_is_whole(field: str, option: str) -> None:
    with pytest.raises(UsageError, match=rf"^{option} 1.5 is wrong: .* a whole number at least 0"):
        config(**{field: 1.5}).validate()


def test_numbers_of_numpy_are_numbers() -> None:
    made = config(seed=np.int64(3), timeout_s=np.float32(2.5), bench_workers=np.int8(2))
    made.validate()
    assert made.fingerprint("digest", "pytorch", "cpu")["seed"] == "3"


def test_force_needs_the_files_to_go_on_in() -> None:
    with pytest.raises(UsageError, match="--force needs -csv_path"):
        config(force=True).validate()


def test_a_config_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "settings",
    [{"seed": 1}, {"tested": "device"}, {"standard": "other"}, {"filter_alike": True}],
)
def test_settings_that_change_rows_change_the_fingerprint(settings: dict[str, Any]) -> None:
    def fingerprint(**given: Any) -> dict[str, str]:
        return config(**given).fingerprint("digest", "pytorch", "cpu")

    assert fingerprint(**settings) != fingerprint()


def test_dump_framework_and_device_type_are_in_the_fingerprint() -> None:
    made = config().fingerprint("digest", "pytorch", "cpu")
    assert {"dump": "digest", "framework": "pytorch", "device type": "cpu"}.items() <= made.items()


@pytest.mark.parametrize(
    "settings",
    [
        {"devices": (0, 1, 2)},
        {"devices": "all", "exclude": "node-a"},
        {"bench_workers": 3, "bench_budget_s": 1.0, "shared_fs": True},
        {"timeout_s": 1.0},
        {"out": Path("/x")},
        {"save_error_data": True},
        {"force": True, "retry": ("error",)},
    ],
)
def test_a_run_may_go_on_with_other_devices_and_time_limits(settings: dict[str, Any]) -> None:
    before = config().fingerprint("digest", "pytorch", "cpu")
    assert config(**settings).fingerprint("digest", "pytorch", "cpu") == before
