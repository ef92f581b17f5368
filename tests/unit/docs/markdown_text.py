"""Reads the Markdown of this repository: links, headings, code.

Comes in: the text of a file. Goes out: what stands in it, as lists and sets. Read by the tests beside it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[3]
_FENCE = re.compile(r"^(`{3,})(\w*)\s*$")
_HEADING = re.compile(r"^(#{1,6}) +(.*?)\s*$")
_INLINE_CODE = re.compile(r"(`+)(.+?)\1")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)


@dataclass
class Section:
    """What stands below one heading, up to the next.

    `fences` has the lines of each fenced block, `code` the inline code in the order of the text.
    """

    level: int
    title: str
    lines: list[str] = field(default_factory=list)
    fences: list[list[str]] = field(default_factory=list)

    @property
    def code(self) -> list[str]:
        """The inline code of the section."""
        return [found[1] for line in self.lines for found in _INLINE_CODE.findall(line)]

    @property
    def links(self) -> list[str]:
        """The targets of its links."""
        prose = _INLINE_CODE.sub("", "\n".join(self.lines))
        return [*_LINK.findall(prose), *_REFERENCE.findall(prose)]

    def table(self) -> list[list[str]]:
        """The cells of its table rows, without the line under the head."""
        rows = [line.strip().strip("|").split(" | ") for line in self.lines if line.startswith("|")]
        return [[cell.strip() for cell in row] for row in rows if not row[0].startswith("--")]


def markdown_files() -> list[Path]:
    """Return the Markdown files of the repository, without those of environments and results."""
    files = [*ROOT.glob("*.md")]
    for folder in ("cluster", "ray_precheck", "scripts", "tests"):
        found = sorted((ROOT / folder).rglob("*.md"))
        files += [path for path in found if "node_modules" not in path.parts]
    return files


def sections(text: str) -> list[Section]:
    """Return the sections of a text; what stands above the first heading has level 0."""
    found = [Section(0, "")]
    fence = ""
    for line in text.splitlines():
        edge = _FENCE.match(line)
        if fence:
            if edge and edge[1] == fence and not edge[2]:
                fence = ""
            else:
                found[-1].fences[-1].append(line)
        elif edge:
            fence = edge[1]
            found[-1].fences.append([])
        elif heading := _HEADING.match(line):
            found.append(Section(len(heading[1]), heading[2]))
        else:
            found[-1].lines.append(line)
    return found


def anchors(text: str) -> set[str]:
    """Return the anchors that a Markdown viewer gives to the headings of a text."""
    return {anchor_of(section.title) for section in sections(text) if section.level}


def anchor_of(title: str) -> str:
    """Return the anchor that a Markdown viewer gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def code_texts(text: str) -> Iterator[str]:
    """Yield each inline code and each line of a fenced block."""
    for section in sections(text):
        yield from section.code
        for fence in section.fences:
            yield from fence
