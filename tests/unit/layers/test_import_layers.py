"""Imports run downwards, frameworks stay where they belong, and nothing runs in a circle."""

from pathlib import Path

import pytest
from layer_checker import (
    Import,
    Table,
    broken_rules,
    import_cycles,
    imports_of,
    imports_of_room,
    is_in,
    read_package,
)

import ray_precheck

pytestmark = pytest.mark.unit

RAY = ["runtime.ray_actors", "runtime.places.cluster", "runtime.places.lean_head"]
TABLE = Table(
    package="ray_precheck",
    layers=(
        ("schema", "errors", "prctl", "foreign", "interpreter", "private_parts"),
        ("numerics",),
        # What is known of frameworks, as data: every module that reads a dump asks it.
        ("frameworks.*descriptor", "frameworks.known", "frameworks.dtypes"),
        ("operators",),
        ("options", "config", "dump", "frameworks", "compare"),
        ("plan", "datagen", "bench", "store"),
        ("check", "report", "trace"),
        # A capture with --overflow judges its records as trace.overflow does.
        ("capture",),
        ("runtime",),
        ("running",),
        ("jobs",),
        (
            "session",
            "comparing",
            "locating",
            "overflowing",
            "replaying",
            "switching",
            "listing",
            "explaining",
        ),
        ("ranks", "diagnosing", "hooks"),
        ("cli", "guardian", "__main__", ""),
    ),
    reserved={
        # Everything else that runs on a cluster is given an `Actors`.
        "ray": RAY,
        # In the process of MSAdapter `torch` is MSAdapter's.
        "mindspore": ["frameworks.mindspore.*", "frameworks.mindtorch.*", "capture.mindspore.*"],
        "torch": [
            "frameworks.pytorch.*",
            "frameworks.mindtorch.*",
            "frameworks.mindspore.bench.*",
            "bench",
            "bench.*",
            "dump.tensors",
            "dump.mapped",
            "capture.pytorch.*",
        ],
        "torch_npu": ["frameworks.pytorch.*", "bench", "bench.*", "dump.tensors"],
    },
)
SOURCES = read_package(Path(ray_precheck.__file__).parent)


def test_the_whole_package_is_read() -> None:
    assert {"ray_precheck", "ray_precheck.cli", "ray_precheck.runtime.driver"} <= set(SOURCES)
    found = {
        item.target.split(".")[0]
        for module, source in SOURCES.items()
        for item in imports_of(module, source, list(SOURCES))
    }
    assert {"ray", "torch", "mindspore", "ray_precheck"} <= found


def test_the_map_shows_these_layers() -> None:
    text = (Path(ray_precheck.__file__).parent / "README.md").read_text("utf-8")
    picture = text.split("```")[1].strip().splitlines()
    shown = [set(line.split("   ")[0].split()) for line in reversed(picture)]
    assert shown == [set(names) - {"", "__main__"} for names in TABLE.layers]


def test_the_package_keeps_to_its_layers() -> None:
    assert broken_rules(SOURCES, TABLE) == []


def test_the_package_has_no_import_cycles() -> None:
    assert import_cycles(SOURCES) == []


def test_the_scripts_have_no_import_cycles() -> None:
    sources = read_package(Path(ray_precheck.__file__).parents[1] / "scripts")
    assert {"scripts", "scripts.histories.search"} <= set(sources)
    assert import_cycles(sources) == []


# The rooms that know what an API is.
APIS = ("check", "compare", "datagen", "bench", "plan", "dump", "frameworks", "jobs")


def test_the_runtime_knows_jobs_and_no_apis() -> None:
    found = imports_of_room(SOURCES, "runtime")
    assert ("runtime.driver", "runtime.crew") in found
    # Kinds of devices and their packages are data, and stand in the descriptors of the frameworks.
    others = [
        pair for pair in found if pair[1] not in ("frameworks.known", "frameworks.descriptor")
    ]
    assert [pair for pair in others if is_in(pair[1], APIS)] == []


def test_the_scheduler_knows_nothing_but_the_nouns() -> None:
    found = imports_of_room(SOURCES, "runtime.scheduling")
    assert ("runtime.scheduling.scheduler", "schema.task") in found
    nouns = ("schema", "errors", "runtime.scheduling")
    assert [pair for pair in found if not is_in(pair[1], nouns)] == []


def test_ray_stands_behind_the_protocol_of_the_actors() -> None:
    assert {
        module.removeprefix("ray_precheck.")
        for module, source in SOURCES.items()
        for item in imports_of(module, source, list(SOURCES))
        if item.target.split(".")[0] == "ray"
    } == set(RAY)


def test_the_imports_of_a_room_are_found_wherever_they_stand() -> None:
    sources = {
        "pkg": "from pkg.low import x",
        "pkg.low": "",
        "pkg.lower": "import pkg.low",
        "pkg.mid": "from .. import low",
        "pkg.mid.a": "def f():\n    from ..low import x\nfrom pkg.mid import b",
        "pkg.mid.b": "import os\nif TYPE_CHECKING:\n    import pkg.top",
        "pkg.middle": "import pkg.top",
        "pkg.top": "",
    }
    assert imports_of_room(sources, "mid") == [
        ("mid", "low"),
        ("mid.a", "low"),
        ("mid.a", "mid.b"),
        ("mid.b", "top"),
    ]
    assert [is_in(name, ["low"]) for name in ("low", "low.a", "lower")] == [True, True, False]


def test_prctl_is_called_in_one_place() -> None:
    calling = {module for module, source in SOURCES.items() if ".prctl(" in source}
    assert calling == {"ray_precheck.prctl"}


SMALL = Table("pkg", layers=(("low",), ("mid",), ("top", "")), reserved={"torch": ["mid.torch_*"]})


def broken(**sources: str) -> list[str]:
    """What breaks the small table; `mid__a` is the module pkg.mid.a, `init` is pkg itself."""
    named = {
        "pkg" if name == "init" else f"pkg.{name.replace('__', '.')}": text
        for name, text in sources.items()
    }
    return broken_rules({"pkg": "", "pkg.low": "", "pkg.mid": "", "pkg.top": ""} | named, SMALL)


class TestLayers:
    @pytest.mark.parametrize(
        "source",
        [
            "import pkg.top",
            "import pkg.top as t",
            "import os, pkg.top",
            "from pkg.top import name",
            "from pkg import top",
            "from . import top",
            "from .top import name",
            "def f():\n    from pkg.top import name",
            "class A:\n    async def f(self):\n        import pkg.top",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.top import name",
            "try:\n    import pkg.top\nexcept ImportError:\n    pass",
            "import importlib\nm = importlib.import_module('pkg.top')",
        ],
    )
    def test_an_import_of_a_higher_layer_is_found_wherever_it_stands(self, source: str) -> None:
        (sentence,) = broken(low=source)
        assert sentence == f"pkg.low:{source.count(chr(10), 0, source.rindex('top')) + 1} " + (
            "imports pkg.top of a higher layer"
        )

    def test_the_package_itself_is_of_its_highest_layer(self) -> None:
        assert broken(mid="from pkg import version") == ["pkg.mid:1 imports pkg of a higher layer"]
        assert broken(init="from pkg.low import name") == []

    def test_relative_imports_count_from_their_package(self) -> None:
        assert broken(low__a="from ..mid import b") == [
            "pkg.low.a:1 imports pkg.mid of a higher layer"
        ]
        assert broken(low="from .a import x", low__a="from .b import y", low__b="") == []

    @pytest.mark.parametrize(
        "source", ["import pkg.low", "from pkg.mid import x", "from pkg import low", "import os"]
    )
    def test_the_same_and_lower_layers_are_free(self, source: str) -> None:
        assert broken(mid__a=source) == []

    def test_a_module_may_have_a_lower_layer_than_its_package(self) -> None:
        table = Table("pkg", layers=(("top.data",), ("mid",), ("top",)), reserved={})
        sources = {"pkg.mid": "import pkg.top.data", "pkg.top.data": "", "pkg.top.b": ""}
        assert broken_rules(sources, table) == []
        sources |= {"pkg.mid": "import pkg.top.b", "pkg.top.data": "import pkg.mid"}
        assert broken_rules(sources, table) == [
            "pkg.mid:1 imports pkg.top.b of a higher layer",
            "pkg.top.data:1 imports pkg.mid of a higher layer",
        ]

    def test_a_module_that_the_table_lacks_is_found(self) -> None:
        assert broken(extra="") == ["pkg.extra is in no layer"]

    def test_words_in_strings_and_comments_are_no_imports(self) -> None:
        assert broken(low='"""import pkg.top"""\n# import torch\nx = "import torch"') == []


class TestReserved:
    @pytest.mark.parametrize(
        "source", ["import torch", "import torch.nn as nn", "from torch import nn"]
    )
    def test_a_framework_is_found_where_it_does_not_belong(self, source: str) -> None:
        assert broken(mid__a=source) == ["pkg.mid.a:1 may not import torch"]
        assert broken(mid__a=f"def f():\n    {source}") == ["pkg.mid.a:2 may not import torch"]

    def test_a_framework_is_free_where_it_belongs(self) -> None:
        assert broken(mid__torch_backend="import torch") == []

    def test_another_package_with_a_like_name_is_free(self) -> None:
        assert broken(low="import torchlike") == []


class TestCycles:
    def test_a_cycle_of_two_is_found(self) -> None:
        sources = {"p": "", "p.a": "from p.b import x", "p.b": "import p.a"}
        assert import_cycles(sources) == [["p.a", "p.b"]]

    def test_a_longer_cycle_is_found_from_any_start(self) -> None:
        sources = {
            "p": "",
            "p.a": "from p import b",
            "p.b": "from p.c import x",
            "p.c": "from p.d import x",
            "p.d": "from p.b import x",
        }
        assert import_cycles(sources) == [["p.b", "p.c", "p.d"]]

    def test_a_module_that_imports_itself_is_found(self) -> None:
        assert import_cycles({"p": "", "p.a": "import p.a"}) == [["p.a"]]

    @pytest.mark.parametrize(
        "late",
        [
            "def f():\n    import p.a",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a",
        ],
    )
    def test_imports_that_run_later_or_never_close_a_cycle_too(self, late: str) -> None:
        sources = {"p": "", "p.a": "from p.b import x", "p.b": late}
        assert import_cycles(sources) == [["p.a", "p.b"]]

    def test_two_ways_to_one_module_are_no_cycle(self) -> None:
        sources = {"p": "", "p.a": "import p.b, p.c", "p.b": "import p.c", "p.c": ""}
        assert import_cycles(sources) == []


def test_imports_tell_their_line_and_whether_they_run_at_once() -> None:
    source = "import os\nif True:\n    import re\ndef f():\n    import csv\n"
    assert list(imports_of("p.a", source, ["p.a"])) == [
        Import("os", 1, True),
        Import("re", 3, True),
        Import("csv", 5, False),
    ]


def test_a_package_is_read_by_its_dotted_names(tmp_path: Path) -> None:
    folder = tmp_path / "pkg" / "sub"
    folder.mkdir(parents=True)
    for path in (folder.parent / "__init__.py", folder / "__init__.py", folder / "a.py"):
        path.write_text(f"# {path.name}")
    assert read_package(tmp_path / "pkg") == {
        "pkg": "# __init__.py",
        "pkg.sub": "# __init__.py",
        "pkg.sub.a": "# a.py",
    }
