"""Attributes that are replaced for a while."""

import sys
from types import ModuleType
from typing import Any

import pytest

from ray_precheck.capture.mindspore.patches import Patches


class Base:
    """A class whose attribute another one inherits."""

    def step(self) -> str:
        return "own"


class Derived(Base):
    """A class without an attribute of its own."""


def replacement(_: Any = None) -> str:
    return "replaced"


def test_what_a_class_inherits_is_inherited_again() -> None:
    patches = Patches()
    patches.put(Derived, "step", replacement)
    assert Derived().step() == "replaced"
    assert Base().step() == "own"
    patches.take_away()
    assert "step" not in vars(Derived)


def test_replacements_are_away_while_they_are_suspended() -> None:
    patches, before = Patches(), Base.step
    patches.put(Base, "step", replacement)
    with patches.suspended():
        with patches.suspended():
            assert Base.step is before
        assert Base.step is before
    assert Base.step is replacement
    patches.take_away()
    assert Base.step is before


def test_replacements_that_end_while_they_are_suspended_do_not_come_back() -> None:
    patches, before = Patches(), Base.step
    patches.put(Base, "step", replacement)
    with patches.suspended():
        patches.take_away()
    assert Base.step is before


def test_functions_imported_by_name_are_found_by_what_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def function() -> None: ...

    ours, theirs = ModuleType("a_program"), ModuleType("mindspore.inner")
    for module in (ours, theirs):
        module.any_name = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    patches = Patches()
    patches.put_where_imported({id(function): (function, replacement)})
    assert ours.any_name is replacement
    assert theirs.any_name is function
    patches.take_away()
    assert ours.any_name is function
