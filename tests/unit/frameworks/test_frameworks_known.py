"""Which frameworks there are, and what is said where a package's descriptor is no good."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_precheck.bench.checkable import skip_by_name
from ray_precheck.descriptors import descriptor
from ray_precheck.descriptors.descriptor import (
    BUILT_IN,
    COMMON_PREFIXES,
    Framework,
    find_framework,
    framework_dtype,
    framework_names,
    known_frameworks,
    package_of,
    read_dtype,
    require_sole,
)
from ray_precheck.dump.decode import decode_value, words_of
from ray_precheck.errors import UsageError
from ray_precheck.replay.config import RunConfig
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import Symbol, TensorSpec

pytestmark = pytest.mark.unit

DATA = Path(__file__).parents[2] / "data"
MINIMAL = {
    "name": "mini",
    "title": "Mini",
    "package": "mini",
    "prefixes": ("Mini",),
    "tensor_types": ("mini.Tensor",),
    "backend": "mini:Backend",
    "bench": "mini:resolve",
}


def forget_points() -> None:
    """Have the disk read again, though the path is the same."""
    descriptor._all_points.cache_clear()
    descriptor._points_of.cache_clear()


class Installed:
    """A folder of installed packages that is on Python's path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def package(self, title: str, name: str, source: str) -> None:
        """Install a package whose entry point `name` is FRAMEWORK of this source."""
        module = f"described_by_{title}"
        info = self._folder / f"{title}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {title}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[{descriptor.GROUP}]\n{name} = {module}:FRAMEWORK\n"
        )
        begin = "from ray_precheck.descriptors.descriptor import Framework\n"
        (self._folder / f"{module}.py").write_text(begin + source)
        # The path has not changed, and was read before the package came.
        forget_points()

    def framework(self, title: str, **fields: object) -> None:
        """Install a package with a framework."""
        described = {**MINIMAL, **fields}
        self.package(title, str(described["name"]), f"FRAMEWORK = Framework(**{described!r})\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Installed(tmp_path)
    for module in set(sys.modules) - before:
        if module.startswith("described_by_"):
            del sys.modules[module]


@pytest.fixture
def toyframe(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> Framework:
    """The toy of the tests, found through its entry point; toyframe itself is not imported."""
    monkeypatch.syspath_prepend(DATA / "toyframe")
    source = "from toyframe_precheck.descriptor import FRAMEWORK\n"
    installed.package("toy", "toyframe", source)
    found = find_framework("toyframe")
    assert "toyframe" not in sys.modules
    return found


class TestBuiltIn:
    def test_they_are_found_without_metadata_of_any_package(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse() -> None:
            raise AssertionError("the disk was read")

        monkeypatch.setattr("importlib.metadata.entry_points", refuse)
        forget_points()
        assert [find_framework(name).name for name in BUILT_IN] == list(BUILT_IN)
        assert RunConfig(Path("dump.json"), framework="pytorch").validate() is None  # type: ignore[func-returns-value]

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_every_dtype_has_a_spelling_that_is_read_again(self, name: str) -> None:
        for dtype in DTYPES:
            assert read_dtype(framework_dtype(dtype, name)) == dtype
        assert set(find_framework(name).dtype_names) == set(DTYPES)

    def test_no_prefix_is_refused_and_supported(self) -> None:
        for each in known_frameworks():
            assert not {*each.prefixes} & {*each.refused_prefixes}


class TestInstalled:
    def test_one_is_found_by_its_name_and_listed_after_the_built_in_ones(
        self, toyframe: Framework
    ) -> None:
        assert framework_names() == (*BUILT_IN, "toyframe")
        assert known_frameworks()[-1] is toyframe
        assert RunConfig(Path("dump.json"), framework="toyframe").validate() is None  # type: ignore[func-returns-value]
        assert require_sole("toyframe") is None  # type: ignore[func-returns-value]

    def test_its_dumps_are_read_with_its_own_words(self, toyframe: Framework) -> None:
        tensor = {"type": "toyframe.Tensor", "dtype": "f4", "shape": [2]}
        spec = decode_value(tensor, "x", words_of("toyframe"))
        assert isinstance(spec, TensorSpec)
        assert spec.dtype == "float32"
        dtype = {"type": "toyframe.dtype", "value": "i8"}
        assert decode_value(dtype, "x", words_of("toyframe")) == Symbol("dtype", "int64")
        assert not isinstance(decode_value(tensor, "x", words_of("pytorch")), TensorSpec)
        assert framework_dtype("float16", "toyframe") == "f2"
        assert [read_dtype("f2"), read_dtype("f2", "toyframe"), read_dtype("f3")] == [
            "float16",
            "float16",
            None,
        ]

    def test_what_it_refuses_is_a_reason_and_its_prefix_is_no_other_framework_s(
        self, toyframe: Framework
    ) -> None:
        assert skip_by_name(ApiName("Toy", "save", 0), "toyframe") == "it writes files"
        assert skip_by_name(ApiName("Toy", "add", 0), "toyframe") == ""
        assert "supported: Toy" in skip_by_name(ApiName("Torch", "add", 0), "toyframe")

    def test_an_unknown_one_is_told_with_those_that_there_are(self, toyframe: Framework) -> None:
        with pytest.raises(UsageError, match=r"'jax' is no .*mindspore, pytorch, mindtorch, toyf"):
            find_framework("jax")
        assert package_of("jax") == "jax"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise OSError('no driver')\n", r"OSError: no driver; mend or uninstall"),
        ("FRAMEWORK = 3\n", r"is a int; expected a ray_precheck\.descriptors\.descriptor"),
        ("", r"AttributeError: .* has no attribute 'FRAMEWORK'"),
        ("FRAMEWORK = Framework(name='mini')\n", r"missing 6 required .*'backend'"),
        (f"FRAMEWORK = Framework(**{MINIMAL | {'name': 'other'}})\n", r"calls itself other"),
        (f"FRAMEWORK = Framework(**{MINIMAL | {'prefixes': 'Mini'}})\n", r"prefixes .* is 'Mini'"),
        (f"FRAMEWORK = Framework(**{MINIMAL | {'bench': 'mini'}})\n", r'"module:attribute"'),
    ],
)
def test_a_broken_descriptor_is_told_to_its_users_alone(
    installed: Installed, source: str, says: str
) -> None:
    installed.package("broken", "mini", source)
    with pytest.raises(UsageError, match=rf"framework mini of the package broken 1\.0 .*{says}"):
        find_framework("mini")
    assert [each.name for each in known_frameworks()] == list(BUILT_IN)
    assert require_sole("pytorch") is None  # type: ignore[func-returns-value]
    assert package_of("mini") == "mini"


class TestClashes:
    def test_two_packages_with_one_name_are_named(self, installed: Installed) -> None:
        installed.framework("one")
        installed.framework("two")
        with pytest.raises(UsageError, match=r"framework mini .*(one|two) 1\.0 and (one|two) 1\.0"):
            require_sole("mini")
        assert require_sole("pytorch") is None  # type: ignore[func-returns-value]

    def test_a_package_with_the_name_of_a_built_in_one_is_named(self, installed: Installed) -> None:
        installed.framework("greedy", name="pytorch")
        with pytest.raises(UsageError, match=r"pytorch is .*ray_precheck and greedy 1\.0"):
            require_sole("pytorch")
        assert require_sole("mindspore") is None  # type: ignore[func-returns-value]

    @pytest.mark.parametrize("asked", ["mini", "pytorch"])
    def test_two_packages_with_one_prefix_are_named(self, installed: Installed, asked: str) -> None:
        installed.framework("greedy", prefixes=("Mini", "Torch"))
        with pytest.raises(UsageError, match=r"prefix Torch .*packages, .*(greedy 1\.0)"):
            require_sole(asked)
        assert require_sole("mindspore") is None  # type: ignore[func-returns-value]

    def test_prefixes_that_msprobe_gives_to_all_may_be_shared(self, installed: Installed) -> None:
        installed.framework("modest", prefixes=("Mini", *sorted(COMMON_PREFIXES)))
        assert require_sole("mini") is None  # type: ignore[func-returns-value]
        assert require_sole("pytorch") is None  # type: ignore[func-returns-value]


def test_every_field_is_explained_in_the_page() -> None:
    page = (Path(descriptor.__file__).parents[1] / "frameworks" / "README.md").read_text()
    missing = [each.name for each in dataclasses.fields(Framework) if f"`{each.name}`" not in page]
    assert missing == []


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        ("Descriptors cannot be created directly.\nIf this call", UsageError, "protobuf 3"),
        ("an int is not callable", TypeError, "an int is not callable"),
    ],
    ids=["an old framework after a new protobuf", "any other TypeError"],
)
def test_a_framework_that_a_newer_protobuf_refuses_says_what_to_do(
    raised: str, kind: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_for_protobuf_3.py").write_text(f"raise TypeError({raised!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kind, match=said):
        descriptor.load_part("made_for_protobuf_3:anything")
