"""What a word answers, and how it is put on a screen.

Comes in: a `WordAnswer` of a word. Goes out: text, of tables that fit the width of a terminal, or JSON.
Called by the command line and the shell. Names of a capture are untrusted: what a terminal obeys is written
as escapes before anything else is done with it.
"""

import io
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from ray_precheck.foreign import printable

# A column is not made narrower than this.
_LEAST_WIDTH = 6
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under headings, with a line above them; `numbers` are the columns that stand right."""

    headings: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    title: str = ""
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class WordAnswer:
    """What a word found: `data` for programs, `parts` for people, lines and tables in their order."""

    data: Any
    parts: tuple[str | Table, ...] = field(default=())


def as_json(answer: WordAnswer) -> str:
    """Return the data as JSON; NaN and infinities, which JSON does not have, as their names."""
    return json.dumps(_plain(answer.data), ensure_ascii=True, indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)


def as_text(answer: WordAnswer, width: int, *, colours: bool = False) -> str:
    """Return the answer for a screen of so many columns; with `colours` as rich draws it, if it is there."""
    if colours and find_spec("rich") is not None:
        return _drawn(answer, width)
    return "\n".join(line for part in answer.parts for line in _lines(part, width))


def _lines(part: str | Table, width: int) -> Iterator[str]:
    if isinstance(part, str):
        # A line is broken by the terminal, so that a name can be copied as one word.
        yield from (printable(line) for line in part.split("\n"))
        return
    rows = [tuple(map(_cell, row)) for row in (part.headings, *part.rows)]
    widths = _fitting([max(map(len, column)) for column in zip(*rows, strict=True)], width)
    if part.title:
        yield printable(part.title)
    for place, row in enumerate(rows):
        for line in _folded(row, widths):
            cells = (
                cell.rjust(size) if at in part.numbers else cell.ljust(size)
                for at, (cell, size) in enumerate(zip(line, widths, strict=True))
            )
            yield _GAP.join(cells).rstrip()
        if not place:
            yield _GAP.join("-" * size for size in widths)


def _cell(text: str) -> str:
    return printable(text.replace("\n", " "))


def _fitting(widths: list[int], width: int) -> list[int]:
    """Return widths of columns that fit a width, the widest of them cut."""
    widths = list(widths)
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _LEAST_WIDTH:
            break
        over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        others = max((each for at, each in enumerate(widths) if at != widest), default=0)
        widths[widest] = max(_LEAST_WIDTH, widths[widest] - over, min(others, widths[widest] - 1))
    return widths


def _folded(row: Sequence[str], widths: Sequence[int]) -> Iterator[list[str]]:
    """Yield the lines of a row whose cells are broken at the widths of their columns."""
    cells = [
        textwrap.wrap(cell, size, break_on_hyphens=False) or [""]
        for cell, size in zip(row, widths, strict=True)
    ]
    for at in range(max(map(len, cells))):
        yield [cell[at] if at < len(cell) else "" for cell in cells]


def _drawn(answer: WordAnswer, width: int) -> str:
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    screen = io.StringIO()
    console = Console(
        file=screen, width=width, force_terminal=True, highlight=False, markup=False, emoji=False
    )
    for part in answer.parts:
        if isinstance(part, str):
            for line in part.split("\n"):
                # rich would break lines at words, so that a name could not be copied.
                console.print(Text(printable(line)), soft_wrap=True)
            continue
        table = Drawn(title=printable(part.title) or None, title_justify="left")
        for at, heading in enumerate(part.headings):
            right = "right" if at in part.numbers else "left"
            table.add_column(_cell(heading), justify=right, overflow="fold")  # type: ignore[arg-type]
        for row in part.rows:
            table.add_row(*(Text(_cell(cell)) for cell in row))
        console.print(table)
    return screen.getvalue().rstrip("\n")
