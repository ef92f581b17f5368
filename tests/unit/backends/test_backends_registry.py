"""Which packages a dump needs, and what is said where one is missing."""

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from ray_precheck.backends.registry import require_framework
from ray_precheck.errors import BackendMissingError

pytestmark = pytest.mark.unit


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages that can be found; a test changes the set."""
    packages = {"torch", "mindspore"}

    def find_spec(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name in packages else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return packages


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
def test_with_both_frameworks_installed_nothing_is_missing(
    framework: str, installed: set[str]
) -> None:
    assert require_framework(framework) is None  # type: ignore[func-returns-value]


def test_missing_mindspore_is_reported_with_its_extra(installed: set[str]) -> None:
    installed.remove("mindspore")
    with pytest.raises(BackendMissingError, match=r"pip install 'ray_precheck\[mindspore\]'"):
        require_framework("mindspore")


def test_captured_results_of_mindspore_are_tested_without_mindspore(installed: set[str]) -> None:
    installed.remove("mindspore")
    assert require_framework("mindspore", device_runs=False) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
def test_missing_torch_is_reported_for_every_dump_because_the_bench_needs_it(
    framework: str, installed: set[str]
) -> None:
    installed.remove("torch")
    with pytest.raises(BackendMissingError, match=r"the bench needs torch.*\[torch\]"):
        require_framework(framework)


def test_a_framework_without_a_backend_is_refused_by_name(installed: set[str]) -> None:
    with pytest.raises(BackendMissingError, match="mindtorch dumps cannot be checked yet"):
        require_framework("mindtorch")
