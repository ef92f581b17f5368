"""Every setting that can be wrong without a look at the dump or the machine."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.config import RunConfig
from ray_precheck.errors import UsageError

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
        ({"framework": "jax"}, "-f 'jax' is unknown; expected one of: mindspore, pytorch"),
        (
            {"framework": "MindSpore"},
            "-f 'MindSpore' is unknown; expected one of: mindspore, pytorch",
        ),
        (
            {"device_type": "tpu"},
            "--device-type 'tpu' is unknown; expected one of: auto, npu, gpu, cpu",
        ),
        ({"tested": ""}, "--tested '' is unknown; expected one of: auto, device, dump"),
        ({"standard": "loose"}, "--standard 'loose' is unknown; expected one of: msprobe"),
        ({"timeout_s": 0.0}, "--timeout 0 must be larger than 0 seconds"),
        ({"timeout_s": -1.5}, "--timeout -1.5 must be larger than 0 seconds"),
        ({"timeout_s": float("nan")}, "--timeout nan must be larger than 0 seconds"),
        ({"seed": -1}, "--seed -1 must not be negative"),
        ({"devices": ()}, "-d needs at least one device id"),
        ({"devices": (0, -1)}, "-d -1 is no device id; they go from 0 to 4095"),
        ({"devices": (4096,)}, "-d 4096 is no device id; they go from 0 to 4095"),
        ({"devices": (3, 1, 3)}, "-d names device 3 more than once"),
        (
            {"resume_csv": Path("r.csv"), "retry": ("skip", "SKIP")},
            "--retry 'SKIP' is unknown; expected one of: error, skip, crash",
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


def test_a_config_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("settings", [{"seed": 1}, {"tested": "device"}, {"standard": "other"}])
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
        {"timeout_s": 1.0},
        {"out": Path("/x")},
        {"save_error_data": True},
        {"force": True, "retry": ("error",)},
    ],
)
def test_a_run_may_go_on_with_other_devices_and_time_limits(settings: dict[str, Any]) -> None:
    before = config().fingerprint("digest", "pytorch", "cpu")
    assert config(**settings).fingerprint("digest", "pytorch", "cpu") == before
