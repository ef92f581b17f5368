"""Two packages called torch are told apart by their files, and each is found where it is needed."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ray_precheck.errors import BackendMissingError
from ray_precheck.frameworks.mindtorch import paths as mindtorch_paths
from ray_precheck.frameworks.mindtorch.paths import (
    TorchKind,
    adapter_folder,
    find_torches,
    native_folder,
    prefer_native,
)

pytestmark = pytest.mark.unit
# What each package consists of: file -> text.
NATIVE = {"__init__.py": "from torch._C import *", "_C.cpython-311-x86_64-linux-gnu.so": ""}
BUILT = {"__init__.py": "", "version.py": "__version__ = '2.13.0'\ngit_version = 'cf30153'\n"}
ADAPTER = {"__init__.py": "import mindspore\n", "version.py": "git_version = 'f00'\n"}
PROXY = {"__init__.py": "from msadapter import *\n"}
OTHER = {"__init__.py": "# a toy that burns\n"}


def package(folder: Path, files: dict[str, str], name: str = "torch") -> str:
    """Make a package in a folder; returns the folder as an entry of the search path."""
    for file, text in files.items():
        target = folder / name / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return str(folder)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (NATIVE, TorchKind.NATIVE),
        ({"__init__.py": "", "lib/libtorch_cpu.so": ""}, TorchKind.NATIVE),
        (NATIVE | {"ops.py": "# as in mindspore"}, TorchKind.NATIVE),
        (BUILT, TorchKind.NATIVE),
        (ADAPTER, TorchKind.ADAPTER),
        (PROXY, TorchKind.ADAPTER),
        ({"__init__.py": "from .core import *", "core.py": "import mindtorch"}, TorchKind.ADAPTER),
        (OTHER, TorchKind.UNKNOWN),
    ],
    ids=["extension", "library", "mention", "version", "adapter", "proxy", "inner file", "other"],
)
def test_a_torch_is_known_by_its_files(
    tmp_path: Path, files: dict[str, str], kind: TorchKind
) -> None:
    (found,) = find_torches([package(tmp_path, files)])
    assert (found.folder, found.kind) == (tmp_path, kind)


def test_nothing_of_a_package_is_imported(tmp_path: Path) -> None:
    entry = package(tmp_path, {"__init__.py": "import mindspore\nraise SystemExit"})
    assert [each.kind for each in find_torches([entry])] == [TorchKind.ADAPTER]


def test_packages_come_in_the_order_of_the_path_and_each_once(tmp_path: Path) -> None:
    adapter = package(tmp_path / "a", ADAPTER)
    native = package(tmp_path / "n", NATIVE)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    path = [str(tmp_path / "none"), adapter, str(tmp_path / "link"), native, adapter]
    assert [str(each.folder) for each in find_torches(path)] == [adapter, native]


@pytest.mark.parametrize("order", [1, -1], ids=["adapter first", "native first"])
def test_both_are_found_in_either_order(tmp_path: Path, order: int) -> None:
    path = [package(tmp_path / "a", ADAPTER), package(tmp_path / "n", NATIVE)][::order]
    assert adapter_folder(path) == tmp_path / "a"
    assert native_folder(path) == tmp_path / "n"


def test_of_two_of_the_same_the_first_counts(tmp_path: Path) -> None:
    path = [package(tmp_path / name, ADAPTER) for name in ("one", "two")]
    assert adapter_folder(path) == tmp_path / "one"


@pytest.mark.parametrize(
    ("kind", "wanted", "named", "advice"),
    [
        (
            NATIVE,
            adapter_folder,
            "the native torch",
            "PYTHONPATH=<MSAdapter>/build/lib:$PYTHONPATH",
        ),
        (ADAPTER, native_folder, "MSAdapter's torch", "pip install torch"),
    ],
)
def test_two_of_the_other_kind_are_not_enough_and_both_are_named(
    tmp_path: Path,
    kind: dict[str, str],
    wanted: Callable[[list[str]], object],
    named: str,
    advice: str,
) -> None:
    path = [package(tmp_path / name, kind) for name in ("one", "two")]
    with pytest.raises(BackendMissingError) as caught:
        wanted(path)
    text = str(caught.value)
    assert f"{named} in {path[0]}; {named} in {path[1]}" in text
    assert advice in text


def test_without_any_torch_it_is_said_where_it_was_looked_for(tmp_path: Path) -> None:
    path = [str(tmp_path / str(number)) for number in range(10)]
    with pytest.raises(BackendMissingError) as caught:
        native_folder(path)
    assert f"no torch at all; looked in {', '.join(path[:8])} and 2 more)" in str(caught.value)


@pytest.mark.parametrize("name", ["msadapter", "mindtorch"])
def test_a_release_without_a_torch_of_its_own_is_named_with_what_to_do(
    tmp_path: Path, name: str
) -> None:
    path = [package(tmp_path, {"__init__.py": ""}, name), package(tmp_path / "n", NATIVE)]
    with pytest.raises(BackendMissingError) as caught:
        adapter_folder(path)
    text = str(caught.value)
    assert f"{tmp_path / name} is there, but it is no package called torch" in text
    # The document that is named tells it.
    (document,) = re.findall(r"\S+/README\.md", text)
    assert "--lay-out" in (Path(__file__).parents[3] / document).read_text()


class TestPreferNative:
    @pytest.fixture(autouse=True)
    def _restored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "path", [])
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
            monkeypatch.delitem(sys.modules, name)

    def test_import_torch_takes_the_native_one_behind_the_other(self, tmp_path: Path) -> None:
        sys.path[:] = [package(tmp_path / "a", ADAPTER), package(tmp_path / "n", NATIVE)]
        prefer_native()
        spec = importlib.util.find_spec("torch")
        assert spec is not None
        assert spec.origin == str(tmp_path / "n" / "torch" / "__init__.py")

    def test_what_belongs_to_torch_is_not_taken_from_beside_the_other(self, tmp_path: Path) -> None:
        sys.path[:] = [package(tmp_path / "a", ADAPTER), package(tmp_path / "n", NATIVE)]
        for folder in ("a", "n"):
            package(tmp_path / folder, {"__init__.py": ""}, "torch_npu")
        package(tmp_path / "a", {"__init__.py": ""}, "something")
        prefer_native()
        spec, other = (importlib.util.find_spec(name) for name in ("torch_npu", "something"))
        assert spec is not None
        assert other is not None
        assert spec.origin == str(tmp_path / "n" / "torch_npu" / "__init__.py")
        assert other.origin == str(tmp_path / "a" / "something" / "__init__.py")

    def test_where_the_native_one_comes_first_nothing_changes(self, tmp_path: Path) -> None:
        sys.path[:] = [package(tmp_path / "n", NATIVE), package(tmp_path / "a", ADAPTER)]
        before = list(sys.meta_path)
        prefer_native()
        assert sys.meta_path == before

    def test_twice_is_once(self, tmp_path: Path) -> None:
        sys.path[:] = [package(tmp_path / "a", ADAPTER), package(tmp_path / "n", NATIVE)]
        before = len(sys.meta_path)
        prefer_native()
        prefer_native()
        assert len(sys.meta_path) == before + 1

    def test_without_a_native_one_it_is_an_error(self, tmp_path: Path) -> None:
        sys.path[:] = [package(tmp_path / "a", ADAPTER)]
        with pytest.raises(BackendMissingError, match="the native torch computes the bench"):
            prefer_native()

    def test_a_process_that_has_the_other_one_is_told_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sys.path[:] = [package(tmp_path / "a", ADAPTER), package(tmp_path / "n", NATIVE)]
        loaded = ModuleType("torch")
        loaded.__file__ = str(tmp_path / "a" / "torch" / "__init__.py")
        monkeypatch.setitem(sys.modules, "torch", loaded)
        with pytest.raises(BackendMissingError, match="this process has loaded"):
            prefer_native()


def test_a_package_that_cannot_be_read_is_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = package(tmp_path, ADAPTER)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(mindtorch_paths.Path, "open", refused)
    assert [each.kind for each in find_torches([entry])] == [TorchKind.UNKNOWN]
