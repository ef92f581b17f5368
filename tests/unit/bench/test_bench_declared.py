"""Users' own benches: how a file is read, what it declares, and what is wrong with it."""

import sys
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import ray_precheck
from ray_precheck.bench import declared
from ray_precheck.bench.declared import (
    BenchModule,
    Declaration,
    bench_digest,
    load_declarations,
    read_bench_modules,
)
from ray_precheck.errors import UsageError

pytestmark = pytest.mark.unit

HEAD = "import ray_precheck\n"
MUL = '@ray_precheck.reference("NPU.npu_mul")\ndef mul(x, y):\n    return x * y\n'


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Modules are run once in a process: tests want them run anew."""
    before = set(sys.modules)
    declared._declarations.cache_clear()
    yield
    declared._declarations.cache_clear()
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The installed entry points; none, unless a test adds one."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(declared, "installed_points", lambda group: found)
    return found


def load(*texts: str) -> dict[str, Declaration]:
    return load_declarations([BenchModule(f"file{i}.py", text) for i, text in enumerate(texts)])


def sentence(*texts: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(*texts)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_decorated_function_is_found_by_its_api_and_stays_what_it_is() -> None:
    found = load(HEAD + MUL + "twice = mul(2, 3) * 2\n")
    assert set(found) == {"NPU.npu_mul"}
    assert found["NPU.npu_mul"].function(4, 5) == 20
    assert found["NPU.npu_mul"].tested is None
    assert found["NPU.npu_mul"].origin == "file0.py: mul"


def test_functions_of_one_name_and_one_function_of_many_apis_all_count() -> None:
    text = (
        '@ray_precheck.reference("A.b")\ndef _(x):\n    return 1\n'
        '@ray_precheck.reference("A.c")\n@ray_precheck.reference("A.d.e")\ndef _(x):\n    return 2\n'
    )
    found = load(HEAD + text)
    assert {name: made.function(0) for name, made in found.items()} == {
        "A.b": 1,
        "A.c": 2,
        "A.d.e": 2,
    }


def test_tested_is_a_function_of_the_module_or_a_dotted_path() -> None:
    text = (
        "def kernel(x):\n    return x\n"
        '@ray_precheck.reference("A.b", tested=kernel)\ndef b(x):\n    return x\n'
        '@ray_precheck.reference("A.c", tested="math.exp")\ndef c(x):\n    return x\n'
    )
    found = load(HEAD + text)
    assert callable(found["A.b"].tested)
    assert found["A.c"].tested == "math.exp"


def test_a_module_is_run_once_in_a_process_and_can_be_looked_up() -> None:
    text = HEAD + MUL + "import sys\nassert sys.modules[__name__].mul is mul\n"
    assert load(text)["NPU.npu_mul"].function is load(text)["NPU.npu_mul"].function


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(:\n", "--bench-module file0.py, line 1 is no Python: "),
        ("x = 1\n", "--bench-module file0.py declares no bench; expected functions decorated"),
        ("x = 1\n\ny = 1 / 0\n", "file0.py cannot be run: line 3: ZeroDivisionError: division"),
        ("import no_such_package\n", "cannot be run: line 1: ModuleNotFoundError: No module"),
        ("\0", "is no Python"),
    ],
)
def test_a_file_that_declares_nothing_is_one_sentence(text: str, says: str) -> None:
    assert says in sentence(text)


@pytest.mark.parametrize(
    "name",
    [
        "npu_mul",
        "My-Ops.mul",
        "NPU.npu_mul.0",
        "NPU.npu_mul.0.forward",
        "NPU..x",
        "Module.x",
        "",
        "NPU.",
    ],
)
def test_a_name_that_is_no_api_names_file_function_and_what_is_expected(name: str) -> None:
    text = sentence(f"{HEAD}@ray_precheck.reference({name!r})\ndef mul(x):\n    return x\n")
    assert text.startswith(f"file0.py: mul: {name!r} is no name of an API; expected Prefix.api")


@pytest.mark.parametrize("tested", ["3", "'mul'", "'a b.c'"])
def test_tested_that_is_neither_is_refused(tested: str) -> None:
    text = f'{HEAD}@ray_precheck.reference("A.b", tested={tested})\ndef mul(x):\n    return x\n'
    assert "file0.py: mul: tested=" in sentence(text)


def test_two_benches_of_one_api_name_both() -> None:
    other = MUL.replace("def mul", "def product")
    assert sentence(HEAD + MUL, HEAD + other) == (
        "NPU.npu_mul has two benches, file0.py: mul and file1.py: product; keep one"
    )
    assert "file0.py: mul and file0.py: product" in sentence(HEAD + MUL + other)


def test_a_missing_file_a_folder_and_binary_files_say_what_is_expected(tmp_path: Path) -> None:
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, says in [
        (tmp_path / "none.py", "No such file"),
        (tmp_path, "Is a directory"),
        (binary, "no text in UTF-8"),
    ]:
        with pytest.raises(UsageError) as caught:
            read_bench_modules([path])
        assert f"--bench-module {path} cannot be read: " in str(caught.value)
        assert says in str(caught.value)
        assert "expected a Python file with functions decorated" in str(caught.value)


def test_the_digest_tells_texts_apart_and_not_where_they_lie(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "bench.py").write_text(HEAD + MUL)
    (tmp_path / "b" / "other.py").write_text(HEAD + MUL + "\n")
    here, there, other = (
        bench_digest(read_bench_modules([tmp_path / name]))
        for name in ("a/bench.py", "b/bench.py", "b/other.py")
    )
    assert here == there
    assert (
        len({here, other, bench_digest([]), bench_digest([BenchModule("p", version="p 1")])}) == 4
    )
    assert bench_digest([]) == "none"
    versions = [bench_digest([BenchModule("p", version=f"p {number}")]) for number in (1, 2)]
    assert versions[0] != versions[1]


def package(name: str, text: str) -> EntryPoint:
    """Have a module importable, and return an entry point that names it."""
    module = types.ModuleType(name)
    module.__file__ = f"{name}.py"
    exec(compile(text, f"{name}.py", "exec"), vars(module))
    sys.modules[name] = module
    return EntryPoint(name="mine", value=name, group=declared.GROUP)


def test_installed_packages_declare_by_an_entry_point_and_files_come_before_them(
    packages: list[EntryPoint], tmp_path: Path
) -> None:
    more = '@ray_precheck.reference("NPU.npu_more")\ndef more(x):\n    return x\n'
    packages.append(package("my_benches", HEAD + MUL + more))
    file = tmp_path / "file.py"
    file.write_text(HEAD + MUL.replace("x * y", "x * y + 1"))
    modules = read_bench_modules([file])
    assert [module.is_file for module in modules] == [False, True]
    found = load_declarations(modules)
    assert found["NPU.npu_mul"].function(2, 3) == 7
    assert found["NPU.npu_more"].origin == "my_benches.py: more"


def test_a_package_that_is_not_installed_on_a_node_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        load_declarations([BenchModule("no_such_package.benches", version="no-such 1.0")])
    assert "the package no-such 1.0 (no_such_package.benches" in str(caught.value)
    assert "it must be installed on every node" in str(caught.value)


def test_the_group_is_the_one_that_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(declared, "installed_points", lambda group: asked.append(group) or [])
    assert read_bench_modules([]) == ()
    assert asked == ["ray_precheck.benches"]


def test_the_decorator_is_part_of_the_packages_face() -> None:
    assert ray_precheck.reference is declared.reference
    assert "reference" in ray_precheck.__all__
