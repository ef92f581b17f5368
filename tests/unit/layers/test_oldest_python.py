"""The sources run on the oldest Python that `pyproject.toml` admits."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ray_precheck

pytestmark = pytest.mark.unit
ROOT = Path(ray_precheck.__file__).parents[1]
FOLDERS = ("ray_precheck", "scripts", "tests")
OLDEST = "3.10"
# Possessive repeats and atomic groups came with Python 3.11. In a class of characters `*+` is no repeat.
CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]])*\]")
NEWER_PATTERN = re.compile(r"[^\\][*+?}]\+|\(\?>")
RE_FUNCTIONS = (
    "compile",
    "match",
    "fullmatch",
    "search",
    "split",
    "sub",
    "subn",
    "findall",
    "finditer",
)


def newer(*paths: Path) -> str:
    """Return what of these sources needs a newer Python, by vermin; conditional imports are left out."""
    command = [
        sys.executable,
        "-c",
        "import vermin; vermin.main()",
        f"-t={OLDEST}",
        "--violations",
        "--no-tips",
        "-q",
    ]
    backports = ["--exclude", "tomllib"]
    done = subprocess.run(
        [*command, *backports, *map(str, paths)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def patterns(source: str) -> Iterator[str]:
    """Yield the regular expressions that are given to `re`, as far as the source tells them.

    Constants, their sums, f-strings of them, and names of the module's constants are put together; what
    only a run can tell stands as one letter.
    """
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    functions = {f"re.{name}" for name in RE_FUNCTIONS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in functions:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "pattern"]
            for given in [*node.args[:1], *named]:
                yield assembled(given, constants)


def assembled(node: ast.AST, constants: dict[str, ast.expr]) -> str:
    """Return the text of an expression, with a letter for each part that is not known."""
    if isinstance(node, ast.Constant):
        return node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return assembled(node.left, constants) + assembled(node.right, constants)
    if isinstance(node, ast.JoinedStr):
        return "".join(assembled(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue) and node.format_spec is None:
        return assembled(node.value, constants)
    if isinstance(node, ast.Name) and node.id in constants:
        others = {name: value for name, value in constants.items() if name != node.id}
        return assembled(constants[node.id], others)
    # A call or the like: its constants one by one, such as those of a list that is joined.
    return "x".join(
        [
            "",
            *(assembled(part, {}) for part in ast.walk(node) if isinstance(part, ast.Constant)),
            "",
        ]
    )


def is_newer(pattern: str) -> bool:
    """Return whether a pattern needs a newer Python."""
    return NEWER_PATTERN.search(CLASS.sub("x", pattern)) is not None


def test_pyproject_admits_it() -> None:
    assert f'requires-python = ">={OLDEST}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    "folder", [*FOLDERS[:2], pytest.param("tests", marks=pytest.mark.exhaustive)]
)
def test_no_source_uses_newer_syntax_or_a_newer_library(folder: str) -> None:
    assert newer(ROOT / folder) == ""


def test_no_pattern_is_newer() -> None:
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        newer_ones = [one for one in patterns(path.read_text("utf-8")) if is_newer(one)]
        assert newer_ones == [], path


@pytest.mark.parametrize(
    "source",
    [
        "from typing import Never",
        # vermin reads with the parser of the Python that runs it.
        pytest.param(
            "try:\n    x = 1\nexcept* ValueError:\n    x = 2",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11), reason="Python 3.10 cannot parse it"
            ),
        ),
        "import datetime\nprint(datetime.UTC)",
    ],
)
def test_what_is_newer_is_found(source: str, tmp_path: Path) -> None:
    path = tmp_path / "newer.py"
    path.write_text(source)
    assert "3.1" in newer(path)


def test_a_newer_pattern_is_found() -> None:
    (found,) = patterns(r"re.compile(rb'a\++b*+')")
    assert is_newer(found)
    assert is_newer("(?>ab)")
    for assembly in (
        "re.compile('a*' + '+b')",
        "A = 'a*'\nre.search(f'{A}+', text)",
        "A = '[ab]'\nB = A + '*'\nre.search(B + '+', text)",
        "re.findall(text, string='', pattern='a++')",
        "re.split('|'.join(['a', 'b++']), text)",
    ):
        assert any(map(is_newer, patterns(assembly))), assembly
    (plain,) = patterns("A = A + 'a'\nre.search(f'{A}{unknown}+{1:>2}', text)")
    assert not is_newer(plain)
    assert not any(map(is_newer, (r"a\++", "[*+?}]+", r"[^\]*+]")))
