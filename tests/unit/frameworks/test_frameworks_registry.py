"""Which packages a dump needs, and what is said where one is missing."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from ray_precheck.errors import BackendMissingError
from ray_precheck.frameworks.base import require_framework

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


def test_missing_mindspore_is_reported_with_the_command_that_installs_it(
    installed: set[str],
) -> None:
    installed.remove("mindspore")
    with pytest.raises(BackendMissingError, match=r"install it with: pip install mindspore \("):
        require_framework("mindspore")


def test_captured_results_of_mindspore_are_tested_without_mindspore(installed: set[str]) -> None:
    installed.remove("mindspore")
    assert require_framework("mindspore", device_runs=False) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
def test_missing_torch_is_reported_for_every_dump_because_the_bench_needs_it(
    framework: str, installed: set[str]
) -> None:
    installed.remove("torch")
    with pytest.raises(BackendMissingError, match=r"the bench needs torch.*: pip install torch \("):
        require_framework(framework)


def test_a_framework_without_a_backend_is_refused_by_name(installed: set[str]) -> None:
    with pytest.raises(BackendMissingError, match="jax dumps cannot be checked yet"):
        require_framework("jax")


@pytest.fixture
def torches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search path on which MSAdapter's torch and the native one lie in folders of their own."""
    for name, text in (("adapter", "import mindspore"), ("native", "")):
        (tmp_path / name / "torch").mkdir(parents=True)
        (tmp_path / name / "torch" / "__init__.py").write_text(text)
    (tmp_path / "native" / "torch" / "_C.so").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "adapter"), str(tmp_path / "native")])


@pytest.mark.usefixtures("torches")
def test_a_mindtorch_dump_needs_both_packages_called_torch(installed: set[str]) -> None:
    assert require_framework("mindtorch") is None  # type: ignore[func-returns-value]


@pytest.mark.usefixtures("torches")
@pytest.mark.parametrize(
    ("lacking", "sentence"),
    [(0, "MSAdapter's torch is what a mindtorch dump tests"), (1, "the native torch computes")],
)
def test_a_mindtorch_dump_with_one_of_them_is_refused(
    lacking: int, sentence: str, installed: set[str]
) -> None:
    del sys.path[lacking]
    with pytest.raises(BackendMissingError, match=sentence):
        require_framework("mindtorch")


@pytest.mark.usefixtures("torches")
def test_captured_results_of_mindtorch_are_tested_without_msadapter(installed: set[str]) -> None:
    del sys.path[0]
    installed.remove("mindspore")
    assert require_framework("mindtorch", device_runs=False) is None  # type: ignore[func-returns-value]
