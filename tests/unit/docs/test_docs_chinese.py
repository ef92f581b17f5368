"""README.md and README.zh-CN.md say the same, as far as a test can see it."""

import re
from collections import Counter
from collections.abc import Sequence

import pytest
from markdown_text import ROOT, Section, anchor_of, sections

from ray_precheck.options import commands as exit_codes

pytestmark = pytest.mark.unit

ENGLISH, CHINESE = "README.md", "README.zh-CN.md"


def read(name: str) -> list[Section]:
    """Return the sections of a file."""
    return sections((ROOT / name).read_text("utf-8"))


def without_comments(fences: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the lines of code as they are without comments."""
    return [[re.sub(r" +# .*", "", line) for line in fence] for fence in fences]


def places(links: Sequence[str], name: str) -> list[str]:
    """Return the targets of links; a heading of the same file, which has a title in its language, by its
    number."""
    titles = [anchor_of(section.title) for section in read(name)]
    return [f"#{titles.index(link[1:])}" if link[0] == "#" else link for link in links]


def test_both_have_the_same_sections() -> None:
    assert [s.level for s in read(ENGLISH)] == [s.level for s in read(CHINESE)]
    assert len(read(ENGLISH)) > 8


@pytest.mark.parametrize("number", range(len(read(ENGLISH))))
def test_a_section_shows_the_same_code_in_both(number: int) -> None:
    english, chinese = read(ENGLISH)[number], read(CHINESE)[number]
    assert without_comments(chinese.fences) == without_comments(english.fences)


@pytest.mark.parametrize("number", range(len(read(ENGLISH))))
def test_a_section_names_the_same_commands_options_and_files_in_both(number: int) -> None:
    english, chinese = read(ENGLISH)[number], read(CHINESE)[number]
    assert Counter(chinese.code) == Counter(english.code)


@pytest.mark.parametrize("number", range(len(read(ENGLISH))))
def test_a_section_links_to_the_same_places_in_both(number: int) -> None:
    english, chinese = read(ENGLISH)[number], read(CHINESE)[number]
    swapped = [ENGLISH if target == CHINESE else target for target in english.links]
    assert sorted(places(chinese.links, CHINESE)) == sorted(places(swapped, ENGLISH))


@pytest.mark.parametrize("number", range(len(read(ENGLISH))))
def test_a_section_has_the_same_figures_in_both(number: int) -> None:
    def figures(section: Section) -> Counter[str]:
        return Counter(re.findall(r"\d[\d.,]*\d|\d", "\n".join(section.lines)))

    assert figures(read(CHINESE)[number]) == figures(read(ENGLISH)[number])


@pytest.mark.parametrize("name", [ENGLISH, CHINESE])
def test_the_table_of_exit_codes_has_every_code_once(name: str) -> None:
    codes = [
        int(row[0])
        for section in read(name)
        for row in section.table()
        if len(row) == 2 and row[0].isdigit()
    ]
    assert codes == sorted(exit_codes._BY_BADNESS)


@pytest.mark.parametrize("name", [ENGLISH, CHINESE])
def test_each_links_to_the_other_in_its_first_lines(name: str) -> None:
    other = CHINESE if name == ENGLISH else ENGLISH
    first = (ROOT / name).read_text("utf-8").splitlines()[:5]
    assert any(f"]({other})" in line for line in first)


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((ROOT / ENGLISH).read_text("utf-8").split()) <= 1800
