"""A board turns switches to their plain side for a block, and back."""

from dataclasses import replace
from typing import Any

import pytest

from ray_precheck.descriptors.descriptor import BUILT_IN, find_framework
from ray_precheck.frameworks.switches import KernelSwitch, SwitchBoard, switches_of

pytestmark = pytest.mark.unit


class Settings:
    """Values by name, and the order in which they were set."""

    def __init__(self, **values: Any) -> None:
        self.values = values
        self.history: list[tuple[str, Any]] = []

    def switch(self, name: str, plain: Any, **others: Any) -> KernelSwitch:
        def write(value: Any) -> None:
            self.history.append((name, value))
            self.values[name] = value

        def read() -> Any:
            return self.values[name]

        return KernelSwitch(
            name=name, title=name, advice="", read=read, write=write, plain=plain, **others
        )


def board(settings: Settings, *switches: KernelSwitch, kind: str = "cpu") -> SwitchBoard:
    return SwitchBoard(switches or [settings.switch(name, False) for name in settings.values], kind)


def test_named_switches_are_plain_in_the_block_and_as_before_after_it() -> None:
    settings = Settings(a=True, b=True)
    with board(settings).turned(["b"]):
        assert settings.values == {"a": True, "b": False}
    assert settings.values == {"a": True, "b": True}


def test_they_are_restored_in_reverse_order_also_after_an_error() -> None:
    settings = Settings(a=True, b=True)
    made = board(settings)
    with pytest.raises(RuntimeError), made.turned(made.names):
        raise RuntimeError
    assert settings.history == [("a", False), ("b", False), ("b", True), ("a", True)]


def test_the_default_side_is_the_value_at_first_whatever_was_set_since() -> None:
    settings = Settings(tf32=True)
    made = board(settings)
    settings.values["tf32"] = False  # as a backend does when it opens its device
    with made.turned([]):
        assert settings.values == {"tf32": True}
    assert settings.values == {"tf32": False}


def test_a_switch_may_name_its_default() -> None:
    settings = Settings(threads=2)
    with board(settings, settings.switch("threads", 1, default=4)).turned([]):
        assert settings.values == {"threads": 4}


def test_switches_of_other_devices_and_of_other_versions_are_left_out() -> None:
    settings = Settings(a=True, b=True, c=True)

    def missing() -> bool:
        raise AttributeError

    switches = [
        settings.switch("a", False, kinds=("gpu",)),
        settings.switch("b", False, kinds=("cpu", "gpu")),
        settings.switch("c", False, exists=missing),
        replace(settings.switch("b", False), name="d", read=missing),
        settings.switch("c", False, exists=lambda: False),
    ]
    assert board(settings, *switches).names == ("b",)
    assert board(settings, *switches, kind="gpu").names == ("a", "b")


def test_switches_of_the_environment_are_variables_of_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(a=True)
    others: dict[str, Any] = {"title": "", "advice": "", "environment": {"SOME_UNITS": "none"}}
    switches = [settings.switch("a", False), KernelSwitch(name="units", **others)]
    made = board(settings, *switches)
    assert made.names == ("a", "units")
    assert made.environment(["a"]) == {}
    assert made.environment(made.names) == {"SOME_UNITS": "none"}
    with made.turned(made.names):
        assert settings.history == [("a", False)]
    monkeypatch.setenv("SOME_UNITS", "none")
    assert board(settings, *switches).names == ("a",)


def test_a_switch_that_is_plain_already_is_not_set() -> None:
    settings = Settings(a=False)
    with board(settings).turned(["a"]):
        assert settings.history == []


def test_a_framework_may_have_no_switches() -> None:
    assert switches_of("mindtorch") == ()
    assert [name for name in BUILT_IN if find_framework(name).switches] == ["mindspore", "pytorch"]
