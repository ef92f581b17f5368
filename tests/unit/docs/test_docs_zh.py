"""Each Chinese page, `X.zh-CN.md`, says the same as `X.md` beside it, as far as a test can see it.

Comes in: the pairs of pages that are in the repository. Every section of both has the same code blocks
(their comments may be in the language of the page), the same tables, inline code and figures, and
links to the same places: to the Chinese page where there is one.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from markdown_text import ROOT, Section, anchor_of, markdown_files, sections

from ray_precheck.options import commands as exit_codes
from scripts.options import untranslated

pytestmark = pytest.mark.unit

ENDING = ".zh-CN.md"


def chinese_of(english: Path) -> Path:
    """Return where the Chinese page of an English one stands, whether it is there or not."""
    return english.with_name(english.stem + ENDING)


def english_of(chinese: Path) -> Path:
    """Return where the English page of a Chinese one stands."""
    return chinese.with_name(chinese.name.removesuffix(ENDING) + ".md")


def read(page: Path) -> list[Section]:
    """Return the sections of a page."""
    return sections(page.read_text("utf-8"))


CHINESE = [path for path in markdown_files() if path.name.endswith(ENDING)]
PAGES = {str(path.relative_to(ROOT)): path for path in CHINESE}
README = ROOT / "README.md"
# The sections of each pair: the Chinese page and the number of the section. Where the pages have not
# equally many, `test_both_have_the_same_headings` says so, and there is nothing to hold together.
SECTIONS = [
    (name, number)
    for name, path in PAGES.items()
    if len(read(path)) == len(read(english_of(path)))
    for number in range(len(read(path)))
]
each_page = pytest.mark.parametrize("name", PAGES)
each_section = pytest.mark.parametrize(("name", "number"), SECTIONS)


def both(name: str, number: int) -> tuple[Section, Section]:
    """Return a section of the English page, and that of the Chinese one."""
    return read(english_of(PAGES[name]))[number], read(PAGES[name])[number]


def without_comments(fences: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the lines of code as they are without comments."""
    return [[re.sub(r"(^| +)# .*", "", line) for line in fence] for fence in fences]


def figures(text: str) -> Counter[str]:
    """Return the numbers of a text, and how often each stands there."""
    return Counter(re.findall(r"\d[\d.,]*\d|\d", text))


def code_of(text: str) -> list[str]:
    """Return the inline code of a line."""
    return Section(0, "", [text]).code


def shape(section: Section) -> list[list[list[str]]]:
    """Return the cells of the tables of a section: the code and the figures in each."""
    return [
        [sorted(code_of(cell)) + sorted(figures(cell).elements()) for cell in row]
        for row in section.table()
    ]


def place(link: str, page: Path) -> str:
    """Return where a link of a page leads, as a path from the root and the number of a heading.

    A link to an English page that has a Chinese one leads to the Chinese one: that is where the
    link of the Chinese page has to lead.
    """
    if re.match(r"[a-z]+:", link):
        return link
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    number = ""
    if anchor:
        titles = [anchor_of(section.title) for section in read(target)]
        number = f", heading {titles.index(anchor)}" if anchor in titles else f"#{anchor}"
    chinese = page.name.endswith(ENDING)
    if file and target == (english_of(page) if chinese else chinese_of(page)):
        return "the same page in the other language"
    if not chinese and target.suffix == ".md" and chinese_of(target).exists():
        target = chinese_of(target)
    return f"{target.relative_to(ROOT)}{number}"


def test_the_readme_is_one_of_the_pages() -> None:
    assert "README.zh-CN.md" in PAGES


@each_page
def test_both_have_the_same_headings(name: str) -> None:
    def headings(page: Path) -> list[tuple[int, list[str]]]:
        return [(s.level, code_of(s.title)) for s in read(page)]

    assert headings(PAGES[name]) == headings(english_of(PAGES[name]))


@each_section
def test_a_section_shows_the_same_code_in_both(name: str, number: int) -> None:
    english, chinese = both(name, number)
    assert without_comments(chinese.fences) == without_comments(english.fences)


@each_section
def test_a_section_names_the_same_commands_options_and_files_in_both(
    name: str, number: int
) -> None:
    english, chinese = both(name, number)
    assert Counter(chinese.code) == Counter(english.code)


@each_section
def test_a_section_has_the_same_tables_in_both(name: str, number: int) -> None:
    """The same rows and columns, with the same code and figures in each cell."""
    english, chinese = both(name, number)
    assert shape(chinese) == shape(english)


@each_section
def test_a_section_links_to_the_same_places_and_to_chinese_pages(name: str, number: int) -> None:
    english, chinese = both(name, number)
    expected = [place(link, english_of(PAGES[name])) for link in english.links]
    assert sorted(place(link, PAGES[name]) for link in chinese.links) == sorted(expected)


@each_section
def test_a_section_has_the_same_figures_in_both(name: str, number: int) -> None:
    english, chinese = both(name, number)
    assert figures("\n".join(chinese.lines)) == figures("\n".join(english.lines))


@each_section
def test_a_section_with_prose_is_in_chinese(name: str, number: int) -> None:
    english, chinese = both(name, number)
    lines = [re.sub(r"`.*?`|\(.*?\)|<!--.*?-->", "", line) for line in english.lines]
    prose = re.search(r"[A-Za-z]{3}", "\n".join(lines))
    assert not prose or re.search(r"[\u4e00-\u9fff]", "\n".join(chinese.lines))


def test_every_text_of_the_tables_of_options_has_a_chinese_one() -> None:
    missing = untranslated()
    assert not missing, "\n".join(missing)


@each_page
def test_each_links_to_the_other_in_its_first_lines(name: str) -> None:
    chinese, english = PAGES[name], english_of(PAGES[name])
    for page, other in ((chinese, english), (english, chinese)):
        first = page.read_text("utf-8").splitlines()[:5]
        assert any(f"]({other.name})" in line for line in first), f"{page} does not link {other}"


@pytest.mark.parametrize("page", [README, chinese_of(README)])
def test_the_table_of_exit_codes_has_every_code_once(page: Path) -> None:
    codes = [
        int(row[0])
        for section in read(page)
        for row in section.table()
        if len(row) == 2 and row[0].isdigit()
    ]
    assert codes == sorted(exit_codes._BY_BADNESS)


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len(README.read_text("utf-8").split()) <= 1800
