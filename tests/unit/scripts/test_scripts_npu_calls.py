"""What our sources use of torch_npu, MindSpore and acl is found, looked up and written down."""

import ast
import textwrap
import zipfile
from pathlib import Path

import pytest

from scripts.npu_calls import main as command
from scripts.npu_calls import wheels
from scripts.npu_calls.evaluate import Use
from scripts.npu_calls.everything import Everything, collect_everything
from scripts.npu_calls.facts import Fact
from scripts.npu_calls.lookup import (
    Presence,
    Sighting,
    bench_signature,
    has_fact,
    look_up,
    not_taken,
    read_schemas,
)
from scripts.npu_calls.wheels import FILES, TEXTS, Unpacked, read_unpacked
from scripts.npu_calls.words import page_rows, rows_of

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def everything() -> Everything:
    return collect_everything()


def collected(folder: Path, source: str, **others: str) -> Everything:
    """What a package of these modules uses."""
    package = folder / "ray_precheck"
    package.mkdir()
    for name, text in {"module": source, **others}.items():
        (package / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return collect_everything(package)


def texts(found: Everything) -> set[str]:
    return {use.text for use in found.uses}


def test_a_wheel_whose_unpacking_is_cut_short_is_not_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring(package: str, release: str, place: Path) -> None:
        with zipfile.ZipFile(place / "torch_npu-2.4.0-cp311-linux.whl", "w") as wheel:
            wheel.writestr("torch_npu/__init__.py", "")
            wheel.writestr("torch_npu/lib/libtorch_npu.so", b"npu_format_cast HF32")

    def killed(library: bytes) -> list[str]:
        assert [path for path in folder.iterdir() if path.name.startswith("torch_npu")] == []
        raise KeyboardInterrupt

    folder = tmp_path / "wheels"
    monkeypatch.setattr(wheels, "RELEASES", {"torch_npu": ("2.4.0", "2.4.*")})
    monkeypatch.setattr(wheels, "_pip", bring)
    with monkeypatch.context() as patched:
        patched.setattr(wheels, "_texts_in", killed)
        with pytest.raises(KeyboardInterrupt):
            list(wheels.unpacked("torch_npu", folder))
    assert list(folder.iterdir()) == []
    # The newest release of 2.4 is the first one here.
    for found in wheels.unpacked("torch_npu", folder):
        assert (found.version, found.texts) == ("2.4.0", ("npu_format_cast HF32",))
    assert [path.name for path in folder.iterdir()] == ["torch_npu-2.4.0"]


class TestOurSources:
    def test_every_use_can_be_followed(self, everything: Everything) -> None:
        assert everything.unclear == ()

    def test_the_docs_have_the_uses_of_the_sources_and_no_others(
        self, everything: Everything
    ) -> None:
        rows = page_rows(command.DOCS.read_text(encoding="utf-8"))
        written = {row for row in rows if not row[1].startswith("`ray/")}
        uses = [use for use in everything.uses if use.how != "operator"]
        operators = everything.uses.difference(uses)
        used = {
            cells for things in (uses, operators, everything.facts) for cells, _ in rows_of(things)
        }
        assert used - written == set(), "new uses: python -m scripts.npu_calls --write"
        assert written - used == set(), "uses that went: python -m scripts.npu_calls --write"

    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ("torch_npu.npu.set_device(_)", "frameworks/pytorch/backend.py: _open_device"),
            ("torch_npu.npu.conv.allow_hf32 = _", "frameworks/hf32.py: torch_hf32_off"),
            ("torch_npu.npu.matmul.allow_hf32 = _", "commands/repro/torch.py"),
            ("mindspore.set_context(ascend_config=_)", "frameworks/hf32.py: mindspore_compute_in"),
            ("mindspore.Tensor().asnumpy()", "frameworks/mindspore/run.py: _tensor_to_host"),
            (
                "mindspore.common.api._pynative_executor or mindspore.graph.api._pynative_executor",
                "private_parts.py",
            ),
            (
                "mindspore.common.api._pynative_executor.clear_res()"
                " or mindspore.graph.api._pynative_executor.clear_res()",
                "frameworks/mindspore/run.py: _end_recording",
            ),
        ],
    )
    def test_a_use_is_found_where_it_is(
        self, everything: Everything, text: str, where: str
    ) -> None:
        assert where in {use.where for use in everything.uses if use.text == text}

    def test_every_operator_of_torch_npu_with_a_bench_has_its_signatures(
        self, everything: Everything
    ) -> None:
        benches = [u for u in everything.uses if u.how == "operator" and "fused" in u.where]
        assert len(benches) > 25
        assert all(use.rows for use in benches)


# Ways to write a use, each of which was lost by one version of the collector or might have been.
FOLLOWED = [
    "from torch_npu.npu import planted\nplanted(1)",
    "from torch_npu import npu as n\nn.planted(1)",
    "import torch_npu.npu as n\nn.planted(1)",
    "import torch_npu\nclass A:\n    MOD = torch_npu\n    def f(self):\n        self.MOD.npu.planted()",
    "import torch_npu\nclass A:\n    MOD = torch_npu\nA.MOD.npu.planted()",
    "try:\n    import torch_npu\nexcept ImportError:\n    torch_npu = None\ntorch_npu.npu.planted()",
    "import torch_npu\ndef f(m=torch_npu):\n    m.npu.planted()",
    "import torch_npu\nf = lambda m=torch_npu: m.npu.planted()",
    "import sys\nsys.modules['torch_npu'].npu.planted()",
    "__import__('torch_npu').npu.planted()",
    "import torch_npu\n@torch_npu.npu.planted(1)\ndef f(): pass",
    "import torch_npu\nasync def f():\n    await torch_npu.npu.planted()",
    "import torch_npu\nn, m = torch_npu.npu, 3\nn.planted()",
    "import torch_npu\nsetattr(torch_npu.npu, 'planted', 1)",
    "import torch_npu\ndel torch_npu.npu.planted",
    "import torch_npu\ndef f():\n    n = torch_npu.npu\n    def g():\n        n.planted()",
    "import torch_npu\nclass A:\n    def __init__(self): self.n = torch_npu.npu\n"
    "class B(A):\n    def f(self): self.n.planted()",
    "import torch_npu\nclass B(torch_npu.npu.planted): pass",
    "import torch_npu\ndef g():\n    yield torch_npu.npu\nfor n in g(): n.planted()",
    "import torch_npu\nclass A:\n    @property\n    def n(self):\n        return torch_npu.npu\n"
    "    def f(self):\n        self.n.planted()",
    "import torch_npu\nD = {'a': torch_npu.npu}\nD['a'].planted()",
    "import torch_npu\ndef f(*a, **k):\n    k['n'].planted()\nf(n=torch_npu.npu)",
    "import torch_npu\ndef f(x: 'torch_npu.npu'):\n    torch_npu.npu.planted()",
    "eval('torch_npu.npu.planted()')",
]
NOT_FOLLOWED = [
    "import torch_npu\nfrom functools import partial\npartial(torch_npu.npu.planted, 0)()",
    "from torch_npu.npu import *\nplanted()",
    "import torch_npu\nfrom operator import methodcaller\nmethodcaller('planted')(torch_npu.npu)",
    "import torch_npu\nf = lambda m: m.npu.planted()\nf(torch_npu)",
    "import torch_npu\nL = []\nL.append(torch_npu.npu)\nL[0].planted()",
    "import torch_npu\nD = {}\nD['a'] = torch_npu.npu\nD['a'].planted()",
    "import torch_npu\ndef f(o):\n    o.x = torch_npu.npu\n    o.x.planted()",
    "def f():\n    global n\n    import torch_npu as n\ndef g():\n    n.npu.planted()",
    "def f(tensor):\n    return tensor.npu()",
]


class TestCollector:
    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("torch_npu.npu.empty_cache()", "torch_npu.npu.empty_cache()"),
            ("torch.npu.synchronize(0, stream=None)", "torch_npu.npu.synchronize(_, stream=_)"),
            ("torch_npu.npu.flag = True", "torch_npu.npu.flag = _"),
            ("options = torch_npu.npu; options.deep.call(*x)", "torch_npu.npu.deep.call(*_)"),
            ("getattr(torch_npu, 'npu_new')(1)", "torch_npu.npu_new(_)"),
            ("[getattr(torch_npu, f'npu_{n}') for n in NAMES]", "torch_npu.npu_second"),
            ("helper(torch_npu.npu)", "torch_npu.npu.of_the_helper()"),
            ("imported().npu.through_a_function()", "torch_npu.npu.through_a_function()"),
            ("ms.hal.device_count('Ascend')", "mindspore.hal.device_count(_)"),
            ("yield 'ms.runtime.empty_cache()'", "mindspore.runtime.empty_cache()"),
            ("print('see torch.npu.of_a_message, please')", "torch_npu.npu.of_a_message"),
            ("importlib.import_module('acl').init()", "acl.init()"),
        ],
    )
    def test_a_new_use_is_found(self, tmp_path: Path, line: str, text: str) -> None:
        source = f"""
            import importlib
            import mindspore as ms
            import torch
            import torch_npu
            from ray_precheck.other import helper

            NAMES = ("first", "second")

            def imported():
                import torch_npu as found
                return found

            def use(x):
                {line}
        """
        other = "def helper(npu):\n    npu.of_the_helper()\n"
        found = collected(tmp_path, source, other=other)
        assert text in texts(found)
        assert found.unclear == ()

    @pytest.mark.parametrize("source", FOLLOWED)
    def test_a_use_is_followed_through(self, tmp_path: Path, source: str) -> None:
        found = collected(tmp_path, source)
        assert "torch_npu.npu.planted" in {use.name for use in found.uses}
        assert found.unclear == ()

    def test_a_function_that_calls_itself_on_what_its_argument_holds_has_an_end(
        self, tmp_path: Path
    ) -> None:
        source = (
            "import torch_npu\ndef f(x):\n    for each in x.values():\n        f(each)\n"
            "f(torch_npu.npu.planted)"
        )
        found = collected(tmp_path, source)
        assert "torch_npu.npu.planted.values" in {use.name for use in found.uses}
        assert found.unclear == ()

    def test_a_name_that_grows_for_ever_is_said(self, tmp_path: Path) -> None:
        source = "import torch_npu\ndef f(x):\n    f(x.next)\nf(torch_npu.npu)"
        found = collected(tmp_path, source)
        assert any("may not end" in what for _, what in found.unclear)

    @pytest.mark.parametrize("source", NOT_FOLLOWED)
    def test_a_use_that_cannot_be_followed_is_not_silent(self, tmp_path: Path, source: str) -> None:
        assert collected(tmp_path, source).unclear != ()

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("getattr(torch_npu, name)()", "getattr of torch_npu by a name that varies"),
            ("vars(torch_npu)[name]()", "gives torch_npu to vars"),
            ("attrgetter(name)(torch_npu.npu)", "gives torch_npu.npu to attrgetter"),
            ("elsewhere.run(torch_npu)", "gives torch_npu to elsewhere.run"),
            ("importlib.import_module(name)", "imports a module whose name is not known"),
            ("print(f'torch_npu.{name}()')", "a text has torch_npu._, whose name varies"),
            ("private_parts.find(name)", "finds a private part that is not known"),
            ("print('/dev/ascend/new')", "speaks of an NPU"),
            ("print('torch_npu: npu_gelu npu_gelu')", "operators of torch_npu: these operators"),
        ],
    )
    def test_what_cannot_be_followed_is_said(self, tmp_path: Path, line: str, said: str) -> None:
        source = (
            "import torch_npu\nfrom ray_precheck import private_parts\n\ndef use(name):\n    {}\n"
        )
        parts = "def find(part):\n    return None\n"
        found = collected(tmp_path, source.format(line), private_parts=parts)
        assert any(said in what for _, what in found.unclear)

    def test_a_new_bench_of_an_operator_is_a_use_with_its_signatures(self, tmp_path: Path) -> None:
        (tmp_path / "ray_precheck" / "bench" / "fused").mkdir(parents=True)
        source = 'NAMES = "self dim"\nROWS = {"NPU.npu_new": rows(f, f"{NAMES} eps", "input")}\n'
        (tmp_path / "ray_precheck" / "bench" / "fused" / "table.py").write_text(source)
        (use,) = collect_everything(tmp_path / "ray_precheck").uses
        assert (use.text, use.rows) == ("torch_npu.npu_new", ("input", "self dim eps"))


@pytest.fixture
def release(tmp_path: Path) -> Unpacked:
    """A small torch_npu, laid out as the real ones are."""
    folder = tmp_path / "torch_npu-2.99.0"
    files = {
        "torch_npu/__init__.py": """
            import torch
            import torch_npu.npu
            from torch_npu.version import __version__ as __version__
            for name in dir(torch.ops.npu):
                globals()[name] = getattr(torch.ops.npu, name)
        """,
        "torch_npu/version.py": "__version__ = '2.99.0'",
        "torch_npu/npu/__init__.py": """
            from . import config
            from .utils import *
            if True:
                matmul = config.Options()
            from torch_npu._C import from_c
        """,
        "torch_npu/npu/utils.py": """
            def set_device(device): ...
            def many(first, *, second=None): ...
            def anything(*args, **kwargs): ...
        """,
        "torch_npu/npu/config.py": """
            class Options:
                def __getattr__(self, name):
                    if name == "allow_hf32":
                        return True
                def call(self, value): ...
        """,
        "torch_npu/stubs.pyi": "def stubbed(one: int) -> int: ...",
        FILES: "torch_npu/lib/libtorch_npu.so",
        TEXTS: """
            npu_gelu(Tensor input, *, str approximate='none, or tanh') -> Tensor
            npu_pair(Tensor self, int[2] sizes=[1, 2], Tensor? extra=None) -> (Tensor, Tensor)
            NPU out of memory. Tried to allocate
        """,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).strip() + "\n", encoding="utf-8")
    return read_unpacked(folder)


def a_use(line: str) -> Use:
    """The use that one line of Python makes."""
    node = ast.parse(line).body[0].value  # type: ignore[attr-defined]
    if not isinstance(node, ast.Call):
        return Use(line, line, "here", "read")
    name = ast.unparse(node.func)
    keywords = tuple(str(keyword.arg) for keyword in node.keywords)
    return Use(line, name, "here", "call", len(node.args), keywords)


class TestLookUp:
    @pytest.mark.parametrize(
        ("line", "found"),
        [
            ("torch_npu.__version__", Presence.PRESENT),
            ("torch_npu.npu.set_device(0)", Presence.PRESENT),
            ("torch_npu.npu.set_device(device=0)", Presence.PRESENT),
            ("torch_npu.npu.set_device()", Presence.ARGUMENTS),
            ("torch_npu.npu.set_device(0, 1)", Presence.ARGUMENTS),
            ("torch_npu.npu.set_device(number=0)", Presence.ARGUMENTS),
            ("torch_npu.npu.many(0, second=1)", Presence.PRESENT),
            ("torch_npu.npu.many(0, 1)", Presence.ARGUMENTS),
            ("torch_npu.npu.anything(0, 1)", Presence.ANY),
            ("torch_npu.npu.set_devices(0)", Presence.MISSING),
            ("torch_npu.nothing.set_device(0)", Presence.MISSING),
            ("torch_npu.npu.matmul.allow_hf32", Presence.PRESENT),
            ("torch_npu.npu.matmul.allow_hf33", Presence.MISSING),
            ("torch_npu.npu.matmul.call(0)", Presence.PRESENT),
            ("torch_npu.npu.matmul.call()", Presence.ARGUMENTS),
            ("torch_npu.npu.from_c(0)", Presence.NATIVE),
            ("torch_npu.stubs.stubbed(1)", Presence.PRESENT),
            ("torch_npu.stubs.stubbed()", Presence.ARGUMENTS),
            ("torch_npu.npu.config.Options()(0)", Presence.MISSING),
            ("torch_npu.npu.many().first", Presence.NOT_TOLD),
        ],
    )
    def test_a_name_is_sought_with_its_arguments(
        self, release: Unpacked, line: str, found: Presence
    ) -> None:
        assert look_up(a_use(line), release).found is found

    def test_one_of_several_places_suffices(self, release: Unpacked) -> None:
        name = "torch_npu.gone or torch_npu.npu.matmul"
        assert look_up(Use(name, name, "here", "text"), release).found is Presence.PRESENT

    @pytest.mark.parametrize(
        ("name", "rows", "expected"),
        [
            ("npu_gelu", ("self", "input approximate"), Sighting(Presence.PRESENT, "a library")),
            ("npu_gelu", ("input",), Sighting(Presence.PRESENT, "a library", ("approximate",))),
            ("npu_gelu", ("self approximate",), Sighting(Presence.ARGUMENTS, "a library")),
            ("npu_pair", ("self sizes extra",), Sighting(Presence.PRESENT, "a library")),
            ("npu_pair", ("self extra sizes",), Sighting(Presence.ARGUMENTS, "a library")),
            ("npu_pair", (), Sighting(Presence.PRESENT, "a library")),
            ("npu_gone", ("self",), Sighting(Presence.MISSING)),
        ],
    )
    def test_an_operator_is_sought_among_the_schemas(
        self, release: Unpacked, name: str, rows: tuple[str, ...], expected: Sighting
    ) -> None:
        use = Use(f"torch_npu.{name}", f"torch_npu.{name}", "here", "operator", rows=rows)
        assert look_up(use, release) == expected

    def test_operators_that_are_not_exported_are_missing(
        self, release: Unpacked, tmp_path: Path
    ) -> None:
        (release.wheel.folder / "torch_npu" / "__init__.py").write_text("import torch\n")
        again = read_unpacked(release.wheel.folder)
        use = Use("torch_npu.npu_gelu", "torch_npu.npu_gelu", "here", "operator")
        assert look_up(use, again).found is Presence.MISSING

    @pytest.mark.parametrize(
        ("fact", "is_there"),
        [
            (Fact("out of memory", "", "", "out of memory"), True),
            (Fact("no memory", "", "", "no memory"), False),
            (Fact("lib/*torch_npu*", "", "", "", is_pattern=True), True),
            (Fact("lib/*mindspore*", "", "", "", is_pattern=True), False),
        ],
    )
    def test_a_text_is_sought_in_libraries_and_files(
        self, release: Unpacked, fact: Fact, is_there: bool
    ) -> None:
        assert has_fact(fact, release) is is_there

    def test_a_schema_with_commas_in_its_defaults_is_read_whole(self) -> None:
        (signature,) = read_schemas(["x(Tensor a, int[2] b=[1, 2], *, str c=', ') -> ()"])["x"]
        assert list(signature.parameters) == ["a", "b", "c"]
        assert not_taken(signature, [bench_signature("a b * c")]) == []


def test_a_use_that_a_release_lacks_is_a_complaint(release: Unpacked) -> None:
    uses = [a_use("torch_npu.npu.set_devices(0)"), a_use("torch_npu.npu.set_device()")]
    everything = Everything(frozenset(uses), frozenset(), (("there", "cannot be followed"),))
    sightings = {"torch_npu": {"2.99.0": {use: look_up(use, release) for use in uses}}}
    said = "\n".join(command.complaints(everything, sightings))
    assert "torch_npu.npu.set_devices(0) is missing in torch_npu 2.99.0" in said
    assert "set_device() does not take these arguments in torch_npu 2.99.0" in said
    assert "there: cannot be followed" in said
