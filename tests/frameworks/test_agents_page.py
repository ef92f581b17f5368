"""The worked example of the page for scripts and agents runs, and its JSON is what the commands write."""

import fnmatch
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import ray_precheck
from ray_precheck.cli import main

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
ROOM = Path(ray_precheck.__file__).parent / "running"


def fences(language: str) -> list[str]:
    """Return the blocks of a language in the section with the example."""
    text = (ROOM / "README.md").read_text("utf-8")
    section = text.partition("\n## A worked example\n")[2].partition("\n## ")[0]
    blocks = section.split("```")[1::2]
    return [block.partition("\n")[2] for block in blocks if block.partition("\n")[0] == language]


def unlike(shown: Any, found: Any, place: str = "$") -> list[str]:
    """Return where the JSON of the page differs from what was written; `...` stands for any text."""
    if isinstance(shown, dict) and isinstance(found, dict):
        pairs = ((key, shown[key], found.get(key)) for key in shown)
        return [said for key, a, b in pairs for said in unlike(a, b, f"{place}.{key}")]
    if isinstance(shown, list) and isinstance(found, list):
        lost = [f"{place}: {len(found)} items"] if len(found) < len(shown) else []
        pairs_of = enumerate(zip(shown, found, strict=False))
        return lost + [said for at, (a, b) in pairs_of for said in unlike(a, b, f"{place}[{at}]")]
    if isinstance(shown, str) and isinstance(found, str):
        pattern = "*".join(part.replace("[", "[[]") for part in shown.split("..."))
        return [] if fnmatch.fnmatchcase(found, pattern) else [f"{place}: {found!r}, not {shown!r}"]
    return [] if shown == found else [f"{place}: {found!r}, not {shown!r}"]


def views_in(path: Path) -> Any:
    data = json.loads(path.read_text("utf-8"))
    schema = json.loads((ROOM / "view.schema.json").read_text("utf-8"))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(data)] == []
    return data


def test_the_worked_example_is_what_the_commands_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (capture, precheck), (locate,) = (block.strip().splitlines() for block in fences(""))
    python, *words = shlex.split(capture)
    environment = {
        "PYTHONPATH": str(ROOM.parents[1]),
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    assert python == "python"
    subprocess.run([sys.executable, *words], env=environment, check=True, timeout=300)
    assert main(shlex.split(precheck)[1:]) == 1
    found = views_in(tmp_path / "checked.json")
    (shown,) = fences("json")
    assert unlike(json.loads(shown), found) == []
    assert all(Path(file).exists() for file in found["views"][0]["files"])
    (program,) = fences("python")
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    name, source, command = told.stdout.splitlines()
    assert name.startswith("Torch.softmax.1")
    assert "located_example.py" in source
    assert main([*shlex.split(command)[1:], "-o", "alone"]) == 1
    assert main(shlex.split(locate)[1:]) == 1
    (first, *_) = views_in(tmp_path / "located.json")["views"][0]["cards"]
    assert first["name"] == "Torch.softmax.1.forward"


def test_what_differs_from_the_page_is_found() -> None:
    shown = {"a": [{"name": "x...z"}], "b": 1}
    assert unlike(shown, {"a": [{"name": "xyz", "more": 1}, 2], "b": 1, "c": 2}) == []
    assert unlike(shown, {"a": [], "b": 1}) == ["$.a: 0 items"]
    assert unlike(shown, {"a": [{"name": "yz"}], "b": 2}) == [
        "$.a[0].name: 'yz', not 'x...z'",
        "$.b: 2, not 1",
    ]
