"""The map has every room, and its glossary the words of the code."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_text import ROOT, sections

pytestmark = pytest.mark.unit

PACKAGE = ROOT / "ray_precheck"
MAP = PACKAGE / "README.md"
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def glossary() -> dict[str, Path]:
    """Return the words of the glossary, and the room of each."""
    (section,) = (s for s in sections(MAP.read_text("utf-8")) if s.title == "Glossary")
    rows = section.table()[1:]
    counted = Counter(row[0] for row in rows)
    assert [word for word, count in counted.items() if count > 1] == []
    return {row[0]: PACKAGE / row[2].strip("`") for row in rows}


def sources(room: Path) -> Iterator[ast.Module]:
    """Yield the modules of a room."""
    for path in [room] if room.is_file() else sorted(room.rglob("*.py")):
        yield ast.parse(path.read_text("utf-8"))


def identifiers(room: Path) -> set[str]:
    """Return the lower-case parts of all names in a room: `in_flight` gives `in` and `flight`."""
    names: set[str] = set()
    for module in sources(room):
        for node in ast.walk(module):
            for name in ("name", "id", "attr", "arg"):
                value = getattr(node, name, None)
                if isinstance(value, str):
                    names |= {part.lower() for part in _PART.findall(value)}
    return names


def singular(word: str) -> str:
    """Return a word without the ending of a plural."""
    return word.removesuffix("s") if not word.endswith("ss") else word


@pytest.mark.parametrize("word", glossary())
def test_every_word_of_the_glossary_is_used_in_its_room(word: str) -> None:
    used = {singular(name) for name in identifiers(glossary()[word])}
    assert [part for part in word.split() if singular(part) not in used] == []


def test_the_words_stand_in_order_and_are_few() -> None:
    assert list(glossary()) == sorted(glossary())
    assert len(glossary()) <= 25


def test_the_map_fits_two_screens() -> None:
    assert len(MAP.read_text("utf-8").splitlines()) <= 110


def test_every_room_is_on_the_map() -> None:
    rooms = [f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.glob("*/**/__init__.py")]
    modules = [path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")]
    (section,) = (s for s in sections(MAP.read_text("utf-8")) if s.title == "Rooms")
    assert sorted({*rooms, *modules} - set(section.code)) == []
