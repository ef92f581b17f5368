"""The contracts of import-linter (`pyproject.toml`) hold, find what breaks them, and are those of the map."""

import re
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
import tomllib

import ray_precheck

pytestmark = pytest.mark.unit

HOUSE = Path(ray_precheck.__file__).parents[1]
CONTRACTS = tomllib.loads((HOUSE / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
    "contracts"
]


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter over the packages of a folder."""
    asked = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    return subprocess.run(asked, cwd=folder, capture_output=True, text=True, env={"COLUMNS": "200"})


def test_the_package_and_the_scripts_keep_to_their_contracts() -> None:
    done = checked(HOUSE)
    assert done.returncode == 0, done.stdout
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in done.stdout


def test_each_contract_finds_an_import_that_breaks_it(tmp_path: Path) -> None:
    for name in ("ray_precheck", "scripts"):
        shutil.copytree(
            HOUSE / name,
            tmp_path / name,
            ignore=lambda folder, names: [n for n in names if "." in n and not n.endswith(".py")],
        )
    shutil.copy(HOUSE / "pyproject.toml", tmp_path)
    planted = {
        "numerics/arrays.py": "from ray_precheck.store import rows",
        "commands/compare/report.py": "from ray_precheck.commands.diagnose import page",
        "runtime/driver.py": "import ray",
        "check/judge.py": "import mindspore",
        "formats/tensorflow.py": "import tensorflow",
        "store/journal.py": "import onnxruntime",
        "store/tables.py": "import torch",
        "runtime/recorder.py": "from ray_precheck.dump import parse",
        "runtime/scheduling/scheduler.py": "from ray_precheck.options import rules",
        "numerics/sketch.py": "from ray_precheck.numerics import statistics",
        "numerics/statistics.py": "from ray_precheck.numerics import sketch",
    }
    for path, line in planted.items():
        with (tmp_path / "ray_precheck" / path).open("a") as file:
            file.write(f"\n\ndef planted():\n    {line}\n")
    done = checked(tmp_path)
    assert done.returncode == 1
    broken = re.findall(r"(?m)^(.*) BROKEN", done.stdout)
    assert broken == [each["name"] for each in CONTRACTS], done.stdout


@pytest.mark.parametrize("package", ["ray_precheck", "scripts"])
def test_no_modules_run_in_a_circle(package: str) -> None:
    """Also where the contract excuses two rooms that lean on each other, and in imports inside functions."""
    graph = grimp.build_graph(package, cache_dir=None)
    # The package itself is imported before any of its modules.
    imports = {
        module: graph.find_modules_directly_imported_by(module) - {package}
        for module in graph.modules - {package}
    }
    TopologicalSorter(imports).prepare()


def test_the_map_shows_these_layers() -> None:
    text = (HOUSE / "ray_precheck" / "README.md").read_text("utf-8")
    picture = text.split("```")[1].strip().splitlines()
    shown = [set(line.split("   ")[0].split()) for line in picture]
    layers = [set(re.findall(r"\w+", layer)) for layer in CONTRACTS[0]["layers"]]
    assert shown == [layer - {"__main__"} for layer in layers]


def test_prctl_is_called_in_one_place_but_by_processes_that_load_nothing_of_the_package() -> None:
    calling = [
        path.name
        for path in Path(HOUSE / "ray_precheck").rglob("*.py")
        if ".prctl(" in path.read_text("utf-8") and path.parent.name != "inside"
    ]
    assert calling == ["processes.py"]
